"""What of a model's answer becomes the summary: a whole one, in its own words, not too long."""

from __future__ import annotations

import re

from nanoloop.errors import AnswerRefused, BadAnswer, EmptyAnswer
from nanoloop.memory.transcript import PROMPT
from nanoloop.protocols import Reply

_THOUGHT = re.compile(r"^\s*<(think|thinking|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_INSTRUCTIONS = [line for line in PROMPT.splitlines() if len(line) > 60 and "{" not in line]  # noqa: PLR2004 - a line that nobody else writes
REPEATED_LINES = 2
"""With so many lines of the instructions in it, an answer is a copy of them."""


def accepted(reply: Reply) -> str:
    """The summary in a reply; raises `BadAnswer` or `AnswerRefused` where there is none."""
    if reply.tool_calls:
        raise BadAnswer("the summary model called a tool: choose another with summary_model")
    if reply.finish_reason == "content_filter":
        raise AnswerRefused("a content filter stopped the summary: try another with summary_model")
    if reply.finish_reason != "stop":
        raise BadAnswer(f"the summary was cut off ({reply.finish_reason})")
    text = _THOUGHT.sub("", reply.text).strip()
    if not text:
        raise EmptyAnswer("the summary model said nothing")
    if sum(line in text for line in _INSTRUCTIONS) >= REPEATED_LINES:
        raise BadAnswer("the summary model repeated its instructions")
    return text


def clipped(text: str, *, max_words: int) -> str:
    """The text within its limit: cut behind the last whole sentence that fits, if there is one."""
    text = text.strip()
    end = _end_of_words(text, max_words)
    if end >= len(text):
        return text
    head = text[:end]
    stop = max(head.rfind(mark) for mark in ".!?。！？\n")  # noqa: RUF001 - sentences end so in Chinese
    return head[: stop + 1].strip() if stop > end // 2 else head.rstrip() + "…"


def _end_of_words(text: str, max_words: int) -> int:
    """Where the limit falls: a word is a run of letters, or two signs where there are no spaces."""
    spent = 0.0
    in_word = False
    for index, character in enumerate(text):
        if _has_no_spaces(character):
            spent += 0.5
            in_word = False
        elif character.isspace():
            in_word = False
        elif not in_word:
            in_word = True
            spent += 1
        if spent > max_words:
            return index
    return len(text)


def _has_no_spaces(character: str) -> bool:
    return "\u3040" <= character <= "\u9fff" or "\uac00" <= character <= "\ud7a3"
