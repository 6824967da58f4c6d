from itertools import islice

import anyio
import pytest

from tests.hostile.__main__ import SHORT, besiege, chosen
from tests.hostile.chats import Attack, Outcome
from tests.hostile.mode import ERROR, KEY, MODES, Asked

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:80"


def judged(mode, kind, text):
    """What is wrong with this outcome of a mode."""
    attack = Attack(None, MODES[mode])
    attack.judge(Outcome(way="page", kind=kind, text=text))
    return list(attack.wrong)


@pytest.mark.slow
def test_every_mode_says_bytes_or_waits():
    asked = Asked(head=HEAD, size=5, is_streamed=True, has_results=False, count=1)
    for mode in MODES.values():
        parts = list(islice(mode.play(asked), 3))
        assert parts
        assert all(isinstance(part, (bytes, float)) for part in parts)


def test_an_answer_that_the_mode_does_not_allow_is_seen():
    assert not judged("finish-stop-whole", "answer", "A Basilisk speaks.")
    assert judged("finish-stop-whole", "answer", "Something else.")
    assert judged("finish-error-whole", "answer", "A Basilisk speaks.")


def test_a_failure_in_other_words_than_the_closed_list_is_seen():
    gone = "The model can't answer right now. Please try again in a few minutes."
    assert not judged("status-500", "error", f"{gone} Your message is kept. (incident 0a1b2c)")
    assert judged("status-500", "error", f"http://127.0.0.1/v1 failed: {gone}")


def test_characters_that_nobody_can_show_are_seen():
    assert judged("only-blanks", "answer", "a\x1b[31m")


def test_a_word_of_the_server_is_seen_wherever_it_comes_out():
    attack = Attack(None, MODES["status-500"])
    attack.look(f'{{"error": "{ERROR}: {KEY}"}}'.encode(), "the API")
    assert len(attack.wrong) == 2


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_daemon_stands_every_hostile_mode():
    seen = anyio.run(besiege, chosen([]), SHORT)
    assert [one.line() for one in seen if one.is_violation] == []
