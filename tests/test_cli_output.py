"""Whatever the terminal, the pipe or the disk: what a command says never ends it."""

import io
import json
import os
import subprocess
import sys

import pytest

from nanoloop.channels.screen import fitting
from nanoloop.cli.output import json_text, say, say_json

TITLES = ("茶と旅", "شاي ورحلة", "tea ☕ 🍵", "half \ud83c of a pair", "café – “quoted” …")  # noqa: RUF001 - a dash that few have
ENCODINGS = ("utf-8", "ascii", "latin-1", "cp1252", "utf-16")
READY = "import os, sys; from nanoloop.cli.output import *; adapt(); "


@pytest.fixture
def screen(monkeypatch):
    """Standard output with this encoding, as strict as Python makes it; returns what was said."""

    def screen(encoding):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        return lambda: stream.buffer.getvalue().decode(encoding)

    return screen


def ended(code, *, shell="{}", **variables):
    """The process that ran this code behind `adapt`, in a shell's words."""
    python = f"{sys.executable} -c '{READY}{code}'"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell.format(python)],
        capture_output=True,
        check=False,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("text", TITLES)
def test_what_a_terminal_can_not_show_is_replaced(screen, encoding, text):
    said = screen(encoding)
    say(f"before {text} after")
    assert said().startswith("before ")
    assert said().endswith(" after\n")


OBEYED = "a\x1b]0;own\x07\x9b31m\x85\x90q\x7fb\tc\nd"


def test_a_terminal_obeys_nothing_of_what_is_shown(screen):
    said = screen("utf-8")
    say(OBEYED)
    say(f"\x1b[1m{OBEYED.replace(chr(27), '')}\x1b[0m", has_style=True)
    plain = "]0;own\u2407\ufffd31m\ufffd\ufffdq\u2421b\tc\nd"
    assert said() == f"a\u241b{plain}\n\x1b[1ma{plain}\x1b[0m\n"


def test_json_keeps_what_a_terminal_would_obey_as_escapes(screen):
    said = screen("utf-8")
    say_json({"text": OBEYED})
    assert json.loads(said()) == {"text": OBEYED}
    assert not any(char in said() for char in "\x1b\x07\x9b\x85\x90\x7f")


def test_what_it_can_show_stays_and_what_comes_near_is_taken_for_the_rest():
    assert fitting("café", "latin-1") == "café"
    assert fitting("nanoloop · 茶 … “so” →", "ascii") == 'nanoloop - ? ... "so" ->'
    assert fitting("\ud83c", "utf-8") == "\ufffd"


def test_above_a_bar_nothing_is_replaced_that_the_terminal_can_show():
    code = """
from rich.console import Console
from rich.live import Live
with Live(console=Console(stderr=True, force_terminal=True)):
    say("bake it at 165 °C · nobody waited")
"""
    shown = ended(code, PYTHONIOENCODING="utf-8").stderr.decode()
    assert "bake it at 165 °C · nobody waited" in shown
    shown = ended(code, PYTHONIOENCODING="ascii").stderr.decode()
    assert "bake it at 165 ?C - nobody waited" in shown


@pytest.mark.parametrize("encoding", ENCODINGS[:-1])
def test_json_says_the_same_whatever_the_terminal_can_show(screen, encoding):
    said = screen(encoding)
    say(json_text(json.dumps(TITLES, ensure_ascii=False)))
    assert json.loads(said()) == list(TITLES)
    assert said().isascii() or encoding == "utf-8"


def test_a_stream_that_is_closed_is_no_end(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    say("to nobody")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    say("to nobody")


@pytest.mark.parametrize("encoding", ENCODINGS[:-1])
def test_what_others_print_is_replaced_too(encoding):
    done = ended(
        'print("\\u8336 \\ud83c"); print("\\u2026", file=sys.stderr)', PYTHONIOENCODING=encoding
    )
    assert (done.returncode, len(done.stdout.decode(encoding))) == (0, 4)
    assert len(done.stderr.decode(encoding)) == (2 if encoding in ("utf-8", "cp1252") else 4)


def test_a_reader_that_leaves_is_not_missed():
    long = 'for number in range(100_000): print("line", number)'
    done = ended(f"exec({long!r})".replace("'", '"""'), shell="{} | head -1")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"line 0\n", b"")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_closed_stream(closed):
    code = 'say("x"); say("y", err=True); sys.exit(os.open("/dev/null", 0))'
    assert ended(code, shell=f"{{}} {closed}").returncode > 2


def test_a_full_disk_is_told(tmp_path):
    words = f"{sys.executable} -m nanoloop config --example > /dev/full"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "nanoloop: not all of the output could be written: No space left on device\n"
    )


def test_a_stream_that_does_not_wait_loses_nothing():
    code = 'os.set_blocking(1, False); print("x" * 1_000_000)'
    done = ended(code, shell="{} | cat")
    assert len(done.stdout) == 1_000_001
