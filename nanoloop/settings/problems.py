"""Explain the problems with the settings: what to change, and where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from nanoloop.errors import SettingsError
from nanoloop.proxies import is_this_machine
from nanoloop.settings.keys import is_secret, setting, settings_near, table_of
from nanoloop.settings.secrets import MASK, may_be_secret, shown
from nanoloop.words import did_you_mean, nearest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from nanoloop.settings import Settings, ToolServerSettings
    from nanoloop.settings.sources import Origin

NO_SUCH_TABLE = "no_such_table"
"""Pydantic's error type for a table that belongs to no plugin."""
GONE = {
    "agents.NAME.tool_timeout_seconds": "set tools.timeout_seconds, which applies to all agents",
    "bus.inbound_limit": "1,000 messages from all chats together may wait for the loop",
    "bus.outbound_limit": "100 messages may wait to be sent to one chat",
    "bus.send_timeout_seconds": "sending one message may take 120 seconds",
    "channels.transcribe_timeout_seconds": "your function may take 60 seconds",
    "channels.web.message_bytes": "a message may have 256,000 bytes",
    "channels.web.streams": "2,000 event streams may be open at once",
    "handover_limit": "200 messages may stay in the prompt",
    "local.parallel": "two answers are written at the same time",
    "loop.lane_limit": "1,000 messages from one chat may wait for their turn",
    "loop.open_sessions": "1,000 sessions are kept in memory",
    "loop.shutdown_summaries_seconds": "set loop.shutdown_turns_seconds: summaries get half of it",
    "provider.connect_timeout_seconds": "connecting may take 10 seconds",
    "provider.max_retries": "a call is retried twice",
    "store.cached_sessions": "the loop keeps 1,000 sessions in memory itself",
    "summary.batch_chars": "a call takes 24,000 characters, fewer if the model can't read as many",
    "summary.breaker_seconds": "a model that failed three times is paused for 60 seconds",
    "summary.idle_seconds": "a few messages wait until the chat has been idle for 600 seconds",
    "summary.ledger_chars": "the ledger has at most 3,000 characters",
    "summary.ledger_items": "the ledger has at most 60 items",
    "summary.max_words": "a summary has at most 200 words",
    "summary.retry_limit_seconds": "a failed call is retried after at most 600 seconds",
    "summary.retry_seconds": "a failed call is retried after 5 seconds, then after twice as long",
    "summary.reuse_prefix": "each summary is a separate request",
    "tools.result_chars": "the model sees 16,000 characters of a result",
}
"""Former settings, each with the value that is now fixed, or with the setting to use instead."""
DEFAULT_AGENT = "assistant"
"""The name of the agent that the settings above all tables describe."""

_WRONG = {
    "bool": "not true or false",
    "dict": "not a table",
    "finite": "not a finite number",
    "float": "not a number",
    "int": "not a whole number",
    "model": "not a table",
    "path": "not a path",
    "string": "not a string",
    "tuple": "not a list",
}
_OUT_OF_BOUNDS = {
    "greater_than_equal": "less than {ge}: raise it",
    "greater_than": "not more than {gt}: raise it",
    "less_than_equal": "more than {le}: lower it",
}

_TOOL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SERVER = re.compile(r"(?!_)(?!.*__)[A-Za-z0-9_-]{1,30}(?<!_)")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LESS_THAN = (("message_buffer_min", "message_buffer_limit"),)
_AT_MOST = (("provider.first_token_timeout_seconds", "provider.call_timeout_seconds"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem with the settings."""

    text: str
    origin: Origin | None = None
    """The place to correct, if known."""
    keys: tuple[str, ...] = ()
    """The conflicting settings."""

    def found_in(self, origins: Mapping[str, Origin]) -> Problem:
        """Return a copy of the problem, with the place where one of its keys was set."""
        found = (origins[key] for key in self.keys if key in origins)
        return replace(self, origin=next(found, self.origin))

    def __str__(self) -> str:
        return f"{self.origin}: {self.text}" if self.origin else self.text


class InvalidSettings(SettingsError):
    """The settings can't be used; the text has one line per problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def refused(
    model: type[BaseModel],
    path: tuple[str, ...],
    value: Any,
    error: ErrorDetails,
    origin: Origin | None,
) -> Problem:
    """Explain why pydantic refused the value at this path."""
    if error["type"] == "extra_forbidden" and origin:
        return _unknown(model, ".".join(path), value, origin)
    key, field = ".".join(path), setting(model, path) if error["type"] != NO_SUCH_TABLE else None
    if field is None:
        return Problem(text=error["msg"], origin=origin)
    if (isinstance(value, Mapping) and table_of(field)) or error["type"] == "missing":
        return replace(lacks(path, error), origin=origin)
    what = MASK if is_secret(field) else shown(value)
    return Problem(text=f"{key} is {what}, {_wrong(value, error, origin)}", origin=origin)


def lacks(path: tuple[str, ...], error: ErrorDetails) -> Problem:
    """Explain a missing setting at this path, or a plugin's objection to its whole table."""
    key = ".".join(path)
    is_missing = error["type"] == "missing"
    return Problem(text=f"{key} is missing: set it" if is_missing else f"{key}: {error['msg']}")


def _unknown(model: type[BaseModel], key: str, value: Any, origin: Origin) -> Problem:
    """Explain that no setting has this name, and suggest the nearest one."""
    known = settings_near(model, tuple(key.split(".")))
    name = _nearest(key, _tables(known) if isinstance(value, dict) else known)
    hidden = may_be_secret(key, value) or (name in known and is_secret(known[name]))
    what = MASK if hidden else "a table" if isinstance(value, dict) else shown(value)
    near = origin.spell(_with_names_of(key, name))
    advice = f"did you mean {near}?" if name else "`nanoloop config` lists them all"
    in_file = origin.kind == "file"
    text = f"{key if in_file else origin} is {what}, but there is no such setting: {advice}"
    return Problem(text=text, origin=origin if in_file else None)


def gone(key: str, origin: Origin | None = None) -> Problem | None:
    """Explain why a key is no longer a setting; return None if it never was one."""
    named = re.sub(r"^agents\.[^.]+\.", "agents.NAME.", key)
    if named not in GONE:
        return None
    text = f"{key} is no longer a setting: {instead(named)}"
    return Problem(text=text, origin=origin, keys=(key,))


def instead(key: str) -> str:
    """Return advice on a removed setting."""
    now = GONE[key]
    return now if now.startswith("set ") else f"remove it ({now})"


def all_gone(said: Mapping[str, Any], above: str = "") -> Iterator[Problem]:
    """Yield a problem for each setting in these tables that no longer exists."""
    for name, value in said.items():
        if isinstance(value, Mapping):
            yield from all_gone(value, f"{above}{name}.")
        elif problem := gone(f"{above}{name}"):
            yield problem


def is_table_gone(key: str) -> bool:
    """Return True for the name of a former table whose settings have all been removed."""
    return any(name.startswith(f"{key}.") for name in GONE)


def _wrong(value: Any, error: ErrorDetails, origin: Origin | None) -> str:
    bounds = error.get("ctx", {})
    match error["type"]:
        case kind if kind in _OUT_OF_BOUNDS:
            return _OUT_OF_BOUNDS[kind].format_map(bounds)
        case "dict_type" if origin and origin.kind == "env":
            return "not a table written as JSON"
        case "string_too_short":
            return "too short: set a value, or remove it"
        case "literal_error":
            return _not_one_of(value, bounds["expected"])
        case "value_error":
            return str(bounds["error"])
        case kind:
            return _WRONG.get(kind.partition("_")[0], error["msg"])


def _not_one_of(value: Any, expected: str) -> str:
    near = nearest(str(value), re.findall(r"'(\w+)'", expected))
    return f"not {expected}" + (f": did you mean {near!r}?" if near else "")


def _nearest(key: str, known: Iterable[str]) -> str:
    """Guess the intended key: the same name in another table, a similar key, or a similar name."""
    names = sorted(known, key=lambda name: name.count("."))
    last = {name: name.rpartition(".")[2] for name in names}
    mine = key.rpartition(".")[2]
    same = next((name for name in names if last[name] == mine), None)
    similar = nearest(mine, last.values())
    return same or nearest(key, names) or next((n for n in names if last[n] == similar), "")


def _tables(known: Iterable[str]) -> set[str]:
    keys = [key.split(".") for key in known]
    return {".".join(key[:end]) for key in keys for end in range(1, len(key))}


def _with_names_of(key: str, name: str) -> str:
    """Return `agents.cook.prompt` for `agents.NAME.prompt` if the key is about `cook`."""
    mine, parts = key.split("."), name.split(".")
    if len(mine) != len(parts):
        return name
    return ".".join(m if part == "NAME" else part for m, part in zip(mine, parts, strict=True))


def http_address(value: str) -> str:
    """Return the address; raise ValueError if no HTTP client could use it."""
    if not re.match(r"https?://[^/\s]", value):
        raise ValueError("not an address: begin it with http:// or https://")
    return value.rstrip("/")


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration(value: str) -> str:
    """Return the time span; raise ValueError if it is not one."""
    if not re.fullmatch(r"[1-9]\d{0,8}[smhd]", value):
        raise ValueError("not a time span: write a number and s, m, h or d, such as 30m or 24h")
    return value


def seconds_in(span: str) -> float:
    """Return the seconds in a time span that `duration` accepts."""
    return float(int(span[:-1]) * _UNITS[span[-1]])


def function_name(value: str) -> str:
    """Return the name; raise ValueError if no function could have it."""
    if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", value):
        raise ValueError("not a function's name: write it as package.module:function")
    return value


def conflicts(settings: Settings) -> list[Problem]:
    """Return the conflicts between settings."""
    found = [_too_high(settings, low, high, or_equal=True) for low, high in _LESS_THAN]
    found += [_too_high(settings, low, high, or_equal=False) for low, high in _AT_MOST]
    if settings.context_tokens is not None and settings.context_limit is not None:
        found.append(_too_high(settings, "context_tokens", "context_limit", or_equal=False))
    if settings.store.url == "memory:" and settings.store.durability == "fsync":
        keys = ("store.durability", "store.url")
        text = '{} is "fsync", but {} "memory:" stores nothing on disk: choose "sqlite:"'.format(
            *keys
        )
        found.append(Problem(text=text, keys=keys))
    found += [problem for name in settings.tools.servers for problem in _server(settings, name)]
    found += [_no_agent(settings), *(_agent_window(settings, name) for name in settings.agents)]
    found += [_no_function(*each) for each in settings.tools.functions.items()]
    return [problem for problem in found if problem]


def _no_agent(settings: Settings) -> Problem | None:
    name = settings.channels.terminal.agent
    if name is None or name == DEFAULT_AGENT or name in settings.agents:
        return None
    advice = did_you_mean(name, settings.agents, f"add [agents.{name}]", shown=shown)
    key = "channels.terminal.agent"
    text = f"{key} is {shown(name)}, but there is no such agent: {advice}"
    return Problem(text=text, keys=(key,))


def _no_function(name: str, function: str) -> Problem | None:
    """Check a tool's name and its function's name."""
    key = f"tools.functions.{name}"
    if not _TOOL.fullmatch(name):
        text = f"{key} is not a tool's name: use up to 64 letters, digits, _ and -"
        return Problem(text=text, keys=(key,))
    try:
        function_name(function)
    except ValueError as wrong:
        return Problem(text=f"{key} is {shown(function)}, {wrong}", keys=(key,))
    return None


def _server(settings: Settings, name: str) -> Iterator[Problem]:
    """Check a tool server's name, and that it has either a command or a url."""
    own, key = settings.tools.servers[name], f"tools.servers.{name}"
    if not _SERVER.fullmatch(name):
        text = f"{key} is not a server's name: use up to 30 letters, digits, - and single _"
        yield Problem(text=text, keys=(key,))
    if name in settings.tools.of_plugins:
        text = f"{key} has the name of the tools in [tools.{name}]: choose another name"
        yield Problem(text=text, keys=(key,))
    if bool(own.command) == bool(own.url):
        has = "both a command and a url" if own.url else "neither a command nor a url"
        keys = (f"{key}.url", f"{key}.command", key)
        yield Problem(text=f"{key} has {has}: set one of them", keys=keys)
    elif own.command and own.headers:
        yield Problem(text=f"{key}.headers belong to a url: remove them", keys=(f"{key}.headers",))
    elif own.url and own.env:
        yield Problem(text=f"{key}.env belongs to a command: remove it", keys=(f"{key}.env",))
    yield from _auth(own, key)
    for header, value in own.headers.items():
        text = value.get_secret_value()
        if not (_HEADER.fullmatch(header) and text.isascii() and text.isprintable()):
            here = f"{key}.headers.{header}"
            what = "is not a header: use printable ASCII without line breaks"
            yield Problem(text=f"{here} {what}", keys=(here, f"{key}.headers"))


def _auth(own: ToolServerSettings, key: str) -> Iterator[Problem]:
    """Check how to log in at a server's url."""
    if not own.auth:
        for name in ("client_id", "client_secret", "issuer"):
            if getattr(own, name):
                text = f"{key}.{name} belongs to a login: set {key}.auth too"
                yield Problem(text=text, keys=(f"{key}.{name}",))
        return
    if not own.url:
        text = f"{key}.auth belongs to a url: remove it"
        yield Problem(text=text, keys=(f"{key}.auth",))
    elif own.url.startswith("http:") and not is_this_machine(urlsplit(own.url).hostname or ""):
        text = f"{key}.url is {shown(own.url)}, where anybody can read the login: use https"
        yield Problem(text=text, keys=(f"{key}.url",))
    needed = ("client_id", "client_secret", "issuer") if own.auth == "client_credentials" else ()
    for name in needed:
        if not getattr(own, name):
            text = f"{key}.auth is client_credentials, which needs {key}.{name}: set it"
            yield Problem(text=text, keys=(f"{key}.auth",))
    if own.client_secret and not own.client_id:
        text = f"{key}.client_secret belongs to {key}.client_id: set it"
        yield Problem(text=text, keys=(f"{key}.client_secret",))


def _agent_window(settings: Settings, name: str) -> Problem | None:
    """Check an agent's window limits; if the agent sets none, the general limits apply."""
    own = settings.agents[name]
    low, high = f"agents.{name}.message_buffer_min", f"agents.{name}.message_buffer_limit"
    keep = own.message_buffer_min or settings.message_buffer_min
    limit = own.message_buffer_limit or settings.message_buffer_limit
    if own.message_buffer_min == own.message_buffer_limit is None or keep < limit:
        return None
    how = "the same as" if keep == limit else "more than"
    text = f"{low} is {keep}, {how} {high} {limit}: lower it"
    return Problem(text=text, keys=(low, high))


def _too_high(settings: Settings, low: str, high: str, *, or_equal: bool) -> Problem | None:
    value, limit = attrgetter(low, high)(settings)
    if value < limit or (value == limit and not or_equal):
        return None
    how = "the same as" if value == limit else "more than"
    text = f"{low} is {shown(value)}, {how} {high} {shown(limit)}: lower it"
    return Problem(text=text, keys=(low, high))
