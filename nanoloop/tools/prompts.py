"""Prompts of tool servers: texts that people request with a command, such as /tickets:review."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from nanoloop.tools.listing import ListedPrompt, prompt_command

LONGEST_TEXT = 16_000
"""How many characters of a prompt are used."""


class PromptText(NamedTuple):
    """A message in a prompt."""

    role: str
    """The role that the message is written for: `user` or `assistant`."""
    text: str


Fetch = Callable[[str, Mapping[str, str]], Awaitable[Sequence[PromptText]]]
"""Gets a prompt's messages by its name and arguments; raises `ToolError`."""


class ServerPrompt:
    """A prompt that a server offers."""

    def __init__(self, server: str, listed: ListedPrompt, fetch: Fetch) -> None:
        self.server = server
        self.listed = listed
        self.command = prompt_command(server, listed.name)
        """The command that people type, without the slash."""
        self._fetch = fetch

    @property
    def usage(self) -> str:
        """The command with its arguments; those in brackets may be left out."""
        names = self.listed.arguments.items()
        return " ".join((f"/{self.command}", *(n if needed else f"[{n}]" for n, needed in names)))

    def speaker(self, role: str) -> str:
        """Return the speaker shown to the model, which sees the command in the typed text."""
        return f"{'answers' if role == 'assistant' else 'a prompt'} of {self.server}"

    def arguments(self, text: str) -> dict[str, str]:
        """Parse the arguments that somebody typed, in order or as `name=value`.

        Words after the last argument belong to it.
        """
        given: dict[str, str] = {}
        rest: list[str] = []
        for word in _words(text):
            name, mark, value = word.partition("=")
            if mark and name in self.listed.arguments:
                given[name] = value
            else:
                rest.append(word)
        names = [name for name in self.listed.arguments if name not in given]
        if len(rest) > len(names) > 0:
            rest[len(names) - 1 :] = [" ".join(rest[len(names) - 1 :])]
        return given | dict(zip(names, rest, strict=False))

    def missing(self, given: Mapping[str, str]) -> list[str]:
        """Return the required arguments that are missing."""
        return [name for name, needed in self.listed.arguments.items() if needed > (name in given)]

    async def texts(self, given: Mapping[str, str]) -> Sequence[PromptText]:
        """Get the prompt's messages, cut to `LONGEST_TEXT`; raise `ToolError` if that fails."""
        texts: list[PromptText] = []
        left = LONGEST_TEXT
        for role, text in await self._fetch(self.listed.name, given):
            if left > 0 and text.strip():
                cut = f" [… {len(text) - left} characters left out]" if len(text) > left else ""
                texts.append(PromptText(role, f"{text[:left]}{cut}"))
                left -= len(text)
        return texts


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a lone quotation mark, as in "don't"
        return text.split()
