"""Convert incoming messages to log entries, with the typed text and the speakers."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from nanoloop.addresses import check_address
from nanoloop.errors import AddressRefused
from nanoloop.messages import Attachment, Inbound, Speaker
from nanoloop.session.entry import Entry, utc_now
from nanoloop.session.queue import (
    AGAIN,
    AMENDMENT,
    AMENDS,
    BURST,
    COMMAND,
    LAG,
    NOT_BEFORE,
    STEERS,
    is_command_text,
)
from nanoloop.session.speech import (
    FILES,
    GROUP,
    SPEECH,
    file_mark,
    quotes_of,
    speaker_of,
    stored_quote,
    stored_speaker,
)

_SEEN = ("data:", "attachment:")
"""The beginnings of images that are sent as data, not fetched: data URLs and our attachments."""
_KEPT = ("channel", "chat", "sender", "message_id", "reply_to", "account", "language")
LATE_SECONDS = 5
"""How much later than it was written a message may arrive without that being recorded."""
RANK = "rank"
"""The metadata key for the rank of a command's sender, if it is not an ordinary user."""
_TAKEN_BACK = "[took back an earlier message]"


def entry_of(message: Inbound) -> Entry:
    """Return a message's log entry or, for an edit or deletion, a note for the model."""
    return amendment(message) if amended_by(message) else user_entry(message)


def user_entry(message: Inbound) -> Entry:
    """Return the user's turn, with its origin and speakers stored beside the text."""
    metadata: dict[str, Any] = {name: getattr(message, name) for name in _KEPT}
    metadata = {name: value for name, value in metadata.items() if value} | _speech(message)
    if message.account == message.session_key:  # the default when no account was given
        metadata.pop("account", None)
    if message.attachments:
        metadata[FILES] = [_known(attachment) for attachment in message.attachments]
    if message.group:
        metadata[GROUP] = True
    if message.origin != "user":
        metadata["origin"] = message.origin
    if is_command(message):
        metadata["origin"] = COMMAND
        if message.rank != "user":
            metadata[RANK] = message.rank
        if message.agent:  # /new keeps this agent
            metadata["agent"] = message.agent
        if message.agents is not None:
            metadata["agents"] = [*message.agents]
    metadata |= _when_heard(message)
    return Entry.message("user", _content(message), metadata=metadata)


def _speech(message: Inbound, **more: str) -> dict[str, Any]:
    """Return the message's speakers and quotes, or {} for a plain message from an unnamed user."""
    by = message.speaker or (Speaker(name=message.sender) if message.sender else None)
    speech: dict[str, Any] = dict(more)
    if by is not None:
        speech["by"] = stored_speaker(by, platform=message.channel)
    if message.quotes:
        speech["quotes"] = [stored_quote(one, platform=message.channel) for one in message.quotes]
    return {SPEECH: speech} if speech or message.attachments else {}


def _when_heard(message: Inbound) -> dict[str, Any]:
    """Return the rules for when and how the message is answered, such as its delay."""
    told: dict[str, Any] = {AGAIN: ""} if message.again else {}
    if message.steers:
        told[STEERS] = True
    if message.burst_seconds:
        told[BURST] = message.burst_seconds
    if (lag := (utc_now() - message.time).total_seconds()) > LATE_SECONDS:
        told[LAG] = lag
    if message.not_before:
        told[NOT_BEFORE] = message.not_before.timestamp()
    return told


def is_command(message: Inbound) -> bool:
    """Return True for a command for the loop, except a message that was edited into one.

    A report from a job is never a command.
    """
    is_no_command = message.again or amended_by(message) or message.origin != "user"
    return is_command_text(message.text) and not is_no_command


def amended_by(message: Inbound) -> str | None:
    """Return the id of the message that this message edits or deletes, or None."""
    return message.edits or message.deletes


def amendment(message: Inbound) -> Entry:
    """Return the entry that tells the model about a change to a message already answered."""
    change, text = ("edit", message.text) if message.edits else ("retraction", _TAKEN_BACK)
    metadata: dict[str, Any] = {"channel": message.channel, "chat": message.chat}
    metadata |= {"origin": AMENDMENT, AMENDS: amended_by(message) or ""}
    metadata |= _speech(message, change=change)
    if message.group:
        metadata[GROUP] = True
    return Entry.message("user", text, metadata=metadata)


def inbound_of(entry: Entry, *, key: str | None = None) -> Inbound:
    """Restore a message from its entry, with everything that answering it needs."""
    kept = {name: entry.metadata.get(name) for name in _KEPT}
    return Inbound(
        channel=kept["channel"] or "",
        chat=kept["chat"] or "",
        text=entry.content.get("text", ""),
        sender=kept["sender"] or "",
        speaker=speaker_of(entry),
        quotes=tuple(quotes_of(entry)),
        group=bool(entry.metadata.get(GROUP)),
        message_id=kept["message_id"],
        reply_to=kept["reply_to"],
        account=kept["account"] or "",
        language=kept["language"],
        burst_seconds=float(entry.metadata.get(BURST) or 0),
        rank=entry.metadata.get(RANK, "user"),
        time=_written_at(entry),
        key=key,
        agent=entry.metadata.get("agent"),
        agents=tuple(entry.metadata["agents"]) if "agents" in entry.metadata else None,
    )


def _written_at(entry: Entry) -> datetime:
    lag = entry.metadata.get(LAG)
    return entry.timestamp - timedelta(seconds=lag) if isinstance(lag, float) else entry.timestamp


def _content(message: Inbound) -> Any:
    if not message.attachments:
        return message.text
    parts = [_part(attachment) for attachment in message.attachments]
    return [{"type": "text", "text": message.text}, *parts] if message.text else parts


def _known(attachment: Attachment) -> dict[str, Any]:
    facts = asdict(attachment)
    # The text is stored only once, as part of the message.
    return {name: value for name, value in facts.items() if value is not None and name != "text"}


def _part(attachment: Attachment) -> dict[str, Any]:
    if attachment.kind == "image" and _is_seen(attachment.ref):
        return {"type": "image_url", "image_url": {"url": attachment.ref}}
    named = file_mark(_known(attachment))
    return {"type": "text", "text": "\n".join(filter(None, (named, attachment.text)))}


def _is_seen(ref: str) -> bool:
    """Return True if the model's server may fetch the image; private addresses are refused."""
    if ref.startswith(_SEEN):
        return True
    try:
        check_address(ref)
    except AddressRefused:
        return False
    return True
