"""`@tool`: a typed function becomes something the model may call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cached_property, partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, overload

from nanoloop.protocols import ToolSpec
from nanoloop.tools.docstring import Docstring
from nanoloop.tools.schema import Arguments
from nanoloop.tools.threads import Threads

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class FunctionTool(Generic[P, R]):
    """A function that the model may call, and that code calls as before.

    A function that blocks runs in a thread, at most `threads` calls at once.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_seconds: float | None = None,
        threads: int = 16,
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = _checked_name(name or _name_of(function))
        self.timeout_seconds = timeout_seconds
        """How long one call may take; None leaves it to the toolbox."""
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
        """What the model is told, made when it is first asked for."""
        description = self._description
        if description is None:
            description = self._docstring.description
        return ToolSpec(name=self.name, description=description, parameters=self._arguments.schema)

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Check the arguments and run; raises `BadArguments`, and what the function raises."""
        work: partial[Any] = partial(self.function, **self._arguments.checked(arguments))
        result = work() if _is_async(self.function) else await self._threads.run(work)
        return await result if inspect.isawaitable(result) else result


def _is_async(function: Callable[..., Any]) -> bool:
    # The second look finds objects whose `__call__` is async.
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} can't name a tool: use up to 64 letters, digits, _ and -, "
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
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Make a typed function, sync or async, a tool; its docstring tells the model what it does."""
    if function is None:
        return partial(FunctionTool, **options)
    return FunctionTool(function, **options)
