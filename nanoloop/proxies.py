"""Proxies: which of those that the environment names stands before an address."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def proxy_for(url: str) -> str | None:
    """The proxy to use for a URL, with its password; None if the URL is asked directly.

    `HTTPS_PROXY`, `HTTP_PROXY` and `ALL_PROXY` name proxies, and `NO_PROXY` the hosts without one.
    """
    parts = urlsplit(url)
    host, _, place = parts.hostname or "", *parts.netloc.rpartition("@")[1:]
    if is_this_machine(host) or proxy_bypass(place):
        return None
    known = getproxies()
    proxy = known.get(parts.scheme) or known.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def is_this_machine(host: str) -> bool:
    """Whether it is this machine's own name or address, which no proxy can reach."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_socks(proxy: str) -> bool:
    """Whether the proxy speaks SOCKS, and not HTTP."""
    return proxy.startswith("socks")


def shown(proxy: str) -> str:
    """The proxy's address without its name and password."""
    scheme, _, rest = proxy.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('/')[0]}"
