"""The arguments of a function: as a JSON schema for the model, and checked before the call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Required

from nanoloop.errors import BadArguments

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

_ERRORS_TOLD = 5
_DATA_KEYS = frozenset({"const", "default", "enum", "examples"})
"""Keys of a schema whose values are the user's data, not schemas."""


class Arguments:
    """What a function takes. Building one imports pydantic, which takes a while."""

    def __init__(self, function: Callable[..., Any], texts: Mapping[str, str]) -> None:
        parameters = _parameters(function)
        self._names = [name for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD]
        self._adapter = _adapter(function, parameters, texts)
        self.schema: dict[str, Any] = _untitled(self._adapter.json_schema())
        """A JSON schema of type object, in the order of definition."""

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function wants them; raises `BadArguments`."""
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
        near = get_close_matches(name, self._names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self._names)}"
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
            f"{_called(function)} names a type that isn't there at run time ({error}): "
            "define or import it at the top of the module, outside `if TYPE_CHECKING`"
        ) from error
    for name, one in parameters.items():
        if one.kind in {one.POSITIONAL_ONLY, one.VAR_POSITIONAL}:
            raise TypeError(
                f"{_called(function)} can't be a tool: {name!r} has to be given by position, "
                "and a model gives arguments by name"
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
    # Made by a call because the fields are only known now; a type checker can't follow.
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
    # The function's own default applies; the model is only told of it.
    if isinstance(parameter.default, (str, int, float)):
        kind = Annotated[kind, Field(json_schema_extra={"default": parameter.default})]
    return NotRequired[kind]


def _untitled(schema: Any) -> Any:
    """The schema without the titles that only repeat names."""
    if isinstance(schema, list):
        return [_untitled(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in _DATA_KEYS and not isinstance(value, dict) else _untitled(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }
