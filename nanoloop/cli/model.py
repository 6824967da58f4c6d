"""Which model answers a command, and what to say where there is none."""

from __future__ import annotations

import sys

from nanoloop.cli import Exit
from nanoloop.settings import Settings

NO_MODEL = """\
nanoloop: no model is set. With a key for a hosted one: export OPENAI_API_KEY=...
With a server, say your own: export OPENAI_BASE_URL=http://localhost:11434/v1 NANOLOOP_MODEL=...
With neither, to see it work offline: nanoloop demo
"""


def missing(settings: Settings) -> Exit | None:
    """None where a model can be asked; else says what the choices are, and gives the exit code.

    A model that runs on this machine without a server has its place here: one more choice.
    """
    if settings.has_model:
        return None
    sys.stderr.write(NO_MODEL)
    return Exit.NOT_CONFIGURED
