"""What serves chats besides the terminal: the page and the API, and the chat platforms."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nanoloop.errors import SettingsError, how_to_install
from nanoloop.parts.functions import function_of
from nanoloop.parts.storage import make_attachments
from nanoloop.protocols import Channel
from nanoloop.settings import Settings
from nanoloop.settings.problems import Problem, Refused

if TYPE_CHECKING:
    from nanoloop.app import App
    from nanoloop.channels.platform.transcriber import Transcriber
    from nanoloop.channels.web.callers import Token
    from nanoloop.channels.web.channel import WebChannel

TOKEN_LENGTH = 16
"""Characters that a token of the web has at least: nobody guesses it."""


def make_web(settings: Settings, app: App) -> WebChannel:
    """The page and the API, as these settings want them, for `app.add`."""
    # An extra of its own, and too much to load where nobody serves it.
    try:
        from nanoloop.channels.web.channel import Place, WebChannel  # noqa: PLC0415 - as above
        from nanoloop.channels.web.desk import Limits, Shop  # noqa: PLC0415 - as above
    except ModuleNotFoundError as missing:
        raise SettingsError(
            f"the web needs the package {missing.name}: {how_to_install('web')}"
        ) from missing

    web, loop = settings.channels.web, app.loop
    channel = WebChannel(
        Shop(
            bus=loop.bus,
            sessions=loop.sessions,
            agents=loop.agents,
            summarizer=loop.summarizer,
            runner=loop,
            recall=loop.recall,
            keep=settings.message_buffer_min,
            model=settings.model,
            snapshot=app.telemetry.snapshot,
            announce=app.telemetry,
            sentences=loop.sentences,
            provider=app.provider,
        ),
        attachments=make_attachments(settings),
        place=Place(
            host=web.host,
            port=web.port,
            hosts=web.hosts,
            origins=web.origins,
            grace_seconds=settings.loop.shutdown_turns_seconds,
        ),
        tokens=make_tokens(settings),
        limits=Limits(
            requests_per_minute=web.requests_per_minute,
            message_bytes=web.message_bytes,
            upload_bytes=web.upload_bytes,
            streams=web.streams,
        ),
    )
    app.telemetry.listeners.append(channel.hear)
    return channel


def make_channels(
    settings: Settings, app: App, *, transcriber: Transcriber | None = None
) -> list[Channel]:
    """The chat platforms that these settings want, for `app.add`; raises `SettingsError`.

    `transcriber` tells what voice messages say, in place of what the settings name.
    """
    # Only who serves one needs what serves them.
    from nanoloop.channels.platform.making import make_channel, wanted  # noqa: PLC0415 - as above

    attachments = make_attachments(settings)
    transcriber = transcriber or make_transcriber(settings)
    return [
        make_channel(
            name,
            own,
            folder=settings.data,
            attachments=attachments,
            transcriber=transcriber,
            announce=app.telemetry,
        )
        for name, own in wanted(settings)
    ]


def make_transcriber(settings: Settings) -> Transcriber | None:
    """What tells the words of voice messages, where there is such; raises `SettingsError`."""
    from nanoloop.channels.platform.transcriber import Transcriber  # noqa: PLC0415 - as above

    function = function_of(settings, "channels.transcribe")
    if function is None:
        return None
    return Transcriber(function, seconds=settings.channels.transcribe_timeout_seconds)


def make_tokens(settings: Settings) -> list[Token]:
    """Who may use the web, and which sessions they see; raises `SettingsError`."""
    from nanoloop.channels.web.callers import Caller, Token  # noqa: PLC0415 - as above

    tokens = []
    for name, own in settings.channels.web.tokens.items():
        key = f"channels.web.tokens.{name}"
        secret = own.token.get_secret_value() if own.token else ""
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name):
            raise SettingsError(f"{key} is no name for a token: use a-z, A-Z, 0-9, _ and -")
        if len(secret) < TOKEN_LENGTH:
            less = f"{key}.token has less than {TOKEN_LENGTH} characters"
            text = f"{less}: `openssl rand -hex 24` makes one"
            where = settings.origin(f"{key}.token")
            raise Refused([Problem(text=text, origin=where if where.kind != "default" else None)])
        caller = Caller(name=name, patterns=own.sessions or (f"web:{name}.*",))
        tokens.append(Token(caller=caller, secret=secret))
    return tokens
