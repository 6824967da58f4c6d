"""Who may talk: the allow-lists, those let in by a code, and how much each may say."""

from __future__ import annotations

from collections.abc import Callable

from nanoloop.channels.platform.pairing import Pairing, Person
from nanoloop.channels.platform.platform import Heard
from nanoloop.channels.platform.rate import Rate
from nanoloop.channels.platform.rules import Rules
from nanoloop.events import Announce, NobodyMayTalk, PairingApproved, PairingAsked, SenderRefused

EVERYONE = "*"
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
READ_ONLY = frozenset({"help", "history", "recall", "status", "stop"})
"""Commands that leave a group's conversation as it is; in a private chat all are one's own."""

STRANGER = "This is a private bot. Its operator can let you in: your id here is {person}."
PAIR = (
    "This is a private bot. Ask its operator to let you in with this code, within an hour:\n"
    "{code}\n(`nanoloop pair approve {code}`, or `/pair {code}` in a chat with me.)"
)
TOO_FAST = "That was too much at once, and I did not take it. Please wait a minute."
TOO_MUCH = "This chat has had all its answers for today. Please come back tomorrow."
OPERATORS_ONLY = "Only an operator of this bot may do that here."
NO_SUCH_CODE = "Nobody waits with that code, or not any more."


class Door:
    """Lets messages in, or says why not. A text that it returns is for the sender."""

    def __init__(
        self,
        channel: str,
        *,
        rules: Callable[[], Rules],
        pairing: Pairing,
        announce: Announce,
    ) -> None:
        self._channel = channel
        self._rules = rules
        self._pairing = pairing
        self._announce = announce
        self._senders = Rate(MINUTE)
        self._chats = Rate(DAY)
        self._strangers = Rate(HOUR)

    @property
    def closed(self) -> str | None:
        """What to do so that someone may talk; None where someone may."""
        rules = self._rules()
        if rules.users or rules.chats or rules.roles or rules.operators or self._has_people():
            return None
        advice = f"set users or chats in [channels.{self._channel}]"
        if rules.pairing:
            advice += ", or write to the bot and approve its code: nanoloop pair approve CODE"
        return advice

    def announce_closed(self) -> None:
        """Say at the start if nobody may talk, and what to do about it."""
        if (advice := self.closed) is not None:
            self._announce(NobodyMayTalk(channel=self._channel, advice=advice))

    def may_talk(self, heard: Heard) -> bool:
        """Whether the sender is known here."""
        rules = self._rules()
        return bool(
            {EVERYONE, heard.sender} & (rules.users | rules.operators)
            or heard.chat in rules.chats
            or rules.roles.intersection(heard.roles)
            or (rules.pairing and self._pairing.is_in(self._channel, heard.sender))
        )

    def welcomes(self, heard: Heard) -> bool:
        """Whether the sender is known here, or may ask to be."""
        return self.may_talk(heard) or (heard.private and self._rules().pairing)

    def is_operator(self, heard: Heard) -> bool:
        """Whether the sender may do everything."""
        return heard.sender in self._rules().operators

    def refusal(self, heard: Heard) -> str | None:
        """What a stranger is told; None where silence is best."""
        self._refused(heard, "not allowed")
        if not heard.private:
            return None
        if self._rules().pairing:
            return self._code(heard)
        told = self._strangers.is_to_be_told(heard.sender)
        return STRANGER.format(person=heard.sender) if told else None

    def excess(self, heard: Heard) -> tuple[bool, str | None]:
        """Whether it is too much, counted with this message, and what to say then."""
        rules = self._rules()
        place = f"{heard.chat} {heard.sender}"
        if not self._senders.allows(heard.sender, rules.per_minute):
            self._refused(heard, "too fast")
            return True, TOO_FAST if self._senders.is_to_be_told(place) else None
        if not self._chats.allows(heard.chat, rules.per_day):
            self._refused(heard, "too much for a day")
            return True, TOO_MUCH if self._chats.is_to_be_told(heard.chat) else None
        return False, None

    def is_forbidden(self, heard: Heard) -> bool:
        """Whether it is a command that only an operator may use here."""
        name = command(heard.text)
        if name is None or self.is_operator(heard):
            return False
        return name == "pair" or not (heard.private or name in READ_ONLY)

    def approve(self, code: str) -> Person | None:
        """Let the person in who has this code here."""
        person = self._pairing.approve(code, channel=self._channel)
        if person is not None:
            self._announce(PairingApproved(channel=self._channel, sender=person.id))
        return person

    def _code(self, heard: Heard) -> str | None:
        person = Person(
            channel=self._channel, id=heard.sender, name=heard.name, chat=heard.chat, time=0
        )
        code = self._pairing.code_for(person)
        if code is None:
            return None
        self._announce(PairingAsked(channel=self._channel, sender=heard.sender))
        return PAIR.format(code=code)

    def _refused(self, heard: Heard, reason: str) -> None:
        self._announce(
            SenderRefused(
                channel=self._channel, chat=heard.chat, sender=heard.sender, reason=reason
            )
        )

    def _has_people(self) -> bool:
        return any(person.channel == self._channel for person in self._pairing.people())


def command(text: str) -> str | None:
    """The name of the command that a text is; None where it is none."""
    if not text.startswith("/") or text.startswith("//"):
        return None
    words = text[1:].split(maxsplit=1)
    return words[0].partition("@")[0].lower() if words else None
