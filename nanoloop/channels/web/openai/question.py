"""What both ways of asking promise whoever sends the answer on."""

from __future__ import annotations

from typing import Protocol

from nanoloop.channels.web.openai.form import Completion
from nanoloop.protocols import OnText


class Question(Protocol):
    """Something to be answered."""

    async def ask(self, hear: OnText) -> Completion:
        """The answer; `hear` gets its pieces before. Cancelled, it stops whoever answers.

        Raises a refusal or one of our errors.
        """
        ...
