"""Whether a channel's folder can go: the other tests in a tree without it and the tests of it.

    python -m tests.without [NAME …]

All of ours if none is named. The tests of the default tier run in a copy; this tree stays.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from nanoloop import plugins

ROOT = Path(__file__).parent.parent
IN_GIT = {".ci", ".github", ".gitignore"}
ENDS_WELL = 0


def folder_of(name: str) -> Path:
    """Where that channel is, from the top of the tree."""
    return Path("nanoloop", "channels", name)


def own_tests(name: str, root: Path = ROOT) -> set[Path]:
    """The files of tests that go with that channel's folder.

    Its name is a word of theirs, or they import something of it, directly or by another of them.
    """
    imports = {path: set(_imported(path)) for path in (root / "tests").rglob("*.py")}
    own = {path for path in imports if name in path.stem.split("_")}
    gone = {f"nanoloop.channels.{name}"}
    while True:
        gone |= {_module(path, root) for path in own}
        more = {path for path, names in imports.items() if _reaches(names, gone)} - own
        if not more:
            return {path.relative_to(root) for path in own}
        own |= more


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts)


def _reaches(names: set[str], gone: set[str]) -> bool:
    return any(f"{name}.".startswith(f"{module}.") for name in names for module in gone)


def tree_without(name: str, to: Path, root: Path = ROOT) -> Path:
    """A copy of the tree, in which that folder and the tests of it are missing."""
    tree = to / f"without_{name}"
    shutil.copytree(root, tree, ignore=partial(_left_out, str(root)))
    shutil.rmtree(tree / folder_of(name))
    for path in own_tests(name, root):
        (tree / path).unlink()
    return tree


def _left_out(root: str, folder: str, names: Sequence[str]) -> set[str]:
    """What is in no commit: caches, and what is hidden at the top."""
    hidden = {name for name in names if folder == root and name.startswith(".")}
    return (hidden - IN_GIT) | ({"__pycache__"} & {*names})


def pytest_in(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What pytest says there, given these words."""
    told = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    # Not the tree that is installed, in processes that tests start neither.
    env = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(told, cwd=tree, env=env, check=False, capture_output=True, text=True)


def main(names: Sequence[str]) -> int:
    wrong = []
    for name in names or plugins.OURS["channels"]:
        with tempfile.TemporaryDirectory() as folder:
            done = pytest_in(tree_without(name, Path(folder)))
        sys.stdout.write(f"== without {name}\n{done.stdout}{done.stderr}")
        wrong += [name] * (done.returncode != ENDS_WELL)
    told = f"does not stand without: {', '.join(wrong)}" if wrong else "stands without each"
    sys.stdout.write(f"{told}\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
