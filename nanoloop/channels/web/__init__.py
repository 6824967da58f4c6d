"""The web channel: the page and the API."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Any, Literal

from anyio.to_thread import run_sync
from pydantic import AfterValidator, Field, SecretStr

from nanoloop.defaults import UPLOADS_BYTES
from nanoloop.errors import SettingsError
from nanoloop.files import keyed_digest, own_key
from nanoloop.messages import Language
from nanoloop.plugins import Plugin, Program
from nanoloop.settings.keys import Names, Section, Unit
from nanoloop.settings.problems import DEFAULT_AGENT, InvalidSettings, Problem
from nanoloop.settings.secrets import shown
from nanoloop.words import did_you_mean

if TYPE_CHECKING:
    from nanoloop.channels.web.access import Token
    from nanoloop.channels.web.channel import WebChannel
    from nanoloop.settings import Settings


def _networks(said: tuple[str, ...]) -> tuple[str, ...]:
    for network in said:
        try:
            ip_network(network, strict=False)
        except ValueError:
            raise ValueError(
                f"{network!r} is not an address: write 10.0.0.7 or 10.0.0.0/8"
            ) from None
    return said


class TokenSettings(Section):
    """A named token for the web channel. Without any tokens, only this machine is served."""

    token: SecretStr | None = Field(default=None, examples=["..."])
    """The token to log in with: at least 16 characters, for example from `openssl rand -hex 24`."""
    sessions: Names | None = Field(default=None, examples=[["*"]])
    """Ids of the sessions the holder may see (`*` matches anything); by default, only their own."""
    agents: Names | None = Field(default=None, examples=[["cook"]])
    """The agents the holder may use; if unset, the default one, or all if `sessions` is `*`."""
    may_use: Annotated[tuple[Literal["commands", "metrics"], ...], Field(strict=False)] = Field(
        default=(), examples=[["metrics"]]
    )
    """Additional rights for programs: sending `commands` such as /new, or reading the `metrics`."""


class WebSettings(Section):
    """The page and the API, for `nanoloop serve`."""

    enabled: bool = False
    """Whether `nanoloop run` also serves the page and the API; `nanoloop serve` always does."""
    host: str = "127.0.0.1"
    """The address to listen on; one that others can reach requires a token."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8765
    """The port to listen on; 0 chooses a free one."""
    hosts: Names = Field(default=(), examples=[["chat.example.org"]])
    """Additional host names for the server, for example behind a proxy."""
    origins: Names = Field(default=(), examples=[["https://app.example.org"]])
    """Other sites whose pages may call the API; by default, none may."""
    trusted_proxies: Annotated[Names, AfterValidator(_networks)] = Field(
        default=(), examples=[["127.0.0.1"]]
    )
    """Addresses or networks of your proxies; only these may report a client's address."""
    open_on_loopback: bool = False
    """Whether everyone who uses this machine has access if no token is set."""
    requests_per_minute: Annotated[int, Field(ge=1), Unit("requests")] = 600
    """How many requests per minute a token, or an address without a token, may send."""
    upload_bytes: Annotated[int, Field(ge=1000), Unit("bytes")] = 10_000_000
    """The maximum size of an uploaded file."""
    uploads_bytes: Annotated[int, Field(ge=1000), Unit("bytes")] = UPLOADS_BYTES
    """The maximum total size of all uploads in the data folder."""
    language: Language | None = Field(default=None, examples=["fr"])
    """The language of the bot's own messages in the web channel, unless the agent sets one."""
    tokens: dict[str, TokenSettings] = Field(default_factory=dict)

    @property
    def is_wanted(self) -> bool:
        """Whether `nanoloop run` serves the page and the API."""
        return self.enabled


def make(own: WebSettings, program: Program) -> WebChannel:
    """Create the channel for the program's sessions; raise `SettingsError` if it can't be used."""
    # Imported here, because reading the settings must not require the libraries.
    from nanoloop.channels.web.api import WebLimits, WebParts  # noqa: PLC0415 - as above
    from nanoloop.channels.web.channel import WebAddress, WebChannel  # noqa: PLC0415 - as above

    app, settings, loop = program.app, program.settings, program.app.loop
    tokens = _tokens(own, settings)
    channel = WebChannel(
        WebParts(
            bus=loop.bus,
            sessions=loop.sessions,
            agents=loop.agents,
            summarizer=loop.summarizer,
            runner=loop,
            nodes=loop.nodes,
            recall=loop.recall,
            keep=settings.message_buffer_min,
            model=settings.model,
            snapshot=app.telemetry.snapshot,
            sentences=loop.sentences.speaking(own.language),
            language=own.language,
            provider=app.provider,
            turns=loop.turns,
            hidden=hidden_by(loop.sessions.store, settings),
            secret=partial(_secret, tokens, settings),
        ),
        attachments=program.attachments,
        address=WebAddress(
            host=own.host,
            port=own.port,
            hosts=own.hosts,
            origins=own.origins,
            trusted_proxies=own.trusted_proxies,
            grace_seconds=settings.loop.shutdown_turns_seconds,
        ),
        tokens=tokens,
        token_file=None if own.open_on_loopback else settings.data / OWN_FILE,
        limits=WebLimits(
            requests_per_minute=own.requests_per_minute,
            upload_bytes=own.upload_bytes,
        ),
    )
    app.observers.append(channel.hear)
    return channel


def hidden_by(store: Any, settings: Settings) -> Callable[[str], Awaitable[str]] | None:
    """Return a function that hides session names if the store is encrypted, otherwise None.

    With a sealed store, a name gets the same digest on every machine.
    """
    if settings.store.encryption_key is None:
        return None
    is_sealed = getattr(getattr(store, "sealing", None), "seal", None) is not None

    async def hidden(name: str) -> str:
        key = await (store.secret() if is_sealed else run_sync(own_key, settings.data))
        return keyed_digest(key, name)

    return hidden


def _secret(tokens: Sequence[Token], settings: Settings) -> bytes:
    """Return a secret shared by all machines with these tokens; without tokens, a local one."""
    if not tokens:
        return own_key(settings.data)
    return sha256("\n".join(sorted(token.secret for token in tokens)).encode()).digest()


TOKEN_LENGTH = 16
"""The minimum length of a token in characters; a shorter one could be guessed."""
OWN_FILE = "web-token"
"""The file in the data folder for the token that is generated if none is set."""


def _tokens(web: WebSettings, settings: Settings) -> list[Token]:
    """Return the settings' tokens with their owners; raise `SettingsError` if one is invalid."""
    from nanoloop.channels.web.access import Caller, Token  # noqa: PLC0415 - as above

    tokens = []
    for name, own in web.tokens.items():
        key = f"channels.web.tokens.{name}"
        secret = own.token.get_secret_value() if own.token else ""
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name):
            raise SettingsError(
                f"{key} is not a valid name for a token: use a-z, A-Z, 0-9, _ and -"
            )
        if len(secret) < TOKEN_LENGTH:
            less = f"{key}.token has fewer than {TOKEN_LENGTH} characters"
            text = f"{less}: generate one with `openssl rand -hex 24`"
            where = settings.origin(f"{key}.token")
            raise InvalidSettings(
                [Problem(text=text, origin=where if where.kind != "default" else None)]
            )
        _check_agents(f"{key}.agents", own.agents or (), settings)
        caller = Caller(
            name=name,
            patterns=own.sessions or (f"web:{name}.*",),
            agents=own.agents,
            rights=frozenset(own.may_use),
        )
        tokens.append(Token(caller=caller, secret=secret))
    return tokens


def _check_agents(key: str, names: Sequence[str], settings: Settings) -> None:
    """Raise `SettingsError` if one of these names is not an agent."""
    for name in names:
        if name != DEFAULT_AGENT and name not in settings.agents:
            advice = did_you_mean(name, settings.agents, f"add [agents.{name}]", shown=str)
            text = f"{shown(name)} is in {key}, but there is no such agent: {advice}"
            where = settings.origin(key)
            raise InvalidSettings(
                [Problem(text=text, origin=where if where.kind != "default" else None)]
            )


PLUGIN = Plugin(name="web", settings=WebSettings, make=make, extra="web", takes_program=True)
