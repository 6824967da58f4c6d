"""The parts of README and docs that are made from the code, each by its page and its name there."""

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path

import anyio
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nanoloop import AgentLoop, ScriptedProvider, cli, plugins
from nanoloop.channels.direct import DirectChannel
from nanoloop.events import Event
from nanoloop.providers.vendors import VENDORS
from nanoloop.settings import SentenceSettings, Settings
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.keys import Unit, beside, by_name, is_named, table_of
from nanoloop.settings.secrets import shown
from nanoloop.tools import servers
from tests import demo_picture

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PLATFORMS = ("telegram", "matrix", "discord", "slack")


def table(*head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(text):
    return " ".join(str(text).split()).replace("|", "\\|")


def the_example(name):
    return f"```python\n{(ROOT / 'examples' / name).read_text().strip()}\n```"


def the_examples():
    """Each of them below what its docstring begins with."""
    pieces = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        title = ast.get_docstring(ast.parse(path.read_text())).partition("\n")[0]
        title = title.partition(":")[0].partition(".")[0].partition(",")[0]
        pieces.append(f"## {title}\n\n`examples/{path.name}`\n\n{the_example(path.name)}")
    return "\n\n".join(pieces)


def the_vendors():
    rows = []
    for word, vendor in VENDORS.items():
        key = " or ".join(f"`{name}`" for name in vendor.keys) or "none"
        known = [f"`{address}`" for address in (vendor.url, vendor.address) if address]
        rows.append((f"`{word}`", vendor.title, key, " or ".join(known) or "a file"))
    return table("word", "vendor", "key", "address", rows=rows)


# Settings


def the_platforms():
    return the_table(PlatformSettings)


def the_own(name):
    """What one platform takes beside that."""
    return the_table(plugins.load("channels", name).settings, but=PlatformSettings.model_fields)


def the_tool(name):
    """What the table of a tool that is off by default takes."""
    return the_table(plugins.load("tools", name).settings)


def the_table(model, *, but=()):
    fields = {name: field for name, field in model.model_fields.items() if name not in but}
    rows = [(f"`{name}`", default_of(field), meaning(field)) for name, field in fields.items()]
    return table("setting", "default", "", rows=rows)


def default_of(field):
    if field.is_required():
        return "needed"
    if field.default_factory is dict:
        return "none"
    if field.default_factory is not None:
        return f"`{field.examples[0]}`"
    if field.default in ((), None):
        return "none"
    return f"`{shown(field.default)}`"


def meaning(field):
    unit = next((f" ({mark.name})" for mark in field.metadata if isinstance(mark, Unit)), "")
    return f"{field.description}{unit}"


def the_settings():
    return "\n\n".join(_sections(Settings, "At the top"))


def _sections(model: type[BaseModel], title: str, above: str = "") -> Iterator[str]:
    inner = {name: table_of(field) for name, field in model.model_fields.items()}
    own = [name for name, found in inner.items() if found is None]
    yield f"## {title}"
    if above:
        yield model.__doc__.strip()
    if own:
        yield the_table(model, but=inner.keys() - {*own})
    for name, found in inner.items():
        if found is not None and found is not SentenceSettings:
            yield from _sections(found, *_named(f"{above}{name}", model.model_fields[name]))
        elif found is SentenceSettings:
            yield f"## `[{name}]`"
            yield f"{found.__doc__} [Errors](errors.md#when-something-fails-in-a-chat) lists them."
    if mark := beside(model):
        for name in mark.always:
            yield from _sections(mark.table(name), f"`[{above}{name}]`", f"{above}{name}.")
        if mark.usual is PlatformSettings:
            yield f"## `[{above}NAME]`"
            yield f"{mark.usual.__doc__} See [Chat platforms](platforms/index.md)."
        else:
            yield f"## `[{above}NAME]`"
            yield mark.usual.__doc__


def _named(key: str, field: FieldInfo) -> tuple[str, str]:
    named = f"{key}.NAME" if is_named(field) or by_name(field) else key
    return f"`[{named}]`", f"{named}."


# The command line


def the_commands_of_the_line():
    parsers = cli.actions_of(cli.whole_parser())
    return "\n\n".join("\n\n".join(_command(name, parsers[name])) for name in cli.COMMANDS)


def _command(name, parser):
    yield f"## {name}"
    yield parser.description
    yield from _options(parser)
    for action, inner in cli.actions_of(parser).items():
        yield f"### {name} {action}"
        yield inner.description.partition(" For common options")[0]
        yield from _options(inner)
    if examples := cli.COMMANDS[name].examples:
        yield "```sh\n" + "\n".join(examples) + "\n```"


def _options(parser):
    rows = []
    for action in parser._actions:
        is_told = action.help not in (None, argparse.SUPPRESS)
        if is_told and "-h" not in action.option_strings:
            rows.append((_spelled(action), action.help % {**vars(action), "prog": parser.prog}))
    if rows:
        yield table("option", "", rows=rows)


def _spelled(action):
    choices = "|".join(map(str, action.choices)) if action.choices else ""
    value = action.metavar or (f"{{{choices}}}" if choices else action.dest.upper())
    if not action.option_strings:
        return f"`{value}`"
    value = "" if action.nargs == 0 else f" [{value}]" if action.nargs == "?" else f" {value}"
    return ", ".join(f"`{name}{value}`" for name in action.option_strings)


def the_exits():
    lines = cli._EXIT_CODES.splitlines()[1:]
    return table("code", "", rows=[line.split(maxsplit=1) for line in lines])


# What is said in chats


def the_chat_commands():
    """What `/help` answers."""
    lines = anyio.run(_help).splitlines()
    return table("command", "", rows=[(f"`{n}`", text) for n, _, text in map(_halves, lines)])


def _halves(line):
    return line.partition(" - ")


async def _help():
    loop = AgentLoop(provider=ScriptedProvider())
    chat = DirectChannel(loop.bus)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        answer = await chat.ask("/help")
        loop.bus.close()
    return answer.text


def the_sentences():
    fields = SentenceSettings.model_fields
    rows = [(f"`{name}`", field.default, field.description) for name, field in fields.items()]
    return table("name", "sentence", "said if", rows=rows)


EVENTS = ("nanoloop.events", servers.__name__)


def the_events():
    """Every line that the log may have, by level."""
    kinds = {k.name(): k for k in Event.__subclasses__() if k.__module__ in EVENTS}
    parts = []
    for level in ("error", "warning", "info", "debug"):
        rows = [_event(kind) for kind in kinds.values() if kind.logged and kind.level == level]
        parts.append(f"## {level}\n\n{table('event', 'fields', '', rows=rows)}")
    return "\n\n".join(parts)


def _event(kind):
    said = kind.__doc__ or ""
    said = "" if said.startswith(f"{kind.__name__}(") else said
    return f"`{kind.name()}`", ", ".join(f"`{field.name}`" for field in fields(kind)), said


PARTS = {
    "docs/models.md": {"vendors": the_vendors},
    "docs/settings.md": {"settings": the_settings},
    "docs/cli.md": {"cli": the_commands_of_the_line},
    "docs/events.md": {"events": the_events},
    "docs/errors.md": {"exits": the_exits, "sentences": the_sentences},
    "docs/chat-commands.md": {"commands": the_chat_commands},
    "docs/examples.md": {"examples": the_examples},
    "docs/embedding.md": {"bot": partial(the_example, "bot.py")},
    "docs/tools.md": {
        "module": partial(the_example, "shop_tools.py"),
        **{name: partial(the_tool, name) for name in ("files", "shell")},
    },
    "docs/platforms/index.md": {
        "platforms": the_platforms,
        "speech": partial(the_example, "speech.py"),
    },
    **{f"docs/platforms/{name}.md": {"own": partial(the_own, name)} for name in PLATFORMS},
}
"""What makes each part of each page."""


def part(text, name, page=""):
    """What stands in the page between the marks of that name."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end of {name} -->", text, re.DOTALL)
    assert found, f"{page} has no part {name!r}"
    return found[1]


def renew():
    """Write each of them anew."""
    for page, parts in PARTS.items():
        text = (ROOT / page).read_text()
        for name, made in parts.items():
            begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
            text = text.replace(f"{begin}{part(text, name, page)}{end}", f"{begin}{made()}\n{end}")
        (ROOT / page).write_text(text)
    demo_picture.renew()
