"""Large tool results, which are stored whole as session files and read in parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nanoloop.errors import AttachmentsFull, BadArguments, DiskRefused, ToolError
from nanoloop.messages import Attachment
from nanoloop.protocols import Effect, ToolSpec
from nanoloop.session.entry import SCHEME, TOOL_RESULT, Entry, files_in
from nanoloop.session.speech import FILES

if TYPE_CHECKING:
    from nanoloop.attachments import Attachments
    from nanoloop.session.session import Session
    from nanoloop.tools.toolbox import ToolOutcome

READ_RESULT = "read_result"
WHOLE = "whole"
"""The metadata key for the id by which the model asks for a result that is stored whole."""
NAME_CHARS = 8
PAGE = 8_000
"""How many characters one call to `read_result` returns."""
PLACES = 10
"""How many matches a search returns."""
LONGEST_WORDS = 200
AROUND = 200
"""How many characters are shown on each side of a match."""
_MIME_TYPE = "text/plain"


class Results:
    """A session's large tool results, and the tool that reads them."""

    effect: Effect = "reads"
    spec = ToolSpec(
        name=READ_RESULT,
        description=(
            "Read a tool's result of which only the beginning and the end were shown: the part "
            "that begins at a character, or the places that have some words."
        ),
        parameters={
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "the result's id, as it was shown"},
                "from": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "the character to begin at, or to search from; default 0",
                },
                "words": {
                    "type": "string",
                    "description": "words to look for, instead of reading on",
                },
            },
            "required": ["id"],
            "additionalProperties": False,
        },
    )

    def __init__(self, files: Attachments, session: Session) -> None:
        self._files = files
        self._session = session

    @property
    def is_offered(self) -> bool:
        """True if the session has a stored result to read."""
        return any(True for _ in self._kept())

    def _kept(self) -> Iterator[Entry]:
        """Yield those results in the window that are stored whole, newest first."""
        for entry in reversed(self._session.window):
            if entry.type == TOOL_RESULT and WHOLE in entry.metadata:
                yield entry

    async def keep(self, outcome: ToolOutcome, *, call: str) -> tuple[str, dict[str, Any]]:
        """Store a call's whole result; return the text for the model and the result's metadata.

        If the result can't be stored, the text says so.
        """
        data = outcome.whole.encode()
        name = f"{outcome.call.name}-{call[-NAME_CHARS:]}.txt"
        try:
            kept = await self._files.keep(
                data, owner=f"tool:{self._session.id}", name=name, mime_type=_MIME_TYPE
            )
            # Before the commit that refers to it, because unused files are removed.
            await self._files.refer(self._session.id, [kept.id])
        except (AttachmentsFull, DiskRefused, OSError):
            return clipped(outcome.whole, outcome.chars, more=", and could not be kept"), {}
        short = kept.id[:NAME_CHARS]
        file = Attachment(
            kind="file", ref=f"{SCHEME}{kept.id}", name=name, mime_type=_MIME_TYPE, size=len(data)
        )
        facts = {name: value for name, value in asdict(file).items() if value is not None}
        more = f'; {READ_RESULT}(id="{short}") reads them'
        return clipped(outcome.whole, outcome.chars, more=more), {WHOLE: short, FILES: [facts]}

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Return a part of a result, or a search's matches; raise `ToolError` if it is gone."""
        wanted, start, words = _checked(arguments)
        text = await self._text(wanted)
        start = min(start, len(text))
        return _places(text, words, start) if words else _page(text, start, wanted)

    async def _text(self, wanted: str) -> str:
        result = next((entry for entry in self._kept() if entry.metadata[WHOLE] == wanted), None)
        files = set() if result is None else files_in(result)
        for file in (each for each in files if each.startswith(wanted)):  # and not what it sends
            if await self._files.held(self._session.id, file) is None:
                continue
            if (data := await self._files.data(file)) is not None:
                return data.decode("utf-8", "replace")
        known = ", ".join(str(entry.metadata[WHOLE]) for entry in self._kept())
        raise ToolError(f"there is no result {wanted!r}: the ids are {known or 'gone'}")


def clipped(text: str, chars: int, *, more: str = "") -> str:
    """Return the head and tail of text that is too long, with a note on how much is left out.

    `more` is added to the note.
    """
    left_out = len(text) - chars
    if left_out <= 0:
        return text
    tail = chars // 4
    return (
        f"{text[: chars - tail]}\n"
        f"[{left_out} of {len(text)} characters are left out here{more}]\n"
        f"{text[len(text) - tail :]}"
    )


def _checked(arguments: Mapping[str, Any]) -> tuple[str, int, str]:
    known = Results.spec.parameters["properties"]
    if unknown := [name for name in arguments if name not in known]:
        raise BadArguments(
            f"there is no argument {unknown[0]!r}: the arguments are id, from, words"
        )
    wanted, start, words = (arguments.get(name) for name in ("id", "from", "words"))
    if not isinstance(wanted, str):
        raise BadArguments("argument 'id': it is required, as a string")
    if start is not None and (not isinstance(start, int) or start < 0):
        raise BadArguments("argument 'from': input should be a whole number, 0 or more")
    if words is not None and not isinstance(words, str):
        raise BadArguments("argument 'words': input should be a string")
    return wanted.strip(), start or 0, (words or "").strip()[:LONGEST_WORDS]


def _page(text: str, start: int, wanted: str) -> str:
    end = min(start + PAGE, len(text))
    on = f'; {READ_RESULT}(id="{wanted}", from={end}) reads on' if end < len(text) else ""
    return f"[characters {start} to {end} of {len(text)}{on}]\n{text[start:end]}"


def _places(text: str, words: str, start: int) -> str:
    """Return the matches of the whole phrase; if there are none, those of any of its words."""
    each = [re.escape(word) for word in words.split()]
    found = _found(r"\s+".join(each), text, start) or _found("|".join(each), text, start)
    if not found:
        return f"[none of {len(text)} characters from {start} on has {words!r}]"
    shown = [f"[at character {at}]\n{text[max(0, at - AROUND) : at + AROUND]}" for at in found]
    if len(found) == PLACES:
        shown.append(f"[there may be more: search from {found[-1] + 1}]")
    return "\n".join(shown)


def _found(pattern: str, text: str, start: int) -> list[int]:
    """Return where the first matches begin; matches close together count once."""
    found: list[int] = []
    for match in re.compile(pattern, re.IGNORECASE).finditer(text, start):
        if not found or match.start() > found[-1] + AROUND:
            found.append(match.start())
        if len(found) == PLACES:
            break
    return found
