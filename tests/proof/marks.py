"""Words by which a test knows its messages again, wherever they turn up."""

import json
import re

MARK = re.compile(r"\b[macrw]\d+(?:\.\d+)?z\b")
"""`m7z` was said, `a7z` answers it, `c7.0z` calls a tool for it, `r7.0z` is what that returned."""


def marks_in(text):
    return MARK.findall(text)


def marks_of(entry):
    """The marks that an entry itself carries."""
    return marks_in(json.dumps(dict(entry.content), default=str))


def newest_mark(messages):
    """The mark of what the user said last."""
    said = [message["content"] for message in messages if message["role"] == "user"]
    return marks_in(json.dumps(said[-1]))[-1] if said else ""
