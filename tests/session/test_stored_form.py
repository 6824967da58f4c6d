"""What a store keeps of a session, an export and a fork: whatever happens, all of it comes back."""

from datetime import datetime, timezone

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nanoloop.errors import NotPossible
from nanoloop.session.entry import Entry
from nanoloop.session.head import Identity
from nanoloop.session.session import Session

MOMENT = datetime(2026, 1, 1, tzinfo=timezone.utc)
TIME = "2026-01-01T00:00:00Z"
QUOTE = {"seq": 2, "text": "2026-05-01", "kind": "date"}
BESIDE = ("key", "agent", "title", "metadata", "max_history", "created_at", "updated_at")
DIGESTS = ("summary", "covered_seq", "ledger", "summary_spent", "memo", "memo_seq", "pins")
QUEUE = ("waiting", "unsent", "awaiting")
COUNTS = ("turns", "epoch", "last_resize", "entry_count", "last_seq", "state", "messages")


def entry(kind, number, **given):
    return Entry(type=kind, id=f"e{number}", timestamp=MOMENT, **given)


def said(role, text, number, **metadata):
    return entry("message", number, content={"role": role, "text": text}, metadata=metadata)


def lived():
    """A session with something of everything, the same each time."""
    session = Session(
        about=Identity(
            id="mine",
            key="telegram:1",
            agent="helper",
            metadata={"k": [1]},
            max_history=50,
            ttl=60,
            sliding=True,
            created_at=MOMENT,
        ),
        clock=lambda: MOMENT,
    )
    session.add_entry(said("user", "q0", 0, message_id="m0"))
    session.add_entry(said("assistant", "a0", 1))
    session.add_entry(entry("tool_call", 2, content={"tool": "t", "parameters": {}}))
    session.add_entry(said("user", "q1", 3, message_id="m1"))
    session.add_entry(said("assistant", "a1", 4))
    session.undo()
    session.add_entry(said("user", "q2", 5, message_id="m2"))
    session.add_entry(said("assistant", "a2", 6))
    session.trim_if_needed(2, 2)
    session.update_summary("so far", seq=2, ledger=[QUOTE], spent={"calls": 1})
    session.pin(session.window[0])
    session.memo = {"topic": "tea"}
    session.configure(mode="memo", limit={"messages": 4})
    session.set("x", {"y": [1]})
    session.spend({"tokens_in": 5, "tokens_out": 7})
    session.hold(said("user", "later", 7, message_id="m3"))
    session.awaiting = 6
    session.owe(7)
    return session


def restored(changes, **given):
    return Session.restored(
        head=changes.head,
        sections=changes.sections,
        entries=changes.entries,
        clock=lambda: MOMENT,
        **given,
    )


def seen(session, *, full=True):
    """All that can be told of a session by looking at it."""
    names = (*BESIDE, *DIGESTS, *QUEUE, *COUNTS)
    return {
        **{name: getattr(session, name) for name in names},
        "window": [(each.seq, each.id) for each in session.window],
        "pending": session.pending_seq,
        "spent": {kind: count for kind, count in session.spent.items() if count},
        "settings": dict(session.settings),
        "export": session.to_dict() if full else None,
    }


def test_the_head_is_stored_as_it_always_was():
    assert list(lived().changes().head.items()) == [
        ("rev", 1),
        ("updated_at", TIME),
        ("expires_at", "2026-01-01T00:01:00Z"),
        ("epoch", 0),
        ("start", 1),
        ("last", 7),
        ("window", 6),
        ("hidden", [[4, 5]]),
        ("covered", 2),
        ("turns", 2),
        ("count", 5),
        ("awaiting", 6),
        ("spent", [5, 7, 0]),
        ("waiting", 1),
        ("unsent", [7]),
    ]


def test_the_sections_are_stored_as_they_always_were():
    assert lived().changes().sections == {
        "about": {
            "id": "mine",
            "key": "telegram:1",
            "created_at": TIME,
            "agent": "helper",
            "title": "q0",
            "metadata": {"k": [1]},
            "max_history": 50,
            "ttl": 60,
            "sliding": True,
        },
        "state": {"x": {"y": [1]}},
        "summary": {
            "value": "so far",
            "seq": 2,
            "ledger": [QUOTE],
            "spent": {"calls": 1},
            "pins": [{"seq": 6, "text": "q2", "who": "user"}],
        },
        "memo": {"value": {"topic": "tea"}, "seq": 0},
        "settings": {"mode": "memo", "memo": {"enabled": True}, "limit": {"messages": 4}},
        "waiting": [said("user", "later", 7, message_id="m3").to_dict()],
    }


def test_a_window_that_a_handler_made_is_stored_by_number_or_whole():
    session = lived()
    session.current_chat_history = [{"role": "system", "content": "note"}, session.messages[0]]
    note, shown = session.changes().head["shown"]
    assert (note["content"], shown) == ({"role": "system", "text": "note"}, 6)
    assert seen(restored(session.changes())) == seen(session)


async def test_a_resize_is_stored_in_the_head():
    session = lived()
    await session.async_resize(force="lite")
    resized = {"type": "lite", "turn": 2, "reason": "force", "seq": 7}
    assert list(session.changes().head.items())[-1] == ("resized", resized)
    assert restored(session.changes()).last_resize == session.last_resize


def test_what_a_newer_version_stored_beside_does_no_harm():
    changes = lived().changes()
    head = {**changes.head, "commit": "abc"}
    sections = {**changes.sections, "jobs": [1]}
    session = Session.restored(
        head=head, sections=sections, entries=changes.entries, clock=lambda: MOMENT
    )
    assert seen(session) == seen(lived())


def test_a_head_of_the_first_version_is_read():
    head = {"rev": 3, "last": 1, "updated_at": TIME}
    about = {"id": "old", "created_at": TIME}
    entries = [Entry.from_dict(said("user", "q", 0).to_dict(), seq=1)]
    session = Session.restored(head=head, sections={"about": about}, entries=entries)
    assert (session.id, session.revision, session.messages[0]["content"]) == ("old", 3, "q")
    assert (session.spent, session.unsent, session.last_resize, session.ledger) == (
        {},
        (),
        None,
        (),
    )


class Stored:
    """What a store keeps: all entries, the last head, the last of each section."""

    def __init__(self):
        self.entries, self.head, self.sections = {}, {}, {}

    def save(self, session):
        changes = session.changes()
        if changes is not None:
            self.entries.update((each.seq, each) for each in changes.entries)
            self.head = dict(changes.head)
            self.sections.update(changes.sections)
            session.committed(changes)

    def load(self, *, whole=True):
        after = 0 if whole or "shown" in self.head else self.head["window"] - 1
        return Session.restored(
            head=self.head,
            sections=self.sections,
            entries=[each for seq, each in sorted(self.entries.items()) if seq > after],
            after=after,
        )


NUMBERS = st.integers(1, 12)
NAMES = st.sampled_from("abc")


@settings(max_examples=20, stateful_step_count=30, suppress_health_check=list(HealthCheck))
class Lives(RuleBasedStateMachine):
    """A session to which anything may happen, and a store that hears of it now and then."""

    def __init__(self):
        super().__init__()
        self.session = Session(about=Identity(ttl=10**6, sliding=True))
        self.stored = Stored()
        self.number = 0

    @property
    def is_whole(self):
        return self.session.log.is_whole

    @rule(role=st.sampled_from(["user", "assistant", "system"]), name=NAMES)
    def say(self, role, name):
        self.number += 1
        metadata = {"message_id": f"{name}{self.number % 5}"}
        self.session.add_entry(Entry.message(role, f"m{self.number}", metadata=metadata))

    @rule()
    def use_a_tool(self):
        self.session.add_entry(Entry.tool_call("t", call_id="c"))
        self.session.add_entry(Entry.tool_result("t", 1, call_id="c"))

    @rule(limit=NUMBERS, keep=NUMBERS)
    def trim(self, limit, keep):
        self.session.trim_if_needed(limit, keep)

    @rule(seq=NUMBERS)
    def summarise(self, seq):
        self.session.update_summary(f"to {seq}", seq=seq, ledger=[QUOTE], spent={"calls": 1})

    @precondition(lambda self: self.session.window)
    @rule(data=st.data())
    def pin(self, data):
        try:
            self.session.pin(data.draw(st.sampled_from(self.session.window)))
        except NotPossible:
            self.session.unpin()

    @rule(name=NAMES)
    def wait(self, name):
        self.session.hold(Entry.message("user", "later", metadata={"message_id": name}))

    @precondition(lambda self: self.session.waiting)
    @rule(may_take=st.booleans())
    def take_or_drop(self, may_take):
        first = self.session.waiting[0]
        if may_take:
            self.session.add_entry(first)
        else:
            self.session.let_go_held(first.id)

    @rule(name=NAMES, text=st.none() | st.just("other words"))
    def amend(self, name, text):
        self.session.amend_held(name, text)
        self.session.hear("chat", f"edit of {name}")

    @rule(has_come=st.booleans())
    def send(self, has_come):
        self.session.owe(self.session.last_seq)
        if has_come:
            self.session.arrived(self.session.unsent[0])
        self.session.awaiting = self.session.last_seq

    @rule(name=NAMES, value=NUMBERS)
    def note(self, name, value):
        self.session.set(name, [value])
        self.session.title = name
        self.session.max_history = value if value > 5 else None
        self.session.memo = {name: value}
        self.session.settings["session.limit.messages"] = value
        self.session.spend({"tokens_in": value})

    @precondition(lambda self: self.session.window)
    @rule(kind=st.sampled_from(["lite", "deep"]))
    def resize(self, kind):
        self.session.resize(force=kind)

    @precondition(lambda self: self.is_whole and self.session.messages)
    @rule(data=st.data())
    def show_a_part(self, data):
        full = self.session.full_chat_history
        places = st.sets(st.integers(0, len(full) - 1), min_size=1)
        self.session.current_chat_history = [full[n] for n in sorted(data.draw(places))]

    @precondition(lambda self: self.is_whole)
    @rule()
    def undo(self):
        self.session.undo()

    @rule(act=st.sampled_from(["reset_history", "clear"]))
    def begin_anew(self, act):
        getattr(self.session, act)()

    @rule(seqs=st.sets(NUMBERS))
    def erase(self, seqs):
        self.session.erase(seqs)
        for seq in seqs & self.stored.entries.keys():
            self.stored.entries[seq] = self.stored.entries[seq].erased()

    @rule()
    def save_and_release(self):
        self.stored.save(self.session)
        self.session.release()

    @rule(whole=st.booleans())
    def restart(self, whole):
        self.stored.save(self.session)
        before = seen(self.session, full=False)
        self.session = self.stored.load(whole=whole)
        assert seen(self.session, full=False) == before
        assert self.session.changes() is None

    @invariant()
    def what_is_stored_is_the_session(self):
        self.stored.save(self.session)
        if self.is_whole:
            assert self.stored.load().to_dict() == self.session.to_dict()

    @precondition(lambda self: self.is_whole)
    @rule()
    def an_export_is_the_session(self):
        exported = self.session.to_dict()
        assert Session.load(exported).to_dict() == exported

    @precondition(lambda self: self.is_whole)
    @rule()
    def a_fork_is_the_session_under_another_name(self):
        own = {"id", "created_at", "updated_at", "expires_at", "metadata", "key"}
        own |= {"turns", "last_resize", "last_resize_turn"}
        if self.session.log.shown is not None:  # a fork shows it in the order of the log
            own |= {"window", "current_chat_history"}
        whole, fork = self.session.to_dict(), self.session.fork().to_dict()
        assert {name: fork[name] for name in fork.keys() - own} == {
            name: whole[name] for name in whole.keys() - own
        }


TestLives = Lives.TestCase
