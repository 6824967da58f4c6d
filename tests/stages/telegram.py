"""People who talk with a bot over the stand-in of Telegram: a stage of the shared suite."""

import re
import socket
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import PurePath
from random import randrange
from typing import get_args

import anyio

from nanoloop.channels.kit.markdown import utf16
from nanoloop.channels.kit.platform import Place
from nanoloop.channels.telegram.platform import TelegramPlatform
from nanoloop.channels.telegram.receiving import Webhook
from nanoloop.testing.channels.stage import Skill, VisibleMessage
from tests.servers.telegram import BOT, TOKEN, Post, TelegramServer

GROUP = -1_001_000_000_001
FIRST_PERSON = 1001
NAMES = ("Ann", "Bob")
NAMED = f"@{BOT['username']}"
_MARKS = re.compile(r"(?P<bot_command>^/\w+(@\w+)?)|(?P<mention>@\w+)")


def free_port():
    """A port that nobody listens on, out of those that no connection gets by chance."""
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", randrange(20_000, 32_000))) as s:
            return s.getsockname()[1]


@asynccontextmanager
async def telegram(*, webhook_port=None):
    """A stage, for as long as it is entered."""
    async with TelegramServer().running() as server:
        yield TelegramStage(server, webhook_port)


@asynccontextmanager
async def listening(platform, hear=None):
    """What a platform hands in, one by one, with no kit behind it; or `hear` takes it."""
    send, receive = anyio.create_memory_object_stream(1000)

    async def take(*heard):
        for one in heard:
            await send.send(one)

    async with send, receive, anyio.create_task_group() as group:
        connected = anyio.Event()
        group.start_soon(platform.listen, hear or take, connected.set)
        with anyio.fail_after(10):
            await connected.wait()
            yield receive.receive
        group.cancel_scope.cancel()


class TelegramStage:
    """The stand-in with people on it."""

    skills = frozenset(get_args(Skill)) - {"delete", "ids"}  # bots hear of no deletions
    group = str(GROUP)

    def __init__(self, server, webhook_port=None):
        self.server = server
        self._webhook_port = webhook_port
        self._last = None
        self._albums = count(1)
        server.chats[GROUP] = {}

    def platform(self, **more):
        if self._webhook_port is not None:
            url = f"http://127.0.0.1:{self._webhook_port}/telegram"
            more["webhook"] = Webhook(url, host="127.0.0.1", port=self._webhook_port)
        made = TelegramPlatform(TOKEN, api=self.server.url, **more)
        made.limits = replace(made.limits, edit_seconds=0.01, group_edit_seconds=0.02)
        return made

    async def people(self, count):
        ids = [str(FIRST_PERSON + number) for number in range(count)]
        for one in ids:
            self.server.chats[int(one)]  # it is begun
        return [(one, one) for one in ids]

    def naming(self, text):
        return f"{NAMED} {text}"

    # What people do

    async def say(
        self, chat, text, *, sender, reply_to=None, files=None, thread="", is_bot=False, **more
    ):
        chat, sender = int(chat), int(sender)
        if reply_to is not None:
            more["reply_to_message"] = self._answered(chat, int(reply_to))
        if not files:
            return self._tell(chat, _words(text), sender, thread=thread, is_bot=is_bot, more=more)
        more["media_group_id"] = str(next(self._albums))
        told = []
        for name, data in files.items():
            words = _words("" if told else text, "caption_") | self._file(name, data)
            told.append(self._tell(chat, words, sender, thread=thread, is_bot=is_bot, more=more))
        return told[0]

    def _tell(self, chat, words, sender, *, thread="", is_bot=False, more):
        server, number = self.server, self.server.next_message(chat)
        message = self._message(chat, number, sender, is_bot=is_bot) | words
        if thread:
            server.threads[chat].add(int(thread))
            message |= {"message_thread_id": int(thread), "is_topic_message": True}
            topic = {"forum_topic_created": {"name": "topic", "icon_color": 1}}
            message["reply_to_message"] = self._message(chat, int(thread), BOT["id"]) | topic
        self._last = message | more
        text = words.get("text", words.get("caption", ""))
        server.chats[chat][number] = Post(id=number, sender=sender, text=text)
        server.tell("message", self._last)
        return str(number)

    def migrate(self, old, new):
        """Make a supergroup of a group."""
        self.server.migrate(int(old), int(new))
        ann = FIRST_PERSON
        self._tell(int(old), {"migrate_to_chat_id": int(new)}, ann, more={})
        self._tell(int(new), {"migrate_from_chat_id": int(old)}, ann, more={})

    async def edit(self, chat, message, text, *, sender):
        post = self.server.chats[int(chat)][int(message)]
        post.text = text
        edited = self._message(int(chat), post.id, int(sender)) | _words(text)
        self.server.tell("edited_message", edited | {"edit_date": int(time.time())})

    async def delete(self, chat, message, *, sender):
        raise NotImplementedError

    def press(self, chat, message, data, *, sender, thread="", **more):
        """Press a button below one of the bot's messages; returns the update."""
        told = self._message(int(chat), int(message), BOT["id"]) | more
        if thread:
            told |= {"message_thread_id": int(thread), "is_topic_message": True}
        person = self._message(int(chat), 0, int(sender))["from"]
        return self.server.press(told, data, person)

    def buttons(self, chat):
        """The buttons of each of the bot's messages in a chat, by the message's id."""
        posts = self.server.chats[int(chat)].values()
        return {str(post.id): post.buttons for post in posts if post.sender == BOT["id"]}

    async def repeat(self):
        self.server.tell("message", self._last)

    # What is to be seen

    async def shown(self, chat):
        place = Place.of(chat)
        thread = int(place.thread) if place.thread else None
        return [
            VisibleMessage(
                id=str(post.id),
                text=post.text,
                is_bots=post.sender == BOT["id"],
                reply_to=None if post.reply_to is None else str(post.reply_to),
            )
            for post in self.server.chats[int(place.chat)].values()
            if thread is None or post.thread == thread
        ]

    async def typed(self, chat):
        return self.server.typing[int(chat)] > 0

    # What the platform does to the bot

    async def cut(self):
        self.server.cut()

    async def limit(self, calls, *, seconds):
        self.server.faults.limited, self.server.faults.seconds = calls, seconds

    async def lose(self, calls, *, taken):
        if taken:
            self.server.faults.unconfirmed = calls
        else:
            self.server.faults.lost = calls

    async def refuse_formatting(self):
        self.server.faults.plain_only = True

    async def refuse_token(self):
        self.server.faults.refused = True

    # Within

    def _message(self, chat, number, sender, *, is_bot=False):
        name = dict(enumerate(NAMES, FIRST_PERSON)).get(sender, f"Person {sender}")
        kind = (
            {"type": "private", "first_name": name}
            if chat > 0
            else {"type": "supergroup", "title": "G"}
        )
        user = BOT if sender == BOT["id"] else {"id": sender, "is_bot": is_bot, "first_name": name}
        return {
            "message_id": number,
            "date": int(time.time()),
            "chat": {"id": chat, **kind},
            "from": user,
        }

    def _answered(self, chat, number):
        post = self.server.chats[chat][number]
        return self._message(chat, number, post.sender) | {"text": post.text}

    def _file(self, name, data):
        file_id = f"f{len(self.server.files)}"
        self.server.files[file_id] = data
        file = {"file_id": file_id, "file_unique_id": file_id, "file_size": len(data)}
        match PurePath(name).suffix:
            case ".jpg":
                return {"photo": [file | {"width": 1, "height": 1}]}
            case ".ogg":
                return {"voice": file | {"duration": 1, "mime_type": "audio/ogg"}}
            case ".mp4":
                return {"video": file | {"duration": 1, "width": 1, "height": 1}}
        return {"document": file | {"file_name": name, "mime_type": "text/plain"}}


def _words(text, prefix=""):
    """The text with its entities, as Telegram tells of them."""
    entities = [
        {"type": found.lastgroup, "offset": utf16(text[: found.start()]), "length": utf16(found[0])}
        for found in _MARKS.finditer(text)
    ]
    return {prefix.strip("_") or "text": text, f"{prefix}entities": entities} if text else {}
