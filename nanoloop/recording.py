"""How a question and its answer are stored: whole, in part, or as a handler decides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nanoloop.session.entry import Entry
from nanoloop.session.sync import Handler, called, fitting
from nanoloop.tools.toolbox import as_text

Paths = str | Sequence[str]
"""One or more dotted paths: `question.text`, `items.0.name`."""
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """How questions and answers are stored. Everything is stored if the paths match nothing."""

    input_paths: Paths = ()
    output_paths: Paths = ()
    """Paths into the answer, if the answer is JSON."""
    handler: Handler | None = None
    """Maps (given, answer) to the messages to store instead; None or [] stores nothing."""

    @property
    def is_partial(self) -> bool:
        """True if only part of a question is stored, although the model sees the whole question."""
        return bool(self.input_paths)

    def question(self, given: Any) -> Entry:
        """Return the user's entry as it will be stored."""
        return Entry.message("user", content_of(picked(given, self.input_paths)))

    def answer(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return a turn's last entries as they will be stored."""
        return [self._kept(entry) if entry.role == "assistant" else entry for entry in entries]

    def _kept(self, entry: Entry) -> Entry:
        text = str(entry.content.get("text"))
        found = picked(json_in(text), self.output_paths, otherwise=text)
        content = Entry.message("assistant", content_of(found)).content
        return entry if found == text else replace(entry, content=content)

    async def by_handler(self, given: Any, text: str) -> Sequence[Mapping[str, Any]]:
        """Return the messages that the handler chose to store."""
        if self.handler is None:
            return []
        said = await called(self.handler, *fitting(self.handler, given, text))
        return [said] if isinstance(said, Mapping) else list(said or ())


def content_of(given: Any) -> Any:
    """Return a value as message content: text and parts unchanged, other values as JSON."""
    is_parts = isinstance(given, list) and all(
        isinstance(part, Mapping) and "type" in part for part in given
    )
    return given if is_parts and given else as_text(given)


def picked(value: Any, paths: Paths, *, otherwise: Any = _MISSING) -> Any:
    """Return the value at the path, or a dict for several paths; `otherwise` if none is found."""
    names = [paths] if isinstance(paths, str) else list(paths)
    found = {name: at for name in names if (at := _at(value, name)) is not _MISSING}
    if not found:
        return value if otherwise is _MISSING else otherwise
    return found if len(names) > 1 else found[names[0]]


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _MISSING
    return value


def json_in(text: str) -> Any:
    """Return the JSON object in this text, ignoring anything around it, or None."""
    try:
        return json.loads(text[text.find("{") : text.rfind("}") + 1])
    except ValueError:
        return None
