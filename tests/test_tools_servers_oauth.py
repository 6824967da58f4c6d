"""Servers that want a login: both flows, by the real command line and in a running program."""

import errno
import json
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync
from cryptography.fernet import Fernet

from nanoloop.app import App
from nanoloop.channels.direct import DirectChannel
from nanoloop.cli import Exit, main, tools
from nanoloop.errors import LoginFailed, NotReadable, SettingsError
from nanoloop.parts import folder_sealings, make_logins, make_servers
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.tools import logins
from nanoloop.tools.logins import ServerLogin
from nanoloop.tools.servers import ToolLoginNotStored, ToolServerFailed
from tests.openai_server import Answer, OpenAIServer
from tests.stages.command_line import CommandLine, ended, line_with
from tests.tool_servers import Folder, call, until

WANTED = "tickets needs a login: nanoloop tools login tickets"
PROGRAM = Path(__file__).parent / "servers" / "mcp_oauth.py"
KEY = Fernet.generate_key().decode()
MACHINE = 'auth = "client_credentials"\nclient_id = "robot"\n'


class Tickets(Folder):
    """The server with its authorization server, in a process of its own."""

    port = 0

    def start(self):
        words = [sys.executable, str(PROGRAM), str(self.path), str(self.port)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
        self.port = int(self.process.stdout.readline())
        self.issuer = f"http://127.0.0.1:{self.port}"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def tickets(tmp_path):
    tickets = Tickets(tmp_path / "tickets")
    tickets.start()
    yield tickets
    tickets.kill()


@pytest.fixture
def write(tmp_path, tickets, monkeypatch):
    """Writes a settings file with that server, and more."""
    for name in tools.SCREENS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def write(auth='auth = "oauth"', more="", path="/mcp", model="ollama:none"):
        text = f'url = "{tickets.issuer}{path}"\n{auth}\n'
        Path("n.toml").write_text(f'model = "{model}"\n{more}\n[tools.servers.tickets]\n{text}')

    write()
    return write


def load():
    return Settings.load(config="n.toml", flags={"data": "data"})


def run(*words):
    return main([*words, "--config", "n.toml", "--data", "data"])


class NotFollowed(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def answer_of(page):
    """The address that a browser is sent to by that page."""
    try:
        urllib.request.build_opener(NotFollowed).open(page)
    except urllib.error.HTTPError as answer:
        return answer.headers["location"]


def browse(page, _):
    with urllib.request.urlopen(page) as seen:  # as a browser on this machine follows it
        assert b"Return to the terminal" in seen.read()


def paste(page, process):
    process.stdin.write(f"\n  {answer_of(page)}\n")
    process.stdin.flush()


@contextmanager
def logging_in():
    """The command, and the address that it prints."""
    words = ["tools", "login", "tickets", "--config", "n.toml", "--data", "data"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(
        [sys.executable, "-m", "nanoloop", *words], text=True, **pipes
    ) as process:
        lines = iter(process.stderr.readline, "")
        yield process, next((line.strip() for line in lines if line.startswith("http")), "")


def log_in(how=browse):
    with logging_in() as (process, page):
        if page:
            how(page, process)
        said = process.communicate(timeout=60)
    return process.returncode, *said


@pytest.mark.parametrize("how", [browse, paste])
def test_a_person_logs_in_by_a_browser_here_or_elsewhere(write, tickets, capsys, how):
    assert log_in(how)[:2] == (Exit.DONE, "logged in to tickets\n")
    assert tickets.ledger == ["registered", "logged in"]
    assert run("tools", "call", "tickets__echo", '{"text": "hi"}') == Exit.DONE
    assert capsys.readouterr().out == "hi\n"


def test_a_login_is_for_its_owner_only_and_shown_nowhere(write, capsys):
    said = "".join(log_in()[1:])
    file = Path("data/tool_logins/tickets.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    known = json.loads(file.read_text())
    login = make_logins(load()).of("tickets")
    for secret in (known["token"], known["refresh"], known["client"]["client_secret"]):
        assert secret not in said + repr(login)


def test_a_login_is_encrypted_like_the_store(write):
    key = f'[store]\nencryption_key = "{KEY}"'
    write(more=key)
    assert log_in()[0] == Exit.DONE
    token = make_logins(load()).of("tickets").token
    assert all(token.encode() not in file.read_bytes() for file in Path("data").rglob("*.json"))
    write()
    with pytest.raises(NotReadable, match="encryption_key"):
        make_logins(load()).of("tickets")


@pytest.mark.slow
def test_a_login_from_before_the_key_is_encrypted_with_the_store(write):
    assert log_in()[0] == Exit.DONE
    token = make_logins(load()).of("tickets").token
    write(more=f'[store]\nencryption_key = "{KEY}"')
    assert make_logins(load()).of("tickets").token == token
    assert [is_well for each in folder_sealings(load()) for _, is_well in each.reseal()] == [True]
    assert token.encode() not in Path("data/tool_logins/tickets.json").read_bytes()
    assert make_logins(load()).of("tickets").token == token


REFUSALS = {
    "wrong-state": "this is the answer to another login (its state differs)",
    "wrong-issuer": "this is the answer of another authorization server",
    "refused": "the authorization server refused (access_denied): You [31m may not.",
}


@pytest.mark.slow
@pytest.mark.parametrize(("how", "told"), REFUSALS.items())
def test_an_answer_that_is_not_to_this_login_is_refused(write, tickets, how, told):
    tickets.set(how)
    # A browser's answer with another state is not heard at all.
    code, _, said = log_in(paste if how == "wrong-state" else browse)
    assert (code, said.splitlines()[-1]) == (
        Exit.FAILED,
        f"nanoloop: the login to tickets failed: {told}",
    )
    assert "logged in" not in tickets.ledger
    assert "Traceback" not in said


@pytest.mark.slow
def test_something_else_that_is_pasted_is_refused(write):
    def mistake(_, process):
        process.stdin.write("https://tickets.example/?code=1\n")
        process.stdin.flush()

    code, _, said = log_in(mistake)
    assert code == Exit.FAILED
    assert "failed: the address that the browser is sent to begins with http://127.0.0.1:" in said


def status(url):
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


CLIENTS = {
    'client_id = "desk"\nclient_secret = "desk-secret"': (),
    'client_id = "https://nanoloop.example/client.json"': ("documents",),
}


@pytest.mark.slow
@pytest.mark.parametrize(("more", "how"), CLIENTS.items(), ids=["registered", "document"])
def test_a_client_of_one_s_own_registers_nothing(write, tickets, more, how):
    tickets.set(*how)
    write(f'auth = "oauth"\n{more}')
    assert log_in()[0] == Exit.DONE
    assert tickets.ledger == ["logged in"]
    kept = make_logins(load())
    kept.keep("tickets", replaced(kept.of("tickets"), until=0.0))
    assert run("tools", "call", "tickets__echo", '{"text": "hi"}') == Exit.DONE
    assert tickets.ledger == ["logged in", "refreshed"]


@pytest.mark.slow
def test_a_server_that_registers_nobody_says_what_to_set(write, tickets, capsys):
    tickets.kill()
    tickets.set("closed").start()
    assert run("tools", "login", "tickets", "--no-browser") == Exit.FAILED
    told = "does not register nanoloop: register a client there yourself, and set client_id"
    assert told in capsys.readouterr().err


def test_a_login_goes_to_no_address_without_https(write, tickets, capsys):
    tickets.set("elsewhere")
    assert run("tools", "login", "tickets", "--no-browser") == Exit.FAILED
    assert "its authorization server is not at an https address" in capsys.readouterr().err


async def test_only_the_answer_is_heard_and_only_by_this_machine():
    async with tools.listening(0) as here, anyio.create_task_group() as group:
        heard = []

        async def wait():
            heard.append(await here.answer("2"))

        group.start_soon(wait)
        assert here.address.startswith("http://127.0.0.1:")
        for other in ("/favicon.ico", "?code=1", "/callback?x=1", "/callback?code=1&state=3"):
            url = f"{here.address.removesuffix('/callback')}{other}"
            assert await run_sync(status, url) == 404
        assert await run_sync(status, f"{here.address}?code=1&state=2") == 200
    assert heard == [f"{here.address}?code=1&state=2"]
    with pytest.raises(OSError, match="refused"):  # once
        await run_sync(status, f"{here.address}?code=1&state=2")


async def test_a_login_that_nobody_answers_ends(monkeypatch):
    monkeypatch.setattr(tools, "ANSWER_SECONDS", 0.06)
    async with tools.listening(0) as here:
        with pytest.raises(LoginFailed, match="nobody logged in within"):
            await here.answer("2")


# Machines


def test_a_machine_logs_in_from_settings_alone(write, tickets, capsys):
    write(f'{MACHINE}client_secret = "very-secret"\nissuer = "{tickets.issuer}"')
    assert run("tools", "call", "tickets__echo", '{"text": "hi"}') == Exit.DONE
    assert capsys.readouterr().out == "hi\n"
    assert run("tools") == Exit.DONE
    assert tickets.ledger == ["machine"]  # its token counts for both


MISTAKES = {
    'client_secret = "other"': "its authorization server refused to give a token",
    'client_secret = "very-secret"\nissuer = "http://127.0.0.1:1"': (
        "its authorization server says that it is another one"
    ),
}


@pytest.mark.parametrize(("more", "told"), MISTAKES.items(), ids=["secret", "issuer"])
def test_a_machine_that_is_refused_is_told_why(write, tickets, capsys, more, told):
    more += f'\nissuer = "{tickets.issuer}"' if "issuer" not in more else ""
    write(f"{MACHINE}{more}")
    assert run("tools", "login", "tickets") == Exit.FAILED
    assert capsys.readouterr().err == f"nanoloop: the login to tickets failed: {told}\n"
    assert run("tools") == Exit.DONE
    assert f"server tickets: not reachable, {told}\n" in capsys.readouterr().out


# A program that runs


@asynccontextmanager
async def serving(provider):
    app = App.of(load(), provider=provider)
    chat = DirectChannel(app.loop.bus)
    async with anyio.create_task_group() as group:
        group.start_soon(app.run)
        yield app, chat
        app.stop()


def calls(text):
    made = ToolCall(id="", name="tickets__echo", arguments=json.dumps({"text": text}))
    return Reply(tool_calls=(made,))


async def state(app, wanted):
    (server,) = app.tool_servers
    await until(lambda: (server.needs_login, server.state) == wanted)


NEEDED, CONNECTED = (True, "unreachable"), (False, "connected")


async def test_a_running_program_uses_a_fresh_login_and_says_when_it_lacks_one(write, heard):
    provider = ScriptedProvider([calls("one"), "done", calls("two"), "done"])
    async with serving(provider) as (app, chat):
        await state(app, NEEDED)
        assert (await run_sync(log_in))[0] == Exit.DONE
        await state(app, CONNECTED)
        await chat.ask("Call", chat="a")
        assert provider.calls[-1].messages[-1]["content"] == "one"
        assert await run_sync(log_out)
        await chat.ask("Call", chat="a")
        assert WANTED in provider.calls[-1].messages[-1]["content"]
        await state(app, NEEDED)
    assert [each.reason for each in heard if isinstance(each, ToolServerFailed)] == [WANTED] * 2


ECHO = Answer(tool_calls=(("1", "tickets__echo", '{"text": "hi"}'),))


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_daemon_uses_a_fresh_login_and_its_log_has_no_token(write, tickets, tmp_path):
    async with OpenAIServer(ECHO, "Called.", ECHO, "Refused.") as server:
        nanoloop = CommandLine(tmp_path, server.url)
        nanoloop.set(NANOLOOP_CONFIG="n.toml")
        write(more='api_key = "k"', model="gpt-5.4")
        async with nanoloop.started("run") as process:
            log = [await line_with(process.stderr, WANTED)]
            assert (await run_sync(log_in))[0] == Exit.DONE
            log.append(await line_with(process.stderr, "tool_server_started"))
            login = make_logins(load()).of("tickets")
            await process.stdin.send(b"Call\n")
            await line_with(process.stdout, "Called.")
            assert server.requests[-1].json["messages"][-1]["content"] == "hi"
            tickets.set("no-access", "no-refresh")
            await process.stdin.send(b"Call again\n")
            await line_with(process.stdout, "Refused.")
            assert WANTED in server.requests[-1].json["messages"][-1]["content"]
            process.terminate()
            log.append((await process.stderr.receive(1_000_000)).decode())
            assert await ended(process) == 0
    assert not any(secret in "".join(log) for secret in (login.token, login.refresh))


def log_out():
    return run("tools", "logout", "tickets") == Exit.DONE


def test_what_needs_a_login_is_said_by_tools_and_doctor(write, capsys):
    run("tools")
    assert f"server {WANTED}\n" in capsys.readouterr().out
    run("doctor")
    assert f"WRONG  server {WANTED}\n" in capsys.readouterr().out


@asynccontextmanager
async def connected():
    servers = make_servers(load())
    async with servers.started():
        yield servers


async def test_a_token_is_renewed_by_itself(write, tickets):
    tickets.set("short-lived")
    assert (await run_sync(log_in))[0] == Exit.DONE
    tickets.unset("short-lived")
    before = make_logins(load()).of("tickets")
    await until(lambda: not before.is_good(refused=""))
    async with connected() as servers:
        assert await call(servers, "tickets__echo", text="hi") == "hi"
        login = make_logins(load()).of("tickets")
        assert (login.token, login.refresh) != (before.token, before.refresh)
        # One that the server has forgotten before its time is renewed too.
        make_logins(load()).keep("tickets", replaced(login, token="forgotten"))
        assert await call(servers, "tickets__echo", text="hi") == "hi"
    assert tickets.ledger.count("refreshed") == 2


async def test_a_renewed_login_that_the_disk_refuses_is_not_lost(
    write, tickets, monkeypatch, heard
):
    assert (await run_sync(log_in))[0] == Exit.DONE
    async with connected() as servers:
        kept = make_logins(load())
        kept.keep("tickets", replaced(kept.of("tickets"), until=0.0))

        monkeypatch.setattr(logins, "replace_file", refuse)
        for _ in range(2):
            assert await call(servers, "tickets__echo", text="hi") == "hi"
        assert tickets.ledger.count("refreshed") == 1
    (said,) = [event for event in heard if isinstance(event, ToolLoginNotStored)]
    assert said.reason.startswith("data/tool_logins/tickets.json can't be written: ")


class Open:
    """Seals nothing."""

    def sealed(self, _, data):
        return data

    opened = sealed

    def destroy(self, _):
        pass


def test_a_login_that_the_disk_refused_gives_way_to_a_later_one(tmp_path, monkeypatch):
    here, other = (logins.ServerLogins(tmp_path, lambda _: Open()) for _ in range(2))
    other.keep("tickets", ServerLogin(url="https://a.example", client={}, token="first"))
    with monkeypatch.context() as full:
        full.setattr(logins, "replace_file", refuse)
        with pytest.raises(SettingsError, match="can't be written"):
            here.keep("tickets", replaced(here.of("tickets"), token="renewed"))
    assert here.of("tickets").token == "renewed"
    other.keep("tickets", replaced(other.of("tickets"), token="later"))
    assert here.of("tickets").token == "later"
    other.remove("tickets")
    assert here.of("tickets") is None


def refuse(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def replaced(login, **more):
    return ServerLogin(**{name: getattr(login, name) for name in login.__slots__} | more)


@pytest.mark.slow
async def test_processes_that_renew_a_login_at_once_do_not_lose_it(write, tickets):
    tickets.set("short-lived")
    assert (await run_sync(log_in))[0] == Exit.DONE
    tickets.unset("short-lived")
    login = make_logins(load()).of("tickets")
    await until(lambda: not login.is_good(refused=""))
    words = ["tools", "call", "tickets__echo", '{"text": "hi"}', "--config", "n.toml"]
    command = [sys.executable, "-m", "nanoloop", *words, "--data", "data"]
    told = []

    async def ask():
        told.append((await anyio.run_process(command)).stdout)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(ask)
    assert told == [b"hi\n"] * 4
    assert tickets.ledger.count("refreshed") == 1


async def test_a_login_that_is_refused_asks_for_a_new_one(write, tickets):
    assert (await run_sync(log_in))[0] == Exit.DONE
    async with connected() as servers:
        (server,) = servers
        tickets.set("no-access", "no-refresh")
        assert await call(servers, "tickets__echo", text="hi") == WANTED
        await until(lambda: server.needs_login)
        assert await call(servers, "tickets__echo", text="hi") == WANTED


async def test_an_authorization_server_that_is_down_costs_no_login(write, tickets):
    assert (await run_sync(log_in))[0] == Exit.DONE
    async with connected() as servers:
        (server,) = servers
        kept = make_logins(load())
        kept.keep("tickets", replaced(kept.of("tickets"), until=0.0))
        tickets.set("down")
        why = "its login can't be renewed now (HTTP status 503)"
        said = await call(servers, "tickets__echo", text="hi")
        assert said == f"tickets could not be called: {why}"
        await until(lambda: server.reason == why)
        tickets.unset("down")
        await until(lambda: server.state == "connected")
        assert await call(servers, "tickets__echo", text="hi") == "hi"


async def test_a_login_is_sent_to_no_other_address(write, tickets):
    assert (await run_sync(log_in))[0] == Exit.DONE
    write(path="/other")
    async with connected() as servers:
        (server,) = servers
        assert server.needs_login


def test_logging_out_tells_the_server(write, tickets, capsys):
    assert log_in()[0] == Exit.DONE
    assert run("tools", "logout", "tickets") == Exit.DONE
    assert capsys.readouterr().out == "logged out of tickets\n"
    assert tickets.ledger[-1] == "revoked"
    assert not Path("data/tool_logins/tickets.json").exists()
    assert run("tools", "logout", "tickets") == Exit.NOT_FOUND


WRONG = {
    'command = ["x"]\nauth = "oauth"': "auth belongs to a url",
    'url = "http://tickets.example/mcp"\nauth = "oauth"': "where anybody can read the login",
    'url = "https://x/mcp"\nclient_id = "me"': "set tools.servers.tickets.auth too",
    'url = "https://x/mcp"\nauth = "client_credentials"': "needs tools.servers.tickets.client_id",
    'url = "https://x/mcp"\nauth = "oauth"\nclient_secret = "very-secret"': "client_id: set it",
}


@pytest.mark.parametrize(("table", "told"), WRONG.items())
def test_a_login_that_can_t_work_is_refused_at_the_start(tmp_path, monkeypatch, table, told):
    monkeypatch.chdir(tmp_path)
    Path("n.toml").write_text(f'model = "ollama:none"\n[tools.servers.tickets]\n{table}\n')
    with pytest.raises(SettingsError, match=told) as refused:
        load()
    assert "very-secret" not in str(refused.value)


@pytest.mark.parametrize("seconds", [10**400, -(10**400), -1], ids=range(3))
def test_a_lifetime_that_nobody_could_mean_is_limited(seconds):
    assert 0 < logins.renewed_at(seconds) < time.time() + 11 * 366 * 86_400
