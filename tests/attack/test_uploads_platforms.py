"""A file that came to a chat is sent there and nowhere else, on each platform."""

from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop.attachments import Attachments
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.entry import SCHEME
from nanoloop.testing.channels.stage import Bot, comes_to
from tests.images import picture
from tests.servers.discord import DiscordServer
from tests.servers.slack import SlackServer
from tests.stages.discord import DiscordStage
from tests.stages.matrix import MatrixStage, matrix_stage
from tests.stages.slack import SlackStage
from tests.stages.telegram import TelegramStage, telegram
from tests.test_sent_files_platforms import (
    posted_on_discord,
    posted_on_matrix,
    posted_on_slack,
    posted_on_telegram,
)

ANN, BOB, GROUP = "Ann", "Bob", "group"
PICTURES = {name: picture("JPEG", size=(40 + n, 30)) for n, name in enumerate((ANN, BOB, GROUP))}


@asynccontextmanager
async def slack_stage(folder):
    async with SlackServer().serving() as server:
        yield SlackStage(server, folder)


@asynccontextmanager
async def discord_stage(folder):
    async with DiscordServer().serving() as server:
        yield DiscordStage(server, folder)


@pytest.fixture(
    params=["telegram", "slack", "discord", pytest.param("matrix", marks=pytest.mark.slow)]
)
async def stage(request, tmp_path):
    if request.param == "matrix":
        made = matrix_stage(request.getfixturevalue("synapse"), tmp_path)
    else:
        opened = {"telegram": lambda _: telegram(), "slack": slack_stage, "discord": discord_stage}
        made = opened[request.param](tmp_path)
    async with made as stage:
        yield stage


async def files_posted(stage, place):
    """How many files the bot has posted there."""
    if isinstance(stage, MatrixStage):
        return len([size for _, _, size in await posted_on_matrix(stage, place) if size])
    kinds = {TelegramStage: posted_on_telegram, SlackStage: posted_on_slack}
    posted = await kinds.get(type(stage), posted_on_discord)(stage, place)
    return sum(len(sizes) for _, sizes in posted)


class Talk:
    """Chats with a bot whose answers name a file, as anybody could have told it to."""

    def __init__(self, stage, folder):
        self._stage = stage
        self._count = 0
        self._chats = {}
        self._named = ""
        self.files = {}
        """The ids of what came to each chat; the group is the last one."""
        self.kept = Attachments(folder / "kept", limit_bytes=10**6)
        provider = ScriptedProvider(otherwise=self._answer)
        self.bot = Bot(stage.platform(), folder, provider=provider, attachments=self.kept)

    def _answer(self, *_):
        self._count += 1
        return f"{self._named}answer {self._count}"

    async def meet(self):
        (ann, bob) = await self._stage.people(2)
        self._chats = {ANN: ann, BOB: bob, GROUP: (self._stage.group, ann[1])}

    async def says(self, chat, text, *, files=None, command=False):
        """Say it; what the bot says to it: files if it sends any, then the text."""
        place, sender = self._chats[chat]
        awaited = "" if command else f"answer {self._count + 1}"
        # Slack tells of a message that names the bot twice, and its file is fetched twice.
        text = self._stage.naming(text) if chat == GROUP else text
        said = await self._stage.say(place, text, sender=sender, files=files)

        async def look():
            shown = await self._stage.shown(place)
            [at] = [number for number, each in enumerate(shown) if each.id == said]
            return [each.text for each in shown[at + 1 :] if each.is_bots]

        return await comes_to(look, lambda found: found and awaited in found[-1])

    async def upload(self, chat):
        [_] = await self.says(chat, "look", files={f"{chat}.jpg": PICTURES[chat]})
        known = {*await anyio.to_thread.run_sync(self.kept.all)}
        self.files[chat] = known.difference(*self.files.values())
        assert self.files[chat]

    async def gets(self, chat, file):
        """Whether an answer in this chat that names the file of that one comes with it."""
        self._named = "".join(f"![it]({SCHEME}{named}) " for named in self.files[file])
        place, _ = self._chats[chat]
        before = await files_posted(self._stage, place)
        await self.says(chat, "show it")
        self._named = ""
        return await files_posted(self._stage, place) > before

    async def command(self, chat, text):
        assert await self.says(chat, text, command=True)


@asynccontextmanager
async def talking(stage, folder):
    talk = Talk(stage, folder)
    async with talk.bot:
        await talk.meet()
        yield talk


async def test_a_file_is_sent_only_in_the_chat_that_it_came_to(stage, tmp_path):
    async with talking(stage, tmp_path) as talk:
        for uploader in PICTURES:
            await talk.upload(uploader)
        found = {(at, whose): await talk.gets(at, whose) for at in PICTURES for whose in PICTURES}
        assert found == {(at, whose): at == whose for at, whose in found}


@pytest.mark.slow
async def test_a_new_conversation_has_none_of_the_old_ones_files_and_a_fork_has_all(
    stage, tmp_path
):
    async with talking(stage, tmp_path) as talk:
        await talk.upload(ANN)
        found = [await talk.gets(ANN, ANN)]
        for command in ("/new", "/fork", "/switch 1", "/fork", "/new"):
            await talk.command(ANN, command)
            found.append(await talk.gets(ANN, ANN))
        assert found == [True, False, False, True, True, False]
