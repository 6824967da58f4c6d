"""Choose the proxy from the environment that applies to an address."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from nanoloop.errors import SettingsError

SCHEMES = ("http", "https", "socks5", "socks5h")


def proxy_for(url: str) -> str | None:
    """Return the proxy for a URL, with its password, or None for a direct connection.

    `HTTPS_PROXY`, `HTTP_PROXY` and `ALL_PROXY` set proxies, and `NO_PROXY` lists hosts to reach
    directly. Raise `SettingsError` if one of the proxies is invalid.
    """
    parts = urlsplit(url)
    if is_this_machine(parts.hostname or "") or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    known = getproxies()
    proxy = known.get(parts.scheme) or known.get("all")
    return _usable(proxy if "://" in proxy else f"http://{proxy}") if proxy else None


def _usable(proxy: str) -> str:
    try:
        parts = urlsplit(proxy)
        is_one = parts.scheme in SCHEMES and parts.hostname and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise SettingsError(
            "the environment names a proxy that can't be used: HTTPS_PROXY, HTTP_PROXY or "
            "ALL_PROXY must "
            "look like http://proxy.example:3128, or socks5://…"
        )
    return proxy


def is_this_machine(host: str) -> bool:
    """Return True for this machine's own name or address, which no proxy can reach."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_socks(proxy: str) -> bool:
    """Return True if the proxy uses SOCKS rather than HTTP."""
    return proxy.startswith("socks")


def shown(proxy: str) -> str:
    """Return the proxy's address without its user name and password."""
    parts = urlsplit(proxy)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
