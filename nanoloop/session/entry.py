"""One entry of a session's log: a message, a tool call, a tool result or reasoning.

An entry of an unknown type is kept unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from random import Random
from time import time_ns
from typing import Any

MESSAGE = "message"
TOOL_CALL = "tool_call"
TOOL_RESULT = "tool_result"
THINKING = "thinking"
APPROVAL = "approval"
"""Marks a question about tool calls, or a person's answer to one."""
ERASED = "erased"
"""Marks an erased entry, which has only its number, id and time left."""

CALL_ID = "tool_call_id"
"""The metadata key that pairs a call with its result."""


_PLAIN = (str, int, float, type(None))
_random = Random()  # noqa: S311 - not secret; a system call for each would switch threads


def fresh_id() -> str:
    """Return a unique id of 32 hex digits; the time in it tells forked processes apart."""
    return f"{time_ns():016x}{_random.getrandbits(64):016x}"


def short_id() -> str:
    """Return part of a unique id, for places with only a few ids to tell apart."""
    return fresh_id()[10:24]


def utc_now() -> datetime:
    """Return the current time in the form that entries and sessions record."""
    return datetime.now(timezone.utc)


def copied(value: Any) -> Any:
    """Copy a value so that no dict or list is shared with the original."""
    if isinstance(value, _PLAIN):  # checked first, since the Mapping check is slow
        return value
    if isinstance(value, (dict, Mapping)):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(item) for item in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A frozen record: the five fields of its JSON form, and its position in the log."""

    type: str
    content: Mapping[str, Any]
    id: str = field(default_factory=fresh_id)
    timestamp: datetime = field(default_factory=utc_now)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    seq: int = 0
    """The position in the log, from 1; 0 if the entry is in no log."""

    @classmethod
    def message(cls, role: str, text: Any, *, metadata: Mapping[str, Any] | None = None) -> Entry:
        """Create a message; structured content (a list of parts) is kept beside its plain text."""
        content = {"role": role, "text": plain_text(text)}
        if not isinstance(text, str):
            content["parts"] = copied(text)
        return cls(type=MESSAGE, content=content, metadata=copied(metadata or {}))

    @classmethod
    def tool_call(
        cls,
        tool: str,
        params: Any = None,
        *,
        call_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Entry:
        """Create a tool call made by the model."""
        content = {"tool": tool, "parameters": copied({} if params is None else params)}
        return cls(type=TOOL_CALL, content=content, metadata=_with_call_id(metadata, call_id))

    @classmethod
    def tool_result(
        cls,
        tool: str,
        result: Any = None,
        err: object = None,
        *,
        call_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Entry:
        """Create a tool's result; a failed call keeps its result too."""
        content = {
            "tool": tool,
            "success": err is None,
            "result": copied(result),
            "error": "" if err is None else str(err),
        }
        return cls(type=TOOL_RESULT, content=content, metadata=_with_call_id(metadata, call_id))

    @classmethod
    def thinking(cls, text: str, *, metadata: Mapping[str, Any] | None = None) -> Entry:
        """Create an entry for the model's reasoning."""
        return cls(type=THINKING, content={"text": text}, metadata=copied(metadata or {}))

    @property
    def role(self) -> str | None:
        """The message's role, or None for an entry of another type."""
        return self.content.get("role") if self.type == MESSAGE else None

    @property
    def call_id(self) -> str | None:
        """The id that pairs this call or result with its counterpart, or None."""
        return self.metadata.get(CALL_ID)

    def message_content(self) -> dict[str, Any] | None:
        """Return a message's content, or None for any other type."""
        return self._content_of(MESSAGE)

    def tool_call_content(self) -> dict[str, Any] | None:
        """Return a tool call's content, or None for any other type."""
        return self._content_of(TOOL_CALL)

    def tool_result_content(self) -> dict[str, Any] | None:
        """Return a tool result's content, or None for any other type."""
        return self._content_of(TOOL_RESULT)

    def thinking_content(self) -> dict[str, Any] | None:
        """Return the content of reasoning, or None for any other type."""
        return self._content_of(THINKING)

    def _content_of(self, wanted: str) -> dict[str, Any] | None:
        return copied(self.content) if self.type == wanted else None

    def copy(self, *, seq: int | None = None) -> Entry:
        """Return a copy that shares no content with this entry; `seq` gives it another number."""
        return Entry(  # `replace` takes four times as long
            type=self.type,
            content=copied(self.content),
            id=self.id,
            timestamp=self.timestamp,
            metadata=copied(self.metadata),
            seq=self.seq if seq is None else seq,
        )

    def erased(self) -> Entry:
        """Return the entry without its content and metadata."""
        return replace(self, type=ERASED, content={}, metadata={})

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with only id, type, timestamp, content and metadata."""
        form = self.form()
        return {**form, "content": copied(self.content), "metadata": copied(self.metadata)}

    def form(self) -> dict[str, Any]:
        """Return the JSON form, which shares content and metadata with the entry."""
        return {
            "id": self.id,
            "type": self.type,
            "timestamp": rfc3339(self.timestamp),
            "content": self.content,
            "metadata": self.metadata,
        }

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], *, seq: int = 0, undated: datetime | None = None
    ) -> Entry:
        """Read the JSON form; raise TypeError or ValueError if it is invalid.

        `undated` replaces a time that can't be read.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("type"), str):
            msg = f"an entry must be an object with a type, not {type(data).__name__}"
            raise TypeError(msg)
        content = data.get("content")
        if not isinstance(content, Mapping):
            content = {"value": content}
        return cls(
            type=data["type"],
            content=copied(content),
            id=str(data.get("id") or fresh_id()),
            timestamp=_time_in(data.get("timestamp"), undated),
            metadata=copied(data.get("metadata") or {}),
            seq=seq,
        )

    def to_json(self) -> str:
        """Return the JSON form as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, default=str)

    @classmethod
    def from_json(cls, text: str) -> Entry:
        """Read the JSON form from text."""
        return cls.from_dict(json.loads(text))


def _time_in(text: Any, undated: datetime | None) -> datetime:
    try:
        return from_rfc3339(text)
    except ValueError:
        if undated is None:
            raise
        return undated


UNDATED = datetime.min.replace(tzinfo=timezone.utc)
"""Stands for an unreadable time until `dated` replaces it."""


def entries_in(stored: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """Read entries from their JSON forms; raise TypeError or ValueError if one is invalid."""
    return dated([Entry.from_dict(each, undated=UNDATED) for each in stored])


def dated(entries: list[Entry]) -> list[Entry]:
    """Replace each unreadable time with the previous entry's time, so that no entry is lost.

    Entries before the first readable time get that time.
    """
    if all(entry.timestamp != UNDATED for entry in entries):
        return entries
    known = (entry.timestamp for entry in entries if entry.timestamp != UNDATED)
    moment = next(known, utc_now())
    found = []
    for entry in entries:
        moment = moment if entry.timestamp == UNDATED else entry.timestamp
        found.append(replace(entry, timestamp=moment))
    return found


def _with_call_id(metadata: Mapping[str, Any] | None, call_id: str | None) -> dict[str, Any]:
    data: dict[str, Any] = copied(metadata or {})
    if call_id is not None:
        data[CALL_ID] = call_id
    return data


def plain_text(content: Any, *, between: str = "\n") -> str:
    """Return the text of a message's content: a string, parts with text, or None."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return between.join(filter(None, (_part_text(part) for part in content)))
    return "" if content is None else json.dumps(content, ensure_ascii=False, default=str)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    return ""


def rfc3339(moment: datetime) -> str:
    """Format a time as text, with Z for UTC."""
    return moment.isoformat().replace("+00:00", "Z")


def from_rfc3339(text: Any) -> datetime:
    """Parse a time; a missing time means now, and a time without a zone is in UTC."""
    if not text:
        return utc_now()
    moment = datetime.fromisoformat(str(text))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


TITLE_LIMIT = 60
"""How many characters of the user's first words become the title."""


def title_of(entry: Entry) -> str:
    """Make a conversation's title from a user's first message."""
    words = str(entry.content.get("text") or "").split(maxsplit=TITLE_LIMIT)  # the text may be long
    return " ".join(words)[:TITLE_LIMIT]


SCHEME = "attachment:"
"""The prefix of a reference to an uploaded file."""
_FILE = re.compile(rf"{SCHEME}([0-9a-f]{{40}})")


def files_in(entry: Entry) -> set[str]:
    """Return the ids of the files uploaded with this entry, without looking in its text."""
    files, parts = entry.metadata.get("attachments"), entry.content.get("parts")
    if not files and not parts:
        return set()
    refs = [file.get("ref") for file in _mappings(files)]
    images = [part.get("image_url") for part in _mappings(parts)]
    refs += [image.get("url") for image in _mappings(images)]
    found = (_FILE.fullmatch(ref) for ref in refs if isinstance(ref, str))
    return {match[1] for match in found if match is not None}


_NAMED = re.compile(
    rf"(?P<image>!)?\[(?P<label>[^\]\n]*)\]\({SCHEME}(?P<id>[0-9a-f]{{40}})\)"
    rf"|[`<(]?{SCHEME}(?P<bare>[0-9a-f]{{40}})[`>)]?"
)


def named_files(text: str) -> list[str]:
    """Return the ids of the files that an answer names, in order, without duplicates."""
    if SCHEME not in text:
        return []
    return list(dict.fromkeys(match["id"] or match["bare"] for match in _NAMED.finditer(text)))


def without_files(text: str) -> str:
    """Return an answer as people see it: links to files become plain words, and ids disappear."""
    return _NAMED.sub(_words_of_link, text).strip() if SCHEME in text else text


def _words_of_link(named: re.Match[str]) -> str:
    return "" if named["bare"] or named["image"] else named["label"]


_UNFINISHED = re.compile(
    r"!?\[[^\]\n]{0,200}(\](\([a-z]*:?[0-9a-f]{0,40})?)?$"
    r"|[`<(]?\b[a-z]{1,10}:?[0-9a-f]{0,40}$"
    r"|(?<![0-9a-f])[`<(!]$"
)


class PiecesWithoutFiles:
    """Removes the ids of files from a streamed answer; holds back a piece that may begin an id."""

    def __init__(self, has_files: Callable[[], bool]) -> None:
        """Create the filter; `has_files` returns True if the session has files to name."""
        self._has_files = has_files
        self._rest = ""

    def __call__(self, piece: str) -> str:
        """Return the text that may be shown now."""
        text, self._rest = self._rest + piece, ""
        unfinished = _UNFINISHED.search(text)
        if unfinished and _may_name(unfinished[0]) and self._has_files():
            text, self._rest = text[: unfinished.start()], unfinished[0]
        return _NAMED.sub(_words_of_link, text) if SCHEME in text else text


def _may_name(text: str) -> bool:
    """Return True if this end of a text may become the name of a file."""
    if "[" in text:
        _, _, address = text.partition("](")
        return not address or SCHEME.startswith(address) or address.startswith(SCHEME)
    bare = text.lstrip("`<(!")
    return not bare or SCHEME.startswith(bare) or bare.startswith(SCHEME)


def _mappings(values: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(values, list):
        yield from (value for value in values if isinstance(value, Mapping))
