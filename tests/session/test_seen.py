"""The ids that a session remembers: any text, the newest of them, each once."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from nanoloop.session.queue import SEEN_LIMIT, MessageIds

IDS = st.one_of(
    st.text(max_size=4), st.sampled_from(["a", "b", "a\nb", '"', "\\n", "\x00", "\ud800"])
)


@given(st.lists(st.tuples(st.booleans(), st.lists(IDS, max_size=3)), max_size=30))
def test_it_is_a_list_of_the_newest_each_once(steps):
    seen, known = MessageIds(), []
    for comes, names in steps:
        known = [name for name in known if name not in names]
        if comes:
            known += dict.fromkeys(names)
            seen.add(*names, None)
        else:
            for name in names:
                seen.remove(name)
    assert list(seen) == known
    assert all(name in seen for name in known)
    assert "never" not in seen


def test_it_is_bounded_and_small():
    seen = MessageIds()
    for number in range(10 * SEEN_LIMIT):
        seen.add(f"{number:032x}")
    assert list(seen) == [f"{n:032x}" for n in range(9 * SEEN_LIMIT, 10 * SEEN_LIMIT)]
    assert sys.getsizeof(seen._lines) < 40 * SEEN_LIMIT
