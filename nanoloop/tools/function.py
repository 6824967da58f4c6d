"""Make a tool from a Python function: its schema, its docstring, its argument checks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial, update_wrapper
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    NotRequired,
    ParamSpec,
    Required,
    TypeVar,
    get_args,
    overload,
)

from nanoloop.errors import BadArguments
from nanoloop.protocols import Approve, Effect, Settle, ToolSpec
from nanoloop.tools.threads import Threads
from nanoloop.words import did_you_mean

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError


P = ParamSpec("P")
R = TypeVar("R")

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Matches the valid names of tools."""


class FunctionTool(Generic[P, R]):
    """A function that the model may call, and that code can still call directly.

    If the function blocks, it runs in a thread, with at most `threads` calls at once.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_seconds: float | None = None,
        threads: int = 16,
        effect: Effect = "writes",
        repeatable: bool = False,
        idempotent: bool = False,
        settle: Settle | None = None,
        approve: Approve = "never",
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = _checked_name(name or _name_of(function))
        self.timeout_seconds = timeout_seconds
        """How long one call may take; None leaves this to the toolbox."""
        self.effect = _checked_effect(effect)
        """Either "reads" or "writes"; equal calls of a tool that writes run once per turn."""
        self.repeatable = repeatable
        """True if equal calls should all run, such as rolls of a die."""
        _check_after_a_kill(effect, idempotent=idempotent, settle=settle)
        self.idempotent = idempotent
        """True if a call interrupted by a kill runs again, with the same id."""
        self.approve = _checked_approve(approve)
        """Which calls a person has to approve; settings can ask for more, but not for less."""
        self.origin = ""
        """What the function works on, such as a folder; an approval applies only to that."""
        self.settle = None if settle is None else partial(self._settled, settle)
        """Returns the result of the call with this id, or None if the call had no effect."""
        self._description = description
        self._threads = Threads(threads)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    @cached_property
    def _docstring(self) -> Docstring:
        return Docstring.of(self.function)

    @cached_property
    def _arguments(self) -> Arguments:
        return Arguments(self.function, self._docstring.arguments)

    @cached_property
    def spec(self) -> ToolSpec:
        """The description and schema for the model; built when first needed."""
        description = self._description
        if description is None:
            description = self._docstring.description
        return ToolSpec(name=self.name, description=description, parameters=self._arguments.schema)

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Check the arguments, then run the function; raise `BadArguments` or its own error."""
        work: partial[Any] = partial(self.function, **self._arguments.checked(arguments))
        return await self._done(self.function, work)

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Check the arguments, but don't run the function; raise `BadArguments` if one is wrong."""
        self._arguments.checked(arguments)

    async def _settled(self, settle: Settle, call: str) -> Any:
        return await self._done(settle, partial(settle, call))

    async def _done(self, function: Callable[..., Any], work: partial[Any]) -> Any:
        result = work() if _is_async(function) else await self._threads.run(work)
        return await result if inspect.isawaitable(result) else result

    def named(self, name: str) -> FunctionTool[P, R]:
        """Return the same tool with another name."""
        other = copy(self)
        other.name = _checked_name(name)
        other.__dict__.pop("spec", None)
        return other

    @property
    def unhinted(self) -> list[str]:
        """The names of arguments without a type hint."""
        parameters = _parameters(self.function)
        return [name for name, one in parameters.items() if one.annotation is one.empty]


def _is_async(function: Callable[..., Any]) -> bool:
    # The second check finds objects whose `__call__` is async.
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _checked_effect(effect: Effect) -> Effect:
    if effect not in get_args(Effect):
        raise ValueError(f'a tool\'s effect is "reads" or "writes", not {effect!r}')
    return effect


def _checked_approve(approve: Approve) -> Approve:
    if approve not in get_args(Approve):
        raise ValueError(f'approve is "never", "writes" or "always", not {approve!r}')
    return approve


def _check_after_a_kill(effect: Effect, *, idempotent: bool, settle: Settle | None) -> None:
    if effect == "reads" and (idempotent or settle is not None):
        given = "idempotent" if idempotent else "settle"
        raise ValueError(f"a tool that only reads runs again after a kill: leave out {given}")
    if idempotent and settle is not None:
        raise ValueError("a tool is idempotent or has settle, not both: leave out one of them")


def _checked_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid tool name: use up to 64 letters, digits, _ and -, "
            'for example @tool(name="look_up")'
        )
    return name


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_seconds: float | None = None,
    threads: int = 16,
    effect: Effect = "writes",
    repeatable: bool = False,
    idempotent: bool = False,
    settle: Settle | None = None,
    approve: Approve = "never",
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Turn a typed function, sync or async, into a tool; its docstring is what the model reads.

    `effect` is "reads" or "writes". After a kill during a call, a tool that reads runs again. So
    does one that writes if it is `idempotent`, with the same `current_call().call` as before. If a
    tool has `settle(call)`, sync or async, that is called with this id instead. It returns the
    result if the call took effect, None if it didn't, and raises if it can't tell. Otherwise the
    model is told that it is unknown. The same call of a `repeatable` tool may run several times.
    With `approve`, a person is asked first: about calls of a tool that writes, or about all calls.
    """
    if function is None:
        return partial(FunctionTool, **options)
    return FunctionTool(function, **options)


_HEADING = re.compile(r"(args|arguments|parameters|params)\s*:?", re.IGNORECASE)
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?::.*)?")
_REST_ENTRY = re.compile(r":param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)")
_UNDERLINE = re.compile(r"-{3,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Docstring:
    """A function's description, and the text for each argument that has one."""

    description: str = ""
    arguments: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, function: object) -> Docstring:
        """Read a function's docstring; without one, all fields are empty."""
        text = inspect.cleandoc(getattr(function, "__doc__", None) or "")
        return cls(description=_first_paragraph(text), arguments=_arguments(text.splitlines()))


def _first_paragraph(text: str) -> str:
    first = text.split("\n\n", 1)[0]
    return "" if _is_section(first) else " ".join(first.split())


def _is_section(text: str) -> bool:
    return text.startswith(":param") or bool(_HEADING.fullmatch(text.split("\n", 1)[0]))


def _arguments(lines: list[str]) -> dict[str, str]:
    found = _joined(_rest_lines(lines))
    for index, line in enumerate(lines):
        if _HEADING.fullmatch(line):
            found |= _section(lines[index + 1 :])
    return found


def _section(lines: list[str]) -> dict[str, str]:
    if lines and _UNDERLINE.fullmatch(lines[0]):
        return _joined(_numpy_lines(lines[1:]))
    return _joined(_google_lines(lines))


def _joined(pieces: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Join the lines that belong to the same argument."""
    found: dict[str, str] = {}
    for name, text in pieces:
        found[name] = f"{found.get(name, '')} {text}".strip()
    return {name: text for name, text in found.items() if text}


def _google_lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    name, indent = "", 0
    for line in lines:
        if line and not line[0].isspace():
            return
        depth = len(line) - len(line.lstrip())
        entry = _ENTRY.fullmatch(line.strip()) if not name or depth <= indent else None
        if entry:
            name, indent = entry[1], depth
        if name:
            yield name, entry[2] if entry else line.strip()


def _numpy_lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    name = ""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if _UNDERLINE.fullmatch(following):
            return
        entry = _NUMPY_ENTRY.fullmatch(line)
        if entry:
            name = entry[1]
        elif name:
            yield name, line.strip()


def _rest_lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    name = ""
    for line in lines:
        entry = _REST_ENTRY.fullmatch(line)
        if entry:
            name = entry[1]
        elif not line.strip() or not line[0].isspace():
            name = ""
        if name:
            yield name, entry[2] if entry else line.strip()


_ERRORS_TOLD = 5
_DATA_KEYS = frozenset({"const", "default", "enum", "examples"})
"""Keys of a schema whose values are the user's data rather than schemas."""


class Arguments:
    """A function's parameters. Creating the object imports pydantic, which takes a while."""

    def __init__(self, function: Callable[..., Any], texts: Mapping[str, str]) -> None:
        parameters = _parameters(function)
        self._names = [name for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD]
        self._adapter = _adapter(function, parameters, texts)
        self.schema: dict[str, Any] = _untitled(self._adapter.json_schema())
        """A JSON schema of type object, in the order of definition."""

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function expects them; raise `BadArguments` if invalid."""
        from pydantic import ValidationError  # noqa: PLC0415 - slow to import, late on purpose

        try:
            return dict(self._adapter.validate_python(dict(arguments)))
        except ValidationError as error:
            raise BadArguments("; ".join(self._complaints(error))) from None

    def _complaints(self, error: ValidationError) -> Iterator[str]:
        details = error.errors(include_url=False, include_context=False)
        for detail in details[:_ERRORS_TOLD]:
            place = ".".join(str(part) for part in detail["loc"])
            if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
                yield self._no_such(place)
            else:
                yield f"argument {place!r}: {_sentence(detail)}"

    def _no_such(self, name: str) -> str:
        if not self._names:
            return f"there is no argument {name!r}: give none"
        hint = did_you_mean(name, self._names, f"the arguments are {', '.join(self._names)}")
        return f"there is no argument {name!r}: {hint}"


def _sentence(detail: Mapping[str, Any]) -> str:
    if detail["type"] == "missing":
        return "it is required"
    return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}"


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except NameError as error:
        raise TypeError(
            f"{_called(function)} uses a type that does not exist at run time ({error}): "
            "define or import it at the top of the module, outside `if TYPE_CHECKING`"
        ) from error
    for name, one in parameters.items():
        if one.kind in {one.POSITIONAL_ONLY, one.VAR_POSITIONAL}:
            raise TypeError(
                f"{_called(function)} can't be a tool: {name!r} must be passed by position, but a "
                "model passes arguments by name"
            )
    return parameters


def _called(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _adapter(
    function: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    texts: Mapping[str, str],
) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter, with_config  # noqa: PLC0415 - as above
    from pydantic.errors import PydanticUserError  # noqa: PLC0415
    from typing_extensions import TypedDict  # noqa: PLC0415 - what pydantic wants before 3.12

    named = {n: one for n, one in parameters.items() if one.kind is not one.VAR_KEYWORD}
    fields = {name: _field(one, texts.get(name)) for name, one in named.items()}
    extra = ConfigDict(extra="forbid" if len(named) == len(parameters) else "allow")
    # Made by a call because the fields are only known at run time; a type checker can't follow
    # this.
    shape = with_config(extra)(TypedDict("Arguments", fields))  # type: ignore[operator]
    try:
        return TypeAdapter(shape)
    except PydanticUserError as error:
        raise TypeError(
            f"{_called(function)} can't be a tool: {error.message.splitlines()[0]}"
        ) from error


def _field(parameter: inspect.Parameter, text: str | None) -> Any:
    from pydantic import Field  # noqa: PLC0415 - as above

    kind = Any if parameter.annotation is parameter.empty else parameter.annotation
    if text:
        kind = Annotated[kind, Field(description=text)]
    if parameter.default is parameter.empty:
        return Required[kind]
    # The function's own default applies; the model is only told about it.
    if isinstance(parameter.default, (str, int, float)):
        kind = Annotated[kind, Field(json_schema_extra={"default": parameter.default})]
    return NotRequired[kind]


def _untitled(schema: Any) -> Any:
    """Return the schema without titles that only repeat names."""
    if isinstance(schema, list):
        return [_untitled(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in _DATA_KEYS and not isinstance(value, dict) else _untitled(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }
