"""The stand-in Slack as the suite of all channels wants it."""

import html
from typing import get_args

from nanoloop.channels.slack.platform import SlackPlatform
from nanoloop.testing.channels.stage import Skill, VisibleMessage
from tests.servers.slack import APP_TOKEN, BOT, TOKEN

NOT_THERE = {"formatting", "typing"}
"""Slack takes every text, and shows nobody that a bot types."""


class SlackStage:
    """Ann, Bob, a bot and some more in a workspace."""

    group = "C0"
    skills = frozenset(get_args(Skill)) - NOT_THERE

    def __init__(self, server, folder=None):
        self.server = server
        self._folder = folder
        self._token = TOKEN

    def platform(self):
        return SlackPlatform(
            self._token, APP_TOKEN, folder=self._folder, address=f"{self.server.url}/api/"
        )

    async def people(self, count):
        names = ["Ann", "Bob", *(f"Person {number}" for number in range(2, count))][:count]
        self.server.users |= {f"U{number}": name for number, name in enumerate(names)}
        return [(f"D{number}", f"U{number}") for number in range(count)]

    def naming(self, text):
        return f"<@{BOT}> {text}"

    async def say(self, chat, text, *, sender, reply_to=None, files=None, thread="", is_bot=False):
        more = {"bot_id": "B9"} if is_bot else {}
        if files:
            kept = [self.server.keep(name, data) for name, data in files.items()]
            more |= {"files": kept, "subtype": "file_share"}
        if at := thread or reply_to:
            root = self.server.channels[chat][at]
            more |= {"thread_ts": at, "parent_user_id": root["user"]}
        ts = self.server.say(chat, sender, text, **more)
        if BOT in text:
            self.server.tell(chat, {**self.server.channels[chat][ts], "type": "app_mention"})
        return ts

    async def edit(self, chat, message, text, *, sender):
        self.server.change(chat, message, text)

    async def delete(self, chat, message, *, sender):
        self.server.drop(chat, message)

    async def repeat(self):
        said = [m for c in self.server.channels.items() for m in _people(*c)]
        channel, message = max(said, key=lambda found: found[1]["ts"])
        self.server.tell(channel, message)

    async def shown(self, chat):
        channel, _, thread = chat.partition(" ")
        return [
            VisibleMessage(id=m["ts"], text=html.unescape(m["text"]), is_bots=m["user"] == BOT)
            for m in self.server.channels[channel].values()
            if not thread or m.get("thread_ts") == thread
        ]

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
        self._token = "xoxb-old"


def _people(channel, messages):
    return [(channel, m) for m in messages.values() if m["user"] != BOT]
