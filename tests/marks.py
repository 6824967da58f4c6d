"""A reader of what the model is shown: whose each text is, how it got there, and what it says."""

import re
from dataclasses import dataclass

LINE_END = "\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
KINDS = {
    "from ": "said",
    "at ": "said",
    "edit by ": "edit",
    "retraction by ": "retraction",
    "report from ": "report",
    "quoting ": "quote",
    "forwarding ": "forward",
    "overheard from ": "overheard",
    "image: ": "file",
    "audio: ": "file",
    "video: ": "file",
    "file: ": "file",
}


@dataclass(frozen=True)
class Found:
    kind: str
    handle: str
    text: str
    name: str = ""


def read(content):
    """The texts in a message's content."""
    if isinstance(content, str):
        return read_text(content)
    return [
        found for part in content if part["type"] == "text" for found in read_text(part["text"])
    ]


def read_text(text):
    kind = kind_of(text)
    if kind is None:
        return [Found("said", "", text)]
    return [read_marked(piece) for piece in re.split(r"\n(?=\[)", text)]


def kind_of(text):
    starts = (kind for start, kind in KINDS.items() if text.startswith(f"[{start}"))
    return next(starts, None)


def read_marked(piece):
    mark, text = re.fullmatch(r"\[([^\[\]\n]*)\](?:(?: |\n\| )(.*))?", piece, re.DOTALL).groups()
    kind = kind_of(piece)
    said = re.sub(f"({LINE_END})" + r"\| ", r"\1", text or "")
    assert len(re.split(f"{LINE_END}", text or "")) == len(re.split(f"{LINE_END}", said))
    if kind == "file":
        return Found(kind, "", said)
    start = next(start for start in KINDS if mark.startswith(start))
    name, *_ = re.split(" #|,| of an earlier message", mark.removeprefix(start))
    handle = re.search(" #([a-z2-7]{10})(?:,| of an earlier message|$)", mark)
    return Found(kind, handle[1] if handle else "", said, name)
