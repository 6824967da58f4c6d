"""`nanoloop pair`: lists people who want to talk to the bot, and grants or revokes access.

It also lists and ends logins to the web page.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from datetime import datetime, timezone

from nanoloop.channels.kit.access import Pairing, Person
from nanoloop.channels.logins import Logins
from nanoloop.channels.screen import printable
from nanoloop.cli import Exit, add_actions
from nanoloop.cli.output import say, say_json
from nanoloop.cli.transcript import opened
from nanoloop.session.entry import rfc3339
from nanoloop.sessions import Sessions
from nanoloop.settings import Settings

_HOW = """
Anyone who writes to the bot in a private chat and is not on an allow-list is given a code, which is
valid for an hour. Approving the code gives them access. The daemon does not have to be running."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop pair`."""
    parser.description = f"{parser.description}\n{_HOW}"
    action = add_actions(parser)
    listed = action("list", "list who has access and who is waiting for it", show)
    listed.add_argument("--json", action="store_true", help="print JSON, for scripts")
    approved = action("approve", "give access to the person who was given this code", approve)
    approved.add_argument("code", metavar="CODE", help="the code that the bot gave them")
    revoked = action("revoke", "revoke someone's access", revoke)
    revoked.add_argument("channel", metavar="CHANNEL", help="the platform, such as telegram")
    revoked.add_argument(
        "person", metavar="ID", help="the person's id there, as shown by `pair list`"
    )
    logins = action("logins", "list the open logins to the web page", show_logins)
    logins.add_argument("--json", action="store_true", help="print JSON, for scripts")
    out = action("logout", "end a login to the web page, or all logins", log_out)
    out.add_argument(
        "login", metavar="ID", help="the login's id, as shown by `pair logins`, or `all`"
    )


def show(args: Namespace, settings: Settings) -> int:
    """List everyone who has access or is waiting for it."""
    with closing(Pairing(settings.data)) as pairing:
        people, waiting = pairing.people(), pairing.waiting()
    if args.json:
        people_of = {"people": [*map(asdict, people)], "waiting": [*map(asdict, waiting)]}
        say_json(people_of, indent=None)
    else:
        lines = [*_lines(people, "access since"), *_lines(waiting, "asked at")]
        say("\n".join(lines) or "nobody has access by code, and nobody is waiting")
    return Exit.DONE


def approve(args: Namespace, settings: Settings) -> int:
    """Give someone access."""
    with closing(Pairing(settings.data)) as pairing:
        person = pairing.approve(args.code)
    if person is None:
        say("nanoloop: that code is unknown or has expired: codes are valid for an hour", err=True)
        return Exit.NOT_FOUND
    say(printable(f"{person.name or person.id} now has access on {person.channel}"))
    return Exit.DONE


def revoke(args: Namespace, settings: Settings) -> int:
    """Revoke someone's access."""
    with closing(Pairing(settings.data)) as pairing:
        had_access = pairing.revoke(args.channel, args.person)
    if not had_access:
        say("nanoloop: nobody with that id has access: see `nanoloop pair list`", err=True)
        return Exit.NOT_FOUND
    say(
        printable(
            f"{args.person} no longer has access on {args.channel}, unless an allow-list names them"
        )
    )
    return Exit.DONE


async def show_logins(args: Namespace, settings: Settings) -> int:
    """List the open logins to the page."""
    async with opened(settings) as store:
        logins = await Logins(Sessions(store)).open()
    rows = [
        {"id": each.id, "token": each.name, "since": _time(each.since), "until": _time(each.until)}
        for each in logins
    ]
    if args.json:
        say_json(rows, indent=None)
    else:
        lines = [
            f"{r['id']}  {r['token']}  logged in since {r['since']} until {r['until']}"
            for r in rows
        ]
        say("\n".join(lines) or "nobody is logged in to the page")
    return Exit.DONE


async def log_out(args: Namespace, settings: Settings) -> int:
    """End one login to the page, or all of them."""
    async with opened(settings, read_only=False) as store:
        logins = Logins(Sessions(store))
        known = [each.id for each in await logins.open()]
        ended = known if args.login == "all" else [each for each in known if each == args.login]
        for each in ended:
            await logins.revoke(each)
    if not ended and args.login != "all":
        say("nanoloop: no login has that id: see `nanoloop pair logins`", err=True)
        return Exit.NOT_FOUND
    say(f"ended {len(ended)} logins to the page")
    return Exit.DONE


def _lines(people: Iterable[Person], since: str) -> Iterable[str]:
    for person in people:
        moment = _time(person.time)
        yield printable(f"{person.channel}  {person.id}  {person.name}  {since} {moment}")


def _time(seconds: float) -> str:
    return rfc3339(datetime.fromtimestamp(seconds, timezone.utc))
