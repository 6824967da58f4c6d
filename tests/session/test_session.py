"""The shape of a session's classes, so that a method has one place to look for it."""

from dataclasses import fields

import pytest

from nanoloop.session.conversation import PARTS, Conversation
from nanoloop.session.head import Head
from nanoloop.session.session import Session


def test_a_session_is_a_conversation_and_nothing_else():
    assert Session.__mro__ == (Session, Conversation, object)


def test_no_method_is_defined_in_both_of_its_classes():
    mine, theirs = ({n for n in vars(c) if not n.startswith("__")} for c in (Session, Conversation))
    assert mine & theirs == set()


@pytest.mark.parametrize("name", PARTS)
def test_each_part_comes_back_as_it_was_dumped(name):
    session, again = Session(), Session()
    session.add_message("user", "hello")
    again.restore(again.head(), {name: session.part(name)})
    assert again.part(name) == session.part(name)


def test_a_head_comes_back_as_it_was_dumped():
    head = Head(
        rev=3, shown=(1, {"id": "x"}), hidden=((2, 4),), spent={"tokens_in": 1}, unsent=(5,)
    )
    spent = {"tokens_in": 1, "tokens_out": 0, "tokens_cached": 0}
    again = Head.load(head.dump())
    assert {f.name: getattr(again, f.name) for f in fields(Head)} == {
        f.name: getattr(head, f.name) for f in fields(Head)
    } | {"spent": spent}
