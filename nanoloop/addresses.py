"""Check addresses that come from outside, and fetch files from those that are allowed."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import anyio
from anyio.to_thread import run_sync

from nanoloop.errors import AddressRefused, FetchFailed

if TYPE_CHECKING:
    import ssl

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Return a host's addresses, or raise `OSError` if it has none."""
LOOKUPS = 4
"""How many names are looked up at the same time, each in a thread."""
LOOKUP_SECONDS = 10.0
MOST_HOSTS = 20
"""How many hosts a single call may look up."""
MOST_CHARS = 4000
_HOST = re.compile(r"(?P<name>[a-z0-9_.-]+)|\[(?P<six>[0-9a-f:.]+)\]")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
_OWN_NAMES = re.compile(r"(.*\.)?(localhost|local|localdomain|internal|intranet|lan|home\.arpa)")
_SIX = ip_network("2000::/3")
"""The range that contains all public IPv6 addresses."""
_SPECIAL = [
    *map(ip_network, ("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8")),
    *map(ip_network, ("169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24")),
    *map(ip_network, ("192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24")),
    *map(ip_network, ("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32")),
    *map(ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")),
]
"""Ranges that are private, loopback, link-local, multicast or reserved, or lead to such addresses.

168.63.129.16 looks public, but it is Azure's own server for each of its machines.
"""


def check_address(url: str) -> None:
    """Raise `AddressRefused` if the URL plainly names this machine or its network.

    Names are not resolved here: `AddressCheck` does that.
    """
    host = _host_of(_parted(url, ("https",)))
    if isinstance(host, str):
        if "." not in host or _OWN_NAMES.fullmatch(host):
            raise AddressRefused(f"{host} is the name of this machine or its network")
    elif not is_public(host):
        raise AddressRefused(f"{host} is not a public address")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return True for an address on the public internet."""
    if isinstance(address, IPv6Address) and address not in _SIX:
        return False
    return not any(address in special for special in _SPECIAL)


def known_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address, or return None. An IPv4 address written as IPv6 is returned as IPv4."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def network_of(address: str) -> str:
    """Return the network whose addresses usually all belong to one client.

    The result is "this machine", a single IPv4 address, or the client's IPv6 network.
    """
    found = known_address(address)
    if found is None:
        return address
    if found.is_loopback:
        return "this machine"
    return str(found) if found.version == 4 else str(ip_network((found, 64), strict=False))  # noqa: PLR2004 - IP's


def _parted(url: str, schemes: Sequence[str]) -> SplitResult:
    """Split a URL; raise `AddressRefused` if two parsers might find different hosts."""
    # `urlsplit` would drop line breaks, and others read a backslash as a slash.
    if len(url) > MOST_CHARS or not url.isprintable() or " " in url or "\\" in url:
        raise AddressRefused(
            f"an address has at most {MOST_CHARS} characters, and no spaces or backslashes"
        )
    try:
        parts = urlsplit(url)
        is_well = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:
        is_well = False
    if not is_well:
        raise AddressRefused(f"an address has to begin with {schemes[0]}:// and a host")
    if "@" in parts.netloc:
        raise AddressRefused("an address may not contain a user name or a password")
    return parts


def _host_of(parts: SplitResult) -> str | IPv4Address | IPv6Address:
    """Return the URL's host, as a name or an IP address.

    Raise `AddressRefused` for numbers that only some parsers accept, and for characters that some
    parsers convert: non-ASCII letters and percent signs.
    """
    authority = parts.netloc.lower()
    if parts.port is not None or authority.endswith(":"):
        authority = authority.rpartition(":")[0]
    try:
        found = _HOST.fullmatch(authority)
        host = _read_host(found["name"], found["six"]) if found else None
    except ValueError:
        host = None
    if not host:
        raise AddressRefused(
            f"{authority[:100]!r} is not a host: write a name in ASCII, or an address in full"
        )
    return host


def _read_host(name: str | None, six: str | None) -> str | IPv4Address | IPv6Address:
    if name is None:
        return IPv6Address(six or "")
    name = name.removesuffix(".")
    return IPv4Address(name) if _NUMBER.fullmatch(name.rpartition(".")[2]) else name


class AddressCheck:
    """Decides whether an address may be used, based on what its name resolves to."""

    def __init__(self, *, allowed: Iterable[str] = (), resolve: Resolve | None = None) -> None:
        """Create a check; the operator's `allowed` networks may be used without TLS."""
        self._allowed = [ip_network(network) for network in allowed]
        self._resolve = resolve or self._looked_up
        self._threads = anyio.CapacityLimiter(LOOKUPS)

    async def check(self, urls: Iterable[str]) -> None:
        """Raise `AddressRefused` if one of these URLs may not be used."""
        schemes = self._schemes
        found = {_parted(url, schemes)[:2]: url for url in urls}
        if len(found) > MOST_HOSTS:
            raise AddressRefused(f"more than {MOST_HOSTS} hosts at once")
        for url in found.values():
            await self.addresses_of(url)

    async def addresses_of(self, url: str) -> Sequence[str]:
        """Resolve the URL's host once, and return the addresses to connect to.

        Raise `AddressRefused` unless every address of the host may be used.
        """
        parts = _parted(url, self._schemes)
        host = _host_of(parts)
        found = [host] if not isinstance(host, str) else await self._addresses(host, parts)
        for address in found:
            is_own = any(address in network for network in self._allowed)
            if not (is_own or (parts.scheme == "https" and is_public(address))):
                plain = is_public(address)
                says = "can be reached only with https://" if plain else "is not a public address"
                raise AddressRefused(f"{host} {says}")
        return [str(address) for address in found]

    @property
    def _schemes(self) -> Sequence[str]:
        return ("https", "http") if self._allowed else ("https",)

    async def _addresses(
        self, host: str, parts: SplitResult
    ) -> Sequence[IPv4Address | IPv6Address]:
        try:
            with anyio.fail_after(LOOKUP_SECONDS):
                found = await self._resolve(host, parts.port or 443)
        except (OSError, UnicodeError):  # a TimeoutError is an OSError
            found = ()
        if not found:
            raise AddressRefused(f"{host} can't be resolved")
        return [ip_address(address) for address in found]

    async def _looked_up(self, host: str, port: int) -> Sequence[str]:
        def look_up() -> Sequence[str]:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(answer[4][0]) for answer in answers))

        return await run_sync(look_up, limiter=self._threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Limits on the size of a fetched file and on the time to fetch it."""

    most_bytes: int = 10_000_000
    seconds: float = 30
    """The time limit, from the first lookup to the last byte."""
    redirects: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A file fetched from an address."""

    url: str
    """The address after all redirects."""
    mime_type: str
    """The type that the server declared."""
    charset: str
    """The text encoding that the server declared, or ""."""
    data: bytes


_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_OK = 200
_PIECE = 65_536


class Fetcher:
    """Fetches files from addresses that come from outside.

    Each hop is resolved once and checked. The connection goes to the checked address, and takes
    over nothing from the previous hop. No proxy is used, since a proxy would resolve the name
    again.
    """

    def __init__(
        self, check: AddressCheck | None = None, *, limits: FetchLimits | None = None
    ) -> None:
        self._check = check or AddressCheck()
        self._limits = limits or FetchLimits()

    async def fetch(self, url: str) -> Fetched:
        """Fetch the file at this URL, or raise `AddressRefused` or `FetchFailed` if that fails."""
        limits = self._limits
        try:
            with anyio.fail_after(limits.seconds):
                for _ in range(limits.redirects + 1):
                    found = await self._hop(url)
                    if isinstance(found, Fetched):
                        return found
                    url = found
        except TimeoutError:
            raise FetchFailed(f"it takes more than {limits.seconds:g} seconds") from None
        raise FetchFailed(f"it redirects more than {limits.redirects} times")

    async def _hop(self, url: str) -> Fetched | str:
        """Fetch the file at this URL, or return the URL that it redirects to."""
        # The import is slow, and few programs fetch anything.
        import aiohttp  # noqa: PLC0415 - as above
        from yarl import URL  # noqa: PLC0415 - it comes with aiohttp

        pinned: Any = _Pinned(await self._check.addresses_of(url))
        is_plain = urlsplit(url).scheme == "http"
        try:
            trusted = True if is_plain else await run_sync(trusted_certificates)
            async with (
                aiohttp.ClientSession(
                    auto_decompress=False,
                    connector=aiohttp.TCPConnector(
                        force_close=True,
                        resolver=pinned,
                        ssl=trusted,
                        use_dns_cache=False,
                    ),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    headers={"Accept-Encoding": "identity", "User-Agent": "nanoloop"},
                    timeout=aiohttp.ClientTimeout(None),
                ) as client,
                client.get(url, allow_redirects=False) as answer,
            ):
                if answer.status in _REDIRECTS and "location" in answer.headers:
                    return str(URL(url).join(URL(answer.headers["location"])))
                if answer.status != _OK:
                    raise FetchFailed(f"its server answers {answer.status}")
                return Fetched(
                    url=url,
                    mime_type=answer.content_type,
                    charset=answer.charset or "",
                    data=await self._body(answer),
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise FetchFailed(f"the connection failed ({type(error).__name__})") from None

    async def _body(self, answer: Any) -> bytes:
        most = self._limits.most_bytes
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise FetchFailed("it is compressed, which was not requested")
        data = bytearray()
        if (answer.content_length or 0) <= most:
            async for piece in answer.content.iter_chunked(_PIECE):
                data += piece
                if len(data) > most:
                    break
            else:
                return bytes(data)
        raise FetchFailed(f"it has more than {most:,} bytes")


class _Pinned:
    """Answers each name lookup with the addresses that were checked."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:  # noqa: ARG002 - as aiohttp asks
        """Return the checked addresses in the form that aiohttp expects."""
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Do nothing, because no resource is open."""


def trusted_certificates() -> ssl.SSLContext:
    """Return a context that trusts the certificates named in the environment, or else the system's.

    Raise `OSError` if they can't be read.
    """
    # The imports are slow, and few commands fetch anything.
    import ssl  # noqa: PLC0415 - as above

    import truststore  # noqa: PLC0415 - as above

    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file or folder:
        return ssl.create_default_context(cafile=file or None, capath=folder or None)
    return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
