"""The model's own process, llama.cpp's server in it; the only file that imports xllamacpp.

It ends with its standard input, and so with whoever started it, however that one ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nanoloop.errors import how_to_install
from nanoloop.providers.local import room
from nanoloop.providers.local.families import family_of
from nanoloop.providers.local.gguf import Gguf, NotGguf
from nanoloop.providers.local.order import Order, Report

PR_SET_PDEATHSIG = 1
BATCH, GRAPHICS_BATCH = 64, 512
"""Tokens read at one go: while a long message is read, those who are being answered wait so long,
and so does a stop. More is no faster on a processor, and much faster on a graphics card."""
ERRORS_ONLY = 1


class CannotRun(Exception):
    """It says why, and what to do."""


def main() -> None:
    """Serve until the input ends."""
    _end_with_parent()
    order = Order.read(sys.stdin.buffer.readline())
    try:
        server, report = _serve(order)
    except CannotRun as error:
        server, report = None, Report(problem=str(error))
    os.write(sys.stdout.fileno(), report.line())
    if server is not None:
        sys.stdin.buffer.read()
    os._exit(0)  # nothing is to be tidied up, and llama.cpp takes its time


def _end_with_parent() -> None:
    """Linux ends it at once, also while it loads; elsewhere the end of the input does, after."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(order: Order) -> tuple[Any, Report]:
    header = _header(order.path)
    free = room.free_bytes()
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
    params.cache_ram_mib = room.cache_mib(header, tokens=tokens, parallel=order.parallel, room=free)
    params.port, params.api_keys = 0, [order.key]
    params.ui, params.verbosity = False, ERRORS_ONLY
    family = family_of(header.name)
    params.chat_template = family.chat_template
    params.sampling.dry_multiplier = family.repeat_penalty
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        raise CannotRun(
            f"{order.path} can't be run: get the file again, or choose another model"
        ) from None
    return server, _report(server.listening_address, order.key)


def _batch(devices: Iterable[Mapping[str, Any]]) -> int:
    has_graphics = any(device["type"].name.endswith("GPU") for device in devices)
    return GRAPHICS_BATCH if has_graphics else BATCH


def _header(path: str) -> Gguf:
    try:
        return Gguf.read(Path(path))
    except FileNotFoundError:
        raise CannotRun(f"there is no file {path}: get the model again") from None
    except NotGguf:
        raise CannotRun(
            f"{path} is no whole model file in the GGUF form: get it again, or choose another"
        ) from None
    except OSError as error:
        raise CannotRun(f"{path} can't be read ({error.strerror}): see to its rights") from None


def _tokens(header: Gguf, order: Order, free: int) -> int:
    tokens = room.context_tokens(
        header, wished=order.context_tokens, parallel=order.parallel, room=free
    )
    if tokens == 0:
        needed = room.needed_bytes(header, tokens=room.LEAST_TOKENS, parallel=order.parallel)
        raise CannotRun(
            f"{order.model} needs {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are "
            "free: close other programs, or choose a smaller model"
        )
    return tokens


def _report(address: str, key: str) -> Report:
    request = urllib.request.Request(  # noqa: S310 - this process itself
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
