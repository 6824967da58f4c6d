"""`nanoloop demo` shows the thing itself, without a key, a server or a pause."""

import re

import pytest

from nanoloop.cli import Exit, main


@pytest.fixture
def shown(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--fast", "--data", str(tmp_path)]) == Exit.DONE
    return capsys.readouterr().out


def test_answers_leave_while_the_summary_is_being_written(shown):
    lines = [line.strip() for line in shown.splitlines()]
    begun = next(i for i, line in enumerate(lines) if "a summary of 1 to 8 begins" in line)
    done = next(i for i, line in enumerate(lines) if "the summary is in" in line)
    assert sum(line.startswith("bot ") for line in lines[begun:done]) == 2


def test_what_left_the_window_is_known_after_a_restart(shown):
    assert shown.index("starts again") < shown.index("bot  No nuts, Tom is allergic to them.")


def test_it_is_plain_text_where_nobody_looks(shown):
    assert "\x1b" not in shown


def test_it_ends_with_two_commands_that_work(shown, capsys):
    *_, look, talk = shown.splitlines()
    assert talk.strip() == "nanoloop chat"
    assert main(look.split()[1:]) == Exit.DONE
    assert "20 entries" in capsys.readouterr().out


def test_nothing_is_lost(shown):
    assert re.search(r"all 20 messages and the summary are in\n  .*\.jsonl\n", shown)
