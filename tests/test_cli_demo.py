"""`nanoloop demo` shows the thing itself, without a key, a server or a pause."""

import re

import anyio
import pytest

from nanoloop.cli import Exit, demo, main
from nanoloop.models.catalogue import SMALLEST
from nanoloop.models.download import DownloadProgress
from nanoloop.settings import Settings


@pytest.fixture
def shown(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--fast", "--data", str(tmp_path)]) == Exit.DONE
    return capsys.readouterr().out


def test_answers_leave_while_the_summary_is_being_written(shown):
    lines = [line.strip() for line in shown.splitlines()]
    begun = next(
        i for i, line in enumerate(lines) if "messages 1 to 8 are being summarised" in line
    )
    done = next(
        i for i, line in enumerate(lines) if "the summary of messages 1 to 8 is ready" in line
    )
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


def test_a_fetched_model_is_loaded_while_the_demo_still_plays(monkeypatch, tmp_path):
    loaded, seen = anyio.Event(), []

    async def fetched(model, folder, *, hub, tell):
        tell(DownloadProgress(step="fetching", done=0, total=5_000_000))
        await playing.wait()

    async def played(folder, stage):
        playing.set()
        await loaded.wait()  # or it would play for ever
        seen.append("the demo")

    def load(model):
        seen.append(model.name)
        loaded.set()

    playing = anyio.Event()
    monkeypatch.setattr(demo, "fetch", fetched)
    monkeypatch.setattr(demo, "play", played)
    monkeypatch.setattr(demo, "_LOOK_SECONDS", 0)
    settings = Settings(models=tmp_path)
    assert demo.fetch_first_model([SMALLEST], settings, load=load) is SMALLEST
    assert seen == [SMALLEST.name, "the demo"]
