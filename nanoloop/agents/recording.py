"""What a history keeps of a question and its answer: all of it, chosen parts, or what is said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nanoloop.session.entry import Entry
from nanoloop.session.handler import Handler, called, fitting
from nanoloop.tools.toolbox import as_text

Paths = str | Sequence[str]
"""One dotted path or several: `question.text`, `items.0.name`."""
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """How questions and answers are kept. Where nothing stands at the paths, the whole is."""

    input_paths: Paths = ()
    output_paths: Paths = ()
    """Into the answer, where it is JSON."""
    handler: Handler | None = None
    """(given, answer) to the messages to keep instead; None or [] keeps nothing."""

    def question(self, given: Any) -> Entry:
        """The user's entry as it is kept."""
        return Entry.message("user", content_of(picked(given, self.input_paths)))

    def answer(self, entries: Sequence[Entry]) -> list[Entry]:
        """The last entries of a turn as they are kept."""
        return [self._kept(entry) if entry.role == "assistant" else entry for entry in entries]

    def _kept(self, entry: Entry) -> Entry:
        text = str(entry.content.get("text"))
        found = picked(json_in(text), self.output_paths, otherwise=text)
        content = Entry.message("assistant", content_of(found)).content
        return entry if found == text else replace(entry, content=content)

    async def by_handler(self, given: Any, text: str) -> Sequence[Mapping[str, Any]]:
        """The messages to keep, as the handler says."""
        if self.handler is None:
            return []
        said = await called(self.handler, *fitting(self.handler, given, text))
        return [said] if isinstance(said, Mapping) else list(said or ())


def content_of(given: Any) -> Any:
    """What was given as a message's content: text and parts as they are, anything else as JSON."""
    is_parts = isinstance(given, list) and all(
        isinstance(part, Mapping) and "type" in part for part in given
    )
    return given if is_parts and given else as_text(given)


def picked(value: Any, paths: Paths, *, otherwise: Any = _MISSING) -> Any:
    """What stands at the path; at several, each by its path; where nothing does, `otherwise`."""
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
    """The JSON object in a text, with or without words around it, or None."""
    try:
        return json.loads(text[text.find("{") : text.rfind("}") + 1])
    except ValueError:
        return None
