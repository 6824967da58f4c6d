"""Markdown as Discord shows it: few marks differ, and it knows no tables."""

from __future__ import annotations

import discord

from nanoloop.channels.platform.markdown import Form, render

_HEADINGS = 3
"""Deeper ones are not known."""


def written(markdown: str) -> str:
    """The text in Discord's Markdown."""
    return render(markdown, _FORM)


def _escaped(text: str) -> str:
    return discord.utils.escape_markdown(text, as_needed=True)


def _code(code: str) -> str:
    return f"`` {code} ``" if "`" in code else f"`{code}`"


def _block(code: str, language: str) -> str:
    whole = code.replace("```", "\u200b".join("```"))
    return f"```{language}\n{whole}\n```"


def _heading(text: str, level: int) -> str:
    return f"{'#' * level} {text}" if level <= _HEADINGS else f"**{text}**"


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def _link(text: str, address: str) -> str:
    """In angle brackets, so that no picture of the page is shown below."""
    return f"<{address}>" if text == address else f"[{text}](<{address}>)"


_FORM = Form(
    escape=_escaped,
    bold=lambda text: f"**{text}**",
    italic=lambda text: f"*{text}*",
    strike=lambda text: f"~~{text}~~",
    code=_code,
    block=_block,
    link=_link,
    quote=_quote,
    heading=_heading,
    bullet="- ",
)
