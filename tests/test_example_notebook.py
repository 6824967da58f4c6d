"""The notebook among the examples, run as a notebook runs it."""

import ast
import contextlib
import io
import json
from inspect import isawaitable

import anyio

from tests.examples import EXAMPLES


async def run_cell(source, names):
    """Run it as a notebook does: with `await` at its top, in the event loop that runs."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    made = eval(compile(source, "<cell>", "exec", flags), names)
    if isawaitable(made):
        await made


async def test_it_runs_cell_by_cell():
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)
    names, said = {}, io.StringIO()
    with contextlib.redirect_stdout(said):
        for cell in cells:
            async with anyio.create_task_group() as group:  # each cell is a task of its own
                group.start_soon(run_cell, "".join(cell["source"]), names)
    assert said.getvalue().split("\n") == [
        "Hello Ada!",
        "Ada, you told me just now.You said: Hello again",
        "",
    ]
