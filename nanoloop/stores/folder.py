"""Folders that are made where they are missing, for their owner's eyes only."""

from __future__ import annotations

from pathlib import Path


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it; what is there stays as it is."""
    if not folder.is_dir():  # `mkdir` would make those above it as the umask has it
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
