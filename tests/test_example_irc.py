"""The example of a platform of one's own keeps what every channel promises, on a real server."""

from contextlib import suppress
from itertools import count
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from examples import irc_channel as example
from examples.irc_channel import PLUGIN, IrcSettings, words
from nanoloop.events import ChannelLost
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.testing.channels import ChannelSuite
from nanoloop.testing.channels.stage import Bot, Stage, VisibleMessage, comes_to, says
from nanoloop.testing.channels.traffic import day
from tests.conftest import running
from tests.servers.ngircd import OPERATOR, PASSWORD, Ngircd

NUMBERS = count(1)
"""Each test has names of its own: those of the one before may not be free yet."""


@pytest.fixture(scope="module")
def ngircd():
    yield from running(Ngircd)


@pytest.fixture
async def stage(ngircd):
    async with anyio.create_task_group() as group:
        yield IrcStage(ngircd.port, next(NUMBERS), group)
        group.cancel_scope.cancel()


class Person:
    """Someone's client."""

    def __init__(self, port, nick):
        self.heard = []
        self.gone = anyio.Event()
        self._address = "127.0.0.1", port
        self._nick = nick
        self._pongs = {}
        self._numbers = count(1)

    async def run(self, *, task_status):
        async with await anyio.connect_tcp(*self._address) as self._stream:
            await self.send(f"PASS {PASSWORD}", f"NICK {self._nick}", f"USER {self._nick} 0 * :-")
            lines = BufferedByteReceiveStream(self._stream)
            with suppress(anyio.IncompleteRead):
                while True:
                    line = words(await lines.receive_until(b"\n", 10_000))
                    self.heard.append(line)
                    if line[1] == "PONG":
                        self._pongs[line[-1]].set()
                    elif line[1] == "001":
                        task_status.started()
        self.gone.set()

    async def send(self, *lines):
        await self._stream.send("".join(f"{line}\r\n" for line in lines).encode())

    async def ask(self, *lines):
        """Send this, and return what came until the server had all of it."""
        token, begin = f"p{next(self._numbers)}", len(self.heard)
        self._pongs[token] = anyio.Event()
        await self.send(*lines, f"PING {token}")
        with anyio.fail_after(10):
            await self._pongs[token].wait()
        return self.heard[begin:]


class IrcStage(Stage):
    """Ann, Bob and the bot on a server; who speaks to the bot waits until it is there."""

    group = ""
    skills = frozenset({"bots", "cut", "group", "token"})

    def __init__(self, port, number, group):
        self.port = port
        self.bot = f"bot{number}"
        self.group = f"#tea{number}"
        self._number = number
        self._tasks = group
        self._people = {}
        self._password = PASSWORD

    def platform(self):
        where = {"host": "127.0.0.1", "port": self.port, "tls": False}
        who = {"nick": self.bot, "password": self._password, "channels": [self.group]}
        return PLUGIN.make(IrcSettings(**where, **who), None)

    async def people(self, count):
        names = ["ann", "bob", *(f"person{number}-" for number in range(2, count))][:count]
        nicks = [f"{name}{self._number}" for name in names]
        for nick in nicks:
            await self._person(nick, f"JOIN {self.group}")
        return [(nick, f"{nick}!~{nick}@127.0.0.1") for nick in nicks]

    def naming(self, text):
        return f"{self.bot}: {text}"

    async def say(self, chat, text, *, sender, reply_to=None, is_bot=False, **_):
        person = self._people[sender.partition("!")[0]]
        await comes_to(lambda: self._is_there(person), wanted=True)
        kind, to = "NOTICE" if is_bot else "PRIVMSG", chat if chat == self.group else self.bot
        await person.ask(f"{kind} {to} :{self.naming(text) if reply_to else text}")
        return ""

    async def shown(self, chat):
        person = self._people[chat if chat != self.group else f"ann{self._number}"]
        texts = []
        for sender, kind, *rest in person.heard:
            if kind == "PRIVMSG" and sender.startswith(f"{self.bot}!") and rest[0] == chat:
                texts += [f"{texts.pop()}\n{rest[1][1:]}" if rest[1][0] == " " else rest[1]]
        return [VisibleMessage(id=str(n), text=text, is_bots=True) for n, text in enumerate(texts)]

    async def cut(self):
        killer = await self._person(f"op{self._number}", f"OPER {OPERATOR} {OPERATOR}")
        await killer.ask(f"KILL {self.bot} :for a test")

    async def refuse_token(self):
        self._password = "another"

    async def leave(self, nick):
        await self._people[nick].send("QUIT")
        await self._people[nick].gone.wait()

    async def _person(self, nick, *hello):
        if nick not in self._people:
            self._people[nick] = Person(self.port, nick)
            await self._tasks.start(self._people[nick].run)
            await self._people[nick].ask(*hello)
        return self._people[nick]

    async def _is_there(self, person):
        said = await person.ask(f"NAMES {self.group}")
        return any(
            line[1] == "353" and self.bot in line[-1].replace("@", "").split() for line in said
        )


class TestIrc(ChannelSuite):
    """As far as IRC goes."""

    @pytest.mark.skip(reason="the stage can't do replay: IRC keeps nothing for who is away")
    async def test_what_was_said_while_it_was_down_is_answered(self):
        """Left out."""


async def test_what_comes_with_several_lines_stays_one_message(stage, tmp_path):
    (chat, ann), _ = await stage.people(2)
    provider = ScriptedProvider(["one\n\n  two: ž"])
    async with Bot(stage.platform(), tmp_path, provider=provider):
        await stage.say(chat, "go", sender=ann)
        await says(stage, chat, "one\n  two: ž")


@pytest.mark.slow
async def test_after_a_day_of_traffic_and_cut_connections_the_ledger_is_clean(stage, tmp_path):
    ledger = await day(stage, tmp_path, messages=200, chats=5, restarts=0)
    assert ledger.is_clean, ledger
    assert ledger.faults


async def test_a_nick_that_is_taken_is_tried_again(stage, tmp_path):
    (chat, ann), (other, _) = await stage.people(2)
    stage.bot = other
    async with Bot(stage.platform(), tmp_path) as bot:
        await comes_to(lambda: lost(bot), "the nick is taken")
        await stage.leave(other)
        await stage.say(chat, "hello", sender=ann)
        await says(stage, chat, "You said: hello")


async def lost(bot):
    return next((event.reason for event in bot.events if isinstance(event, ChannelLost)), None)


def test_it_takes_less_than_130_lines():
    assert len(Path(example.__file__).read_text().splitlines()) < 130
