"""The simulated Discord as the suite of all channels wants it."""

from typing import get_args

import anyio

from nanoloop.channels.discord.platform import DiscordPlatform
from nanoloop.channels.kit.backlog import SeenMessages
from nanoloop.channels.kit.platform import Place
from nanoloop.testing.channels.stage import Skill, VisibleMessage
from tests.servers.discord import TOKEN, serializers

NOT_THERE = {"formatting"}
"""Discord takes every text."""


class DiscordStage:
    """Ann, Bob, a bot and some more on a server, and each alone with the bot."""

    skills = frozenset(get_args(Skill)) - NOT_THERE

    def __init__(self, server, folder=None):
        self.server, self.world = server, server.world
        self._folder = folder
        self._token = TOKEN
        self._people = []
        self._said = []
        self.guild = self.world.create_guild("home")
        self.world.add_member(self.guild.id, self.world.bot_user.id)
        self.group = str(self.world.create_channel(self.guild.id, "all").id)
        self._robot = self.world.make_user("robot", bot=True)

    def platform(self):
        self.server.connected = anyio.Event()
        return DiscordPlatform(self._token, folder=self._folder, ready_seconds=0.01)

    async def people(self, count):
        for number in range(len(self._people), count):
            name = ("ann", "bob")[number] if number < 2 else f"person{number}"
            person = self.world.make_user(name)
            self.world.add_member(self.guild.id, person.id)
            chat = self.world.get_dm_channel(person.id)
            self._people.append((str(chat.id), str(person.id)))
        return self._people[:count]

    async def acquaint(self, count):
        """Let the bot have heard these people before: Discord lists no private chats."""
        seen = SeenMessages(self._folder / "channels" / "discord.seen.sqlite")
        for chat, _ in await self.people(count):
            seen.note(Place(chat), chat)
        seen.close()

    def naming(self, text):
        return f"<@{self.world.bot_user.id}> {text}"

    async def say(self, chat, text, *, sender, reply_to=None, files=None, thread="", is_bot=False):
        # A bot is never told of what was said in a chat before it knew that there is such.
        await self.server.connected.wait()
        author = self._robot.id if is_bot else int(sender)
        channel = int(chat)
        if thread:
            if int(thread) not in self.world.channels:
                self.world.create_thread(channel, "aside", author, message_id=int(thread))
            channel = int(thread)
        kept = self.world.store_attachments(channel, [*(files or {}).items()])
        reference = {"message_id": reply_to, "channel_id": str(channel)} if reply_to else None
        message = self.world.create_message(
            channel, author, text, attachments=kept, reference=reference
        )
        self._said.append(message)
        return str(message.id)

    async def edit(self, chat, message, text, *, sender):
        self.world.edit_message(int(chat), int(message), {"content": text})

    async def delete(self, chat, message, *, sender):
        self.world.delete_message(int(chat), int(message))

    async def repeat(self):
        self.world.emit("MESSAGE_CREATE", serializers.message_payload(self.world, self._said[-1]))

    async def shown(self, chat):
        channel = int(chat.split()[-1])
        bot = self.world.bot_user.id
        return [
            VisibleMessage(id=str(m.id), text=m.content, is_bots=m.author_id == bot)
            for m in self.world.messages.get(channel, {}).values()
        ]

    async def typed(self, chat):
        return chat in self.server.typed

    async def cut(self):
        self.server.cut()

    async def limit(self, calls, *, seconds):
        self.server.limited, self.server.retry_after = calls, seconds

    async def lose(self, calls, *, taken):
        if taken:
            self.server.unconfirmed = calls
        else:
            self.server.lost = calls

    async def refuse_token(self):
        self._token = "an.old.token"
