"""The tree of errors is drawn as it is, and its branches grow nowhere else."""

import ast
import re
from pathlib import Path

from nanoloop import errors

ROOT = Path(errors.__file__).parent
WHOLE = {"SessionError", "StoreError", "ToolError", "ProviderError", "BadAnswer"}
"""Branches that are in errors.py with all that is on them."""


def test_every_error_is_drawn():
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert kinds - set(re.findall(r"\w+", errors.__doc__)) == set()


def test_what_anyone_may_catch_of_a_branch_is_in_one_file():
    found = {
        kind.name
        for path in ROOT.rglob("*.py")
        if path.name != "errors.py"
        for kind in ast.parse(path.read_text()).body
        if isinstance(kind, ast.ClassDef) and WHOLE & {ast.unparse(base) for base in kind.bases}
    }
    assert found == set()
