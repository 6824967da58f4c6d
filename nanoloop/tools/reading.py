"""The tool that reads more of a session's long files, which is offered if there are any."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nanoloop.errors import BadArguments, ToolError
from nanoloop.protocols import Effect, ToolSpec
from nanoloop.session.entry import SCHEME
from nanoloop.session.speech import FILES

if TYPE_CHECKING:
    from nanoloop.attachments import Attachments
    from nanoloop.session.session import Session

PAGE_CHARS = 12_000
"""How many characters one call returns."""
PLACES = 10
"""How many places one search returns."""
AROUND = 200
"""How many characters are shown on each side of a place."""
_ID = re.compile(r"[0-9a-f]{8,40}")


class AttachmentReader:
    """Reads the rest of files of which the model has only seen the beginning."""

    effect: Effect = "reads"
    is_ours = True
    """It comes along with long files, so nobody is asked to approve it."""
    spec = ToolSpec(
        name="read_attachment",
        description=(
            "Read on in a file of which only the beginning was shown: the part that begins at a "
            "character, or the places that have some words."
        ),
        parameters={
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "the file, as in attachment:ID"},
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

    def __init__(self, attachments: Attachments, session: Session) -> None:
        self._attachments = attachments
        self._session = session

    @property
    def is_offered(self) -> bool:
        """Return whether the window has a file that is longer than what the model was shown."""
        return any(self._long_files())

    def _long_files(self) -> Iterator[str]:
        for entry in self._session.window:
            for file in entry.metadata.get(FILES) or () if FILES in entry.metadata else ():
                if isinstance(file, Mapping) and file.get("chars"):
                    yield str(file.get("ref")).removeprefix(SCHEME)

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Read a part, or search for words; raise `ToolError` if the file can't be read."""
        wanted, start, words = _checked(arguments)
        file_id = next((each for each in self._long_files() if each.startswith(wanted)), wanted)
        kept = await self._attachments.to_send(self._session.id, file_id)
        if kept is None:
            known = ", ".join(dict.fromkeys(self._long_files())) or "gone"
            raise ToolError(f"there is no file {wanted!r} here: the ids are {known}")
        found = await self._attachments.document(kept)
        if not found.text:
            raise ToolError(found.problem)
        start = min(start, len(found.text))
        return _places(found.text, words, start) if words else _page(found.text, start)


def _checked(arguments: Mapping[str, Any]) -> tuple[str, int, str]:
    known = AttachmentReader.spec.parameters["properties"]
    if unknown := [name for name in arguments if name not in known]:
        raise BadArguments(
            f"there is no argument {unknown[0]!r}: the arguments are id, from, words"
        )
    wanted, start, words = (arguments.get(name) for name in ("id", "from", "words"))
    wanted = str(wanted or "").strip().removeprefix(SCHEME)
    if not _ID.fullmatch(wanted):
        raise BadArguments("argument 'id': give what follows attachment: in the text")
    if start is not None and (not isinstance(start, int) or start < 0):
        raise BadArguments("argument 'from': input should be a whole number, 0 or more")
    if words is not None and not isinstance(words, str):
        raise BadArguments("argument 'words': input should be a string")
    return wanted, start or 0, (words or "").strip()


def _page(text: str, start: int) -> str:
    end = min(start + PAGE_CHARS, len(text))
    on = f"; from={end} reads on" if end < len(text) else ""
    return f"[characters {start:,} to {end:,} of {len(text):,}{on}]\n{text[start:end]}"


def _places(text: str, words: str, start: int) -> str:
    """Return the places with this phrase; if there are none, those with any of its words."""
    each = [re.escape(word) for word in words.split()]
    found = _found(r"\s+".join(each), text, start) or _found("|".join(each), text, start)
    if not found:
        return f"[nothing from character {start:,} on has {words!r}]"
    shown = [f"[at character {at}]\n{text[max(0, at - AROUND) : at + AROUND]}" for at in found]
    if len(found) == PLACES:
        shown.append(f"[there may be more: from={found[-1] + 1} searches on]")
    return "\n".join(shown)


def _found(pattern: str, text: str, start: int) -> list[int]:
    """Return where the first matches begin; matches that are shown together count once."""
    found: list[int] = []
    for match in re.compile(pattern, re.IGNORECASE).finditer(text, start):
        if not found or match.start() > found[-1] + AROUND:
            found.append(match.start())
        if len(found) == PLACES:
            break
    return found
