"""What of each answer is posted already, over retries and restarts: nothing is posted twice."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from nanoloop.channels.platform.platform import Text
from nanoloop.stores.folder import make_folder

REMEMBERED = 2000
"""Answers that are remembered as half posted, and as posted, each."""
_LINES = 10 * REMEMBERED


@dataclass(slots=True, kw_only=True)
class Posted:
    """The messages of one answer."""

    name: str
    """What ids of its messages are made of, the same at each try."""
    messages: list[str] = field(default_factory=list)
    """Their ids on the platform, in order."""
    shown: dict[int, Text] = field(default_factory=dict)
    """What each of them says, as far as that is known."""
    tried: dict[int, Text] = field(default_factory=dict)
    """What was tried first as each of them: the platform may have taken it without a word."""
    is_old: bool = False
    """Whether an earlier process may have tried something."""
    cuts: int = 0
    """How often it became shorter."""

    def name_of(self, number: int) -> str:
        """The name of this message; another one after a cut, as that one is gone for good."""
        return f"{self.name}.{number}" if not self.cuts else f"{self.name}.{self.cuts}.{number}"

    def try_first(self, number: int, text: Text) -> bool:
        """Whether nothing else can have been posted as this message so far."""
        return self.tried.setdefault(number, text) == text and not self.is_old

    def says(self, number: int) -> Text | None:
        """What this message says; None where that is not known any more."""
        return self.shown.get(number)


class Progress:
    """Keeps it in a file, where one is given; a file that can't be read is begun anew."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._open: OrderedDict[str, Posted] = OrderedDict()
        self._done: OrderedDict[str, None] = OrderedDict()
        self._lines = 0
        if file is not None:
            make_folder(file.parent)
            if file.exists():
                self._load(file)

    def of(self, answer: str, *, name: str | None = None) -> Posted:
        """What of this answer is posted; begun with this name where it is new."""
        if answer not in self._open:
            self._note(begun=answer, name=name or uuid4().hex)
        return self._open[answer]

    def begun(self, answer: str) -> bool:
        """Whether something of it may be posted."""
        return answer in self._open

    def post(self, answer: str, message: str, *, number: int) -> None:
        """Note that this is the answer's message of that number."""
        self._note(posted=answer, message=message, number=number)

    def cut(self, answer: str, *, number: int) -> None:
        """Note that only so many of its messages are left."""
        self._note(cut=answer, number=number)

    def finish(self, answer: str, *, name: str | None = None) -> None:
        """Note that all of it is there, and so is the text of that name."""
        self._note(done=answer, name=name)

    def has(self, name: str | None) -> bool:
        """Whether the text of that name is known to be there."""
        return name in self._done

    def _note(self, **fact: Any) -> None:
        self._learn(fact)
        if self._file is None:
            return
        self._lines += 1
        with suppress(OSError):  # a full disk stops no answer
            if self._lines > _LINES:
                self._rewrite(self._file)
            else:
                _write(self._file, "a", (fact,))

    def _learn(self, fact: dict[str, Any]) -> None:
        match fact:
            case {"begun": answer, "name": name}:
                self._open[answer] = Posted(name=name)
            case {"posted": answer, "message": message, "number": number}:
                self.of(answer).messages[number : number + 1] = [message]
            case {"cut": answer, "number": number}:
                posted = self.of(answer)
                del posted.messages[number:]
                posted.cuts += 1
                posted.shown = {n: text for n, text in posted.shown.items() if n < number}
                posted.tried = {n: text for n, text in posted.tried.items() if n < number}
            case {"done": answer, "name": name}:
                self._open.pop(answer, None)
                if name is not None:
                    self._done[name] = None
        for known in (self._open, self._done):
            while len(known) > REMEMBERED:
                known.popitem(last=False)

    def _load(self, file: Path) -> None:
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError):  # torn by a kill, or older than what is known
                self._learn(json.loads(line))
        for posted in self._open.values():
            posted.is_old = True
        self._rewrite(file)

    def _rewrite(self, file: Path) -> None:
        facts = [*self._facts()]
        beside = file.with_suffix(".new")
        _write(beside, "w", facts)
        beside.replace(file)
        self._lines = len(facts)

    def _facts(self) -> Iterable[dict[str, Any]]:
        for name in self._done:
            yield {"done": None, "name": name}
        for answer, posted in self._open.items():
            yield {"begun": answer, "name": posted.name}
            for _ in range(posted.cuts):
                yield {"cut": answer, "number": 0}
            for number, message in enumerate(posted.messages):
                yield {"posted": answer, "message": message, "number": number}


def _write(file: Path, mode: str, facts: Iterable[dict[str, Any]]) -> None:
    with file.open(mode, encoding="utf-8") as lines:
        lines.writelines(f"{json.dumps(fact)}\n" for fact in facts)
