"""The files of a package, read but not run, and how they stand to each other."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
GIVEN = {"AgentLoop", "BaseModel", "BaseSettings"}
"""Their constructors are the seeds' and pydantic's."""
ENGINE = "nanoloop.stores.store"
JOINED = 600
"""Lines that two files may have together to be one."""


@dataclass(frozen=True, kw_only=True)
class File:
    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def head_lines(self) -> int:
        """How long it takes until it begins: its docstring, its imports and the blanks between."""
        return max(
            (node.end_lineno or 0 for node in takewhile(_is_head, self.tree.body)), default=0
        )


def _is_head(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Import | ast.ImportFrom) or _is_for_types(node)


def _imported(node: ast.AST, *, at_once: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif not (at_once and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
        for inner in node.orelse if _is_for_types(node) else ast.iter_child_nodes(node):
            yield from _imported(inner, at_once=at_once)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


class House:
    """Its figures, each as what it counts."""

    def __init__(self, root: Path = ROOT, package: str = "nanoloop") -> None:
        self.files = [
            File(path=path.relative_to(root).as_posix(), text=path.read_text(encoding="utf-8"))
            for path in sorted((root / package).rglob("*.py"))
        ]
        self._modules = {file.module: file for file in self.files}
        self._classes = [
            (node, file)
            for file in self.files
            for node in ast.walk(file.tree)
            if isinstance(node, ast.ClassDef)
        ]

    def lines(self, *folders: str) -> int:
        """Of all files, or of those right in these folders."""
        return sum(file.lines for file in self.files if not folders or file.folder in folders)

    @property
    def head_percent(self) -> float:
        return 100 * sum(file.head_lines for file in self.files) / self.lines()

    # Imports

    def imported(self, file: File, *, at_once: bool = False) -> set[str]:
        """The modules of the package that it imports; `at_once`: those that it is loaded with."""
        names = set(_imported(file.tree, at_once=at_once))
        # `from package import name`: a module of that name, else something in the package.
        found = {name if name in self._modules else name.rpartition(".")[0] for name in names}
        return (found & self._modules.keys()) - {file.module}

    @cached_property
    def _with_one_importer(self) -> list[tuple[File, File]]:
        importers = defaultdict(list)
        for file in self.files:
            for module in self.imported(file):
                importers[module].append(file)
        return [
            (file, by[0])
            for file in self.files
            if len(by := importers[file.module]) == 1 and by[0].folder == file.folder
        ]

    def with_one_importer(self) -> list[str]:
        """The files that one other imports and no more, and it lies in the same folder."""
        return [_alone(file, by) for file, by in self._with_one_importer]

    def to_join(self) -> list[str]:
        """Those of them that the rule joins: both are loaded together, and not too long for it.

        The door of a folder, which only hands names on, is no importer.
        """
        return [
            _alone(file, by)
            for file, by in self._with_one_importer
            if file.lines + by.lines <= JOINED
            and file.module in self.imported(by, at_once=True)
            and not by.path.endswith("__init__.py")
        ]

    def longest_chain(self) -> list[str]:
        """The most modules of which each is loaded with the one before."""
        chains: dict[str, list[str]] = {}

        def chain(module: str, above: tuple[str, ...] = ()) -> list[str]:
            if module in above:
                raise ValueError(f"imports in a circle: {' -> '.join((*above, module))}")
            if module not in chains:
                below = sorted(self.imported(self._modules[module], at_once=True))
                longer = (chain(each, (*above, module)) for each in below)
                chains[module] = [module, *max(longer, key=len, default=())]
            return chains[module]

        return max((chain(module) for module in self._modules), key=len, default=[])

    # Classes

    def names_of_several(self) -> list[str]:
        """The class names that stand for more than one thing."""
        places = defaultdict(list)
        for kind, file in self._classes:
            places[kind.name].append(file.path)
        return [f"{name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1]

    @cached_property
    def _bases(self) -> dict[str, set[str]]:
        found = defaultdict(set)
        for kind, _ in self._classes:
            found[kind.name] |= {ast.unparse(base).partition("[")[0] for base in kind.bases}
        return found

    def kinds_of(self, name: str) -> set[str]:
        """The names of a class and of all that it inherits from."""
        found, more = set[str](), {name}
        while more:
            found |= more
            more = {base for each in more for base in self._bases.get(each, ())} - found
        return found

    def constructors(self) -> Iterator[tuple[str, ast.arguments]]:
        """Each `__init__` that somebody wrote, with where it stands."""
        for kind, file in self._classes:
            for node in () if self.kinds_of(kind.name) & GIVEN else kind.body:
                if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                    yield f"{kind.name} in {file.path}", node.args

    def off_the_engine(self) -> list[str]:
        """The shipped stores that are not made from the one in stores/store.py."""
        shipped = {
            kind.name: file.module
            for kind, file in self._classes
            if "/stores/" in file.path and re.fullmatch(r"(?!_)\w*Store", kind.name)
        }
        engines = {name for name, module in shipped.items() if module == ENGINE}
        return [name for name in shipped if not self.kinds_of(name) & engines]


def _alone(file: File, by: File) -> str:
    return f"{file.path} is imported by {by.path} alone"


def parameters(given: ast.arguments) -> int:
    """How many a caller may pass, `self` left out."""
    return len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1


def settings_names() -> list[str]:
    """The settings that the example file lists, which another test holds to what there is.

    The texts of `[sentences]` are one table of translations and count as one.
    """
    example = (ROOT / "config" / "nanoloop.example.toml").read_text(encoding="utf-8")
    one = re.sub(
        r"^\[sentences\]\n.*?(?=^\[)", "sentences = {}\n", example, flags=re.MULTILINE | re.DOTALL
    )
    return re.findall(r"^#?(\w+) = ", one, re.MULTILINE)
