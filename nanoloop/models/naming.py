"""How settings name a model that runs on this machine: `local:NAME`, or the path of its file."""

from __future__ import annotations

from pathlib import Path

PREFIX = "local:"
SUFFIX = ".gguf"


def is_local(model: str) -> bool:
    """Whether this names a model file on this machine, and none behind a server."""
    return model.startswith(PREFIX) or model.endswith(SUFFIX)


def file_of(model: str, folder: Path) -> Path:
    """Where the file of a local model is, or will be; `folder` is the one for models."""
    name = model.removeprefix(PREFIX)
    return Path(name).expanduser() if name.endswith(SUFFIX) else folder / f"{name}{SUFFIX}"
