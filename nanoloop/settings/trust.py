"""Decide whether to trust a settings file; one in the current folder may come from anyone.

Until the user trusts such a file, by path and content, it only changes harmless settings, and the
user's own file is read too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanoloop.errors import SettingsError
from nanoloop.files import make_folder, refusal, replace_file, user_folder
from nanoloop.settings.files import NAME, digest_of, read_agents
from nanoloop.settings.secrets import shown_as

FILE = "trusted.json"
_NAMED = 6
"""How many settings a sentence lists."""
_LONGEST = 200
"""How many characters of a name are shown."""
_LONGEST_VALUE = 4_096
"""How many characters of a value are shown; no path or host is longer."""
_FUNCTIONS = ("channels.transcribe", "tools.functions")
"""The settings that name functions, whose code may be in the file's folder."""
_PLAIN = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The settings that an untrusted file in the current folder can't set."""

    path: Path
    digest: str
    said: Mapping[str, Any] = field(repr=False)
    """The values that are left out, by dotted key."""
    is_refused: bool = False
    """True if the user has decided not to trust the file."""

    @property
    def sentence(self) -> str:
        """A sentence with the settings that are left out, and the next step."""
        names = [*self._names()]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return (
            f"{NAME} in the current folder is not trusted, so these settings are left out: "
            f"{', '.join(names[:_NAMED])}{more}. If the file is yours: nanoloop config trust"
        )

    @property
    def lines(self) -> list[str]:
        """Each of these settings with its value, with secrets masked."""
        shown = zip(self._names(), self.said.items(), strict=True)
        return [f"{name} = {_value(key, value)}" for name, (key, value) in shown]

    def _names(self) -> Iterator[str]:
        # The names come from someone else's file, so a terminal must not interpret them.
        yield from (
            key if _PLAIN.fullmatch(key) else json.dumps(key) for key in map(_short, self.said)
        )


def _short(text: str, longest: int = _LONGEST) -> str:
    text = text.encode("ascii", "backslashreplace").decode() if not text.isprintable() else text
    return text if len(text) <= longest else f"{text[:longest]}…"


def _value(key: str, value: Any) -> str:
    text = _short(shown_as(key, value), _LONGEST_VALUE)
    note = " (its code may change later, without another question)"
    return f"{text}{note if key in _FUNCTIONS else ''}"


class Trust:
    """The user's answers about which files to trust, stored in the user's settings folder."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.file = user_folder("config", env) / FILE

    def of(self, path: Path, digest: str) -> bool | None:
        """Return True if the file is trusted with this content; None if the user was not asked."""
        said = self._answers().get(str(path.resolve()))
        if not isinstance(said, dict) or said.get("sha256") != digest:
            return None
        return said.get("trusted") is True

    def answer(self, path: Path, digest: str, *, is_trusted: bool) -> None:
        """Store the user's answer about this content; it replaces any earlier answer.

        Raise `SettingsError` if the answer can't be stored.
        """
        self._keep(path, {"sha256": digest, "trusted": is_trusted})

    def forget(self, path: Path) -> bool:
        """Forget the answer; return True if the file was trusted. Raise `SettingsError`."""
        before = self._answers().get(str(path.resolve()))
        if before is None:
            return False
        self._keep(path, None)
        return isinstance(before, dict) and before.get("trusted") is True

    def written(self, path: Path, text: str) -> None:
        """Trust a file just written for the user, unless it is in the user's own folder."""
        if path.resolve().parent != self.file.parent.resolve():
            digest = digest_of(text, read_agents(path.parent / "agents"))
            with suppress(SettingsError):  # the file still counts if it is named
                self.answer(path, digest, is_trusted=True)

    def _keep(self, path: Path, answer: Mapping[str, Any] | None) -> None:
        answers = {name: said for name, said in self._answers().items() if Path(name).exists()}
        answers[str(path.resolve())] = answer
        answers = {name: said for name, said in answers.items() if said is not None}
        try:
            make_folder(self.file.parent)
            replace_file(self.file, json.dumps(answers, indent=2).encode(), durable=True)
        except OSError as error:
            raise SettingsError(f"{self.file} can't be written: {refusal(error)}") from None

    def _answers(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            said = json.loads(self.file.read_text(encoding="utf-8"))
            if isinstance(said, dict):
                return said
        return {}
