"""One conversation: log and window, digests, and state. Pure data, without I/O.

`Log` holds the entries, `Conversation` has what the loop and the stores use, and `Session` adds the
interface for your own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Self

from nanoloop.protocols import Provider
from nanoloop.session import export, resize
from nanoloop.session.approvals import forget
from nanoloop.session.chat import (
    HandedMessages,
    begins_apart,
    entries_of,
    entry_text,
    messages_of,
    rough_tokens,
    tool_result_of_block,
)
from nanoloop.session.conversation import Conversation
from nanoloop.session.digest import Digest, Summary
from nanoloop.session.entry import TOOL_CALL, Entry, copied, title_of, utc_now
from nanoloop.session.export import Rendered, parsed
from nanoloop.session.head import ABOUT, MEMO, STATE, WAITING, Head, Identity, new_id
from nanoloop.session.log import Log
from nanoloop.session.queue import is_asked
from nanoloop.session.resize import Change, Decision, ReadEntries, ResizeHandlers, Schema
from nanoloop.session.speech import (
    ErasedWords,
    Person,
    other_words,
    person_in,
    without_words_of,
)
from nanoloop.session.sync import Handler, blocking

ChatMessages = Mapping[str, Any] | Sequence[Mapping[str, Any]]


_STANDING = (
    *("about", "log", "queue", "updated_at", "turns", "epoch", "spent", "resized"),
    *("moved", "by", "claims", "stopped", "erasures", "erasing"),
    *("approvals", "_awaiting", "_expires_at", "_memo", "_state", "_summary", "tracker"),
)
"""The attributes of a session that a store keeps, except its settings."""


class _Load:
    """Lets `Session.load(text)` create a session, and `session.load(text)` fill one."""

    def __get__(self, session: Session | None, owner: type[Session]) -> Callable[..., Session]:
        return partial(_loaded, owner() if session is None else session)


def _loaded(
    session: Session,
    text: str | bytes | Mapping[str, Any],
    format: str | None = None,  # noqa: A002 - the original API's name
    key_path: str | None = None,
) -> Session:
    """Import an export, or part of one; values that are not in it don't change."""
    return session.load_dict(parsed(text, format, key_path))


class Session(Conversation):
    """A conversation that forgets nothing: entries that leave the window stay in the log."""

    load = _Load()

    def __init__(
        self,
        id: str | None = None,  # noqa: A002 - the original API's name
        *,
        about: Identity | None = None,
        clock: Callable[[], datetime] = utc_now,
        settings: Mapping[str, Any] | None = None,
        provider: Provider | None = None,
        policy_handler: Handler | None = None,
        resize_handlers: Mapping[str, Handler] | None = None,
        attachment_summary_handler: Handler | None = None,
        memo_update_handler: Handler | None = None,
        memo_schema: Schema | None = None,
    ) -> None:
        """Create a session; `about` is its identity and lifetime, or `id` is just its name.

        `settings` take priority over the defaults, and settings made in the session over both.
        Handlers take priority over any setting; `resize_handlers` replace both default resizes. The
        provider updates the memo.
        """
        if about is None:
            about = Identity(id=new_id() if id is None else id, created_at=clock())
        super().__init__(about=about, clock=clock, settings=settings)
        self.token_counter: Callable[[str], int] | None = None
        """Counts a text's tokens more exactly than the default of four characters per token."""
        self._handlers = ResizeHandlers(
            policy=policy_handler,
            memo_update=memo_update_handler,
            attachments=attachment_summary_handler,
            fits=resize.check_of(memo_schema),
            provider=provider,
        )
        if resize_handlers is not None:
            self._handlers.resizes = {}
            for name, handler in resize_handlers.items():
                self.set_resize_handlers(name, handler)

    def move(self, session_id: str) -> None:
        """Set the id of the session in which the chat continues; "" if it stays in this one."""
        with self.lock:
            self.moved = session_id
            self.touch()

    def renew(self, fresh: Session) -> None:
        """Adopt the state of another object that represents the same session.

        This object's unsaved changes are lost. Existing references to this object stay valid: it
        keeps its handlers, its provider and the parent of its settings.
        """
        with self.lock:
            for name in _STANDING:
                setattr(self, name, getattr(fresh, name))
            self.settings.replace(fresh.settings.own())

    # Identity and state

    @property
    def created_at(self) -> datetime:
        """The time at which the session was created."""
        return self.about.created_at

    @property
    def metadata(self) -> dict[str, Any]:
        """A copy of the metadata that the session was created with."""
        return dict(copied(self.about.metadata))

    def get(self, key: str) -> tuple[Any, bool]:
        """Return a copy of the value and True, or None and False if the key is missing."""
        with self.lock:
            return copied(self._state.get(key)), key in self._state

    def set(self, key: str, value: Any) -> None:
        """Store a value under this key."""
        with self.lock:
            self._state[key] = copied(value)
            self.touch(STATE, by_user=True)

    def delete(self, key: str) -> None:
        """Remove a key; a missing key is ignored."""
        with self.lock:
            self._state.pop(key, None)
            self.touch(STATE, by_user=True)

    @property
    def state(self) -> dict[str, Any]:
        """A copy of all stored values."""
        with self.lock:
            return dict(copied(self._state))

    # Messages

    def append_message(self, message: Mapping[str, Any]) -> None:
        """Append a chat message, in OpenAI's form or as blocks."""
        with self.lock:
            for entry in begins_apart(entries_of(message), self.newest):
                self.append(entry)

    def add_message(self, role: str, content: Any) -> None:
        """Append a message with this role and content."""
        self.append_message({"role": role, "content": content})

    def add_tool_result(self, tool_use_id: str, result: Any) -> None:
        """Append the result of the tool call with this id."""
        with self.lock:
            block = {"tool_use_id": tool_use_id, "content": result}
            self.append(tool_result_of_block(block, self._tool_of(tool_use_id)))

    def _tool_of(self, call_id: str) -> str:
        calls = (e for e in reversed(self.log.entries) if e.type == TOOL_CALL)
        return next((str(e.content.get("tool")) for e in calls if e.call_id == call_id), "")

    def history(self, limit: int = 0) -> list[Entry]:
        """Return the newest entries first, at most `limit`; zero or less means all.

        Of entries with the same time, the one added last comes first.
        """
        with self.lock:
            entries = sorted(self.whole(), key=lambda e: (e.timestamp, e.seq), reverse=True)
            return [entry.copy() for entry in (entries[:limit] if limit > 0 else entries)]

    @property
    def full_chat_history(self) -> list[dict[str, Any]]:
        """The whole history as chat messages, oldest first."""
        with self.lock:
            return messages_of(self.whole())

    @full_chat_history.setter
    def full_chat_history(self, messages: Sequence[Mapping[str, Any]]) -> None:
        with self.lock:
            shown = self.messages
            self.rewrite(HandedMessages(self.whole()).all_entries_for(messages))
            self.current_chat_history = shown

    @property
    def current_chat_history(self) -> list[dict[str, Any]]:
        """The window as chat messages, oldest first."""
        return self.messages

    @current_chat_history.setter
    def current_chat_history(self, messages: Sequence[Mapping[str, Any]]) -> None:
        with self.lock:
            self.show(HandedMessages(self.log.entries).all_entries_for(messages))

    def set_chat_history(self, messages: ChatMessages) -> Self:
        """Replace the history with these messages; keep memo, summary and state."""
        with self.lock:
            self.reset_history()
            return self.add_chat_history(messages)

    def add_chat_history(self, messages: ChatMessages) -> Self:
        """Append one or more messages."""
        with self.lock:
            for message in [messages] if isinstance(messages, Mapping) else messages:
                self.append_message(message)
        return self

    def reset_chat_history(self) -> Self:
        """Empty the history; keep memo, summary and state."""
        self.reset_history()
        return self

    def show(self, entries: Iterable[Entry]) -> None:
        """Make these entries the window; they may be any in the log, or in no log."""
        with self.lock:
            self.log.show(entries)
            self.touch()

    def take_history(self, entries: Iterable[Entry], window: Iterable[Entry]) -> None:
        """Replace the history with these entries, and show those in `window`."""
        with self.lock:
            self.reset_history()
            new = {id(entry): self.log.append(entry) for entry in entries}
            for entry in new.values():
                self.tracker.add(entry)
                self._count(entry)
            self.log.show(new.get(id(entry), entry) for entry in window)
            self._summary = replace(self._summary, pins=())  # these had old numbers

    def rewrite(self, entries: Sequence[Entry]) -> list[Entry]:
        """Make these entries the history, and return them with their new numbers."""
        with self.lock:
            last = self.log.last
            again = self.log.rewrite(entries)
            for old, new in zip(entries, again, strict=True):
                if new.seq > last:
                    self.tracker.add(new)
                    if self._awaiting and old.seq == self._awaiting:
                        self._awaiting = new.seq
            self.touch()
            return again

    @property
    def shows_earlier(self) -> bool:
        """True if the window contains any exchange before the last one."""
        return sum(map(is_asked, self.window)) > 1

    def context_size(self) -> int:
        """Return the window's size in tokens, as counted, or one per four characters."""
        with self.lock:
            texts = [entry_text(entry) + other_words(entry) for entry in self.log.window]
        if self.token_counter is not None:
            return sum(self.token_counter(text) for text in texts)
        return rough_tokens(sum(len(text) for text in texts))

    def fork(self, upto: int | str | None = None) -> Session:
        """Return a new session with the history up to and including an entry, by number or id.

        Summary and memo are copied if they cover nothing after the entry.
        """
        with self.lock:
            about = replace(
                self.about,
                id=new_id(),
                key=None,
                created_at=self._clock(),
                title="",
                metadata={**self.about.metadata, "forked_from": self.id},
            )
            fork = Session(about=about, clock=self._clock, settings=self.settings.parent)
            fork.token_counter = self.token_counter
            export.copy_upto(self, fork, upto)
            fork._handlers = self._handlers.copy()
            return fork

    def erase_words(self, person: Person, words: ErasedWords) -> None:
        """Erase what a person said here and everything derived from it; begin a new epoch.

        A store's `erase_words` makes the erasure durable.
        """
        with self.lock:
            title, awaiting, pins = self.about.title, self._awaiting, self._summary.pins
            self.erase(words.seqs, stored=words.gone.values())
            self.log.reword(words.left)
            if not any(e.role == "user" and title_of(e) == title for e in words.gone.values()):
                self.about = replace(self.about, title=title)
            if awaiting in words.left:
                self._awaiting = awaiting
                self.claims += 1  # a running turn has read those words
            kept = tuple(
                pin
                for pin in pins
                if pin["seq"] not in words.gone and person_in(pin.get("speaker")) != person
            )
            # This includes anything that somebody wrote into them by hand.
            start, spent = self.log.start - 1, self.summary_spent
            self._summary = Summary(seq=start, pins=kept, spent=spent)
            self._memo = Digest(value={}, seq=start)
            left = (without_words_of(entry, person) for entry in self.queue.waiting)
            self.queue.waiting = tuple(entry for entry in left if entry is not None)
            for seq in words.gone:
                self.queue.arrived(seq)
            forget(self, person)
            self.touch(WAITING)

    # The memo

    @property
    def memo(self) -> Any:
        """A copy of the memo, which is {} at first."""
        with self.lock:
            return copied(self._memo.value)

    @memo.setter
    def memo(self, value: Any) -> None:
        with self.lock:
            self._memo = replace(self._memo, value=copied(value))
            self.touch(MEMO)

    @property
    def memo_seq(self) -> int:
        """Entries up to this number are in the memo."""
        return max(self._memo.seq, self.log.start - 1)

    @property
    def memo_cursor(self) -> int:
        """How many messages of the whole history are in the memo."""
        with self.lock:
            return len(messages_of([e for e in self.whole() if e.seq <= self._memo.seq]))

    @property
    def last_resize(self) -> dict[str, Any] | None:
        """The last resize's type, turn and reason; None before the first."""
        names = ("type", "turn", "reason")
        return {name: self.resized[name] for name in names} if self.resized else None

    @property
    def last_resize_turn(self) -> int:
        """The turn of the last resize; 0 before the first."""
        return int(self.resized.get("turn", 0))

    def note_resize(self, resized: Mapping[str, Any], memo: Digest) -> None:
        """Record a resize and its new memo."""
        with self.lock:
            self.resized = resized
            if memo != self._memo:
                self._memo = memo
                self.touch(MEMO)
            self.touch()

    @property
    def _turns(self) -> int:
        return self.turns

    # The original implementation's names for these properties
    _last_resize_turn = last_resize_turn
    _memo_cursor = memo_cursor

    # Resizing

    def configure(
        self,
        *,
        mode: str | None = None,
        limit: Mapping[str, Any] | None = None,
        every_n_turns: int | str | None = None,
    ) -> Self:
        """Set the most common settings; limits set by earlier calls are kept."""
        with self.lock:
            self.settings.configure(mode=mode, limit=limit, every_n_turns=every_n_turns)
        return self

    @property
    def provider(self) -> Provider | None:
        """The provider that updates the memo."""
        return self._handlers.provider

    @provider.setter
    def provider(self, provider: Provider | None) -> None:
        self._handlers.provider = provider

    def set_policy_handler(self, handler: Handler | None) -> Self:
        """Replace the rules with a handler, which maps (full, current, settings) to a decision."""
        self._handlers.policy = handler
        return self

    def set_resize_handlers(self, type: str, handler: Handler) -> Self:  # noqa: A002 - the original API's name
        """Use a handler for resizes of this type; raise ValueError if the type is empty.

        It is called with (full, current, memo, settings) and returns (full, current, memo).
        """
        self._handlers.resizes[resize.checked_type(type)] = resize.custom(handler)
        return self

    def set_attachment_summary_handler(self, handler: Handler | None) -> Self:
        """Set a handler that returns a list of descriptions for a message's attachments."""
        self._handlers.attachments = handler
        return self

    def set_memo_update_handler(self, handler: Handler | None) -> Self:
        """Set a handler that maps (memo, messages, attachments, settings) to the new memo."""
        self._handlers.memo_update = handler
        return self

    @property
    def has_resize_rules(self) -> bool:
        """True if anything but the defaults can trigger a resize."""
        return self._handlers.policy is not None or self.settings.is_set

    @property
    def has_resize_handlers(self) -> bool:
        """True if a resize involves user functions, which may have to be awaited."""
        return not self._handlers.are_built_in

    @property
    def is_memo_due(self) -> bool:
        """True if `cut_by_rules` has left the memo to be updated."""
        by = self._handlers
        with self.lock:
            is_behind = self.memo_seq < int(self.resized.get("seq", 0))
            if not is_behind or not by.are_built_in or by.provider is None:
                return False
            return isinstance(self._memo.value, dict) and self.settings.memo_enabled

    def cut_by_rules(self, *, least_severity: int = 0) -> int:
        """Resize if a built-in rule of at least this severity applies; leave the memo for later.

        This never waits, so it can be done in the step that adds an answer. Return how many entries
        left the window.
        """
        return resize.cut_by_rules(self, least_severity)

    async def update_memo(self, *, change: Change, read: ReadEntries | None = None) -> bool:
        """Update the memo that `cut_by_rules` left; return False if it was changed in the meantime.

        Raise `ProviderError`, in which case nothing has changed. `change` applies a function to
        this session durably; `read` is as in `async_resize`.
        """
        return await resize.update_memo(self, self._handlers, change, read)

    def judge_resize(self, force: object = False) -> Decision | None:
        """Like `async_judge_resize`, but for synchronous code."""
        return blocking(partial(self.async_judge_resize, force))

    def resize(self, force: object = False) -> list[dict[str, Any]]:
        """Like `async_resize`, but for synchronous code."""
        self._handlers.mutex.check_may_block()
        return blocking(partial(self.async_resize, force))

    async def async_judge_resize(
        self, force: object = False, *, read: ReadEntries | None = None
    ) -> Decision | None:
        """Return the type and reason if a resize is due, or None.

        `force` is a type, or True for deep. Raise TypeError if the policy's answer is invalid.
        """
        return await resize.judge(self, self._handlers, force, read)

    async def async_resize(
        self, force: object = False, *, read: ReadEntries | None = None
    ) -> list[dict[str, Any]]:
        """Resize if necessary or forced, and return the window as chat messages.

        Raise KeyError for a type without a handler, and any error that a handler raises; in both
        cases, nothing has changed. `read` loads entries that are only in the store; if some are
        needed and there is no `read`, raise `HistoryNotLoaded`.
        """
        return await resize.run(self, self._handlers, force, read)

    # Export and import

    def to_dict(self) -> dict[str, Any]:
        """Return the complete state, without any secrets from the settings."""
        return export.exported(self)

    def dump(self, format: str = "json") -> str:  # noqa: A002 - the original API's name
        """Return the complete state as JSON or YAML text."""
        return export.dumped(self.to_dict(), format)

    def dump_json(self) -> str:
        """Return the complete state as JSON text."""
        return self.dump("json")

    def dump_yaml(self) -> str:
        """Return the complete state as YAML text."""
        return self.dump("yaml")

    def load_json(self, text: str, key_path: str | None = None) -> Self:
        """Like `load`, but only from JSON."""
        return self.load_dict(parsed(text, "json", key_path))

    def load_yaml(self, text: str, key_path: str | None = None) -> Self:
        """Like `load`, but only from YAML."""
        return self.load_dict(parsed(text, "yaml", key_path))

    def load_dict(self, data: Mapping[str, Any]) -> Self:
        """Load all or part of a result of `to_dict`; values that are not in it don't change.

        Raise TypeError or ValueError for anything else, in which case nothing has changed. A
        session that a store knows keeps its id.
        """
        export.take_in(self, data)
        return self

    # Text for people

    def display(self, last: int = 20, width: int = 80) -> str | None:
        """Return the window's last messages, one per line, or None if there are none."""
        return export.displayed(self.window, last=last, width=width)

    def stats(self) -> dict[str, Any]:
        """Count the window's messages by role and its tool calls, and list the tools used."""
        return export.counted(self.window)

    def conversation_text(self) -> str:
        """Return `[role] content` for each message of the window, separated by blank lines."""
        return export.conversation_text(self.window)

    def to_markdown(self) -> str:
        """Return the whole history as Markdown text."""
        with self.lock:
            about = f"Session `{self.id}`, started {self.created_at:%Y-%m-%d %H:%M}"
            entries = list(self.whole())
        return export.as_markdown(entries, title=self.title, about=about, summary=self.summary)

    def rendered(self, limit: int = 0) -> list[Rendered]:
        """Return the window's last entries as text for a model, oldest first; 0 means all."""
        window = self.window
        return [export.rendered(entry) for entry in (window[-limit:] if limit > 0 else window)]

    # For stores

    @classmethod
    def restored(
        cls,
        *,
        head: Mapping[str, Any],
        sections: Mapping[str, Any],
        entries: Iterable[Entry],
        after: int = 0,
        clock: Callable[[], datetime] = utc_now,
    ) -> Session:
        """Create a session from its stored state and all entries numbered above `after`.

        Entries newer than the head are included.
        """
        session = cls(id=sections[ABOUT]["id"], clock=clock)
        stood = Head.load(head)
        session.restore(stood, sections)
        session.restore_log(stood, Log.restored(stood, entries, after=after))
        return session
