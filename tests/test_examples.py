"""Each example runs offline and shows its one idea."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHOWN = {
    "bot.py": "bot: Ada, you told me just now.",
    "custom_tool.py": "answer: We have 12 apples.",
    "custom_channel.py": "answer: You said: Hello over TCP",
    "custom_provider.py": "answer: Squawk! Hello!",
    "custom_store.py": "stored: 4 messages in ['direct:ada']",
    "script.py": "Ada, you told me just now.",
    "summary_seen.py": "answered, while the summary waits: True",
}
SERVED = {
    *("discord_bot.py", "fastapi_app.py", "irc_channel.py", "notebook.ipynb", "speech.py"),
    *("fruit_server.py", "shop_tools.py", "telegram_bot.py"),
}
"""Shown by a file of tests for each: on a server, or as a notebook runs."""


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_its_idea(name):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", ROOT / "examples" / name],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    # Python's development mode tells of slow steps too, which a busy machine has.
    told = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.returncode, told) == (0, [])
    assert SHOWN[name] in done.stdout.splitlines()


def test_every_example_is_tested():
    there = {path.name for path in (ROOT / "examples").iterdir() if path.suffix}
    assert there == SHOWN.keys() | SERVED


@pytest.mark.parametrize(("name", "most"), [("bot.py", 10), ("fastapi_app.py", 20)])
def test_an_example_is_as_short_as_it_says(name, most):
    source = (ROOT / "examples" / name).read_text().splitlines()
    code = [line for line in source if line.strip() and not line.strip().startswith(('"""', "#"))]
    assert len(code) <= most
