"""Slack's own marks: read as people see them, and written from Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nanoloop.channels.platform.markdown import Form, render

_MARK = re.compile(r"<([^<>]+)>")
_PERSON = re.compile(r"<@([UW][A-Z0-9]+)(?:\|[^<>]*)?>")
_OPENABLE = ("http://", "https://", "mailto:")
_NARROW = "\u200b"
"""Takes no room: keeps two marks apart."""
_TICK = "\u02cb"
"""Looks like a backtick, of which there may be none within code."""


def named(text: str) -> frozenset[str]:
    """The ids of the people that a text names."""
    return frozenset(_PERSON.findall(text))


def read(text: str, names: Mapping[str, str]) -> str:
    """The text as people see it; who is not in `names` stays as `<@ID>`."""
    return _plain(_MARK.sub(lambda match: _seen(match[1], names), text))


def written(markdown: str) -> str:
    """The text in Slack's form; nothing in it names anyone or opens anything unseen."""
    return render(markdown, _FORM)


def escaped(text: str) -> str:
    """A text in which Slack sees no mark of its own that could call someone."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _seen(mark: str, names: Mapping[str, str]) -> str:
    target, _, label = mark.partition("|")
    match target[0]:
        case "@":
            name = names.get(target[1:])
            return f"@{name}" if name else f"&lt;{target}&gt;"
        case "#":
            return f"#{label or target[1:]}"
        case "!":
            return label or f"@{target[1:].partition('^')[0]}"
    address = target.removeprefix("mailto:")
    return address if not label or label in address else f"[{label}]({target})"


def _plain(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _around(mark: str, text: str) -> str:
    """Marks stand at words, with no space and none of their kind within."""
    bare = text.strip()
    if not bare or mark in bare:
        return text
    return text.replace(bare, f"{mark}{bare}{mark}", 1)


def _code(code: str) -> str:
    return f"`{escaped(code).replace('`', _TICK)}`"


def _block(code: str, _: str) -> str:
    whole = escaped(code).replace("```", _NARROW.join("```"))
    return f"```\n{whole}\n```"


def _link(text: str, address: str) -> str:
    if not address.startswith(_OPENABLE):
        return f"{text} ({escaped(address)})"
    target = escaped(address).replace("|", "%7C")
    label = text.replace("|", "¦").replace("\n", " ")
    return f"<{target}>" if label == target else f"<{target}|{label}>"


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


_FORM = Form(
    escape=escaped,
    bold=lambda text: _around("*", text),
    italic=lambda text: _around("_", text),
    strike=lambda text: _around("~", text),
    code=_code,
    block=_block,
    link=_link,
    quote=_quote,
)
