"""Names for messages, so that a message sent twice under one name is processed once."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import TYPE_CHECKING
from uuid import uuid4

from starlette.requests import Request

from nanoloop.bounded import BoundedDict
from nanoloop.channels.web.access import Caller, Refusal, number_in
from nanoloop.protocols import Store
from nanoloop.session.entry import MESSAGE, THINKING, Entry
from nanoloop.session.queue import is_asked, message_id_of
from nanoloop.session.session import Session

if TYPE_CHECKING:
    from nanoloop.channels.web.openai.answer import SharedAnswer

KEY = "Idempotency-Key"
KEY_CHARS = 255
RETRIES = "X-Stainless-Retry-Count"
"""The header in which OpenAI's SDK says how often it has sent this request before."""
NAMES_SECONDS = 600
"""How long an answer stays available under its name; the SDK retries within this time."""
NAMES_OF_ONE = 1000
"""How many names are remembered per caller; a message itself keeps its id for longer."""
GRACE_SECONDS = 10
"""How long an answer continues after its client disconnects, so that the client can return."""
OTHER_BODY = f"this {KEY} belongs to another message: use a different one for each message"


@dataclass(slots=True, kw_only=True)
class MessageName:
    """The name of a message, with the answer if there is one."""

    message_id: str
    """The message's id; a session takes each id only once."""
    begins: str = ""
    """The prefix for ids from this caller and body, or an empty string without a name."""
    is_key: bool = False
    """Whether the client chose the name, and so can return for the answer at any time."""
    is_again: bool = False
    """Whether the client has sent the message before, perhaps under another id."""
    since: float = 0
    answer: SharedAnswer | None = None

    @property
    def grace_seconds(self) -> float | None:
        """How long the answer continues without a client; None means until it is complete."""
        if self.is_key:
            return None
        return GRACE_SECONDS if self.begins else 0

    @property
    def lasting(self) -> SharedAnswer | None:
        """The answer, if a repeated request should get the same answer; otherwise None."""
        return self.answer if self.answer is not None and self.answer.is_lasting else None

    @property
    def is_good(self) -> bool:
        """False if the message was deleted or refused, so that it needs a new id."""
        return self.answer is None or self.answer.is_lasting

    @property
    def is_refused(self) -> bool:
        """Whether the message was refused and so not stored."""
        return not self.is_good and self.answer is not None and not self.answer.is_given_up

    def settle(self, session: Session) -> None:
        """Use the id that the session already has for this message, if it was sent before."""
        if self.is_again:
            self.message_id = _newest_like(self.begins, session) or self.message_id


def _newest_like(begins: str, session: Session) -> str | None:
    since = datetime.now(timezone.utc) - timedelta(seconds=NAMES_SECONDS)
    said = [entry for entry in (*session.window, *session.waiting) if entry.timestamp >= since]
    names = [message_id_of(entry) or "" for entry in said]
    return next((name for name in reversed(names) if name.startswith(begins)), None)


class MessageNames:
    """The names that each caller has given, limited in number and age."""

    def __init__(
        self, secret: Callable[[], bytes], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the object; `secret` is the key for the digests of bodies in stored ids."""
        self._secret = cache(secret)
        self._clock = clock
        self._of: dict[str, BoundedDict[str, MessageName]] = {}

    def of(self, request: Request, caller: Caller, body: str) -> MessageName:
        """Return this request's name.

        Raise `Refusal` if the name was already used with a different body. A request without a name
        gets a unique one.
        """
        key = request.headers.get(KEY, "").strip()
        if len(key) > KEY_CHARS:
            raise Refusal(422, f"{KEY} is too long: at most {KEY_CHARS} characters are allowed")
        if not key and RETRIES not in request.headers:
            return MessageName(message_id=uuid4().hex)
        said = f"{caller.name}\n{body}".encode("utf-8", "surrogatepass")
        begins = hmac.new(self._secret(), said, hashlib.sha256).hexdigest()[:32]
        names = self._names_of(caller)
        if key:
            named = names.get(f"key {key}")
            if named is not None and named.begins != begins:
                raise Refusal(422, OTHER_BODY)
            return named or self._keep(names, f"key {key}", _keyed(caller, key, begins))
        return self._of_body(names, begins, is_again=bool(number_in(request.headers[RETRIES])))

    def _of_body(
        self, names: BoundedDict[str, MessageName], begins: str, *, is_again: bool
    ) -> MessageName:
        known = names.get(f"body {begins}") if is_again else None
        if known is not None and known.is_good:
            return known
        # A refused message was never stored; a stopped one, or one from before a restart, may be.
        may_be_there = is_again and (known is None or not known.is_refused)
        return self._keep(names, f"body {begins}", _unkeyed(begins, is_again=may_be_there))

    def _names_of(self, caller: Caller) -> BoundedDict[str, MessageName]:
        """Return the caller's names after dropping those that are too old."""
        names = self._of.setdefault(caller.name, BoundedDict(NAMES_OF_ONE))
        since = self._clock() - NAMES_SECONDS
        while names and (oldest := next(iter(names))) and names[oldest].since < since:
            del names[oldest]
        return names

    def _keep(
        self, names: BoundedDict[str, MessageName], name: str, named: MessageName
    ) -> MessageName:
        named.since = self._clock()
        names[name] = named
        return named


def _keyed(caller: Caller, key: str, begins: str) -> MessageName:
    """Return a name whose id is derived from the key, so that it survives a restart."""
    return MessageName(message_id=_digest(caller.name, key)[:40], begins=begins, is_key=True)


def _unkeyed(begins: str, *, is_again: bool) -> MessageName:
    """Return a name with a new id each time, as the same text may be sent twice on purpose."""
    name = f"{begins}-{uuid4().hex[:8]}"
    return MessageName(message_id=name, begins=begins, is_again=is_again)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()


ENTRIES_READ = 100
"""How many entries are read at a time."""
LOOKED_THROUGH = 2000
"""How many entries are searched for a message; a retry is never older than that."""


async def exchange_of(store: Store, session: Session, message_id: str) -> Sequence[Entry]:
    """Return a message and all later entries; empty if the message is not among the newest."""
    later: list[Entry] = []
    upto = session.last_seq
    while upto > 0 and len(later) < LOOKED_THROUGH:
        after = max(0, upto - ENTRIES_READ)
        later[:0] = await store.entries(session.id, after=after, upto=upto)
        said = next((i for i, e in enumerate(later) if message_id_of(e) == message_id), None)
        if said is not None:
            return later[said:]
        upto = after
    return ()


def answer_in(said: Sequence[Entry]) -> Entry | None:
    """Return the answer to the first of these entries, or None if it is missing or was stopped."""
    newest: Entry | None = None
    for entry in said[1:]:
        if is_asked(entry):
            if newest is not None:
                break
        elif entry.type != THINKING and entry.role != "user":
            newest = entry
    is_answer = newest is not None and newest.type == MESSAGE and not newest.metadata.get("stopped")
    return newest if is_answer else None
