"""The estimate needs no tokenizer, works for every script, and learns from what was counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop import Entry
from nanoloop.protocols import ToolSpec
from nanoloop.tokens import LEAST, MOST, Ratios, entry_tokens, text_tokens, tools_tokens

# Tokens as a common tokenizer of today counts them, roughly; between half and twice is fine.
COUNTED = {
    "English": ("I went to the market this morning and bought apples, bread and cheese.", 15),
    "Chinese": ("我今天早上去了市场。买了苹果、面包和两种奶酪。", 20),
    "Japanese": ("今日は朝から市場に行って、りんごとパンを買いました。", 20),
    "Korean": ("오늘 아침 시장에 가서 사과와 빵을 샀어요.", 17),
    "Russian": ("Сегодня утром я ходил на рынок и купил яблоки.", 14),
    "Arabic": ("ذهبت إلى السوق هذا الصباح واشتريت التفاح", 14),
    "code": ("for i in range(10):\n    print(xs[i] + 1)\n", 17),
    "digits": ("3141592653589793", 6),
    "emoji": ("😀🎉🚀", 5),
}


@pytest.mark.parametrize("script", COUNTED)
def test_the_estimate_is_near_for_every_script(script):
    text, counted = COUNTED[script]
    assert counted / 2 <= text_tokens(text) <= counted * 2


@given(st.text(max_size=200), st.text(max_size=200))
def test_more_text_is_never_fewer_tokens(one, more):
    assert 0 <= text_tokens(one) <= text_tokens(one + more) <= text_tokens(one) + 2 * len(more) + 1


def test_calls_results_and_pictures_count_and_thoughts_do_not():
    words = entry_tokens(Entry.message("user", "hello"))
    picture = [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "u"}}]
    assert entry_tokens(Entry.message("user", picture)) == words + 1000
    assert entry_tokens(Entry.tool_call("find", {"query": "w" * 400})) > 90
    assert entry_tokens(Entry.tool_result("find", {"found": ["w" * 400]})) > 90
    assert entry_tokens(Entry.thinking("hm " * 100)) == 0
    assert entry_tokens(Entry(type="odd", content={"value": "x"})) == 0


def test_what_the_model_is_told_of_tools_counts():
    spec = ToolSpec(name="find", description="Finds things. " * 10, parameters={"type": "object"})
    assert tools_tokens([]) == 0
    assert tools_tokens([spec, spec]) > 2 * text_tokens(spec.description)


def test_the_correction_moves_slowly_towards_what_was_counted():
    ratios = Ratios()
    ratios.learn("m", estimated=1000, counted=1500)
    assert 1 < ratios.of("m") < 1.2
    for _ in range(50):
        ratios.learn("m", estimated=1000, counted=1500)
    assert ratios.of("m") == pytest.approx(1.5, abs=0.01)
    assert ratios.of("another") == 1


@given(st.lists(st.tuples(st.integers(-5, 10_000), st.integers(-5, 10_000))))
def test_the_correction_stays_bounded_whatever_is_counted(counts):
    ratios = Ratios()
    for estimated, counted in counts:
        ratios.learn("m", estimated=estimated, counted=counted)
    assert LEAST <= ratios.of("m") <= MOST


def test_a_provider_that_does_not_count_corrects_nothing():
    ratios = Ratios()
    ratios.learn("m", estimated=1000, counted=0)
    assert ratios.of("m") == 1
