"""Markdown as Discord shows it."""

import pytest

import tests.servers.discord  # noqa: F401 - first: it loads the library without its warning

# isort: split

from nanoloop.channels.discord.platform import written


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("**bold** *italic* ~~gone~~ `code`", "**bold** *italic* ~~gone~~ `code`"),
        ("# One\n\n#### Four", "# One\n\n**Four**"),
        ("```python\nif a < b:\n```", "```python\nif a < b:\n```"),
        ("[tea](https://a.example)", "[tea](<https://a.example>)"),
        ("- one\n- two", "- one\n- two"),
        ("> said", "> said"),
        (r"\*\*not bold\*\*", r"\*\*not bold**"),
        ("`` a`b ``", "`` a`b ``"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "```\na | b\n--+--\n1 | 2\n```"),
    ],
)
def test_markdown_is_written_as_discord_shows_it(markdown, shown):
    assert written(markdown) == shown
