"""Whoever reads what nanoloop prints and writes, its log, reports and exports, finds no secret."""

import json
import re
import subprocess
from base64 import b64encode, urlsafe_b64encode

import anyio
import pytest
from pydantic import BaseModel, SecretStr

from nanoloop import plugins
from nanoloop.cli import Exit
from nanoloop.cli.config import as_json, as_text
from nanoloop.settings import ChannelSettings, Settings
from nanoloop.settings.keys import is_secret, known_settings
from nanoloop.settings.secrets import MASK, may_be_secret, secrets_in, shown, shown_as
from nanoloop.settings.vendors import VendorSettings
from tests.openai_server import Answer, OpenAIServer
from tests.packages import is_gone, make_package
from tests.stages.command_line import CommandLine

ANY_GONE = any(map(is_gone, plugins.OURS["channels"]))
SEAL = urlsafe_b64encode(b"canary-of-the-store-key-32-bytes").decode()
SECRETS = {
    "api_key": "canary-api-key-01",
    "store.encryption_key": SEAL,
    "providers.groq.api_key": "canary-groq-key-2",
    "tools.servers.groq.client_secret": "canary-tools-client-secret",
    "channels.telegram.token": "123456:canary-telegram-token",
    "channels.matrix.token": "canary-matrix-token",
    "channels.discord.token": "canary.discord.token",
    "channels.slack.token": "xoxb-canary-slack-token",
    "channels.slack.app_token": "xapp-canary-slack-app",
    "channels.web.tokens.ann.token": "canary-of-the-web-token",
    "channels.irc.password": "canary-irc-password",
}
"""A canary for each setting that is secret."""
IRC = """
from pydantic import SecretStr
from nanoloop.settings.channels import PlatformSettings


class Table(PlatformSettings):
    host: str = "irc.example.org"
    password: SecretStr | None = None
    headers: dict[str, str] = {}


class PLUGIN:
    settings = Table

    def make(own, folder):
        raise ValueError(own.password.get_secret_value())
"""
HIDDEN = {
    "base_url": "canary-login",
    "query": "canary-query",
    "header": "canary-header",
    "option": "canary-option",
    "mistral": "canary-mistral-login",
    "irc": "canary-irc-header",
    "tools": "canary-tools-header",
}
"""And in values that are not secret as a whole."""
BASIC = b64encode(b"me:canary-login").decode()
TEXT = """
model = "small"
summary_model = "groq:small"
base_url = "http://me:{login}@{where}/v1?api_key={query}"
[provider.options]
extra = {{Authorization = "{header}"}}
signing_key = "{option}"
[channels.telegram]
api = "{root}"
[channels.matrix]
homeserver = "{root}"
[channels.discord]
enabled = false
[channels.slack]
enabled = false
[channels.web]
enabled = true
port = 0
[channels.irc]
enabled = false
headers = {{"X-Own" = "{irc}"}}
[tools.servers.web]
url = "{root}/mcp"
headers = {{"X-Own" = "{tools}"}}
[tools.servers.groq]
url = "{root}/groq"
auth = "client_credentials"
client_id = "us"
issuer = "{root}"
[providers.groq]
base_url = "{root}/v1"
[providers.mistral]
base_url = "http://me:{mistral}@{where}/v1"
"""


@pytest.mark.skipif(ANY_GONE, reason="a folder is gone")
def test_each_setting_that_is_secret_has_a_canary():
    own = {
        name: ChannelSettings.table_for(name) for name in ("telegram", "matrix", "discord", "slack")
    }
    known = dict(known_settings(Settings))
    for name, table in own.items():
        known |= {f"channels.{name}.{key}": field for key, field in table.model_fields.items()}
    found = {key for key, field in known.items() if is_secret(field)}
    found.remove("tools.servers.NAME.headers")  # each of them is hidden
    found = {key.replace("tokens.NAME", "tokens.ann").replace("NAME", "groq") for key in found}
    assert found == SECRETS.keys() - {"channels.irc.password"}


def test_a_setting_with_the_name_of_a_secret_is_one():
    for key, field in known_settings(Settings):
        named_so = may_be_secret(key.rpartition(".")[2], "")
        is_text = re.search("int|float|Path|Literal", repr(field.annotation)) is None
        assert is_secret(field) or not (named_so and is_text) or key.startswith("sentences."), key


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (SecretStr("canary"), MASK),
        ("postgresql://me:p@ss/w?rd@db.example/bot", f'"postgresql://{MASK}@db.example/bot"'),
        ("redis://:canary@db/0?password=canary", f'"redis://{MASK}@db/0?{MASK}"'),
        ("https://a.example/v1?canary", f'"https://a.example/v1?{MASK}"'),
        ("https://a.example/v1#key=canary", f'"https://a.example/v1?{MASK}"'),
        ("What is 1/2? See //x.", '"What is 1/2? See //x."'),
        ({"temperature": 0.3, "api_key": "canary"}, f"{{temperature = 0.3, api_key = {MASK}}}"),
        ({"headers": {"X": ["canary", 1]}}, f"{{headers = {{X = [{MASK}, 1]}}}}"),
        ({"a": {"b": "Bearer canary"}}, f"{{a = {{b = {MASK}}}}}"),
        ({"max_tokens": 5, "reasoning": "low"}, '{max_tokens = 5, reasoning = "low"}'),
    ],
)
def test_what_may_be_a_secret_is_masked_and_known(value, said):
    assert shown(value) == said
    hidden = [*secrets_in(value)]
    assert bool(hidden) == (MASK in said)
    assert not any(len(each) > 4 and each in said for each in hidden)


def test_a_value_of_which_only_the_name_tells_is_masked_by_its_name():
    assert shown_as("channels.irc.password", "canary") == MASK
    assert shown_as("channels.irc.passwords", ["canary", 1]) == f"[{MASK}, 1]"
    assert shown_as("model", "small") == '"small"'


def test_each_setting_that_is_secret_has_the_name_of_a_secret():
    for key in SECRETS:
        assert shown_as(key, "canary") == MASK


def canaries():
    return {*SECRETS.values(), *HIDDEN.values(), BASIC}


def found_in(text):
    return sorted(one for one in canaries() if one in text)


@pytest.fixture
def world(tmp_path):
    make_package(tmp_path / "packages", IRC, kind="channels", name="irc")
    return tmp_path


async def nanoloop_at(world, server):
    """A command line whose every secret is a canary; in the file, and so in no variable."""
    nanoloop = CommandLine(world)
    path = nanoloop._env["PYTHONPATH"]
    nanoloop.set(PYTHONPATH=f"{world / 'packages'}:{path}", NANOLOOP_CONFIG="settings/bot.toml")
    where = server.root.partition("//")[2]
    text = TEXT.format(
        login=HIDDEN["base_url"],
        query=HIDDEN["query"],
        header=HIDDEN["header"],
        option=HIDDEN["option"],
        irc=HIDDEN["irc"],
        mistral=HIDDEN["mistral"],
        tools=HIDDEN["tools"],
        where=where,
        root=server.root,
    )
    said = "".join(f"{key} = {json.dumps(value)}\n" for key, value in SECRETS.items())
    (world / "settings").mkdir()
    (world / "settings" / "bot.toml").write_text(merged(said, text))
    return nanoloop


def merged(keys, text):
    """One file: each key below the head of its table."""
    for line in keys.splitlines():
        key, _, value = line.partition(" = ")
        table, _, name = key.rpartition(".")
        head = f"[{table}]\n"
        if not table:
            text = f"{line}\n{text}"
        elif head in text:
            text = text.replace(head, f"{head}{name} = {value}\n")
        else:
            text += f"{head}{name} = {value}\n"
    return text


def echo(status):
    """Answers with all that it was sent, as a hostile server may."""

    def answer(request):
        said = f"{request.path} {request.headers} {request.body.decode(errors='replace')}"
        return Answer(status=status, body=json.dumps({"error": {"message": said}}).encode())

    return answer


@pytest.mark.slow
@pytest.mark.skipif(ANY_GONE, reason="a folder is gone")
async def test_nothing_that_is_printed_or_written_has_one(world):
    told = ""
    async with OpenAIServer(otherwise=echo(400)) as server:
        nanoloop = await nanoloop_at(world, server)

        async def run(*words):
            nonlocal told
            done = await anyio.run_process(
                nanoloop.words(*words),
                stdin=subprocess.DEVNULL,
                check=False,
                cwd=world,
                env=nanoloop._env,
            )
            told += f"\n{words}\n{(done.stdout + done.stderr).decode()}"
            return done.returncode

        assert await run("config", "--json") == Exit.DONE
        chat = ("chat", "--session", "work", "--log-level", "debug", "-m", "hello")
        assert await run("--debug", *chat) != Exit.DONE
        server.otherwise = echo(500)
        await run("doctor", "--json")
        server.otherwise = Answer(text="Well.")
        assert await run(*chat) == Exit.DONE
        await run("model", "list")
        assert await run("sessions", "export", "work", "--format", "json") == Exit.DONE
        assert await run("debug-report", "work", "--output", "report.json") == Exit.DONE
        nanoloop.set(NANOLOOP_CHANNELS__IRC__ENABLED="true")
        assert await run("run") == Exit.USAGE  # the plugin raises an error that has its password
        sent = b"".join(request.head for request in server.requests).decode()
    assert SECRETS["providers.groq.api_key"] in sent  # they are used, and not only hidden
    assert BASIC in sent
    assert found_in(told) == []
    for file in world.rglob("*"):
        if file.is_file() and not file.is_relative_to(world / "settings"):
            assert found_in(file.read_bytes().decode(errors="replace")) == [], file
            assert found_in(file.name) == []
    assert "report.json" in {file.name for file in world.iterdir()}
    assert told.count(MASK) > len(SECRETS)


def test_settings_that_are_shown_in_code_have_none():
    settings = Settings(
        api_key="canary-api-key-01",
        base_url="http://me:canary-login@host/v1",
        providers={"groq": VendorSettings(api_key=SecretStr("canary-groq-key-2"))},
    )
    assert found_in(repr(settings.model_copy(update={"base_url": None}))) == []
    assert found_in(as_text(settings) + as_json(settings)) == []
    assert isinstance(settings, BaseModel)
