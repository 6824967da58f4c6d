"""Prints the command line's output, on any terminal and even if the pipe is closed.

Text printed by libraries goes through the same streams, which `adapt` makes equally robust.
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
    """Print text at once, replacing characters that the terminal can't show.

    Control characters are replaced too, except for colours if `has_style` is set. This never
    raises: if the reader has closed the pipe, the output is dropped and the command continues.
    """
    stream = sys.stderr if err else sys.stdout
    if stream is None:
        return
    with suppress(OSError, ValueError):  # the stream may be closed or replaced
        # The wrapper that prints above a progress bar has no encoding of its own.
        encoding = stream.encoding or getattr(sys.__stdout__, "encoding", None)
        shown = styled(str(text)) if has_style else printable(str(text))
        stream.write(fitting(f"{shown}{end}", encoding))
        stream.flush()


def say_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON, escaping characters that the terminal can't show."""
    say(json_text(json.dumps(value, ensure_ascii=False, indent=indent)))


def json_text(text: str) -> str:
    """Escape control characters in JSON, and non-ASCII characters if the output can't take them."""
    text = escaped(text)
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    with suppress(UnicodeEncodeError, LookupError):
        text.encode(encoding)
        if codecs.lookup(encoding).name == "utf-8":
            return text
    # In JSON, characters outside ASCII occur only in strings, where they may be escaped.
    return "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in text)


def ask(question: str, *, err: bool = False) -> str:
    """Ask the user a question and return the answer; raises `EOFError` if the input ends."""
    say(question, end="", err=err)
    return input()


def is_dumb() -> bool:
    """Return whether the terminal is as limited as a pipe."""
    return os.environ.get("TERM") == "dumb"


def has_colours(stream: TextIO) -> bool:
    """Return whether the stream is a terminal whose user wants colours."""
    return stream.isatty() and not is_dumb() and "NO_COLOR" not in os.environ


def adapt() -> None:
    """Make standard output and error accept any text and survive a closed reader."""
    _fill_closed()
    _adapt_input()
    codecs.register_error(_UNFIT, _replaced)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # A stream that was replaced on purpose is left as it is.
        if stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _patient(stream, 1 if name == "stdout" else 2))


def failure() -> OSError | None:
    """Return the error, such as a full disk, that kept output from being written, or None."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.failed if isinstance(raw, _PatientFile) else None


def _fill_closed() -> None:
    # Otherwise a database opened as descriptor 1 would receive the command's output.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - standard error
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _adapt_input() -> None:
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115 - like Python's own


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
    # Encoded here, because UTF-8's encoder accepts only ASCII text from an error handler.
    return fitting(unfit, error.encoding).encode(error.encoding), error.end


class _PatientFile(io.FileIO):
    """Discards output that nobody reads, and remembers a failed write, such as on a full disk."""

    failed: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write all of the data, however slow the reader is."""
        left = memoryview(data).cast("B")
        try:
            while left:
                written = super().write(left)
                if written is None:  # the descriptor is non-blocking
                    select.select([], [self], [])
                left = left[written or 0 :]
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.failed = error
        return len(memoryview(data).cast("B"))
