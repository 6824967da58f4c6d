"""Whether a message names the bot, and with which words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from nanoloop.channels.matrix.event import table, words

_END = r"(?![\w-]|[.:]\w)"
"""Nothing that could belong to a longer name."""


def named(said: Mapping[str, Any], *, me: str, name: str) -> tuple[bool, str]:
    """Whether it does, and the words in its body that do so; empty where none do."""
    names = _names(me, name)
    start = _at_the_beginning(words(said, "body"), me, names)
    if start:
        return True, start
    if _is_mentioned(said, me) or _is_linked(said, me) or _stands_in(said, me):
        return True, _first(words(said, "body"), (me, *names))
    return False, ""


def _names(me: str, name: str) -> Sequence[str]:
    """What people call it, the longest first."""
    called = {found for found in (name, me[1:].partition(":")[0]) if found}
    return sorted((sign + found for found in called for sign in ("", "@")), key=len, reverse=True)


def _at_the_beginning(body: str, me: str, names: Sequence[str]) -> str:
    """`nano: hello`, `@nano hello`; a plain `nano hello` may be about it and not to it."""
    plain = "|".join(map(re.escape, names))
    signed = "|".join(re.escape(name) for name in (me, *names) if name.startswith("@"))
    form = rf"\s*((?:{plain})(?=[:,](?:\s|$))|(?:{signed}){_END})"
    found = re.match(form, body, re.IGNORECASE)
    return found[1] if found else ""


def _is_mentioned(said: Mapping[str, Any], me: str) -> bool:
    people = table(said, "m.mentions").get("user_ids")
    return isinstance(people, list) and me in people


def _is_linked(said: Mapping[str, Any], me: str) -> bool:
    """Whether it holds what clients make of a name that is chosen from a list."""
    formatted = words(said, "formatted_body")
    return any(f'"https://matrix.to/#/{form}"' in formatted for form in (me, quote(me, safe="")))


def _stands_in(said: Mapping[str, Any], me: str) -> bool:
    return re.search(rf"(?<!\S){re.escape(me)}{_END}", words(said, "body")) is not None


def _first(body: str, names: Sequence[str]) -> str:
    """The first of these names that stands in the text, as it is written there."""
    for name in names:
        if found := re.search(rf"(?<!\w){re.escape(name)}(?!\w)", body, re.IGNORECASE):
            return found[0]
    return ""
