"""The process that runs a model, started with `-m`; its orders arrive on standard input."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import resource
import signal
import struct
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from nanoloop.errors import how_to_install
from nanoloop.providers.local.launch import Launch, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Settings for a family of models whose files lack good settings of their own."""

    template: str = ""
    """A file in templates/ to use for models that ignore their own template for tool calls."""
    repeat_penalty: float = 0
    """The penalty against endless repetition (DRY); harmful if numbers have to be copied."""
    temperature: float = 0.8
    """The default sampling temperature."""
    top_k: int = 40
    top_p: float = 0.95
    """The default limits on the choice of tokens: their number and their total probability."""

    @property
    def chat_template(self) -> str:
        """The template, or "" for the one in the model's file."""
        if not self.template:
            return ""
        return (files(__package__) / "templates" / self.template).read_text()


FAMILIES = {
    # Recommended by the makers of Qwen2.5.
    "qwen2.5 coder": Family(template="bare_json.jinja", temperature=0.7, top_k=20, top_p=0.8),
    "qwen2.5": Family(temperature=0.7, top_k=20, top_p=0.8),
    "smollm2 135m": Family(repeat_penalty=0.8),
}


def family_of(name: str) -> Family:
    """Return the settings for this model's family; most models need no special settings."""
    plain = name.lower().replace("-", " ")
    return next((family for part, family in FAMILIES.items() if part in plain), Family())


MAGIC = b"GGUF"
STRING, LIST = 8, 9
NUMBERS = {kind: struct.Struct(f"<{form}") for kind, form in enumerate("BbHhIif?")} | {
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
LENGTH = NUMBERS[10]
CACHE_BYTES = 2
"""The size of one number in the cache."""


class NotGguf(ValueError):
    """The file is not a GGUF file, or is incomplete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gguf:
    """The relevant fields in a GGUF file's header."""

    name: str
    size: int
    context_tokens: int
    """The context length that the model was trained for, or 0 if unknown."""
    token_bytes: int
    """How many bytes of cache a token takes, or 0 if unknown."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the header; raises `NotGguf`, and OSError if the file can't be read."""
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
    """Reads the header's fields in sequence, because their positions are not known in advance."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(MAGIC) + 4 + LENGTH.size  # skips the version and the number of tensors

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
        """Skip a list; only the vocabulary is a long one, and it is not needed."""
        kind, count = self._kind(), self._number(LENGTH)
        if kind != STRING:
            self._at += NUMBERS[kind].size * count
            return
        for _ in range(count):
            self._skip_string()


LEAST_TOKENS = 2048
"""The smallest context with which a conversation is possible."""
WORKING_BYTES = 300_000_000
"""How much memory a running model takes besides its weights and cache."""
CACHE_MIB = 1024
MEMORY_FILE = Path("/proc/meminfo")
LIMIT_FILE = Path("/sys/fs/cgroup/memory.max")
"""The file with a Linux container's memory limit."""


def context_tokens(model: Gguf, *, wished: int, parallel: int, room: int) -> int:
    """Return the context length for each conversation, or 0 if there is not enough memory."""
    tokens = min(wished, model.context_tokens or wished)
    while needed_bytes(model, tokens=tokens, parallel=parallel) > room:
        if tokens <= LEAST_TOKENS:
            return 0
        tokens = max(LEAST_TOKENS, tokens // 2)
    return tokens


def needed_bytes(model: Gguf, *, tokens: int, parallel: int) -> int:
    """Return the memory that this model needs for conversations of this length."""
    return model.size + WORKING_BYTES + model.token_bytes * tokens * parallel


def cache_mib(model: Gguf, *, tokens: int, parallel: int, room: int) -> int:
    """Return the size of the cache for conversations that have lost their slot."""
    left = room - needed_bytes(model, tokens=tokens, parallel=parallel)
    return max(0, min(CACHE_MIB, left // 2 // 2**20))


def free_bytes() -> int:
    """Return how much memory is free without swapping, or 0 if the system does not report it."""
    try:
        free = _available() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError):
        return 0
    return min(free, _limit() or free, _address_space() or free)


def _available() -> int:
    if not MEMORY_FILE.exists():
        return 0
    found = re.search(r"MemAvailable:\s+(\d+) kB", MEMORY_FILE.read_text())
    return int(found[1]) * 1024 if found else 0


def _limit() -> int:
    try:
        return int(LIMIT_FILE.read_text())
    except (OSError, ValueError):  # not Linux, or no limit ("max")
        return 0


def _address_space() -> int:
    """Return the memory that `ulimit -v` allows a process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return 0 if limit == resource.RLIM_INFINITY else limit


PR_SET_PDEATHSIG = 1
BATCH, GRAPHICS_BATCH = 64, 512
"""How many tokens are processed at once; other answers, or a stop, have to wait that long.

A larger number is no faster on a processor, but much faster on a graphics card.
"""
ERRORS_ONLY = 1


class CannotRun(Exception):
    """The model can't run; the text says why and what to do."""


def main() -> None:
    """Serve until standard input ends."""
    _end_with_parent()
    order = Launch.read(sys.stdin.buffer.readline())
    try:
        server, report = _serve(order)
    except CannotRun as error:
        server, report = None, Report(problem=str(error))
    os.write(sys.stdout.fileno(), report.line())
    if server is not None:
        sys.stdin.buffer.read()
    os._exit(0)  # shutting llama.cpp down takes long, and there is nothing to save


def _end_with_parent() -> None:
    """Have Linux kill this process with its parent, even mid-load; elsewhere it exits at EOF."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(order: Launch) -> tuple[Any, Report]:
    header = _header(order.path)
    free = free_bytes()
    tokens = _tokens(header, order, free)
    try:
        import xllamacpp  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError:
        raise CannotRun(f"a local model needs xllamacpp: {how_to_install('local')}") from None
    params = xllamacpp.CommonParams()
    params.model.path = order.path
    params.model_alias = {order.model}
    params.n_ctx, params.n_parallel = tokens * order.parallel, order.parallel
    params.n_batch = params.n_ubatch = _batch(xllamacpp.get_device_info())
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = order.threads
    params.cache_ram_mib = cache_mib(header, tokens=tokens, parallel=order.parallel, room=free)
    params.port, params.api_keys = 0, [order.key]
    params.ui, params.verbosity = False, ERRORS_ONLY
    family = family_of(header.name)
    params.chat_template = family.chat_template
    params.sampling.dry_multiplier = family.repeat_penalty
    params.sampling.temp = family.temperature
    params.sampling.top_k, params.sampling.top_p = family.top_k, family.top_p
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        raise CannotRun(
            f"{order.path} can't be loaded: download it again, or choose another model"
        ) from None
    return server, _report(server.listening_address, order.key)


def _batch(devices: Iterable[Mapping[str, Any]]) -> int:
    has_graphics = any(device["type"].name.endswith("GPU") for device in devices)
    return GRAPHICS_BATCH if has_graphics else BATCH


def _header(path: str) -> Gguf:
    try:
        return Gguf.read(Path(path))
    except FileNotFoundError:
        raise CannotRun(f"there is no file {path}: download the model again") from None
    except NotGguf:
        raise CannotRun(
            f"{path} is not a complete GGUF model file: download it again, or choose another"
        ) from None
    except OSError as error:
        raise CannotRun(f"{path} can't be read ({error.strerror}): check its permissions") from None


def _tokens(header: Gguf, order: Launch, free: int) -> int:
    tokens = context_tokens(header, wished=order.context_tokens, parallel=order.parallel, room=free)
    if tokens == 0:
        needed = needed_bytes(header, tokens=LEAST_TOKENS, parallel=order.parallel)
        raise CannotRun(
            f"{order.model} needs {needed / 1e9:.1f} GB of memory and only {free / 1e9:.1f} GB is "
            "free: close other programs, or choose a smaller model"
        )
    return tokens


def _report(address: str, key: str) -> Report:
    request = urllib.request.Request(  # noqa: S310 - this process's own server
        f"{address}/props", headers={"Authorization": f"Bearer {key}"}
    )
    no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with no_proxy.open(request) as answer:
        props = json.load(answer)
    return Report(
        address=address,
        context_tokens=props["default_generation_settings"]["n_ctx"],
        calls_tools=bool(props["chat_template_caps"]["supports_tool_calls"]),
    )


if __name__ == "__main__":
    main()
