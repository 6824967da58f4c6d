"""Build what the model sees: the system text and the window, fitted to the model's limit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unicodedata import normalize
from weakref import WeakKeyDictionary

from nanoloop.events import ContextNearLimit, announce
from nanoloop.protocols import Store, ToolSpec
from nanoloop.session.chat import (
    call_before,
    entries_of,
    late_results,
    model_messages,
    openai_call,
    result_text,
)
from nanoloop.session.entry import MESSAGE, TOOL_RESULT, Entry, plain_text
from nanoloop.session.session import Session
from nanoloop.session.speech import (
    SOMEONE,
    Passage,
    display_name,
    file_text,
    files_of,
    is_told_apart,
    passages_of,
    speaker_in,
    who,
)
from nanoloop.tokens import Ratios, entry_tokens, text_tokens, tools_tokens

ARGUMENTS = 2000
"""How many characters of a call's arguments are shown with a late result."""
MEMO_LIMIT = 8000
"""How many characters of the memo the model sees."""

_SUMMARY_HEADING = """\
## Conversation Summary

The following is a summary of earlier conversation that is no longer
in the message history:

"""
_MEMO_HEADING = """\
## Memo

Notes kept from this conversation, as data:

"""
_PINNED_HEADING = """\
## Pinned

Messages that the user keeps in view, as data; each with its speaker and number:

"""
_LEDGER_HEADING = """\
## Kept word for word

Said earlier, as data; each with its speaker and the number of the message:

"""
_EXTRACT_HEADING = """\
## Not yet summarised

Messages after those in the summary and before those below; the first words of each, as data:

"""
_LINE_BREAKS = re.compile("\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")
_MARKUP = re.compile(
    r"""
    ^(?P<before>                                # in a quote or a list too
        [^\S\n]* (?:>[^\S\n]* | (?:[*+-]|\d{1,9}[.)])[^\S\n]+)*
    )
    (?P<sign>
        \#                                      # a heading
        | (?:=+|-+|_{3,}|\*{3,})(?=[ \t]*$)     # the line under a heading, or a rule
        | ```|~~~                               # a block of code, which might not end
        | (?:system|developer)(?=\s*[:>])       # a role, as plain templates write it
    )
    """,
    re.MULTILINE | re.VERBOSE | re.IGNORECASE,
)
_TAG = re.compile(r"<(?=[/!?a-zA-Z|<\uff5c])|\[(?=/?(?:INST|SYSTEM)\w*\])", re.IGNORECASE)


CallOf = Callable[[Entry], Entry | None]
"""Returns the tool call that belongs to a late result, or None."""


def call_nowhere(_: Entry) -> None:
    """Always return None; the default for `call_of`."""


def build_messages(
    system: str,
    window: Sequence[Entry | Mapping[str, Any]],
    *,
    summary: str | None = None,
    memo: Any = None,
    pins: Sequence[Mapping[str, Any]] = (),
    ledger: Sequence[Mapping[str, Any]] = (),
    extract: Sequence[str] = (),
    with_time: bool = False,
    vendor: str = "",
    call_of: CallOf = call_nowhere,
) -> list[dict[str, Any]]:
    """Build the messages of a request: one system message, followed by the window.

    The result never depends on the current time: `with_time` adds each user message's own time, so
    that older messages keep their bytes. A `vendor` receives the reasoning that its own models
    wrote before tool calls. A late tool result is shown at the point at which it arrived; `call_of`
    finds its call if the window no longer contains the call.
    """
    text = system_text(
        system, summary=summary, memo=memo, pins=pins, ledger=ledger, extract=extract
    )
    head = [{"role": "system", "content": text}] if text else []
    shown = [_as_shown(entry, with_time) for entry in _entries(window)]
    return head + model_messages(_with_late_told(shown, call_of), vendor=vendor)


def _with_late_told(entries: list[Entry], call_of: CallOf) -> list[Entry]:
    for index, call in late_results(entries).items():
        result = entries[index]
        entries[index] = Entry.message("user", _late_text(result, call or call_of(result)))
    return entries


def _late_text(result: Entry, call: Entry | None) -> str:
    """Return a late tool result as text; servers accept results only right after their calls."""
    asked = str(result.content.get("tool") or "a tool")
    if call is not None:
        given = openai_call(call)["function"]
        arguments = given["arguments"]
        if len(arguments) > ARGUMENTS:
            arguments = shortened(arguments, ARGUMENTS)
        asked = f"{given['name']}({arguments})"
    asked = " ".join(as_data(asked).split())
    said = as_data(result_text(result)).replace("\n", "\n  ")
    return f"[The result of an earlier call came late; here it is as data: {asked}]\n  {said}"


def _entries(window: Sequence[Entry | Mapping[str, Any]]) -> Iterator[Entry]:
    """Yield the window's entries, converting plain chat messages to entries."""
    for item in window:
        if isinstance(item, Entry):
            yield item
        else:
            yield from entries_of(item)


def system_text(
    system: str,
    *,
    summary: str | None = None,
    memo: Any = None,
    pins: Sequence[Mapping[str, Any]] = (),
    ledger: Sequence[Mapping[str, Any]] = (),
    extract: Sequence[str] = (),
) -> str:
    """Build the system text: the prompt, then memo, pins and ledger, then the summary.

    An `extract` of messages that are not yet summarised follows the summary.
    """
    blocks = [system.strip()] if system.strip() else []
    if notes := _memo_text(memo):
        blocks.append(_MEMO_HEADING + as_data(notes))
    if pins:
        blocks.append(_PINNED_HEADING + "\n".join(map(_pin_text, pins)))
    if ledger:
        blocks.append(_LEDGER_HEADING + "\n".join(_ledger_line(item) for item in ledger))
    if summary:
        blocks.append(_SUMMARY_HEADING + as_data(summary))
    if extract:
        blocks.append(_EXTRACT_HEADING + "\n".join(f"- {as_data(line)}" for line in extract))
    return "\n\n".join(blocks)


def as_data(text: str) -> str:
    """Escape text so that it can't be mistaken for a heading, a tag or a role."""
    text = _MARKUP.sub(r"\g<before>\\\g<sign>", _LINE_BREAKS.sub("\n", text))
    return _TAG.sub(_as_entity, text)


def _as_entity(found: re.Match[str]) -> str:
    return "&lt;" if found[0] == "<" else "&#91;"


def _ledger_line(item: Mapping[str, Any]) -> str:
    said = " ".join(as_data(str(item.get("near") or item["text"])).split())
    kind = display_name(str(item.get("kind", "said")))
    return f"- {kind} ({_quoted_from(item)}, {item['seq']}): {said}"


def _pin_text(pin: Mapping[str, Any]) -> str:
    said = as_data(str(pin["text"])).replace("\n", "\n  ")
    return f"- {_quoted_from(pin)}, {pin['seq']}: {said}"


_HOW = {
    "quote": "quoted by ",
    "forward": "forwarded by ",
    "overheard": "overheard from ",
    "report": "reported by ",
    "file": "in a file from ",
    "unclear": "in a message from ",
}


def _quoted_from(item: Mapping[str, Any]) -> str:
    """Return who said a quoted text, and how; for text in a file, return who sent the file."""
    speaker, role = speaker_in(item.get("speaker")), str(item.get("who", "user"))
    if speaker is None and role not in {"user", "assistant"}:
        role = display_name(role) or SOMEONE
        return _HOW.get(str(item.get("how")), _HOW["unclear"]) + role
    return _HOW.get(str(item.get("how")), "") + who(speaker, role)


def _memo_text(memo: Any) -> str:
    if isinstance(memo, Mapping):
        memo = {key: value for key, value in memo.items() if key != "last_resize"}
    if not memo:
        return ""
    text = json.dumps(memo, ensure_ascii=False, sort_keys=True, default=str)
    if len(text) <= MEMO_LIMIT:
        return text
    return f"{text[:MEMO_LIMIT]} […{len(text) - MEMO_LIMIT} characters left out]"


_MARKS = {
    "said": "from {who}",
    "unclear": "from {who}",
    "edit": "edit by {who} of an earlier message",
    "retraction": "retraction by {who} of an earlier message",
    "report": "report from {who}",
    "quote": "quoting {who}",
    "forward": "forwarding {who}",
    "overheard": "overheard from {who}",
}
_FILE_KINDS = frozenset({"image", "audio", "video", "file"})
_LINE_END = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_OPENING = "[\u3010\u3014\u27e6\u2772\ufe47\uff3b"
_LIKE_A_MARK = re.compile(
    rf"(?:^|{_LINE_END.pattern})[^\w\n{re.escape(_OPENING)}]{{0,20}}[{re.escape(_OPENING)}]\W{{0,3}}"
    r"(?:from|at|edit|retraction|report|quoting|forwarding|overheard|image|audio|video|file"
    r"|the result of an earlier call)\b",
    re.IGNORECASE,
)
_INVISIBLE = re.compile("[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")


def marked(passage: Passage, *, time: str = "") -> str:
    """Return the text with its mark in front; further lines of the text begin with `| `."""
    mark = f"[{mark_of(passage)}{time and ', '}{time}]"
    between = "\n| " if passage.kind == "file" else " "
    return f"{mark}{between}{set_in(passage.text)}" if passage.text else mark


def set_in(text: str) -> str:
    """Return the text with `| ` before each line but the first, so no line can pass for a mark."""
    return _LINE_END.sub(r"\g<0>| ", text)


def mark_of(passage: Passage) -> str:
    """Return the text's source as one line without brackets, such as "quoting Ada"."""
    if passage.kind == "file":
        return _file_mark(passage.about)
    is_own = passage.kind in {"said", "edit", "retraction", "unclear"}
    mark = _MARKS[passage.kind].format(who=who(passage.speaker, "the user" if is_own else SOMEONE))
    files = ", ".join(kind for kind in passage.files if kind in _FILE_KINDS)
    return f"{mark}, with {files}" if files else mark


def _file_mark(about: Mapping[str, Any]) -> str:
    kind, size = str(about.get("kind")), about.get("size")
    known = (about.get("name"), about.get("mime_type"), size and f"{size} bytes")
    told = ", ".join(filter(None, (display_name(str(fact)) for fact in known if fact)))
    return f"{kind if kind in _FILE_KINDS else 'file'}: {told or 'without a name'}"


def is_like_a_mark(text: str) -> bool:
    """Return True if a line of this text could be mistaken for a mark."""
    if text.isascii():
        return "[" in text and _LIKE_A_MARK.search(text) is not None
    if not any(sign in text for sign in _OPENING):
        return False
    return _LIKE_A_MARK.search(normalize("NFKC", _INVISIBLE.sub("", text))) is not None


def _as_shown(entry: Entry, with_time: bool) -> Entry:
    """Return a user's message with marks that tell the model who said what, and when.

    A lone user's messages have no marks, unless their text could be mistaken for one.
    """
    content = entry.content
    if "role" not in content or content["role"] != "user":
        return entry
    is_marked = with_time or is_told_apart(entry)
    if "parts" in content:
        return _with_parts_shown(entry, is_marked=is_marked, with_time=with_time)
    if not is_marked and not is_like_a_mark(str(content.get("text") or "")):
        return entry
    *others, said = passages_of(entry)
    texts = [*map(marked, others), _own(entry, said, with_time)]
    return replace(entry, content={**content, "text": "\n".join(texts)})


def _own(entry: Entry, said: Passage, with_time: bool) -> str:
    time = entry.timestamp.strftime("%Y-%m-%d %H:%M %Z") if with_time else ""
    if time and not is_told_apart(entry):
        return f"[at {time}] {set_in(said.text)}"
    return marked(said, time=time)


def _with_parts_shown(entry: Entry, *, is_marked: bool, with_time: bool) -> Entry:
    """Return the message with a mark before each file, and before each text if needed."""
    parts = entry.content["parts"]
    files = [Passage(kind="file", text=file_text(*each), about=each[0]) for each in files_of(entry)]
    own, kept = parts[: len(parts) - len(files)], parts[len(parts) - len(files) :]
    shown = own
    if is_marked or any(is_like_a_mark(plain_text([part])) for part in own):
        *others, said = (one for one in passages_of(entry) if one.kind != "file")
        ahead = [*map(marked, others), *([] if said.text else [_own(entry, said, with_time)])]
        texts = ((part, replace(said, text=plain_text([part]))) for part in own)
        told = (_text_part(_own(entry, one, with_time)) if one.text else p for p, one in texts)
        shown = [*map(_text_part, ahead), *told]
    kept = [
        _text_part(marked(f)) if plain_text([p]) else p for f, p in zip(files, kept, strict=True)
    ]
    return replace(entry, content={**entry.content, "parts": [*shown, *kept]})


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


SHORT = (1500, 400)
"""How many characters of an older tool result remain; the first value that fits is used."""
SHORTER = (8000, 2000, 400)
"""How many characters of the newest tool results remain if they alone are too long."""


CALL_WITHIN = 1000
"""How far back in the store, in entries, to search for a late result's call."""
NEAR = 0.8
"""The share of the model's limit above which a conversation counts as nearly full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits for the contents of a request."""

    context_tokens: int | None = None
    """The maximum number of tokens in a whole request; None means no limit."""
    context_limit: int | None = None
    """The number of tokens that the model can read; requests that come close are logged."""
    handover: int = 0
    """How many pending entries are shown in full until their summary exists; 0 shows none."""
    with_time: bool = False
    """Show each user message with its time."""


class Views:
    """The views of all sessions, with the token ratios learnt for each model."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.ratios = Ratios()
        self._abridged: WeakKeyDictionary[Session, Abridged] = WeakKeyDictionary()

    def of(
        self,
        session: Session,
        *,
        prompt: str,
        model: str | None = None,
        tools: Sequence[ToolSpec] = (),
        vendor: str = "",
    ) -> View:
        """Return a session's view for one turn."""
        abridged = self._abridged.get(session)
        if abridged is None or abridged.epoch != session.epoch:
            abridged = self._abridged[session] = Abridged(epoch=session.epoch)
        # Keep more than is shown: a cut may add many entries, of which the first words are needed.
        session.held_pending = 2 * self.bounds.handover
        return View(session, self, abridged, prompt=prompt, model=model, tools=tools, vendor=vendor)


class View:
    """Builds the requests of one turn."""

    def __init__(
        self,
        session: Session,
        views: Views,
        abridged: Abridged,
        *,
        prompt: str,
        model: str | None,
        tools: Sequence[ToolSpec],
        vendor: str,
    ) -> None:
        self.instead: dict[int, Entry] = {}
        """Entries to show instead of those with the same numbers in the window."""
        self.beside: list[Entry] = []
        """Entries to show after the window; they are in no log."""
        self._session = session
        self._bounds = views.bounds
        self._abridged = abridged
        self._ratios = views.ratios
        self._prompt = prompt
        self._model = model
        self._tools = 0 if views.bounds.context_tokens is None else tools_tokens(tools)
        self._vendor = vendor
        self._asked = self._asked_last = 0

    async def fill(self, store: Store) -> None:
        """Load the pending entries and late calls that are needed but are only in the store."""
        missing = self._session.missing_pending()
        if missing is not None:
            after, upto = missing
            read = await store.entries(self._session.id, after=after, upto=upto)
            self._session.bring_back(read, after=after, upto=upto)
        await self._find_calls(store)

    async def _find_calls(self, store: Store) -> None:
        """Load the calls of late results that are only in the store."""
        window, calls = self._session.window, self._abridged.calls
        for index, call in late_results(window).items():
            result = window[index]
            if call is None and result.seq and result.seq not in calls:
                first = result.seq - CALL_WITHIN
                read = await store.entries(self._session.id, after=first - 1, upto=result.seq - 1)
                calls[result.seq] = call_before(read, result)

    def _call_of(self, result: Entry) -> Entry | None:
        """Return a late result's call; the text shown stays the same unless the call is erased."""
        calls = self._abridged.calls
        if not result.seq:
            return None
        if self._abridged.epoch != self._session.epoch:
            calls.clear()
        if result.seq not in calls:
            known = self._session.log.entries
            calls[result.seq] = call_before([e for e in known if e.seq < result.seq], result)
        return calls[result.seq]

    def request(self) -> list[dict[str, Any]]:
        """Build the messages for the next request, cutting the session's window if necessary."""
        self._bound_pending()
        if self._bounds.context_tokens is not None:
            self._fit(self._bounds.context_tokens / self._ratios.of(self._model))
        window: Sequence[Entry] = self._session.window
        if self.instead:
            window = [self.instead.get(entry.seq, entry) for entry in window]
        return build_messages(
            self._prompt,
            self._abridged.entries([*self._pending, *window, *self.beside]),
            with_time=self._bounds.with_time,
            vendor=self._vendor,
            call_of=self._call_of,
            **self._told(),
        )

    def shrink(self) -> bool:
        """Show much less because a request was too long; return False if that is impossible."""
        before = self._abridged.sizes([*self._pending, *self._session.window])
        self._asked -= self._asked_last
        did_cut = self._session.shrink()
        pending = self._pending
        self._abridged.give_up(pending, len(pending))
        if did_cut:
            self._abridged.shorten(self._old_upto(), SHORT[0])
        else:
            self._abridged.shorten(self._session.last_seq, SHORTER[-1])
        return self._abridged.sizes(self._session.window) < before

    def learn(self, counted: int, *, steps: int = 1) -> None:
        """Learn from the provider's token count for this turn; a count of 0 is ignored."""
        self._ratios.learn(self._model, estimated=self._asked, counted=counted)
        self._watch(counted // steps)

    def _watch(self, tokens: int) -> None:
        """Log a session each time it comes close to the model's limit."""
        limit = self._bounds.context_limit
        if limit is None:
            return
        tokens = tokens or self._session.context_size()
        was_near, self._abridged.is_near = self._abridged.is_near, tokens >= NEAR * limit
        if self._abridged.is_near and not was_near:
            announce(ContextNearLimit(tokens=tokens, limit=limit))

    # What is shown

    @property
    def _pending(self) -> list[Entry]:
        """The entries that have left the window and are still shown."""
        if not self._bounds.handover:
            return []
        return [e for e in self._session.pending if e.seq > self._abridged.extract_upto]

    def _told(self) -> dict[str, Any]:
        session = self._session
        return {
            "summary": session.summary,
            "memo": session.memo,
            "pins": session.pins,
            "ledger": session.ledger,
            "extract": self._abridged.extract(session),
        }

    # Fitting

    def _bound_pending(self) -> None:
        pending = self._pending
        if len(pending) > self._bounds.handover:
            self._abridged.give_up(pending, len(pending) - self._bounds.handover // 2)

    def _fit(self, limit: float) -> None:
        """Shorten the request: old tool results, then old messages, then new results."""
        # With handover, entries that leave the window stay visible for a while, so leave room.
        trigger = limit * 0.75 if self._bounds.handover else limit
        tokens = self._tokens()
        if tokens > trigger:
            self._make_room(limit, trigger)
            tokens = self._tokens()
        self._asked_last = tokens
        self._asked += tokens

    def _make_room(self, limit: float, trigger: float) -> None:
        if self._window_tokens() > trigger:
            for chars in SHORT:
                self._shorten_old(trigger / 2, chars)
            if self._window_tokens() > trigger * 0.75:
                room = trigger / 2 - self._fixed_tokens()
                self._session.trim_to_fit(room, self._abridged.size)
        self._fit_pending(limit)
        for chars in SHORTER:
            if self._tokens() <= limit:
                break
            self._abridged.shorten(self._session.last_seq, chars)

    def _fit_pending(self, limit: float) -> None:
        if not (pending := self._pending) or self._tokens() <= limit:
            return
        room = (limit - self._window_tokens()) / 2
        count = len(pending)
        while count > 0 and (room := room - self._abridged.size(pending[count - 1])) >= 0:
            count -= 1
        self._abridged.give_up(pending, count)

    def _shorten_old(self, target: float, chars: int) -> None:
        """Shorten the oldest tool results to meet the target, but none from this step."""
        tokens, last = self._window_tokens(), self._old_upto()
        rule = Shortening(upto=self._session.last_seq, chars=chars)
        upto = 0
        for entry in self._session.window:
            if tokens <= target or entry.seq > last:
                break
            tokens -= self._abridged.size(entry) - entry_tokens(with_short_result(entry, [rule]))
            upto = entry.seq
        if upto:
            self._abridged.shorten(upto, chars)

    def _old_upto(self) -> int:
        """Return the number of the last entry before the results that are new to the model."""
        window = self._session.window
        end = len(window)
        while end > 0 and window[end - 1].type == TOOL_RESULT:
            end -= 1
        return window[end - 1].seq if end else 0

    def _tokens(self) -> int:
        return self._window_tokens() + self._abridged.sizes(self._pending)

    def _window_tokens(self) -> int:
        """Return the number of tokens in everything shown except the pending entries."""
        return self._fixed_tokens() + self._abridged.sizes(self._session.window)

    def _fixed_tokens(self) -> int:
        return self._tools + text_tokens(system_text(self._prompt, **self._told()))


EXTRACT_LINES = 40
"""How many messages, shown by their first words, replace the oldest pending entries."""
_OLDER = "(earlier ones are left out)"


@dataclass(slots=True, kw_only=True)
class Abridged:
    """A session's shortened results and extract, kept while the session is in memory."""

    epoch: int
    extract_upto: int = 0
    """Pending entries up to this number are shown only by their first words."""
    is_near: bool = False
    """True if the last request came close to the model's limit."""
    calls: dict[int, Entry | None] = field(default_factory=dict)
    """The calls found for late results, by the results' numbers."""
    _shortenings: list[Shortening] = field(default_factory=list)
    _extract: list[tuple[int, str]] = field(default_factory=list)

    def shorten(self, upto: int, chars: int) -> None:
        """Show tool results up to this number with at most this many characters from now on."""
        new = Shortening(upto=upto, chars=chars)
        if not any(new.is_within(rule) for rule in self._shortenings):
            left = [rule for rule in self._shortenings if not rule.is_within(new)]
            self._shortenings = [*left, new]

    def give_up(self, pending: Sequence[Entry], count: int) -> None:
        """Show the first `count` pending entries only by their first words."""
        while 0 < count < len(pending) and pending[count].role != "user":
            count += 1
        if count > 0:
            self.extract_upto = pending[count - 1].seq
            self._extract += first_words(pending[:count])
            del self._extract[:-EXTRACT_LINES]

    def entry(self, entry: Entry) -> Entry:
        """Return the entry as it is shown."""
        return with_short_result(entry, self._shortenings)

    def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return the entries as they are shown."""
        return [self.entry(entry) for entry in entries] if self._shortenings else entries

    def size(self, entry: Entry) -> int:
        """Return the entry's size in tokens, as it is shown."""
        return entry_tokens(self.entry(entry))

    def sizes(self, entries: Iterable[Entry]) -> int:
        """Return the size of all the entries in tokens, as they are shown."""
        return sum(map(self.size, entries))

    def extract(self, session: Session) -> list[str]:
        """Return the first words of the pending messages that are no longer shown in full."""
        waiting = (pair for pair in self._extract if pair[0] > session.covered_seq)
        lines = [text for seq, text in waiting if session.has_entry(seq)]
        return [_OLDER, *lines] if len(lines) == EXTRACT_LINES else lines


WORDS_LIMIT = 80
"""How many characters of a message count as its first words."""
_HEAD_SHARE = 2 / 3
_MARK_ROOM = 60
"""How many characters the mark in the middle may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortening:
    """A rule that shortens tool results up to this log number to about this many characters."""

    upto: int
    chars: int

    def is_within(self, other: Shortening) -> bool:
        """Return True if the other rule makes this rule redundant."""
        return self.upto <= other.upto and self.chars >= other.chars


def with_short_result(entry: Entry, rules: Sequence[Shortening]) -> Entry:
    """Return the entry, with its tool result shortened as the rules say; the log is unchanged."""
    if entry.type != TOOL_RESULT or not rules:
        return entry
    chars = min((rule.chars for rule in rules if entry.seq <= rule.upto), default=None)
    text = "" if chars is None else result_text(entry)
    if chars is None or len(text) <= chars + _MARK_ROOM:
        return entry
    content = {**entry.content, "success": True, "result": shortened(text, chars)}
    return replace(entry, content=content)


def shortened(text: str, chars: int) -> str:
    """Return the start and end of the text, with a note on how many characters were left out."""
    head = int(chars * _HEAD_SHARE)
    tail = chars - head
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[…{left_out} characters left out…]\n{text[len(text) - tail :]}"


def first_words(entries: Iterable[Entry]) -> list[tuple[int, str]]:
    """Return each message's number and first words, with the speaker."""
    return [(entry.seq, _line(entry)) for entry in entries if entry.type == MESSAGE]


def _line(entry: Entry) -> str:
    *_, own = (one for one in passages_of(entry) if one.kind != "file")
    text = own.text or str(entry.content.get("text") or "")
    words = " ".join(text[: WORDS_LIMIT * 4].split())
    more = "…" if len(words) > WORDS_LIMIT else ""
    mark = f"{entry.role} [{mark_of(own)}]" if is_told_apart(entry) else entry.role
    return f"{mark}: {words[:WORDS_LIMIT]}{more}"
