"""From what a platform hears to what goes on the bus: in order in each chat, durable at the end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Self

import anyio

from nanoloop.channels.platform.door import NO_SUCH_CODE, OPERATORS_ONLY, Door, command
from nanoloop.channels.platform.drafts import Drafts
from nanoloop.channels.platform.files import Files
from nanoloop.channels.platform.overheard import Overheard
from nanoloop.channels.platform.platform import Heard, Place
from nanoloop.channels.platform.rules import Rules
from nanoloop.errors import BusFull, place_of
from nanoloop.events import Announce, HearingFailed, MessageRepeated
from nanoloop.lanes import Lanes
from nanoloop.messages import Inbound, Outbound
from nanoloop.protocols import Bus

WAITING = 200
"""Messages of one chat that may wait to be taken in; the platform then waits."""
REMEMBERED = 10_000
"""Messages whose last words are known, so that an edit that changes nothing is known as such."""
NAME_CHARS = 60
QUOTE_CHARS = 1000
WELCOME = "You may talk with me now."


@dataclass(frozen=True, slots=True)
class _Item:
    heard: Heard
    taken: anyio.Event = field(default_factory=anyio.Event)


class Intake:
    """Takes in what one platform hears."""

    def __init__(
        self,
        name: str,
        *,
        bus: Bus,
        rules: Callable[[], Rules],
        agent: str | None,
        door: Door,
        drafts: Drafts,
        files: Files,
        waits: Callable[[str, str], None],
        drop: Callable[[str, str], None],
        announce: Announce,
    ) -> None:
        self._name = name
        self._bus = bus
        self._rules = rules
        self._agent = agent
        self._door = door
        self._drafts = drafts
        self._files = files
        self._waits = waits
        self._drop = drop
        self._announce = announce
        self._overheard = Overheard()
        self._is_deaf = False
        self._recent: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._lanes: Lanes[str, _Item] = Lanes(self._take, limit=WAITING, name="heard")

    async def __aenter__(self) -> Self:
        await self._lanes.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        return await self._lanes.__aexit__(*exc)

    def take_no_more(self) -> None:
        """Acknowledge nothing from now on: it is delivered again after the next start."""
        self._is_deaf = True

    async def hear(self, *heard: Heard) -> None:
        """Return once all of it is durable or was refused."""
        items = [_Item(one) for one in heard if not one.is_bot]
        for item in items:
            await self._lanes.put(item.heard.chat, item)
        for item in items:
            await item.taken.wait()

    async def _take(self, _: str, item: _Item) -> None:
        try:
            await self._receive(item.heard)
        except Exception as error:  # noqa: BLE001 - one message's bug must not end the channel
            about = f"{type(error).__name__} at {place_of(error)}"
            self._announce(HearingFailed(channel=self._name, chat=item.heard.chat, error=about))
        item.taken.set()

    async def _receive(self, heard: Heard) -> None:
        heard = replace(heard, text=_without_mention(heard))
        if heard.edits or heard.deletes:
            await self._amend(heard)
        elif not (heard.text.strip() or heard.files):
            return  # someone joined, or the like
        elif not self._door.may_talk(heard):
            if heard.private or heard.addressed:
                await self._tell(heard, self._door.refusal(heard))
        elif self._is_asked(heard):
            await self._ask(heard)
        elif self._rules().overheard == "keep":
            self._overheard.keep(_place(heard), heard)

    def _is_asked(self, heard: Heard) -> bool:
        """Whether an answer is wanted."""
        rule = self._rules().groups
        return heard.private or rule == "always" or (rule == "mention" and heard.addressed)

    async def _ask(self, heard: Heard) -> None:
        self._drafts.learn(heard.chat, private=heard.private)
        is_known = self._is_known(heard)
        is_command = command(heard.text) is not None
        if is_known and is_command:  # the session remembers messages, but no commands
            self._announce(MessageRepeated(key=self._key(heard), message_id=heard.id))
            return
        if not is_known:
            is_too_much, words = self._door.excess(heard)
            if is_too_much:
                await self._tell(heard, words)
                return
        if self._door.is_forbidden(heard):
            await self._tell(heard, OPERATORS_ONLY)
        elif command(heard.text) == "pair":
            await self._pair(heard)
        else:
            await self._hand_in(await self._inbound(heard, is_command=is_command))

    async def _hand_in(self, message: Inbound) -> None:
        if self._is_deaf:
            await anyio.sleep_forever()
        question, is_owed = (message.chat, message.message_id or ""), False
        is_asked = command(message.text) is None and not (message.edits or message.deletes)
        if is_asked:
            self._waits(*question)
        with suppress(BusFull):  # then the chat was told
            is_owed = await self._bus.hand_in(message)
        if is_asked and not is_owed:
            self._drop(*question)

    async def _inbound(self, heard: Heard, *, is_command: bool) -> Inbound:
        rules = self._rules()
        return Inbound(
            channel=self._name,
            chat=_place(heard),
            text=heard.text if is_command else self._told(heard),
            sender=_name(heard),
            message_id=heard.id,
            attachments=tuple([await self._files.attachment(file) for file in heard.files]),
            reply_to=heard.reply_to,
            group=not heard.private,
            key=self._key(heard),
            agent=self._agent,
            burst_seconds=max(rules.burst_seconds, heard.burst_seconds),
            steers=rules.steers,
            time=heard.time,
        )

    def _told(self, heard: Heard) -> str:
        """The text with what the model needs to understand it."""
        before = self._overheard.take(_place(heard))
        parts = (
            f"[said in this chat before:\n{before}\n]" if before else "",
            _quoted(heard.quote),
            heard.text,
        )
        return "\n\n".join(filter(None, parts))

    async def _amend(self, heard: Heard) -> None:
        """A message was changed or taken back."""
        place = _place(heard)
        earlier = heard.edits or heard.deletes or ""
        if self._overheard.forget(place, earlier) is not None:
            if heard.edits:
                await self._receive(replace(heard, id=earlier, edits=None))
            return
        if not self._door.may_talk(heard) or (heard.edits and self._says(heard, earlier)):
            return
        message = await self._inbound(heard, is_command=True)
        await self._hand_in(
            replace(message, edits=heard.edits, deletes=heard.deletes, burst_seconds=0)
        )
        # Last: until then pieces of the old answer may come.
        if heard.edits:
            self._drafts.begin_anew(place, earlier)
        else:
            await self._drafts.take_back(place, earlier)

    def _is_known(self, heard: Heard) -> bool:
        """Whether it was heard before; it is from now on."""
        known = (heard.chat, heard.id) in self._recent
        self._remember(heard, heard.id)
        return known

    def _says(self, heard: Heard, message: str) -> bool:
        """Whether that message says so already: platforms tell of edits that change nothing."""
        said = self._recent.get((heard.chat, message))
        self._remember(heard, message)
        return said == heard.text

    def _remember(self, heard: Heard, message: str) -> None:
        self._recent[heard.chat, message] = heard.text
        self._recent.move_to_end((heard.chat, message))
        while len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)

    async def _pair(self, heard: Heard) -> None:
        _, _, code = heard.text.partition(" ")
        person = self._door.approve(code)
        if person is None:
            await self._tell(heard, NO_SUCH_CODE)
            return
        await self._tell(heard, f"{person.name or person.id} may talk with me now.")
        await self._say(person.chat, WELCOME)

    async def _tell(self, heard: Heard, words: str | None) -> None:
        if words is not None:
            await self._say(_place(heard), words, reply_to=heard.id)

    async def _say(self, chat: str, words: str, *, reply_to: str | None = None) -> None:
        said = Outbound(channel=self._name, chat=chat, text=words, kind="notice", reply_to=reply_to)
        await self._bus.publish(said)

    def _key(self, heard: Heard) -> str:
        """The session: the thread's own, or that of its chat."""
        chat = heard.chat if self._rules().threads == "shared" else _place(heard)
        return f"{self._name}:{chat}"


def _place(heard: Heard) -> str:
    return str(Place(heard.chat, heard.thread))


def _name(heard: Heard) -> str:
    """Who said it, in one line that can't pass for another mark."""
    name = " ".join((heard.name or heard.sender).split())
    return name.replace("[", "(").replace("]", ")")[:NAME_CHARS]


def _without_mention(heard: Heard) -> str:
    if not heard.mention:
        return heard.text
    text = heard.text.replace(heard.mention, "", 1).strip()
    # The name alone is a question too.
    return text.removeprefix(":").removeprefix(",").strip() or heard.text


def _quoted(quote: str) -> str:
    quote = quote.strip()
    if len(quote) > QUOTE_CHARS:
        quote = f"{quote[:QUOTE_CHARS]}…"
    return "\n".join(f"> {line}" for line in quote.splitlines())
