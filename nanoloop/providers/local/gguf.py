"""What a model file in the GGUF form says of itself, read without loading it."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

MAGIC = b"GGUF"
STRING, LIST = 8, 9
NUMBERS = {kind: struct.Struct(f"<{form}") for kind, form in enumerate("BbHhIif?")} | {
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
LENGTH = NUMBERS[10]
CACHE_BYTES = 2
"""What one number of the cache takes."""


class NotGguf(ValueError):
    """The file does not begin as a GGUF file does, or breaks off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gguf:
    """The part of a header that matters here."""

    name: str
    size: int
    context_tokens: int
    """How much the model has learnt to read at once, or 0 where it isn't said."""
    token_bytes: int
    """What one token takes in the cache, or 0 where it isn't said."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises `NotGguf`, and OSError where the file can't be read."""
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise NotGguf
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                try:
                    said = _Reader(data).fields()
                except (struct.error, KeyError, OverflowError, UnicodeDecodeError):
                    raise NotGguf from None
                return cls._of(said, len(data))

    @classmethod
    def _of(cls, said: dict[str, Any], size: int) -> Self:
        kind = said.get("general.architecture", "")

        def number(key: str, default: int = 0) -> int:
            value = said.get(f"{kind}.{key}", default)
            return value if isinstance(value, int) else default

        heads = number("attention.head_count")
        width = number("embedding_length") // heads if heads else 0
        key, value = (number(f"attention.{side}_length", width) for side in ("key", "value"))
        cached = number("attention.head_count_kv", heads) * (key + value)
        return cls(
            name=str(said.get("general.name", "")),
            size=size,
            context_tokens=number("context_length"),
            token_bytes=number("block_count") * cached * CACHE_BYTES,
        )


class _Reader:
    """Goes through the fields, whose order and number no one knows before."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(MAGIC) + 4 + LENGTH.size  # the version, the number of tensors

    def fields(self) -> dict[str, Any]:
        return {self._string(): self._value(self._kind()) for _ in range(self._number(LENGTH))}

    def _kind(self) -> int:
        return int(self._number(NUMBERS[4]))

    def _number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return value

    def _string(self) -> str:
        start = self._at + LENGTH.size
        self._skip_string()
        return self._data[start : self._at].decode()

    def _skip_string(self) -> None:
        (length,) = LENGTH.unpack_from(self._data, self._at)
        self._at += LENGTH.size + length

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == LIST:
            return self._skip_list()
        return self._number(NUMBERS[kind])

    def _skip_list(self) -> None:
        """Lists are the vocabulary: long, and of no use here."""
        kind, count = self._kind(), self._number(LENGTH)
        if kind != STRING:
            self._at += NUMBERS[kind].size * count
            return
        for _ in range(count):
            self._skip_string()
