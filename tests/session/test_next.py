"""What a chat owes first: one pure answer, whatever is in its session."""

from hypothesis import given
from hypothesis import strategies as st

from nanoloop.session.entry import Entry
from nanoloop.session.queue import COMMAND, Ask, PassOn, Queue, Run, Send, Think

MESSAGES = st.booleans().map(
    lambda is_command: Entry.message(
        "user", "/new" if is_command else "hi", metadata={"origin": COMMAND} if is_command else {}
    )
)
SEQS = st.integers(1, 6)


@given(
    waiting=st.lists(MESSAGES, max_size=3),
    unsent=st.lists(SEQS, unique=True, max_size=3),
    sent=st.sets(SEQS),
    awaiting=st.integers(0, 3),
    moved=st.sampled_from(["", "elsewhere"]),
)
def test_an_answer_comes_before_a_question_and_that_before_what_waits(
    waiting, unsent, sent, awaiting, moved
):
    queue = Queue()
    queue.waiting, queue.unsent = tuple(waiting), tuple(unsent)
    left = [seq for seq in unsent if seq not in sent]
    if left:
        expected = Send(left[0])
    elif awaiting:
        expected = Think(awaiting)
    elif not waiting:
        expected = None
    elif moved:
        expected = PassOn(moved)
    else:
        oldest = waiting[0]
        expected = Run(oldest) if oldest.metadata else Ask(oldest)
    assert queue.next(awaiting, sent, moved) == expected
    assert (queue.waiting, queue.unsent) == (tuple(waiting), tuple(unsent))  # it changes nothing
