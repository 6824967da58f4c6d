"""`nanoloop connect`: a platform says whose the account is before that is written."""

import tomllib
from functools import partial
from importlib import import_module

import pytest

from nanoloop import plugins
from nanoloop.channels.kit.platform import Refused
from nanoloop.cli.connect import connect, write_connected
from nanoloop.errors import SettingsError
from nanoloop.plugins import Connected
from nanoloop.settings import Settings
from tests.packages import is_gone
from tests.servers import discord as discord_server
from tests.servers.slack import APP_TOKEN, SlackServer
from tests.servers.slack import TOKEN as BOT_TOKEN
from tests.servers.synapse import Synapse
from tests.servers.telegram import TOKEN, TelegramServer
from tests.stages.command_line import CommandLine, Terminal, ended

PLATFORMS = [name for name in ("telegram", "matrix", "discord", "slack") if not is_gone(name)]


def needs(platform):
    return pytest.mark.skipif(is_gone(platform), reason="its folder is gone")


def written(folder):
    file = folder / ".config" / "nanoloop" / "nanoloop.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    return tomllib.loads(file.read_text())["channels"]


@pytest.fixture
async def telegram():
    server = TelegramServer()
    async with server.running():
        yield server


@pytest.mark.slow
@needs("telegram")
async def test_a_bot_of_telegram_is_asked_who_it_is_and_written_for_its_owner_only(
    tmp_path, telegram
):
    nanoloop = CommandLine(tmp_path)
    nanoloop.set(NANOLOOP_CHANNELS__TELEGRAM__API=telegram.url)
    out, _ = await nanoloop.run("connect", "telegram", "--token", TOKEN, "--operator", "42")
    assert "https://t.me/test_bot" in out
    assert TOKEN not in out
    assert telegram.calls["getme"]
    assert written(tmp_path)["telegram"] == {"token": TOKEN, "operators": ["42"]}
    assert (tmp_path / ".config" / "nanoloop" / "AGENTS.md").exists()


@pytest.mark.slow
@needs("telegram")
async def test_what_is_refused_is_told_and_nothing_is_written(tmp_path, telegram):
    nanoloop = CommandLine(tmp_path)
    nanoloop.set(NANOLOOP_CHANNELS__TELEGRAM__API=telegram.url)
    _, err = await nanoloop.run("connect", "telegram", "--token", "1234:wrong", code=1)
    assert err.startswith("nanoloop: Telegram rejects this token")
    _, err = await nanoloop.run("connect", "telegram", "--token", "a bad one", code=2)
    assert "looks like 12345678:AbC-dEf" in err
    _, err = await nanoloop.run("connect", "telegram", code=2)
    assert "to connect telegram, add --token (the bot's token, from @BotFather)" in err
    assert not (tmp_path / ".config").exists()


@pytest.mark.slow
@needs("telegram")
async def test_a_person_is_asked_for_what_is_lacking_and_a_token_is_not_shown(tmp_path, telegram):
    nanoloop = CommandLine(tmp_path)
    nanoloop.set(NANOLOOP_CHANNELS__TELEGRAM__API=telegram.url)
    with Terminal() as terminal:
        async with nanoloop.started("connect", "telegram", terminal=terminal) as process:
            await terminal.shows("not shown): ")
            terminal.type(f"{TOKEN}\r")
            await terminal.shows("Your own numeric id")
            terminal.type("\r")
            await terminal.shows("Next: nanoloop run")
            assert await ended(process) == 0
    assert written(tmp_path)["telegram"] == {"token": TOKEN}


@pytest.mark.slow
@needs("matrix")
@pytest.mark.usefixtures("synapse")  # which skips where there is none
async def test_a_bot_on_matrix_is_registered_logged_in_and_invites_its_operator(tmp_path):
    with Synapse("registers") as synapse:
        ann, token = synapse.register("ann")
        nanoloop = CommandLine(tmp_path)
        bot = f"@bot:{ann.partition(':')[2]}"
        account = ("--homeserver", synapse.url, "--user", bot, "--password", "a long password")
        _, err = await nanoloop.run("connect", "matrix", *account, code=1)
        assert f"rejected the login of {bot} (M_FORBIDDEN)" in err
        out, _ = await nanoloop.run("connect", "matrix", *account, "--register", "--operator", ann)
        assert f"The account is {bot}\n{ann} has been invited to a room with the bot" in out
        own = written(tmp_path)["matrix"]
        assert (own["homeserver"], own["user"], own["operators"]) == (synapse.url, bot, [ann])
        assert "a long password" not in str(own)
        who = synapse.ask("GET", "/_matrix/client/v3/account/whoami", token=own["token"])
        assert who["user_id"] == bot
        rooms = synapse.ask("GET", "/_matrix/client/v3/sync", token=token)["rooms"]
        assert len(rooms["invite"]) == 1
        _, err = await nanoloop.run("connect", "matrix", *account, "--register", code=1)
        assert "did not create the account" in err


@pytest.mark.slow
@needs("matrix")
async def test_an_account_that_is_there_is_logged_in_or_known_by_its_token(tmp_path, synapse):
    user, token = synapse.register("known")
    nanoloop = CommandLine(tmp_path)
    server = ("--homeserver", synapse.url)
    await nanoloop.run("connect", "matrix", *server, "--user", user, "--password", "known")
    first = written(tmp_path)["matrix"]["token"]
    assert first != token
    await nanoloop.run("connect", "matrix", *server, "--token", token)
    assert written(tmp_path)["matrix"]["token"] == token
    _, err = await nanoloop.run("connect", "matrix", *server, "--token", "no", code=1)
    assert "rejects the Matrix access token" in err
    assert written(tmp_path)["matrix"]["token"] == token


@needs("discord")
async def test_a_bot_of_discord_gets_a_link_that_invites_it():
    discord = plugins.load("channels", "discord")

    async def connected(token):
        return await discord.connect(discord.settings(), {"token": token})

    async with discord_server.DiscordServer().serving() as server:
        done = await connected(discord_server.TOKEN)
        assert done.settings == {"token": discord_server.TOKEN}
        assert f"client_id={server.world.application_id}&scope=bot&permissions=" in done.says[0]
        server.allows_content = False
        with pytest.raises(Refused, match="turn on Message Content Intent"):
            await connected(discord_server.TOKEN)
        with pytest.raises(Refused, match=r"Discord rejects channels\.discord\.token"):
            await connected("wrong.token.x")


@needs("slack")
async def test_both_tokens_of_slack_are_tried():
    async with SlackServer().serving() as server:
        connect_at = import_module("nanoloop.channels.slack.platform").connect
        slack = partial(connect_at, address=f"{server.url}/api/")
        done = await slack(BOT_TOKEN, APP_TOKEN)
        assert done.settings == {"token": BOT_TOKEN, "app_token": APP_TOKEN}
        assert {"auth.test", "apps.connections.open"} <= {*server.calls}
        for tokens, setting in (((BOT_TOKEN, "no"), "app_token"), (("no", APP_TOKEN), "token")):
            with pytest.raises(Refused, match=rf"channels\.slack\.{setting} \("):
                await slack(*tokens)
        server.scopes = "chat:write"
        with pytest.raises(Refused, match="lacks the scope im:history, users:read"):
            await slack(BOT_TOKEN, APP_TOKEN)


@pytest.mark.parametrize("name", PLATFORMS)
def test_each_platform_of_ours_asks_for_what_it_needs(name):
    plugin = plugins.load("channels", name)
    assert plugin.connect is not None
    asked = {question.name.replace("-", "_") for question in plugin.asks}
    assert {*plugin.settings.needs} <= asked
    assert "operator" in asked


@needs("telegram")
def test_what_was_set_stays_and_an_operator_is_added(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "nanoloop.toml"
    file.write_text('# mine\n[channels.telegram]\noperators = ["1"]\nenabled = false\n')
    settings = Settings.load(config=file, env={}, cwd=tmp_path)
    done = Connected(settings={"token": "1:a"}, says=[])
    keys = write_connected("telegram", {"operator": "2"}, done, settings, file)
    assert {key.rpartition(".")[2] for key in keys} == {"token", "operators", "enabled"}
    own = Settings.load(config=file, env={}, cwd=tmp_path).channels.of("telegram")
    assert (own.operators, own.enabled, own.token.get_secret_value()) == (("1", "2"), True, "1:a")
    assert file.read_text().startswith("# mine\n")
    settings = Settings.load(config=file, env={}, cwd=tmp_path)
    assert write_connected("telegram", {"operator": "2"}, done, settings, file) == []


@needs("telegram")
def test_a_library_that_is_missing_is_told_with_how_to_install_it(tmp_path, monkeypatch):
    async def missing(*_):
        raise ModuleNotFoundError(name="telegram")

    plugin = plugins.load("channels", "telegram")
    bare = plugin.__class__(
        name="telegram",
        settings=plugin.settings,
        make=plugin.make,
        extra="telegram",
        connect=missing,
    )
    monkeypatch.setattr(plugins, "load", lambda *_: bare)
    settings = Settings.load(env={}, cwd=tmp_path)
    with pytest.raises(SettingsError, match=r"needs telegram, which is not installed"):
        connect("telegram", {}, settings)


@pytest.mark.slow
@needs("telegram")
async def test_a_variable_that_is_stronger_than_the_file_is_told(tmp_path, telegram):
    nanoloop = CommandLine(tmp_path)
    nanoloop.set(NANOLOOP_CHANNELS__TELEGRAM__API=telegram.url)
    nanoloop.set(NANOLOOP_CHANNELS__TELEGRAM__TOKEN="99:other")
    _, err = await nanoloop.run("connect", "telegram", "--token", TOKEN, code=2)
    assert "env NANOLOOP_CHANNELS__TELEGRAM__TOKEN overrides" in err
