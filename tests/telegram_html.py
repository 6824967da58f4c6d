"""The HTML that Telegram takes in a message, and what it says of any other."""

import re
from html import unescape

TAGS = {"a", "b", "strong", "i", "em", "u", "ins", "s", "strike", "del", "code", "pre"}
TAGS |= {"blockquote", "tg-spoiler", "tg-emoji", "span"}
_NAME = re.compile(r"[^\s>]*")
_ATTRIBUTE = re.compile(r"""\s*([^\s=>]*)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>"']+))?""")
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|#\d+|#x[0-9a-fA-F]+);")


class Malformed(Exception):
    """It can't be parsed; the text is Telegram's."""


def shown(html):
    """The text that people see; raises `Malformed`."""
    text, place, open_tags = [], 0, []
    while place < len(html):
        begin = html.find("<", place)
        begin = len(html) if begin < 0 else begin
        text.append(_ENTITY.sub(lambda found: unescape(found[0]), html[place:begin]))
        place = begin
        if begin < len(html):
            is_end = html.startswith("</", begin)
            place = (_end_tag if is_end else _start_tag)(html, begin, open_tags)
    if open_tags:
        raise Malformed(f'Can\'t find end tag corresponding to start tag "{open_tags[-1]}"')
    return "".join(text)


def _start_tag(html, begin, open_tags):
    name = _NAME.match(html, begin + 1)
    if name[0].lower() not in TAGS:
        raise Malformed(f'Unsupported start tag "{name[0]}" at byte offset {begin}')
    place, attributes = name.end(), {}
    while not html.startswith(">", place):
        found = _ATTRIBUTE.match(html, place)
        if not found[1]:
            rest = html[found.end() :]
            if not rest.startswith(">"):
                raise Malformed(f"Unclosed start tag at byte offset {begin}")
            place = found.end()
            break
        attributes[found[1]] = (found[2] or "").strip("\"'")
        place = found.end()
    if name[0] == "span" and attributes.get("class") != "tg-spoiler":
        raise Malformed(f'Tag "span" must have class "tg-spoiler" at byte offset {begin}')
    open_tags.append(name[0].lower())
    return place + 1


def _end_tag(html, begin, open_tags):
    if not open_tags:
        raise Malformed(f"Unexpected end tag at byte offset {begin}")
    end = html.find(">", begin)
    if end < 0:
        raise Malformed(f"Unclosed end tag at byte offset {begin}")
    name, wanted = html[begin + 2 : end].strip().lower(), open_tags.pop()
    if name not in ("", wanted):
        raise Malformed(
            f'Unmatched end tag at byte offset {begin}, expected "</{wanted}>", found "</{name}>"'
        )
    return end + 1
