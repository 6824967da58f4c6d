"""What a resize does with a session as it stood: lite, deep, or a handler of the user's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoloop.session.chat import messages_of
from nanoloop.session.entry import Entry, copied
from nanoloop.session.handler import Handler, called
from nanoloop.session.matching import Handed
from nanoloop.session.memo import MemoKeeper
from nanoloop.session.options import Options
from nanoloop.session.policy import DEEP, LITE
from nanoloop.session.size import char_size
from nanoloop.session.window import cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A session at one moment: what comes later is no part of the resize."""

    entries_after: Callable[[int], Awaitable[list[Entry]]]
    """The entries above a number, up to `end`."""
    window: Sequence[Entry]
    memo: Any
    memo_seq: int
    end: int
    """The newest number then."""
    epoch: int
    turns: int
    options: Options

    @property
    def kept_from(self) -> int:
        """The index in the window at which what the limits allow begins."""
        return cut(self.window, keep=self.options.messages, chars=self.options.chars)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the session becomes."""

    current: Sequence[Entry]
    """The window; entries without a number are in no log."""
    memo: Any
    memo_seq: int
    full: Sequence[Entry] | None = None
    """The history, where it is replaced."""


Resize = Callable[[Snapshot, MemoKeeper], Awaitable[Outcome]]


async def lite(now: Snapshot, keeper: MemoKeeper) -> Outcome:
    """Take what is new into the memo, and prune."""
    return await _default(now, keeper, after=now.memo_seq, chunked=False)


async def deep(now: Snapshot, keeper: MemoKeeper) -> Outcome:
    """Take the whole history into the memo, piece by piece, and prune."""
    return await _default(now, keeper, after=0, chunked=True)


DEFAULTS: Mapping[str, Resize] = {LITE: lite, DEEP: deep}


async def _default(now: Snapshot, keeper: MemoKeeper, *, after: int, chunked: bool) -> Outcome:
    memo, memo_seq = now.memo, now.end
    if now.options.memo_enabled and isinstance(memo, dict):
        if keeper.is_able:
            messages = messages_of(await now.entries_after(after))
            for chunk in chunks(messages, now.options.chars if chunked else 0):
                memo = await keeper.updated(memo, chunk, now.options)
        else:
            memo_seq = now.memo_seq  # nobody to ask: what is new waits until there is
    return Outcome(current=now.window[now.kept_from :], memo=memo, memo_seq=memo_seq)


def chunks(messages: Sequence[dict[str, Any]], chars: int) -> Iterator[list[dict[str, Any]]]:
    """Pieces of at most so many characters, 0 is no limit; what is bigger stands alone."""
    chunk: list[dict[str, Any]] = []
    filled = 0
    for message in messages:
        size = char_size(message)
        if chunk and 0 < chars < filled + size:
            yield chunk
            chunk, filled = [], 0
        chunk.append(message)
        filled += size
    if chunk:
        yield chunk


def custom(handler: Handler) -> Resize:
    """A handler of the user's: (full, current, memo, settings) to (full, current, memo)."""

    async def resize(now: Snapshot, _: MemoKeeper) -> Outcome:
        handed = Handed(await now.entries_after(0))
        current = handed.shown(now.window)
        before = copied(current)
        given = ([*handed.messages], current, copied(now.memo), now.options)
        full, kept, memo = _checked(await called(handler, *given))
        entries, shown = handed.resolved(full, kept)
        return Outcome(
            full=None if handed.is_same(full) else entries,
            current=now.window if list(kept) == before else shown,
            memo=copied(memo),
            memo_seq=now.memo_seq,
        )

    return resize


def _checked(said: Any) -> tuple[list[Any], list[Any], Any]:
    """What a handler returned; raises TypeError where it isn't full, current and memo."""
    if isinstance(said, (tuple, list)) and len(said) == 3:  # noqa: PLR2004 - see the docstring
        full, current, memo = said
        if _are_messages(full) and _are_messages(current):
            return list(full), list(current), memo
    raise TypeError(
        f"a resize handler returns (full, current, memo), two lists of messages and the memo, "
        f"not {type(said).__name__}"
    )


def _are_messages(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, Mapping) for item in value)
