"""Keeping a history small for the model: when and how to resize, and what becomes of the memo."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self, TypedDict, Unpack
from weakref import WeakMethod

from nanoloop.errors import HistoryNotLoaded
from nanoloop.protocols import Provider
from nanoloop.session.chat import HandedMessages, char_size, messages_of
from nanoloop.session.conversation import Archive, ChangeableHistory
from nanoloop.session.entry import Entry, copied
from nanoloop.session.head import MEMO, SETTINGS, Identity
from nanoloop.session.log import Digest, cut
from nanoloop.session.memo import LAST_RESIZE, MemoKeeper, Schema
from nanoloop.session.options import (
    DEEP_RESIZE,
    LITE_RESIZE,
    Decision,
    Options,
    checked_decision,
    default_decision,
    forced_decision,
)
from nanoloop.session.sync import Handler, Mutex, blocking, called, fitting


class ReadEntries(Protocol):
    """Reads entries that are only in the store: `after < seq <= upto`."""

    def __call__(self, *, after: int, upto: int) -> Awaitable[list[Entry]]:
        """Oldest first."""
        ...


class Handlers(TypedDict, total=False):
    """What a session may be given to go by; each is stronger than any setting."""

    provider: Provider | None
    """Who is asked to update the memo."""
    settings: Mapping[str, Any] | None
    """Stronger than the defaults, weaker than what is set in the session."""
    policy_handler: Handler | None
    resize_handlers: Mapping[str, Handler] | None
    """In place of both defaults."""
    attachment_summary_handler: Handler | None
    memo_update_handler: Handler | None
    memo_schema: Schema | None
    token_counter: Callable[[str], int] | None
    archive: Archive | None


class Resizing(ChangeableHistory):
    """A history with a memo, and rules for when it grows too long."""

    def __init__(
        self,
        *,
        handlers: Handlers,
        **identity: Unpack[Identity],
    ) -> None:
        counter, archive = handlers.get("token_counter"), handlers.get("archive")
        super().__init__(token_counter=counter, archive=archive, **identity)
        self._memo = Digest(value={})
        self._last_resize: dict[str, Any] = {}
        self._resizes = Mutex()
        # Weakly: a session that nobody holds is gone at once, without waiting for the collector.
        me = WeakMethod(self._settings_changed)
        self._options = Options(
            handlers.get("settings"), changed=lambda: changed() if (changed := me()) else None
        )
        self._policy = handlers.get("policy_handler")
        given = handlers.get("resize_handlers")
        self._handlers: dict[str, Resize] = (
            dict(DEFAULT_RESIZES)
            if given is None
            else {name: custom(h) for name, h in given.items()}
        )
        self._keeper = MemoKeeper(
            provider=handlers.get("provider"),
            handler=handlers.get("memo_update_handler"),
            attachments=handlers.get("attachment_summary_handler"),
            schema=handlers.get("memo_schema"),
        )

    def _settings_changed(self) -> None:
        with self._lock:
            self._touch(SETTINGS)

    # What it goes by

    @property
    def settings(self) -> Options:
        """Its settings: its own over what it was given over the defaults."""
        return self._options

    def configure(
        self,
        *,
        mode: str | None = None,
        limit: Mapping[str, Any] | None = None,
        every_n_turns: int | str | None = None,
    ) -> Self:
        """Set the few that most need; limits of several calls add up."""
        with self._lock:
            self._options.configure(mode=mode, limit=limit, every_n_turns=every_n_turns)
        return self

    @property
    def provider(self) -> Provider | None:
        """Who is asked to update the memo."""
        return self._keeper.provider

    @provider.setter
    def provider(self, provider: Provider | None) -> None:
        self._keeper.provider = provider

    def set_policy_handler(self, handler: Handler | None) -> Self:
        """Ask this instead of the rules: (full, current, settings) to None, a type or a dict."""
        self._policy = handler
        return self

    def set_resize_handlers(self, type: str, handler: Handler) -> Self:  # noqa: A002 - the seed's name
        """Use this for resizes of that type: (full, current, memo, settings) to the first three."""
        self._handlers[type] = custom(handler)
        return self

    def set_attachment_summary_handler(self, handler: Handler | None) -> Self:
        """Let this describe what came with a message: one message to a list."""
        self._keeper.attachments = handler
        return self

    def set_memo_update_handler(self, handler: Handler | None) -> Self:
        """Let this update the memo: (memo, messages, attachments, settings) to a dict."""
        self._keeper.handler = handler
        return self

    @property
    def has_resize_rules(self) -> bool:
        """Whether anyone but the defaults may say that it is time to resize."""
        return self._policy is not None or self._options.is_set

    def _take_handlers(self, other: Resizing) -> None:
        """Go by the same handlers as another session."""
        self._policy = other._policy
        self._handlers = dict(other._handlers)
        self._keeper = copy(other._keeper)

    # The memo

    @property
    def memo(self) -> Any:
        """A copy of what the conversation has come to, {} at first."""
        with self._lock:
            return copied(self._memo.value)

    @memo.setter
    def memo(self, value: Any) -> None:
        with self._lock:
            self._memo = Digest(value=copied(value), seq=self._memo.seq)
            self._touch(MEMO)

    @property
    def memo_seq(self) -> int:
        """Entries up to here are in the memo."""
        return max(self._memo.seq, self._log.start - 1)

    @property
    def memo_cursor(self) -> int:
        """Messages of the whole history that are in the memo."""
        with self._lock:
            return len(messages_of([e for e in self._whole() if e.seq <= self._memo.seq]))

    @property
    def last_resize(self) -> dict[str, Any] | None:
        """Type, turn and reason of the last resize; None before the first."""
        names = ("type", "turn", "reason")
        return {name: self._last_resize[name] for name in names} if self._last_resize else None

    @property
    def last_resize_turn(self) -> int:
        """The turn of the last resize, 0 before the first."""
        return int(self._last_resize.get("turn", 0))

    # The seed's names for the same
    _last_resize_turn = last_resize_turn
    _memo_cursor = memo_cursor

    def reset_history(self) -> None:
        """Empty the history and begin a new epoch; memo, summary and state stay."""
        with self._lock:
            super().reset_history()
            self._last_resize = {}

    def clear(self) -> None:
        """Empty the history and everything drawn from it; the state stays."""
        with self._lock:
            super().clear()
            self._memo = Digest(value={}, seq=self._log.last)
            self._touch(MEMO)

    def undo(self) -> list[Entry]:
        """Take back the last exchange; as `History.undo`."""
        with self._lock:
            taken = super().undo()
            if self._last_resize:
                self._last_resize["turn"] = min(self.last_resize_turn, self._turns)
            return taken

    # Resizing

    def judge_resize(self, force: object = False) -> Decision | None:
        """As `async_judge_resize`, from code that can't await."""
        return blocking(partial(self.async_judge_resize, force))

    def resize(self, force: object = False) -> list[dict[str, Any]]:
        """As `async_resize`, from code that can't await."""
        self._resizes.check_may_block()
        return blocking(partial(self.async_resize, force))

    async def async_judge_resize(
        self, force: object = False, *, read: ReadEntries | None = None
    ) -> Decision | None:
        """What should be done: None, or a decision with its type and reason.

        `force` is a type, or True for deep. Raises TypeError where the policy's answer is none.
        """
        if decision := forced_decision(force):
            return decision
        with self._lock:
            options, current = self._options.snapshot(), self.messages
            turns = self._turns - self.last_resize_turn
        if self._policy is None:
            return default_decision(current, options, turns=turns)
        history = await self._entries_after(0, self._log.last, read)
        given = fitting(self._policy, messages_of(history), current, options)
        return checked_decision(await called(self._policy, *given))

    async def async_resize(
        self, force: object = False, *, read: ReadEntries | None = None
    ) -> list[dict[str, Any]]:
        """Resize if it is time, or by `force`; returns the window as chat messages.

        Raises KeyError for a type without a handler, and whatever a handler raises; nothing has
        changed then. `read` gets what is only in the store; without it, and where it is needed,
        `HistoryNotLoaded` is raised.
        """
        async with self._resizes:
            decision = await self.async_judge_resize(force, read=read)
            if decision is not None:
                await self._resize(decision, is_forced=bool(force), read=read)
            return self.messages

    async def _resize(
        self, decision: Decision, *, is_forced: bool, read: ReadEntries | None
    ) -> None:
        resize = self._handlers.get(decision["type"])
        if resize is None:
            raise KeyError(f"no handler for a resize of type {decision['type']!r}")
        now = self._snapshot(read)
        # Else a window that sits exactly at its limit would be resized for ever.
        is_default = resize in DEFAULT_RESIZES.values()
        if is_default and not is_forced and not now.kept_from and now.end == self._resized_seq:
            return
        outcome = await resize(now, self._keeper)
        self._apply(now, outcome, decision, is_default=is_default)

    @property
    def _resized_seq(self) -> int:
        return int(self._last_resize.get("seq", 0))

    def _snapshot(self, read: ReadEntries | None) -> ResizeInput:
        with self._lock:
            end = self._log.last
            return ResizeInput(
                entries_after=lambda after: self._entries_after(after, end, read),
                window=self.window,
                memo=self.memo,
                memo_seq=self.memo_seq,
                end=end,
                epoch=self._epoch,
                turns=self._turns,
                options=self._options.snapshot(),
            )

    async def _entries_after(self, after: int, upto: int, read: ReadEntries | None) -> list[Entry]:
        with self._lock:
            after, released = max(after, self._log.start - 1), self._log.released
            present = list(self._log.between(after, upto))
        if after >= released:
            return present
        if read is None:
            raise HistoryNotLoaded(self._id)
        stored = await read(after=after, upto=min(released, upto))
        return [*(e for e in stored if not self._log.is_hidden(e.seq)), *present]

    def _apply(
        self, now: ResizeInput, outcome: ResizeResult, decision: Decision, *, is_default: bool
    ) -> None:
        with self._lock:
            if self._epoch != now.epoch:
                return
            shown = self._still_shown(now, outcome.current)
            if outcome.full is not None:
                since = self._log.between(now.end, self._log.last)
                again = self._replace([*outcome.full, *since])
                shown = [again.get(id(entry), entry) for entry in shown]
            self._log.show(shown)
            self._note_resize(now, outcome, decision, is_default=is_default)

    def _still_shown(self, now: ResizeInput, current: Iterable[Entry]) -> list[Entry]:
        """The new window: what left it or was taken back meanwhile is out, what came is in."""
        was_shown = {entry.seq for entry in now.window}
        is_shown = {entry.seq for entry in self._log.window}
        kept = [e for e in current if e.seq in is_shown or e.seq not in was_shown]
        kept = [e for e in kept if not self._log.is_hidden(e.seq)]
        return [*kept, *(e for e in self._log.window if e.seq > now.end)]

    def _note_resize(
        self, now: ResizeInput, outcome: ResizeResult, decision: Decision, *, is_default: bool
    ) -> None:
        kind, reason = decision["type"], decision.get("reason")
        self._last_resize = {
            "type": kind,
            "turn": now.turns,
            "reason": reason or f"{kind}_resize",
            "seq": now.end,
        }
        memo = outcome.memo
        if isinstance(memo, dict) and (reason or is_default):
            memo = {**memo, LAST_RESIZE: self.last_resize}
        if memo != self._memo.value or outcome.memo_seq != self._memo.seq:
            self._memo = Digest(value=memo, seq=outcome.memo_seq)
            self._touch(MEMO)
        self._touch()

    # What stores need

    def _head(self) -> dict[str, Any]:
        resized = {"resized": dict(self._last_resize)} if self._last_resize else {}
        return {**super()._head(), **resized}

    def _section(self, name: str) -> Any:
        if name == MEMO:
            return {"value": copied(self._memo.value), "seq": self._memo.seq}
        return self._options.own() if name == SETTINGS else super()._section(name)

    def _restore(self, head: Mapping[str, Any], sections: Mapping[str, Any]) -> None:
        super()._restore(head, sections)
        self._last_resize = dict(head.get("resized") or {})
        memo = sections.get(MEMO) or {}
        self._memo = Digest(value=copied(memo.get("value", {})), seq=int(memo.get("seq", 0)))
        self._options.replace(sections.get(SETTINGS) or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeInput:
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
class ResizeResult:
    """What the session becomes."""

    current: Sequence[Entry]
    """The window; entries without a number are in no log."""
    memo: Any
    memo_seq: int
    full: Sequence[Entry] | None = None
    """The history, where it is replaced."""


Resize = Callable[[ResizeInput, MemoKeeper], Awaitable[ResizeResult]]


async def lite(now: ResizeInput, keeper: MemoKeeper) -> ResizeResult:
    """Take what is new into the memo, and prune."""
    return await _default(now, keeper, after=now.memo_seq, chunked=False)


async def deep(now: ResizeInput, keeper: MemoKeeper) -> ResizeResult:
    """Take the whole history into the memo, piece by piece, and prune."""
    return await _default(now, keeper, after=0, chunked=True)


DEFAULT_RESIZES: Mapping[str, Resize] = {LITE_RESIZE: lite, DEEP_RESIZE: deep}


async def _default(
    now: ResizeInput, keeper: MemoKeeper, *, after: int, chunked: bool
) -> ResizeResult:
    memo, memo_seq = now.memo, now.end
    if now.options.memo_enabled and isinstance(memo, dict):
        if keeper.is_able:
            messages = messages_of(await now.entries_after(after))
            for chunk in chunks(messages, now.options.chars if chunked else 0):
                memo = await keeper.updated(memo, chunk, now.options)
        else:
            memo_seq = now.memo_seq  # nobody to ask: what is new waits until there is
    return ResizeResult(current=now.window[now.kept_from :], memo=memo, memo_seq=memo_seq)


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

    async def resize(now: ResizeInput, _: MemoKeeper) -> ResizeResult:
        handed = HandedMessages(await now.entries_after(0))
        current = handed.shown(now.window)
        before = copied(current)
        given = ([*handed.messages], current, copied(now.memo), now.options)
        full, kept, memo = _checked_result(await called(handler, *given))
        entries, shown = handed.resolved(full, kept)
        return ResizeResult(
            full=None if handed.is_same(full) else entries,
            current=now.window if list(kept) == before else shown,
            memo=copied(memo),
            memo_seq=now.memo_seq,
        )

    return resize


def _checked_result(said: Any) -> tuple[list[Any], list[Any], Any]:
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
