"""Extract the text of documents in a child process with limited memory and time.

Run as a program, this file is that child; only it loads the `documents` extra's libraries.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import resource
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from html.parser import HTMLParser
from io import BytesIO
from subprocess import DEVNULL
from typing import Any, Literal
from urllib.parse import urljoin
from xml.etree.ElementTree import ParseError, iterparse

import anyio

from nanoloop import children
from nanoloop.bounded import BoundedDict
from nanoloop.errors import DISTRIBUTION
from nanoloop.fairness import FairLimiter

Kind = Literal["text", "pdf", "docx", "xlsx", "html", "old", "archive", "unknown"]
SHOWN_CHARS = 20_000
"""How many characters of a document are shown to the model with the message."""
MOST_CHARS = 10_000_000
"""How many characters of a document are read at most."""
READ_SECONDS = 20
"""How long a child may read a document; it then returns what it has read so far."""
KILL_SECONDS = 60
"""How long to wait for the child before it is killed."""
CPU_SECONDS = 40
PAGE_SECONDS = 10
"""The same limit for a web page, because a model may read pages made by anyone."""
MEMORY_BYTES = 1_500_000_000
REMEMBERED = 2
"""How many documents are kept in memory, so that they need not be parsed again for each piece."""
_OOXML = "application/vnd.openxmlformats-officedocument"
MIME_TYPES: Mapping[Kind, str] = {
    "text": "text/plain",
    "pdf": "application/pdf",
    "docx": f"{_OOXML}.wordprocessingml.document",
    "xlsx": f"{_OOXML}.spreadsheetml.sheet",
}
_NAMES: Mapping[Kind, str] = {"pdf": "PDF", "docx": "Word", "xlsx": "Excel"}
PROBLEMS = {
    "empty": "this file is empty",
    "no_text": "this document has no text: if it was scanned, it has only pictures of its pages",
    "encrypted": "this file is encrypted: send it without a password",
    "old": "this is an old Word or Excel file, or an encrypted one: it can be read if it is sent "
    "as .docx, .xlsx or PDF, without a password",
    "archive": "this is an archive, which is not unpacked: send the files in it one by one",
    "damaged": "this file is damaged and can't be read",
    "slow": "this file takes too long to read",
    "large": "this file takes too much memory to read",
    "failed": "this file could not be read",
    "gone": "this file is no longer there",
    "unknown": "a file of this kind can't be read",
    "no_page": "this page has no text: if scripts build it, they are not run",
}
_ARCHIVES = (
    b"PK",
    b"\x1f\x8b",
    b"7z\xbc\xaf\x27\x1c",
    b"Rar!",
    b"BZh",
    b"\xfd7zXZ",
    b"\x28\xb5\x2f\xfd",
)
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The text of a file, as far as the file could be read."""

    text: str = ""
    problem: str = ""
    """A sentence on why some or all of the text is missing."""

    def shown(self, ref: str) -> str:
        """Return the text to show with the message; `ref` names the file, for reading more."""
        note = f"({self.problem})" if self.problem else ""
        if len(self.text) > SHOWN_CHARS:
            cut = f"cut: {SHOWN_CHARS:,} of {len(self.text):,} characters"
            note = "\n".join(filter(None, (f"[{cut}; the file is {ref}]", note)))
        return "\n".join(filter(None, (self.text[:SHOWN_CHARS], note)))

    @property
    def chars(self) -> int | None:
        """Return the number of characters if `shown` has only some of them, otherwise None."""
        return len(self.text) if len(self.text) > SHOWN_CHARS else None


def kind_of(data: bytes) -> Kind:
    """Return the kind of a file, judged by its content."""
    if b"%PDF-" in data[:1024]:
        return "pdf"
    if data.startswith(b"PK\x03\x04"):  # the names in it are not compressed
        if b"word/document.xml" in data:
            return "docx"
        return "xlsx" if b"xl/workbook.xml" in data else "archive"
    if data.startswith(_OLE):
        return "old"
    if data.startswith(_ARCHIVES) and _CONTROL.search(data[:1024]):
        return "archive"
    return "text" if _is_text(data) else "unknown"


def mime_type_of(data: bytes) -> str | None:
    """Return the MIME type of a readable document, judged by its content, or None."""
    return MIME_TYPES.get(kind_of(data))


def _is_text(data: bytes) -> bool:
    if any(data.startswith(bom) for bom, _ in _BOMS):
        return True
    return not _CONTROL.search(data) or _wide(data) is not None


def _wide(data: bytes) -> str | None:
    """Return the encoding of UTF-16 without a byte order mark: nearly every other byte is 0."""
    sample = data[:4096]
    half = len(sample) // 2
    if half >= 2 and not len(data) % 2:  # noqa: PLR2004 - two characters
        if sample[1::2].count(0) > half * 0.7 and not sample[::2].count(0):
            return "utf-16-le"
        if sample[::2].count(0) > half * 0.7 and not sample[1::2].count(0):
            return "utf-16-be"
    return None


def encoding_named(name: str) -> str | None:
    """Return the encoding that a page or its server declares, or None unless pages may use it."""
    with suppress(LookupError, ValueError):
        found = codecs.lookup(name[:_ENCODING_CHARS]).name
        return found if _OF_PAGES.fullmatch(found) else None
    return None


_ENCODING_CHARS = 40
_OF_PAGES = re.compile(
    r"ascii|utf-(?:8|16|32)(?:-sig|-le|-be)?|(?:iso8859-|cp)\d+|koi8-[ru]|mac-\w+|tis-620"
    r"|gb\w+|big5\w*|euc_\w+|shift_jis\w*|iso2022_\w+|johab|hz"
)
"""The encodings that pages are in; others, such as punycode, can take hours to decode."""


class Documents:
    """Reads one document at a time, taking turns between the owners of the documents."""

    def __init__(self) -> None:
        self._limiter = FairLimiter(1)
        self._known: BoundedDict[str, Document] = BoundedDict(REMEMBERED)

    async def read(self, data: bytes, *, owner: str, key: str = "") -> Document:
        """Return the text of this file, and remember the text under `key`."""
        if key in self._known:
            return self._known[key]
        found = await self._read(data, owner)
        if key:
            self._known[key] = found
        return found

    async def page(self, data: bytes, *, owner: str, url: str) -> Document:
        """Return the readable text of the HTML page at this address, including its links."""
        async with self._limiter.turn(owner):
            return await _read_by_child("html", data, url)

    async def _read(self, data: bytes, owner: str) -> Document:
        kind = kind_of(data)
        if not data.strip():
            return Document(problem=PROBLEMS["empty"])
        if kind in {"old", "archive", "unknown"}:
            return Document(problem=PROBLEMS[kind])
        if kind == "text":
            with suppress(UnicodeDecodeError):
                text = data.decode("utf-8-sig")
                if not _CONTROL.search(data):
                    return _bounded(text)
        async with self._limiter.turn(owner):
            return await _read_by_child(kind, data)


COMMAND = (sys.executable, "-P", "-m", "nanoloop.documents")


async def _read_by_child(kind: Kind, data: bytes, *more: str) -> Document:
    with anyio.move_on_after(KILL_SECONDS):
        try:
            ended = await children.run_in_background(
                (*COMMAND, kind, *more), input=data, stderr=DEVNULL, check=False
            )
        except Exception:  # noqa: BLE001 - it can't be started, or dies before reading everything
            return Document(problem=PROBLEMS["failed"])
        with suppress(ValueError, TypeError):
            return Document(**json.loads(ended.stdout))
        return Document(problem=PROBLEMS[_ENDS.get(ended.returncode, "failed")])
    return Document(problem=PROBLEMS["slow"])


_ENDS = {-signal.SIGXCPU: "slow", -signal.SIGKILL: "large", -signal.SIGSEGV: "large"}
"""The likely problem for each signal that may kill the child."""


def _bounded(text: str) -> Document:
    if len(text) <= MOST_CHARS:
        return Document(text=text)
    return Document(text=text[:MOST_CHARS], problem=_only_first(f"{MOST_CHARS:,} characters"))


def _only_first(what: str) -> str:
    return f"only the first {what} were read"


# The child


class _Unreadable(Exception):
    """A document can't be read; the text of this error is the problem's key."""


def main() -> None:
    """Read a file of the given kind from standard input, and write its text as JSON."""
    kind, *more = sys.argv[1:]
    _limit(PAGE_SECONDS if kind == "html" else CPU_SECONDS)
    data = sys.stdin.buffer.read()
    found = json.dumps(asdict(_read(kind, data, *more)), ensure_ascii=False)
    sys.stdout.buffer.write(found.encode("utf-8", "replace"))
    sys.stdout.flush()
    os._exit(0)  # there is nothing to clean up


def _limit(cpu_seconds: int) -> None:
    for what, most, hard in (
        (resource.RLIMIT_AS, MEMORY_BYTES, MEMORY_BYTES),
        (resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1),  # otherwise killed without a report
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        with suppress(ValueError, OSError):  # the limit is already lower, or not supported here
            resource.setrlimit(what, (most, hard))


def _read(kind: str, data: bytes, *more: str) -> Document:
    try:
        return _collected(_READERS[kind](data, *more))
    except _Unreadable as why:
        return Document(problem=PROBLEMS.get(str(why), str(why)))
    except ModuleNotFoundError:
        return Document(problem=_missing(kind))
    except (MemoryError, RecursionError):
        return Document(problem=PROBLEMS["large"])
    except Exception:  # noqa: BLE001 - parsers raise anything for crafted input
        return Document(problem=PROBLEMS["damaged"])


def _missing(kind: Any) -> str:
    return (
        f"{_NAMES.get(kind, 'such')} files can't be read here: whoever runs this can install the "
        f"extra \"documents\", with pip install '{DISTRIBUTION}[documents]'"
    )


def _collected(parts: Iterator[tuple[str, str]]) -> Document:
    """Join the parts and their marks, up to the limits."""
    until, room = time.monotonic() + READ_SECONDS, MOST_CHARS
    found: list[str] = []
    has_text, problem = False, ""
    for mark, text in parts:
        has_text = has_text or bool(text.strip())
        piece = "\n".join(filter(None, (mark, text.strip("\n"))))
        found.append(piece[:room])
        room -= len(piece) + 1
        if room <= 0:
            problem = _only_first(f"{MOST_CHARS:,} characters")
            break
        if time.monotonic() > until:
            problem = "only the beginning was read: the rest takes too long"
            break
    if not has_text:
        return Document(problem=problem or PROBLEMS["no_text"])
    return Document(text="\n".join(found), problem=problem)


def _pdf(data: bytes) -> Iterator[tuple[str, str]]:
    from pypdf import PdfReader  # noqa: PLC0415 - an extra, and only for a PDF

    reader = PdfReader(BytesIO(data))
    if reader.is_encrypted and not _is_opened(reader):
        raise _Unreadable("encrypted")
    for number, page in enumerate(reader.pages, 1):
        try:
            text = page.extract_text()
        except Exception:  # noqa: BLE001 - one bad page must not cost the others
            text = "(this page can't be read)"
        yield f"[page {number}]", text


def _is_opened(reader: Any) -> bool:
    """Return whether the document can be read without a password."""
    try:
        return bool(reader.decrypt(""))
    except Exception:  # noqa: BLE001 - for example, encryption that needs more packages
        return False


_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_BREAKS = {"tab": "\t", "br": "\n", "cr": "\n"}


def _docx(data: bytes) -> Iterator[tuple[str, str]]:
    page, said = 1, _Paragraphs()
    try:
        # The parser limits the expansion of entities, and this process limits its own memory.
        for event, element in iterparse(_part(data, "word/document.xml"), ("start", "end")):  # noqa: S314
            line = said.take(event, element)
            if line is not None:
                page += said.is_new_page
                yield f"[page {page}]" if said.is_new_page else "", line
                said.is_new_page = False
    except ParseError:
        raise _Unreadable("damaged") from None


def _part(data: bytes, name: str) -> Any:
    try:
        archive = zipfile.ZipFile(BytesIO(data))
        if archive.getinfo(name).flag_bits & 1:
            raise _Unreadable("encrypted")
        return archive.open(name)
    except (KeyError, zipfile.BadZipFile):
        raise _Unreadable("damaged") from None


class _Paragraphs:
    """Turns the paragraphs of a Word document into lines; a table row is one line."""

    def __init__(self) -> None:
        self.is_new_page = False
        """Whether a new page begins with the current line."""
        self._said: list[str] = []
        self._cells: list[str] = []
        self._rows = 0
        """How many table rows are open."""

    def take(self, event: str, element: Any) -> str | None:
        """Take the start or end of an element, and return the line that it completes, if any."""
        tag = element.tag.removeprefix(_WORD)
        if event == "start":
            self._rows += tag == "tr"
            return None
        if tag == "t":
            self._said.append(element.text or "")
        elif tag == "lastRenderedPageBreak" or element.get(f"{_WORD}type") == "page":
            self.is_new_page = True
        elif tag in _BREAKS:
            self._said.append(_BREAKS[tag])
        return self._line(tag, element)

    def _line(self, tag: str, element: Any) -> str | None:
        line = None
        if tag == "p" and not self._rows:
            line, self._said = "".join(self._said), []
        elif tag == "tc":
            self._cells.append("".join(self._said))
            self._said = []
        elif tag == "tr":
            line, self._cells, self._rows = " | ".join(self._cells), [], self._rows - 1
        if tag in {"p", "tr", "tbl"}:
            element.clear()  # a whole document of these may be large
        return line


def _xlsx(data: bytes) -> Iterator[tuple[str, str]]:
    from openpyxl import load_workbook  # type: ignore[import-untyped]  # noqa: PLC0415 - as above

    book = load_workbook(BytesIO(data), read_only=True, data_only=True)
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # the sheet may claim any size
        mark = f"[sheet {sheet.title}]"
        for row in sheet.iter_rows(values_only=True):
            cells = ["" if cell is None else str(cell) for cell in row]
            while cells and not cells[-1]:
                cells.pop()
            yield mark, " | ".join(cells)
            mark = ""


def _text(data: bytes) -> Iterator[tuple[str, str]]:
    encoding = next((name for bom, name in _BOMS if data.startswith(bom)), None) or _wide(data)
    text = data.decode(encoding or _narrow(data), "replace")
    yield "", text.replace("\0", "\ufffd")


_SAMPLE = 65_536
_CHINESE, _WESTERN = "gb18030", "cp1252"
_LIKELY = (_CHINESE, "big5", "cp932", "cp949", "cp1251", _WESTERN)


def _narrow(data: bytes) -> str:
    """Return the most likely encoding of text that is not in Unicode."""
    sample = data[:_SAMPLE]
    runs = re.findall(rb"[\x80-\xff]+", sample)
    is_in_pairs = sum(not len(run) % 2 for run in runs) * 2 > len(runs)
    usual = _CHINESE if is_in_pairs else _WESTERN
    try:
        from charset_normalizer import from_bytes  # noqa: PLC0415 - an extra
    except ImportError:
        return usual
    # Leave out the last line: a character cut in half would count against its encoding.
    lines = sample.rpartition(b"\n")[0] or sample
    found = list(from_bytes(lines, cp_isolation=[*_LIKELY], enable_fallback=False))
    if not found:
        return usual
    best = [
        each
        for each in found
        if (each.chaos, each.coherence) == (found[0].chaos, found[0].coherence)
    ]
    return usual if usual in {each.encoding for each in best} else str(best[0].encoding)


_DECLARED = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?([\w-]{1,40})""", re.IGNORECASE)
_PIECE = 65_536


def _html(data: bytes, url: str) -> Iterator[tuple[str, str]]:
    text, page = _decoded_page(data), _Page(url)
    has_text, is_apart = False, False
    for at in range(0, len(text) + 1, _PIECE):
        page.feed(text[at : at + _PIECE])
        if at + _PIECE > len(text):
            page.close()
            page.end_line()
        for line in page.taken():
            if line.strip():
                yield from [("", "")] * (has_text and is_apart)  # no matter how many are empty
                yield "", line
            is_apart = not line.strip()
            has_text = has_text or not is_apart
    if not has_text:
        raise _Unreadable("no_page")


def _decoded_page(data: bytes) -> str:
    declared = _DECLARED.search(data[:2048])
    encoding = encoding_named(declared[1].decode()) if declared else "utf-8"
    if encoding and not any(data.startswith(bom) for bom, _ in _BOMS):
        with suppress(UnicodeError):
            return data.decode(encoding)
    return next(_text(data))[1]


_LEFT_OUT = frozenset(
    {"script", "style", "template", "noscript", "svg", "math", "iframe", "object"}
    | {"nav", "aside", "footer"}
)
_IN_LINES = frozenset(
    {"a", "abbr", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font"}
    | {"i", "img", "input", "ins", "kbd", "label", "mark", "q", "s", "samp", "small", "span"}
    | {"strike", "strong", "sub", "sup", "td", "th", "time", "tt", "u", "var", "wbr"}
)
"""Elements within a line; all others begin and end a line."""


_ITEM = "- "


class _Page(HTMLParser):
    """Turns an HTML page into lines: its title, text, list items, table rows and links."""

    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self._url = url
        self._lines: list[str] = []
        self._line = ""
        self._skips = ""
        """The element that is being left out, if any."""
        self._depth = 0
        self._verbatim = 0
        self._link, self._link_at = "", 0

    def taken(self) -> list[str]:
        """Return and forget the lines that are complete."""
        lines, self._lines = self._lines, []
        return lines

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin an element."""
        if self._skips:
            self._depth += tag == self._skips
        elif tag in _LEFT_OUT:
            self._skips, self._depth = tag, 1
        else:
            self._begin(tag, dict(attrs))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Handle an element that ends where it begins."""
        if tag not in _LEFT_OUT:
            self.handle_starttag(tag, attrs)

    def _begin(self, tag: str, known: dict[str, str | None]) -> None:
        if tag not in _IN_LINES and self._line != _ITEM:
            self.end_line()
        if tag == "li":
            self._line = _ITEM
        elif tag in {"td", "th"} and self._line.strip():
            self._line += " | "
        elif tag == "img" and (alt := (known.get("alt") or "").strip()):
            self._line += f"[image: {alt}]"
        elif tag == "a":
            self._link, self._link_at = known.get("href") or "", len(self._line)
        self._verbatim += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        if self._skips:
            self._depth -= tag == self._skips
            self._skips = self._skips if self._depth else ""
            return
        if tag == "a":
            self._end_link()
        elif tag not in _IN_LINES:
            self.end_line()
        if tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)

    def _end_link(self) -> None:
        link, self._link = self._link, ""
        text = self._line[self._link_at :].strip()
        if not text or not link or link.startswith("#"):
            return
        with suppress(ValueError):
            address = urljoin(self._url, link.strip())
            if address.startswith(("https://", "http://")) and address != text:
                self._line += f" ({address})"

    def handle_data(self, data: str) -> None:
        """Add text to the line."""
        if self._skips:
            return
        if self._verbatim:
            *ended, last = data.split("\n")
            for line in ended:
                self._lines.append(self._line + line)
                self._line = ""
            self._line += last
            return
        text = " ".join(data.split())
        if data[:1].isspace() and self._line and not self._line.endswith(" "):
            self._line += " "
        self._line += text + " " * (bool(text) and data[-1:].isspace())

    def end_line(self) -> None:
        """End the line, which may be empty."""
        line, self._line = self._line.rstrip().removesuffix(" |"), ""
        self._lines.append("" if line == _ITEM.strip() else line)


_READERS: Mapping[str, Callable[..., Iterator[tuple[str, str]]]] = {
    "pdf": _pdf,
    "docx": _docx,
    "xlsx": _xlsx,
    "text": _text,
    "html": _html,
}

if __name__ == "__main__":
    main()
