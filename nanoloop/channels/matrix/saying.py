"""What the bot says, as rooms take it: plain and as HTML, in its thread, as an answer."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from nanoloop.channels.platform.markdown import html
from nanoloop.channels.platform.platform import Place, Text, Upload

Content = dict[str, Any]

_IMAGE = re.compile(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>')


def said(text: Text, *, kind: str) -> Content:
    """A message; nobody is called by it, whatever names it holds."""
    content: Content = {"msgtype": kind, "body": text.plain, "m.mentions": {}}
    if text.formatted is not None:
        content |= {"format": "org.matrix.custom.html", "formatted_body": text.formatted}
    return content


def meant(message: str, text: Text, *, kind: str) -> Content:
    """An edit of a message; who knows no edits sees it as one with a star."""
    star = said(Text(plain=f"* {text.plain}"), kind=kind)
    relation = {"rel_type": "m.replace", "event_id": message}
    return {**star, "m.new_content": said(text, kind=kind), "m.relates_to": relation}


def shown(file: Upload, *, address: str) -> Content:
    """A file that is there already, at this address."""
    group = file.mime_type.partition("/")[0]
    kind = group if group in ("image", "audio", "video") else "file"
    info = {"mimetype": file.mime_type, "size": len(file.data)}
    name = {"body": file.name, "filename": file.name}
    return {"msgtype": f"m.{kind}", **name, "url": address, "info": info, "m.mentions": {}}


def placed(content: Content, place: Place, reply_to: str | None) -> Content:
    """The same in its thread, as an answer to this message where there is one."""
    answers: Content = {"m.in_reply_to": {"event_id": reply_to}} if reply_to else {}
    if place.thread:
        answers = {
            "rel_type": "m.thread",
            "event_id": place.thread,
            "is_falling_back": reply_to is None,
            "m.in_reply_to": {"event_id": reply_to or place.thread},
        }
    return {**content, "m.relates_to": answers} if answers else content


def rendered(markdown: str) -> str | None:
    """It as HTML; None where there is nothing in it that plain text doesn't say."""
    found = html(markdown)
    if found == f"<p>{escape(markdown)}</p>":
        return None
    # Clients show only pictures that are on a homeserver.
    return _IMAGE.sub(r'<a href="\1">\2</a>', found)
