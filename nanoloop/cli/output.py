"""What the command line shows. All of it goes through `say`, and no terminal or pipe can stop it.

What a library prints by itself goes through the same streams: `adapt` makes them just as patient.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import select
import sys
from contextlib import suppress
from typing import Any, TextIO

from nanoloop.channels.screen import escaped, fitting, printable, styled

_UNFIT = "nanoloop"
"""The name under which `fitting` is registered as a Python encoding error handler."""


def say(text: object = "", *, end: str = "\n", err: bool = False, has_style: bool = False) -> None:
    """Print it at once, approximating what the terminal can't show.

    The terminal obeys nothing in it except, with `has_style`, its colours. It never raises. If the
    reader leaves, the rest is dropped, and the command does its work.
    """
    stream = sys.stderr if err else sys.stdout
    if stream is None:
        return
    with suppress(OSError, ValueError):  # a stream that is no longer there, or not ours
        # What a bar puts before a stream, to print above the bar, names no encoding.
        encoding = stream.encoding or getattr(sys.__stdout__, "encoding", None)
        shown = styled(str(text)) if has_style else printable(str(text))
        stream.write(fitting(f"{shown}{end}", encoding))
        stream.flush()


def say_json(value: Any, *, indent: int | None = 2) -> None:
    """Print it as JSON, escaping what the terminal can't show instead of replacing it."""
    say(json_text(json.dumps(value, ensure_ascii=False, indent=indent)))


def json_text(text: str) -> str:
    """The same JSON without control characters, in ASCII unless the output can take any text."""
    text = escaped(text)
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    with suppress(UnicodeEncodeError, LookupError):
        text.encode(encoding)
        if codecs.lookup(encoding).name == "utf-8":
            return text
    # Outside ASCII there are only texts in JSON, and each character of a text may be escaped.
    return "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in text)


def ask(question: str, *, err: bool = False) -> str:
    """What the person types; raises `EOFError` if they leave."""
    say(question, end="", err=err)
    return input()


def is_dumb() -> bool:
    """Whether the terminal understands no more than a pipe does."""
    return os.environ.get("TERM") == "dumb"


def has_colours(stream: TextIO) -> bool:
    """Whether someone sees colours there and wants them."""
    return stream.isatty() and not is_dumb() and "NO_COLOR" not in os.environ


def adapt() -> None:
    """Let standard output and standard error take any text and survive a lost reader."""
    _fill_closed()
    _adapt_input()
    codecs.register_error(_UNFIT, _replaced)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # Whatever else stands there was put there by somebody who knows why.
        if stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _patient(stream, 1 if name == "stdout" else 2))


def failure() -> OSError | None:
    """Why some of the output could not be written, for example because of a full disk."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.failed if isinstance(raw, _PatientFile) else None


def _fill_closed() -> None:
    # A database that gets the number of standard output would be written full of answers.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - standard error
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _adapt_input() -> None:
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115 - as Python's


def _patient(stream: TextIO | None, descriptor: int) -> TextIO:
    binary = io.BufferedWriter(_PatientFile(descriptor, "w", closefd=False))
    if stream is None:
        return io.TextIOWrapper(binary, encoding="utf-8", errors=_UNFIT)
    stream.flush()
    return io.TextIOWrapper(
        binary,
        encoding=stream.encoding,
        errors=_UNFIT,
        line_buffering=descriptor == 2 or getattr(stream, "line_buffering", False),  # noqa: PLR2004 - standard error
        write_through=getattr(stream, "write_through", False),
    )


def _replaced(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unfit = error.object[error.start : error.end]
    # As bytes, for UTF-8's own encoder takes no other text than ASCII here.
    return fitting(unfit, error.encoding).encode(error.encoding), error.end


class _PatientFile(io.FileIO):
    """Discards what nobody reads any more, and remembers a write that a full disk refused."""

    failed: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write all of it, however long the reader takes."""
        left = memoryview(data).cast("B")
        try:
            while left:
                written = super().write(left)
                if written is None:  # somebody made it one that doesn't wait
                    select.select([], [self], [])
                left = left[written or 0 :]
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.failed = error
        return len(memoryview(data).cast("B"))
