"""Calling what a user put in: a sync handler in a worker thread, an async one where it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio.to_thread

Handler = Callable[..., Any]
"""Sync or async; what is promised about its arguments stands where it is set."""


async def called(handler: Handler, *arguments: Any) -> Any:
    """What the handler returns, waited for where that is needed."""
    if _is_async(handler):
        return await handler(*arguments)
    # In a thread, so that a slow handler holds up no other session.
    result = await anyio.to_thread.run_sync(partial(handler, *arguments))
    return await result if inspect.isawaitable(result) else result


def _is_async(handler: Handler) -> bool:
    plain = handler.func if isinstance(handler, partial) else handler
    call = getattr(plain, "__call__", None)  # noqa: B004 - an object may have an async one
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(call)


def fitting(handler: Handler, *arguments: Any) -> tuple[Any, ...]:
    """As many of the arguments, from the first, as the handler takes."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # some built-ins don't say
        return arguments
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return arguments
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return arguments[: sum(p.kind in positional for p in parameters)]
