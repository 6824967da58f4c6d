"""An agent's tools: find, check, limit and run them; every failure is text for the model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from inspect import isasyncgen, isawaitable, isgenerator
from time import perf_counter
from typing import Any, NoReturn

import anyio

from nanoloop import defaults
from nanoloop.errors import (
    BadArguments,
    CallHadNoEffect,
    QuestionAsked,
    ServerGone,
    ToolError,
    ToolTimeout,
    UnknownTool,
)
from nanoloop.protocols import (
    Tool,
    ToolCall,
    ToolSpec,
    effect_of,
    is_repeatable,
    runs_again,
    settle_of,
)
from nanoloop.session.chat import MOST_PARTS
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.tools.approval import LONGEST_SHOWN, ApprovalRules, digest_of, shown_arguments
from nanoloop.tools.call import call_here
from nanoloop.tools.file_results import AttachedFiles, FileResult, KeptResults, kept_results, parted
from nanoloop.tools.finding import Finder
from nanoloop.tools.function import tool as as_tool
from nanoloop.tools.prompts import ServerPrompt
from nanoloop.tools.questions import ToolQuestion
from nanoloop.tools.results import clipped
from nanoloop.words import nearest

here: ContextVar[Session] = ContextVar("session of the turn that is going on")
"""The current turn's session, which each turn sets for its tools."""

_NEAR = 20
"""How many characters are shown on each side of an error in JSON."""
MOST_WHOLE = 10_000_000
"""How many characters of a large result are stored."""
NOT_DONE = (
    "interrupted before it took effect: nothing was done, and the same call may be made again"
)
NOT_SETTLED = "interrupted, and it could not be found out whether it took effect"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSource:
    """Tools from one origin, by name; agents choose from all sources."""

    name: str
    """The origin's name in the list of tools."""
    tools: Mapping[str, Tool]
    prompts: Mapping[str, ServerPrompt] = field(default_factory=dict)
    """Its prompts, by the commands that people use."""
    is_budgeted: bool = False
    """Whether the tools are announced in full only while they fit into the budget."""


def chosen(wanted: Sequence[str], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names that an agent's list chooses, and the entries that match nothing.

    Entries apply in order: each adds the names that it matches or, if it begins with `!`, removes
    them. A list that starts with an exclusion starts with all names.
    """
    picked = dict.fromkeys(names if wanted and wanted[0].startswith("!") else ())
    lost = []
    for entry in wanted:
        glob = entry.removeprefix("!")
        found = [name for name in names if fnmatchcase(name, glob)]
        lost += [] if found else [entry]
        for name in found:
            if entry.startswith("!"):
                picked.pop(name, None)
            else:
                picked.setdefault(name)
    return list(picked), lost


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """The outcome of one tool call."""

    call: ToolCall
    success: bool
    text: str
    """What the model reads: the result, or the error."""
    error: str = ""
    """The reason why the call failed; empty if it succeeded."""
    seconds: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The decoded arguments; empty if they could not be decoded."""
    files: Sequence[Mapping[str, Any]] = ()
    """The facts about the files that it returned."""
    files_told: str = ""
    """What the model reads about these files."""
    whole: str = ""
    """The whole result, if the model sees only its head and tail."""
    chars: int = 0
    """The maximum number of characters of the result that the model sees."""
    is_refused: bool = False
    """True if nothing was done, because the tool or its argument check refused."""
    is_unsure: bool = False
    """True if the call failed, but something it sent may still take effect."""
    is_unknown: bool = False
    """True if the call was interrupted, and not even its tool can tell whether it took effect."""
    question: ToolQuestion | None = None
    """What the tool asks the person; the call continues with the answer."""


class Toolbox:
    """Runs the tools that the model calls. Plain functions are converted to tools."""

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        timeout_seconds: float = defaults.TOOL_TIMEOUT_SECONDS,
        result_chars: int = 16_000,
        approval: ApprovalRules | None = None,
    ) -> None:
        self._tools = _by_name(tools)
        self._finder = _finder_in(self._tools)
        later = {} if self._finder is None else self._finder.later
        self._timeout_seconds = timeout_seconds
        self._result_chars = result_chars
        self.approval = approval or ApprovalRules()
        """Which calls need approval."""
        self.specs: tuple[ToolSpec, ...] = tuple(spec for spec, _ in self._tools.values())
        """The specs that the model gets, in the order given."""
        self._tools |= {name: (tool.spec, tool) for name, tool in later.items()}

    def found(self, window: Sequence[Entry]) -> Sequence[ToolSpec]:
        """The specs of tools that the model has found in this window, which it gets too."""
        return () if self._finder is None else self._finder.loaded(window)

    def plus(self, tool: Tool) -> Toolbox:
        """Return a toolbox with this tool added, unless it has a tool with that name."""
        if tool.spec.name in self._tools:
            return self
        tools = [*(known for _, known in self._tools.values()), tool]
        return Toolbox(
            tools,
            timeout_seconds=self._timeout_seconds,
            result_chars=self._result_chars,
            approval=self.approval,
        )

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name, in the order of `specs`."""
        return {name: tool for name, (_, tool) in self._tools.items()}

    def writes(self, name: str) -> bool:
        """Return True if calling this tool may change something."""
        return name in self._tools and effect_of(self._tools[name][1]) == "writes"

    def is_repeatable(self, name: str) -> bool:
        """Return True if equal calls of this tool should each run."""
        return name in self._tools and is_repeatable(self._tools[name][1])

    def asks_first(self, name: str) -> bool:
        """Return True if a person has to approve calls of this tool before they run."""
        return name in self._tools and self.approval.asks_first(self._tools[name][1])

    def objection(self, name: str, arguments: Any) -> str | None:
        """Return why nobody should be asked about this call; None if the call is valid."""
        tool = self._tools[name][1]
        try:
            if not isinstance(arguments, dict):
                decoded(str(arguments))
            if (check := getattr(tool, "check", None)) is not None:
                check(arguments)
        except ToolError as error:
            return str(error)
        chars = len(shown_arguments(arguments))
        if chars > LONGEST_SHOWN:
            return (
                f"not run: a person has to approve it, and its arguments have {chars} characters, "
                f"more than the {LONGEST_SHOWN} that can be shown: send fewer"
            )
        return None

    def digest_of(self, name: str, arguments: Any = None) -> str | None:
        """Return the digest of what a person approves; None if there is no such tool."""
        return digest_of(self._tools[name][1], arguments) if name in self._tools else None

    def runs_again(self, name: str) -> bool:
        """Return True if it is safe to run an interrupted call of this tool again."""
        return name in self._tools and runs_again(self._tools[name][1])

    def settles(self, name: str) -> bool:
        """Return True if this tool can find out whether an interrupted call took effect."""
        return name in self._tools and settle_of(self._tools[name][1]) is not None

    async def settle(self, call: ToolCall, call_id: str) -> ToolOutcome:
        """Find out, without running it, whether the call with this id of ours took effect.

        If nothing was done, the outcome has `is_refused` set.
        """
        return await self._outcome(_Run(call=call, settles=call_id, error=NOT_SETTLED))

    async def run(self, call: ToolCall) -> ToolOutcome:
        """Run one call; a failure is an outcome and never an exception."""
        return await self._outcome(_Run(call=call))

    async def resume(
        self, call: ToolCall, state: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> ToolOutcome:
        """Like `run`, but continue a call that asked the person something with the answer."""
        return await self._outcome(_Run(call=call, resumes=(state, answer)))

    async def _outcome(self, run: _Run) -> ToolOutcome:
        # In its own task, so that a tool that cancels itself cancels neither the turn nor other
        # calls.
        async with anyio.create_task_group() as alone:
            alone.start_soon(self._into, run, name=f"tool {run.call.name}")
        return run.outcome(self._result_chars)

    async def _into(self, run: _Run) -> None:
        attached = _attached_to(run.call)
        try:
            tool = self._found(run.call.name)
            if not run.settles:
                run.parameters = decoded(run.call.arguments)
            result, files = parted(_checked(await self._in_time(tool, run), run))
            run.text = as_text(result)
            run.files = await _kept([*attached.close(), *files])
            run.error = None
        # A tool's bug is text for the model: neither `sys.exit` nor a group of errors that contains
        # a cancellation may end the turn.
        except (Exception, SystemExit, BaseExceptionGroup) as error:  # noqa: BLE001
            run.fail(error)
        finally:
            # Otherwise, `settle` is called next, and its outcome has the files.
            left = attached.close() if run.is_final or not self.settles(run.call.name) else ()
            run.seconds = perf_counter() - run.started
        if left:
            run.files = await _kept(left)

    def _found(self, name: str) -> Tool:
        if name in self._tools:
            return self._tools[name][1]
        near = nearest(name, self._tools)
        hint = f"did you mean {near!r}? " if near else ""
        raise UnknownTool(
            f"there is no tool {name!r}: {hint}The tools are: {', '.join(self._tools) or 'none'}."
        )

    async def _in_time(self, tool: Tool, run: _Run) -> Any:
        own = getattr(tool, "timeout_seconds", None)
        seconds = self._timeout_seconds if own is None else own
        with anyio.move_on_after(seconds) as limit:
            settle = settle_of(tool) if run.settles else None
            if run.resumes is not None:
                resume: Any = getattr(tool, "resume", None)
                if resume is None:
                    raise ToolError("the tool no longer takes answers")
                return await resume(run.parameters, *run.resumes)
            if settle is None:
                return await tool.call(run.parameters)
            found = settle(run.settles)
            return await found if isawaitable(found) else found
        if limit.cancelled_caught:
            raise ToolTimeout(f"{run.call.name} took longer than {seconds:g} s and was stopped")
        return None  # never reached; the scope only swallows its own cancellation


def _attached_to(call: ToolCall) -> AttachedFiles:
    """Return the collection of files that the running call attaches; accept files from now on."""
    current = call_here()
    if current is None or current.tool != call.name:  # a tool that calls another tool directly
        return AttachedFiles()
    current.files.open(_session_id())
    return current.files


async def _kept(files: Sequence[FileResult]) -> KeptResults:
    return await kept_results(files, session_id=_session_id()) if files else KeptResults()


def _session_id() -> str | None:
    session = here.get(None)
    return None if session is None else session.id


@dataclass(slots=True, kw_only=True)
class _Run:
    """A call in progress, which counts as interrupted until it ends: a tool may cancel itself."""

    call: ToolCall
    parameters: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    files: KeptResults = field(default_factory=KeptResults)
    error: str | None = "the tool was interrupted and returned no result"
    is_refused: bool = False
    is_unknown: bool = False
    settles: str = ""
    """Our id of the call, if it is only settled and not run."""
    resumes: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
    """What the tool stored until the person's answer, and the answer."""
    question: ToolQuestion | None = None
    started: float = field(default_factory=perf_counter)
    seconds: float = 0.0

    @property
    def is_final(self) -> bool:
        """True if it is known, as far as it can be, whether the call took effect."""
        return self.error is None or self.is_refused or bool(self.settles)

    def fail(self, error: BaseException) -> None:
        self.error = told(error)
        if self.settles:
            self.is_refused = isinstance(error, CallHadNoEffect)
            self.error = self.error if self.is_refused else f"{NOT_SETTLED}: {self.error}"
        else:
            self.question = error.question if isinstance(error, QuestionAsked) else None
            self.is_unknown = isinstance(error, ServerGone)
            self.is_refused = isinstance(error, ToolError) and not isinstance(
                error, ToolTimeout | ServerGone
            )

    def outcome(self, chars: int) -> ToolOutcome:
        error = clipped(_sendable(self.error or "an error without text"), chars)
        success = self.error is None
        self.text = _sendable(self.text)
        # After the text, which may be cut.
        text = "\n".join(filter(None, (clipped(self.text, chars), self.files.told)))
        error = "\n".join(filter(None, (error, self.files.told)))
        return ToolOutcome(
            call=self.call,
            success=success,
            text=text if success else error,
            error="" if success else error,
            seconds=self.seconds,
            parameters=self.parameters,
            files=self.files.facts,
            files_told=self.files.told,
            whole=self.text[:MOST_WHOLE] if success and len(self.text) > chars else "",
            chars=chars,
            is_refused=self.is_refused,
            is_unsure=not success and (bool(self.settles) or not self.is_refused),
            is_unknown=self.is_unknown
            or (bool(self.settles) and not success and not self.is_refused),
            question=self.question,
        )


def _finder_in(tools: Mapping[str, tuple[ToolSpec, Tool]]) -> Finder | None:
    return next((tool for _, tool in tools.values() if isinstance(tool, Finder)), None)


def _by_name(tools: Iterable[Tool | Callable[..., Any]]) -> dict[str, tuple[ToolSpec, Tool]]:
    found: dict[str, tuple[ToolSpec, Tool]] = {}
    for item in tools:
        tool: Tool = item if isinstance(item, Tool) else as_tool(item)
        spec = tool.spec
        if spec.name in found:
            raise ValueError(f"two tools are named {spec.name!r}: rename one with @tool(name=...)")
        found[spec.name] = (spec, tool)
    return found


def decoded(arguments: str) -> dict[str, Any]:
    """Return the model's arguments as a dict; raise `BadArguments`, which locates the error."""
    if not arguments.strip():
        return {}
    if arguments.count("[") + arguments.count("{") > MOST_PARTS:
        raise BadArguments("the arguments have too many parts: send fewer")
    try:
        value = json.loads(arguments, parse_constant=_no_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise BadArguments(_breaks(error)) from None
    except (ValueError, RecursionError) as error:
        raise BadArguments(f"the arguments are not readable JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadArguments(f"the arguments must be a JSON object, not {type(value).__name__}")
    return _whole(value) if "\\u" in arguments else value


def _whole(value: dict[str, Any]) -> dict[str, Any]:
    """Return the value without halves of surrogate pairs, which an escape may produce."""
    whole: dict[str, Any] = json.loads(_sendable(json.dumps(value, ensure_ascii=False)))
    return whole


def _breaks(error: json.JSONDecodeError) -> str:
    before = error.doc[max(0, error.pos - _NEAR) : error.pos]
    after = error.doc[error.pos : error.pos + _NEAR]
    return (
        f"the arguments are not valid JSON: {error.msg} at line {error.lineno}, "
        f"column {error.colno}, between {before!r} and {after!r}"
    )


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")


def _finite(text: str) -> float:
    return float(text) if math.isfinite(float(text)) else _no_number(text)


def _checked(result: Any, run: _Run) -> Any:
    if run.settles and result is None:
        raise CallHadNoEffect(NOT_DONE)
    if isgenerator(result) or isasyncgen(result):  # it may have no end
        raise ToolError("the tool returned a generator, not a result: have it return a list")
    return result


def as_text(result: Any) -> str:
    """Return a result as the model reads it: text unchanged, anything else as JSON."""
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError):  # odd keys, or a circular reference
        return str(result)


def _plain(value: Any) -> Any:
    """Convert models, dataclasses, sets, dates and the like for JSON; others by `str`."""
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 - only for results that need it

    return to_jsonable_python(value, fallback=str)


def told(error: BaseException) -> str:
    """Return an error as the model reads it: ours as a sentence, any other with its class."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, ToolError):
        return str(error)
    try:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:  # noqa: BLE001 - it can't even say what it is
        return type(error).__name__


def _sendable(text: str) -> str:
    """Return the text without halves of surrogate pairs, which no file or request can contain."""
    return text.encode("utf-8", "replace").decode("utf-8")
