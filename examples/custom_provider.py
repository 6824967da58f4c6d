"""A provider of your own: a package names it in `[project.entry-points."nanoloop.providers"]`.

    parrot = "custom_provider:PLUGIN"

Then `model = "parrot:grey"` is answered by it, and its settings stand in `[providers.parrot]`.
"""

from collections.abc import Sequence
from typing import Any

import anyio
from pydantic import BaseModel, SecretStr

from nanoloop import Agent
from nanoloop.plugins import Plugin
from nanoloop.protocols import ChatMessage, OnText, Reply


class ParrotSettings(BaseModel):
    """What may stand in `[providers.parrot]`, or in NANOLOOP_PROVIDERS__PARROT__KEY."""

    key: SecretStr
    greeting: str = "Squawk!"


class Parrot:
    """Answers with what it was told."""

    def __init__(self, settings: ParrotSettings, model: str) -> None:
        self._settings = settings
        self._model = model

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        model: str | None = None,
        on_text: OnText | None = None,
        **_: Any,
    ) -> Reply:
        """Answer; failures are raised as `ProviderError`."""
        text = f"{self._settings.greeting} {messages[-1]['content']}"
        if on_text is not None:
            on_text(text)
        return Reply(text=text, model=model or self._model)

    async def close(self) -> None:
        """Let go of connections, where there are some."""


PLUGIN = Plugin(name="parrot", settings=ParrotSettings, make=Parrot)


async def main() -> None:
    """Let an agent answer with it; a daemon makes it of what the settings say."""
    provider = PLUGIN.make(ParrotSettings(key=SecretStr("secret")), "grey")
    print("answer:", await Agent("bird", provider=provider).ask("Hello!"))


if __name__ == "__main__":
    anyio.run(main)
