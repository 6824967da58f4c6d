"""Phrases that read as translated stay out of what people read: tests/phrases.txt lists them."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIST = ROOT / "tests" / "phrases.txt"
PAGES = (
    "README.md",
    "docs/**/*.md",
    ".github/*.md",
    "config/*",
    "nanoloop/channels/web/static/*.*",
)
PHRASES = [
    line.partition(" -> ")[0]
    for line in LIST.read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def plain(text):
    return " ".join(text.split()).lower()


def texts_of(tree):
    """Each text in the code: docstrings, messages and help, with … for what is put into them."""
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(map(id, node.values))
            yield "".join(
                getattr(value, "value", "…") if is_text(value) else "…" for value in node.values
            )
    for node in ast.walk(tree):
        if is_text(node) and id(node) not in parts:
            yield node.value


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def found_in(texts):
    said = [plain(text) for text in texts]
    return sorted({phrase for phrase in PHRASES for text in said if phrase in text})


def test_a_phrase_is_found_across_lines_and_around_a_value():
    code = ast.parse('f"""It {x} asks who\n    shall answer."""')
    assert "asks who shall answer" in found_in(texts_of(code))


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_is_no_single_word(phrase):
    assert len(phrase.split()) > 1
    assert phrase == plain(phrase)


def test_pages_say_none_of_the_phrases():
    pages = [path for pattern in PAGES for path in ROOT.glob(pattern) if is_page(path)]
    found = {str(path.relative_to(ROOT)): found_in([path.read_text("utf-8")]) for path in pages}
    assert {page: phrases for page, phrases in found.items() if phrases} == {}


def is_page(path):
    return path.suffix in {".md", ".html", ".js", ".toml", ".yml", ".yaml", ".service"}


def test_help_messages_and_docstrings_say_none_of_the_phrases():
    found = {}
    for path in ROOT.glob("nanoloop/**/*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[str(path.relative_to(ROOT))] = found_in(texts_of(tree))
    assert {file: phrases for file, phrases in found.items() if phrases} == {}
