"""The session is the queue: one file writes it, one cache keeps it, and nobody else remembers."""

import ast

import pytest

from tests.structure.house import House

ENDS = ("channels", "cli", "models", "plugins.py", "providers", "settings", "stores", "testing")
"""What the core works between: it may know stores and sessions of its own."""

HOLDERS = {
    "sessions.py Sessions._alive": "the cache, of all that somebody holds",
    "sessions.py Sessions._recent": "the cache, of those that were used last",
    "agents.py AgentHistory._session": "the one that is attached to it",
    "directory.py SessionDirectory._current": "its current one",
    # For as long as something lasts that has an end. The cache gives out the same object meanwhile.
    "loop.py Arrival.session": "until a message is acknowledged",
    "exchange.py Exchange.session": "for a turn",
    "turn.py Turn.session": "for a turn",
    "tools/effects.py Effects._session": "for a turn",
    "tools/results.py Results._session": "for a turn",
    "tools/reading.py AttachmentReader._session": "for a turn",
    "context.py View._session": "for a turn",
    "memory/summarizer.py Summarizer._folded_now": "as long as the task runs that folds it",
    "memory/summarizer.py Summarizer._worked_beside": "as long as that task runs",
    # Weak: what knows something of a session ends with it.
    "agents.py Serial._locks": "weakly",
    "context.py Views._abridged": "weakly",
    "memory/schedule.py Waiting.known": "weakly",
}
"""Every attribute that holds a session, and how long. It is brought up to date in place, never
replaced; a holder for ever would keep one that its cache has let go of, and that nobody renews."""

KEYED = {
    "chat.py Chats": "the worker",
    "nodes.py Nodes": "the nodes",
    "sessions.py Sessions": "the cache",
    # In order for each key, empty when idle: what is in them is not acknowledged, or not sent.
    "loop.py Arrivals": "what is on its way into its session",
    "bus.py InProcessBus": "what is on its way out",
    "lanes.py Lanes": "the order of these",
    "sending.py Notices": "which of them were told that the store is away",
    "writing.py WriteOrder": "the order of commits that go on",
    "fairness.py Shares": "how much each owner has now",
    "fairness.py RoundRobin": "who is next",
}
"""Every class that keeps something by a name that may be a chat's, a session's or an owner's."""
TABLES = {"dict", "set", "BoundedDict", "OrderedDict", "WeakValueDictionary", "Lanes", "Counter"}
LOOP = ("bus", "chat", "exchange", "fairness", "lanes", "loop", "nodes", "sending", "sessions")
LOOP = {f"{name}.py" for name in (*LOOP, "commands", "intake", "turn", "writing")}
"""The files through which a message walks."""


@pytest.fixture(scope="module")
def core():
    """The tree of each file of the core."""
    files = {file.path.removeprefix("nanoloop/"): file.tree for file in House().files}
    return {path: tree for path, tree in files.items() if not path.startswith(ENDS)}


def writes_in(tree):
    """The methods of a store that write a session, as far as they are named there."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in {"save", "add"}
        and ast.unparse(node.value).rpartition(".")[2].strip("_") in {"store", "database"}
    }


def classes_in(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def _is_session(annotation):
    """Whether it is a session, or holds some; what only takes one as an argument does not."""
    if annotation is None:
        return False
    text = ast.unparse(annotation).strip("'\"")
    return "Callable" not in text and "Session" in {
        node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)
    }


def annotated_in(kind):
    """Each attribute of a class with its annotation: fields, and what is set on `self`."""
    fields = [each for each in kind.body if isinstance(each, ast.AnnAssign)]
    yield from ((field.target.id, field.annotation) for field in fields)
    for method in (each for each in kind.body if isinstance(each, ast.FunctionDef)):
        arguments = (*method.args.args, *method.args.kwonlyargs)
        given = {each.arg: each.annotation for each in arguments}
        for node in ast.walk(method):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                yield node.target.attr, node.annotation
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and node.value.id in given:
                        yield target.attr, given[node.value.id]


def holders_in(path, tree):
    for kind in classes_in(tree):
        for name, annotation in annotated_in(kind):
            if _is_session(annotation):
                yield f"{path} {kind.name}.{name}"


def keyed_in(path, tree):
    for kind in classes_in(tree):
        for _, annotation in annotated_in(kind):
            text = "" if annotation is None else ast.unparse(annotation)
            table, _, rest = text.partition("[")
            if table in TABLES and rest.startswith(("str", "tuple", "K", "Place")):
                yield f"{path} {kind.name}"


def test_sessions_are_written_in_one_file(core):
    assert {path for path, tree in core.items() if writes_in(tree)} == {"writing.py"}


def test_whoever_keeps_a_session_is_known(core):
    # `session/` is what a session is made of.
    files = {path: tree for path, tree in core.items() if not path.startswith("session/")}
    assert {name for path, tree in files.items() for name in holders_in(path, tree)} == set(HOLDERS)


def test_nothing_is_remembered_of_a_chat_but_by_the_worker_the_nodes_and_the_cache(core):
    found = {name for path in LOOP for name in keyed_in(path, core[path])}
    assert found == set(KEYED)


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n    def __init__(self, session: Session) -> None:\n        self._kept = session",
        "class A:\n    def __init__(self) -> None:\n        self._kept: dict[str, Session] = {}",
        "class A:\n    _kept: Session | None = None",
    ],
)
def test_a_new_holder_is_found(text):
    assert list(holders_in("a.py", ast.parse(text))) == ["a.py A._kept"]


def test_who_is_only_called_with_a_session_holds_none():
    text = "class A:\n    def __init__(self) -> None:\n        self._act: Callable[[Session], int]"
    assert list(holders_in("a.py", ast.parse(text))) == []


def test_a_new_table_of_chats_is_found():
    text = "class A:\n    def __init__(self) -> None:\n        self._turns: dict[str, int] = {}"
    assert list(keyed_in("a.py", ast.parse(text))) == ["a.py A"]


@pytest.mark.parametrize("text", ["await self.store.save(s)", "f = self._store.add"])
def test_a_new_writer_is_found(text):
    assert writes_in(ast.parse(text))
