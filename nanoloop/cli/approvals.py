"""`nanoloop approvals`: list the tool calls that wait for approval, and approve or refuse them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from typing import Any

from nanoloop.approvals import Word
from nanoloop.channels.screen import printable
from nanoloop.cli import Exit, add_actions
from nanoloop.cli.amounts import age, whole
from nanoloop.cli.output import say, say_json
from nanoloop.cli.transcript import find, opened
from nanoloop.errors import NotReadable, SessionDamaged, SessionNotFound
from nanoloop.intake import user_entry
from nanoloop.messages import Inbound
from nanoloop.protocols import Store
from nanoloop.session.approvals import Approval, call_in, waiting_in
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions
from nanoloop.settings import Settings
from nanoloop.settings.problems import seconds_in
from nanoloop.tools.approval import shown_arguments
from nanoloop.words import did_you_mean

_HOW = """
The answer is stored in the conversation. A running nanoloop carries it out within a second, and
otherwise the next start does. The chat hears the model's answer, as after /yes and /no."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop approvals`."""
    parser.description = f"{parser.description}\n{_HOW}"
    action = add_actions(parser)
    listed = action("list", "list the calls that wait for approval, with all arguments", show)
    listed.add_argument("--json", action="store_true", help="print JSON, for scripts")
    for word, promise in (("yes", "approve a call"), ("no", "refuse a call")):
        one = action(word, promise, answer)
        one.set_defaults(word=word)
        one.add_argument("name", metavar="NAME", help="the conversation, as `list` shows it")
        one.add_argument(
            "number", metavar="NUMBER", type=whole, help="the call's number, as `list` shows it"
        )
        if word == "no":
            one.add_argument("reason", metavar="REASON", nargs="?", help="what to tell the model")


async def show(args: Namespace, settings: Settings) -> None:
    """List the calls that wait, oldest first."""
    async with opened(settings) as store:
        rows = [row async for row in _rows(store, settings)]
    rows.sort(key=lambda row: str(row["asked_at"]))
    if args.json:
        say_json(rows)
    else:
        say("\n\n".join(map(_text, rows)) or "no call waits for approval")


async def _rows(store: Store, settings: Settings) -> AsyncIterator[dict[str, Any]]:
    """Yield the waiting calls; a session that was not used lately has none."""
    span = timedelta(seconds=seconds_in(settings.tools.approvals.expires))
    since = datetime.now(timezone.utc) - span
    async for info in store.list():
        if info.updated_at < since:
            continue
        try:
            session = await store.load(info.id)
        except (SessionNotFound, SessionDamaged, NotReadable):  # `store check` reports these
            continue
        for approval in waiting_in(session):
            if approval.expires_at > datetime.now(timezone.utc).timestamp():
                yield await _row(store, session, approval)


async def _row(store: Store, session: Session, approval: Approval) -> dict[str, Any]:
    entries = await store.entries(session.id, after=approval.seq - 1, upto=approval.seq)
    call = call_in(entries, approval)
    return {
        "session": session.id,
        "number": approval.number,
        "tool": approval.tool,
        "arguments": None if call is None else call.content.get("parameters"),
        "asked_at": _time(approval.asked_at),
        "expires_at": _time(approval.expires_at),
        "who": approval.who,
    }


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="seconds")


def _text(row: dict[str, Any]) -> str:
    asked = age(datetime.fromisoformat(row["asked_at"]))
    head = f"{row['session']} {row['number']}: {row['tool']}, asked {asked}"
    given = "its arguments were erased"
    if row["arguments"] is not None:
        given = shown_arguments(row["arguments"])
    return printable("\n".join((head, *(f"  {line}" for line in given.splitlines()))))


async def answer(args: Namespace, settings: Settings) -> int:
    """Store a yes or no; the process that serves the chat acts on it."""
    async with opened(settings, read_only=False) as store:
        session = await find(store, args.name)
        approval = session.approvals.numbered(args.number)
        if approval is None or approval.state != "asked":
            known = [f"{each.number}" for each in waiting_in(session)]
            waits = f"{', '.join(known)} waits" if known else "none waits there"
            advice = did_you_mean(f"{args.number}", known, waits)
            text = f"nanoloop: no call {args.number} waits in {session.id}: {advice}"
            say(printable(text), err=True)
            return Exit.NOT_FOUND
        entries = await store.entries(
            session.id, after=approval.question - 1, upto=approval.question
        )
        asked = entries[0].metadata if entries else {}
        message = _command(args.word, approval, asked, getattr(args, "reason", None))
        await Sessions(store).change(session, lambda now: now.hold(user_entry(message)))
    done = "approved" if args.word == "yes" else "refused"
    say(printable(f"{done} call {args.number} of {approval.tool} in {session.id}"))
    return Exit.DONE


def _command(word: Word, approval: Approval, asked: Any, reason: str | None) -> Inbound:
    """Return the command as if the machine's owner had sent it in the chat that was asked."""
    text = f"/{word} {approval.number} {approval.code} {reason or ''}".strip()
    channel, chat = str(asked.get("channel") or ""), str(asked.get("chat") or "")
    return Inbound(channel=channel, chat=chat, text=text, rank="owner")
