"""The tools and prompts that a tool server lists, and those that the operator has accepted.

A server's descriptions are untrusted text, which is limited in size and kept in the data folder. A
new or changed tool or prompt is withheld until the operator accepts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from nanoloop.errors import DiskRefused, SettingsError
from nanoloop.files import load_file, make_folder, refusal, replace_file, waited_lock
from nanoloop.protocols import Effect
from nanoloop.tools.questions import is_plain

FILE = "tool_servers.json"
"""The file in the data folder that records the accepted tools."""
LONGEST_DESCRIPTION = 4_000
LONGEST_SCHEMA = 20_000
"""How many characters of JSON a tool's schema may have."""
LONGEST_OWN_NAME = 200
LONGEST_NAME = 64
"""The maximum length of a tool's name that model servers accept."""
MOST_ARGUMENTS = 20
LONGEST_LINE = 100
"""How many characters of a prompt's description are shown."""
_ODD = re.compile(r"[^A-Za-z0-9_-]+")
_NO_GLOB = re.compile(r"[^A-Za-z0-9_*?\[\]!-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A tool as its server describes it, within limits."""

    name: str
    """The server's own name for the tool."""
    description: str
    parameters: Mapping[str, Any]
    effect: Effect = "writes"
    idempotent: bool = False

    @property
    def digest(self) -> str:
        """A digest of what the model sees of the tool and of what decides how it is called."""
        return sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPrompt:
    """A prompt as its server describes it, within limits."""

    name: str
    """The server's own name for the prompt."""
    description: str
    arguments: Mapping[str, bool] = field(default_factory=dict)
    """Its arguments in order, with True for the required ones."""

    @property
    def digest(self) -> str:
        """A digest of what people see of the prompt."""
        return sha256(json.dumps(asdict(self)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The tools and prompts that a server offers."""

    tools: tuple[ListedTool, ...] = ()
    prompts: tuple[ListedPrompt, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Tools that can't be used, each with the reason."""
    has_resources: bool = False

    @property
    def described(self) -> Iterator[ListedTool | ListedPrompt]:
        """Everything that the server describes."""
        yield from self.tools
        yield from self.prompts


def listed_tool(
    name: str, description: str, parameters: Mapping[str, Any], *, reads: bool, idempotent: bool
) -> ListedTool:
    """Return a tool made from its server's description; raise ValueError if it can't be used."""
    if len(name) > LONGEST_OWN_NAME:
        raise ValueError(f"its name has {len(name):,} characters, more than {LONGEST_OWN_NAME}")
    if parameters.get("type") != "object":
        raise ValueError("its schema is not of type object")
    try:
        schema = json.dumps(parameters, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        raise ValueError("its schema is not readable") from None
    if len(schema) > LONGEST_SCHEMA:
        raise ValueError(f"its schema has {len(schema):,} characters, more than {LONGEST_SCHEMA:,}")
    if not all(map(is_plain, _names_in(parameters))):
        raise ValueError("its schema has a name with invisible characters")
    description = visible(description[: 4 * LONGEST_DESCRIPTION])
    if len(description) > LONGEST_DESCRIPTION:
        description = f"{description[:LONGEST_DESCRIPTION]} […]"
    return ListedTool(
        name=name,
        description=description,
        parameters={"properties": {}, **_visible_in(parameters)},
        effect="reads" if reads else "writes",
        idempotent=idempotent,
    )


def listed_prompt(name: str, description: str, arguments: Mapping[str, bool]) -> ListedPrompt:
    """Return a prompt made from its server's description; raise ValueError if it can't be used."""
    if not name or max(map(len, (name, *arguments))) > LONGEST_OWN_NAME:
        raise ValueError(f"its name, or an argument's, has more than {LONGEST_OWN_NAME} characters")
    if len(arguments) > MOST_ARGUMENTS:
        raise ValueError(f"it has {len(arguments)} arguments, more than {MOST_ARGUMENTS}")
    if not all(each.isprintable() and "=" not in each for each in arguments):
        raise ValueError("nobody can type the name of one of its arguments")
    line = " ".join(visible(description[: 10 * LONGEST_LINE]).split())
    if len(line) > LONGEST_LINE:
        line = f"{line[:LONGEST_LINE]} […]"
    return ListedPrompt(name=name, description=line, arguments=dict(arguments))


def visible(text: str) -> str:
    """Return the text without characters that are invisible or change how it is shown."""
    shown = "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)
    return shown.strip()


def _visible_in(value: Any) -> Any:
    match value:
        case str():
            return visible(value)
        case Mapping():
            return {key: _visible_in(inner) for key, inner in value.items()}
        case list():
            return [_visible_in(inner) for inner in value]
        case _:
            return value


def _names_in(value: Any) -> Iterator[str]:
    """Yield the names in a schema at any depth; it would change if they were cleaned."""
    if isinstance(value, Mapping):
        yield from value
    for inner in value.values() if isinstance(value, Mapping) else value:
        if isinstance(inner, Mapping | list):
            yield from _names_in(inner)


def prompt_command(server: str, prompt: str) -> str:
    """Return the chat command for a server's prompt, such as `tickets:review`."""
    return f"{server}:{_ODD.sub('_', prompt).strip('_') or 'prompt'}".lower()


def name_for_model(server: str, tool: str) -> str:
    """Return `server__tool` in a form that model servers accept; shorten long names distinctly."""
    name = f"{server}__{_ODD.sub('_', tool).strip('_') or 'tool'}"
    if len(name) > LONGEST_NAME:
        mark = sha256(tool.encode()).hexdigest()[:6]
        name = f"{name[: LONGEST_NAME - len(mark) - 1]}_{mark}"
    return name


def glob_for_model(server: str, glob: str) -> str:
    """Return the glob for the names that models see, given one for the server's own names."""
    return f"{server}__{_NO_GLOB.sub('_', glob)}"


class Accepted:
    """The tools that servers have offered, and the accepted ones, in a file for its owner only.

    A server's first offer is accepted, because the operator has just configured the server.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE

    def of(self, server: str) -> Listing | None:
        """Return the server's accepted tools, or None for a new server.

        Raise `SettingsError` if the file can't be read.
        """
        known = self._read().get(server)
        return None if known is None else _accepted_in(known)

    def learn(self, server: str, listing: Listing) -> Listing:
        """Record the server's offer, and return its accepted tools.

        Raise `SettingsError` if the file can't be used.
        """

        def act(known: dict[str, Any]) -> None:
            said = {
                "tools": [asdict(tool) for tool in listing.tools],
                "prompts": [asdict(prompt) for prompt in listing.prompts],
            }
            known.setdefault("accepted", said).setdefault("prompts", said["prompts"])
            known |= {"offered": said, "has_resources": listing.has_resources}

        return self._change(server, act)

    def accept(self, server: str) -> Listing:
        """Accept the server's last offer; raise `SettingsError` if that fails."""

        def act(known: dict[str, Any]) -> None:
            known["accepted"] = known.get("offered", {"tools": []})

        return self._change(server, act)

    def _change(self, server: str, act: Callable[[dict[str, Any]], None]) -> Listing:
        try:
            make_folder(self._file.parent)
            with waited_lock(self._file.with_suffix(".lock")):
                known = self._read()
                before = json.dumps(known.get(server))
                act(known.setdefault(server, {}))
                if json.dumps(known[server]) != before:
                    replace_file(self._file, json.dumps(known, indent=1).encode(), durable=True)
        except (OSError, DiskRefused) as error:
            why = refusal(error) if isinstance(error, OSError) else str(error)
            raise SettingsError(f"{self._file} can't be written: {why}") from None
        return _accepted_in(known[server])

    def _read(self) -> dict[str, Any]:
        try:
            known = json.loads(load_file(self._file))
            for each in known.values():
                _accepted_in(each)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SettingsError(f"{self._file} can't be read: {refusal(error)}") from None
        except (ValueError, TypeError, KeyError, AttributeError):
            # Not as if nothing were accepted, because a changed tool would then count as new.
            raise SettingsError(
                f"{self._file} is damaged: look at what each server offers with `nanoloop tools`, "
                "then remove the file"
            ) from None
        found: dict[str, Any] = known
        return found


def _accepted_in(known: Mapping[str, Any]) -> Listing:
    accepted = known["accepted"]
    return Listing(
        tools=tuple(ListedTool(**tool) for tool in accepted["tools"]),
        prompts=tuple(ListedPrompt(**prompt) for prompt in accepted.get("prompts", ())),
        has_resources=bool(known.get("has_resources")),
    )
