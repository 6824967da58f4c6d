"""Decide which settings may be shown, and which parts of them.

A setting of the type `SecretStr` is secret, even in a plugin's table. In other settings, the login
and query of an address are hidden, and so is anything that is named like a key or looks like one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pydantic import SecretStr

MASK = "********"
_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)
_ALL_SECRET = re.compile(r"headers?$|quer(y|ies)$|cookies?$", re.IGNORECASE)
"""Names of tables in which all texts are hidden."""
_VALUE = re.compile(r"^(sk|pk|gh[a-z]|xox[a-z])[-_]|^(Bearer|Basic) |[A-Za-z0-9+_-]{32,}")
_WITHOUT_SECRETS = ("agents", "sentences")
"""Tables in which a name such as `model_key` does not refer to a key."""
# Greedy, because a password may contain an @.
_LOGIN = re.compile(r"(?<=//)[^\s\"]*(?=@)")
# Ends where an HTTP client ends the host, so that no host is mistaken for a login and hidden.
_PLAIN_LOGIN = re.compile(r"(?<=//)[^\s\"/?#\\]*(?=@)")
_HOST = re.compile(r"\w[\w+.-]*://[^\s\"/?#\\]+")
_QUERY = re.compile(r"(?<=//)([^\s\"?#]*)[?#]([^\s\"]+)")


def shown(value: Any) -> str:
    """Return a value in printable form, with secrets masked."""
    match value:
        case SecretStr():
            text = MASK
        case None:
            text = "none"
        case str() | Path():
            text = json.dumps(masked(value), ensure_ascii=False)
        case list() | tuple():
            text = f"[{', '.join(map(shown, value))}]"
        case Mapping():
            text = f"{{{', '.join(f'{key} = {shown(each)}' for key, each in open_in(value))}}}"
        case float() if value.is_integer():
            text = str(int(value))
        case _:
            text = json.dumps(value, default=masked)
    return text


def shown_as(key: str, value: Any) -> str:
    """Return a value from an untrusted file, for the user who decides whether to trust the file.

    The value is hidden only if its name is that of a secret, because the file's author controls
    what the value looks like. The host of an address is always shown.
    """
    match value:
        case Mapping():
            inner = (f"{name} = {shown_as(f'{key}.{name}', each)}" for name, each in value.items())
            return f"{{{', '.join(inner)}}}"
        case list():
            return f"[{', '.join(shown_as(key, each) for each in value)}]"
        case str():
            text = _QUERY.sub(rf"\1?{MASK}", _PLAIN_LOGIN.sub(MASK, value))
            if _names_a_secret(key):
                host = _HOST.match(text)
                text = f"{host[0]}/{MASK}" if host else MASK
            return text if text == MASK else json.dumps(text, ensure_ascii=False)
        case _:
            return shown(value)


def _names_a_secret(key: str) -> bool:
    table, *above = key.split(".")
    if table in _WITHOUT_SECRETS:
        return False
    is_closed = any(_ALL_SECRET.search(part) for part in above[1:-1])
    return is_closed or _NAME.search(key.rpartition(".")[2]) is not None


def masked(value: object) -> str:
    """Return the value as text, with the login and query of an address masked."""
    return _QUERY.sub(rf"\1?{MASK}", _LOGIN.sub(MASK, str(value)))


def may_be_secret(key: str, value: Any) -> bool:
    """Return True if the value is named like a secret, or looks like one."""
    named_so = isinstance(value, str) and _NAME.search(key)
    return bool(named_so or _VALUE.search(str(value)))


def open_in(table: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the items of a table with free keys; texts that may be secret become `SecretStr`."""
    for key, value in table.items():
        yield str(key), _closed(value) if _ALL_SECRET.search(str(key)) else _marked(str(key), value)


def kept_secret(name: str, value: Any) -> Any:
    """Return a setting's value, with `SecretStr` for every text in a table such as `headers`."""
    return _closed(value) if isinstance(value, Mapping) and _ALL_SECRET.search(name) else value


def _marked(key: str, value: Any) -> Any:
    is_secret = isinstance(value, str) and may_be_secret(key, value)
    return SecretStr(value) if is_secret else value


def _closed(value: Any) -> Any:
    match value:
        case str():
            return SecretStr(value)
        case Mapping():
            return {key: _closed(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_closed(inner) for inner in value]
        case _:
            return value


def secrets_in(value: Any) -> Iterator[str]:
    """Yield every text that `shown` hides in a value, so that it can be found elsewhere."""
    match value:
        case SecretStr():
            yield value.get_secret_value()
            yield from value.get_secret_value().split(",")
        case str():
            yield from _in_address(value)
        case Mapping():
            for _, inner in open_in(value):
                yield from secrets_in(inner)
        case list() | tuple():
            for inner in value:
                yield from secrets_in(inner)


def _in_address(text: str) -> Iterator[str]:
    found = [*_LOGIN.findall(text)]
    found += [part for login in found for part in login.split(":", 1)[1:]]
    for _, query in _QUERY.findall(_LOGIN.sub("", text)):
        found += [query, *(part.partition("=")[2] for part in re.split("[&#]", query))]
    yield from found
    yield from map(unquote, found)
