"""The examples, loaded and run by tests."""

import contextlib
import importlib.util
from pathlib import Path

import anyio

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    """A fresh module of that example."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.asynccontextmanager
async def running(bot):
    """Let its `main` run meanwhile."""
    async with anyio.create_task_group() as group:
        group.start_soon(bot.main)
        yield
        group.cancel_scope.cancel()
