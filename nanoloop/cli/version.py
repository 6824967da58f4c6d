"""`nanoloop version`: shows the versions to quote in a bug report."""

from __future__ import annotations

import platform
from argparse import ArgumentParser, Namespace

from nanoloop import __version__
from nanoloop.cli import Exit
from nanoloop.cli.output import say


def add_arguments(_: ArgumentParser) -> None:
    """Do nothing: `nanoloop version` has no arguments."""


def run(_: Namespace) -> int:
    """Print the versions of nanoloop and Python on one line."""
    where = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    say(f"nanoloop {__version__} ({where})")
    return Exit.DONE
