"""Skills: folders of instructions, named in the prompt and read by the model when one fits."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE
from typing import Any

from anyio.to_thread import run_sync

from nanoloop.context import as_data
from nanoloop.documents import Documents
from nanoloop.errors import FileRefused, SettingsError, ToolError
from nanoloop.files import open_beneath, refusal
from nanoloop.protocols import Effect
from nanoloop.settings import AgentSettings, Settings
from nanoloop.settings.problems import InvalidSettings, Problem
from nanoloop.settings.secrets import shown
from nanoloop.settings.sources import Origin
from nanoloop.tools.file_results import shown_path, why_refused
from nanoloop.tools.function import FunctionTool
from nanoloop.tools.functions import OTHERS_ENTER, check_ours
from nanoloop.tools.toolbox import chosen
from nanoloop.words import did_you_mean

READ_SKILL = "read_skill"
FILE = "SKILL.md"
MOST_SKILLS = 100
"""How many skills an agent may have."""
MOST_LISTED_CHARS = 30_000
"""How many characters the list of an agent's skills may take in the prompt."""
MOST_BYTES = 200_000
"""The maximum size of a `SKILL.md` file."""
MOST_FILE_BYTES = 10_000_000
"""The maximum size of any other file."""
MOST_FILES = 50
"""How many of a skill's other files are named."""
_NAME_CHARS, _DESCRIPTION_CHARS, _COMPATIBILITY_CHARS = 64, 1024, 500
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FENCE = "---"
_ROOT = 0
_HEADING = """\
## Skills

Instructions for some kinds of task. If a task fits one of them, read it with read_skill before you
begin, and the files that it names in the same way when you need them:

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A folder with instructions for one kind of task."""

    name: str
    description: str
    """What the skill is for, and when to use it."""
    folder: Path

    @property
    def line(self) -> str:
        """The line of the prompt that names the skill."""
        return f"- {self.name}: {' '.join(as_data(self.description).split())}"


class BadSkill(SettingsError):
    """A skill can't be used; the text says why, and `path` and `line` say where."""

    def __init__(self, path: Path, why: str, line: int | None = None) -> None:
        super().__init__(why)
        self.path = path
        self.line = line


def listed(skills: Sequence[Skill]) -> str:
    """Return the list of skills for the prompt; the same skills give the same text."""
    lines = sorted(skill.line for skill in skills)
    return _HEADING + "\n".join(lines) if lines else ""


# Finding


def find_skills(settings: Settings) -> Sequence[Skill]:
    """Find the skills in the configured folders; raise `InvalidSettings` with every problem."""
    found: dict[str, Skill] = {}
    problems = []
    for folder in settings.skills.folders:
        try:
            for skill in _skills_in(folder):
                if isinstance(skill, BadSkill):
                    problems.append(_at(skill.path, skill.line, str(skill)))
                elif (other := found.setdefault(skill.name, skill)).folder != skill.folder:
                    text = f"there is another skill {skill.name!r} in {other.folder}: remove one"
                    problems.append(_at(skill.folder / FILE, None, text))
        except SettingsError as why:
            key = "skills.folders"
            problems.append(_set_at(settings, key, f"{key} has {shown(folder)}, but {why}"))
    if problems:
        raise InvalidSettings(problems)
    return list(found.values())


def _at(file: Path, line: int | None, text: str) -> Problem:
    return Problem(text=text, origin=Origin(kind="file", name=str(file), line=line))


def _set_at(settings: Settings, key: str, text: str) -> Problem:
    origin = settings.origin(key)
    return Problem(text=text, origin=None if origin.kind == "default" else origin)


def skills_of(
    settings: Settings, own: AgentSettings, agent: str, skills: Sequence[Skill]
) -> Sequence[Skill]:
    """Return the skills that an agent's list chooses; without a list, all.

    Raise `InvalidSettings` if an entry matches no skill, or if there are too many.
    """
    known = {skill.name: skill for skill in skills}
    names, lost = (list(known), ()) if own.skills is None else chosen(own.skills, list(known))
    key, there = f"agents.{agent}.skills", f"the skills are {', '.join(known) or 'none'}"
    texts = [
        f"{key} has {entry!r}, but there is no such skill: "
        + did_you_mean(entry.removeprefix("!"), list(known), there)
        for entry in lost
    ]
    found = [known[name] for name in names]
    chars = len(listed(found))
    if len(found) > MOST_SKILLS or chars > MOST_LISTED_CHARS:
        texts.append(
            f"agent {agent!r} has {len(found)} skills, which take {chars:,} characters of its "
            f"prompt, and at most {MOST_SKILLS} and {MOST_LISTED_CHARS:,} are possible: choose "
            f"fewer with {key}"
        )
    if texts:
        place = key if own.skills is not None else "skills.folders"
        raise InvalidSettings([_set_at(settings, place, text) for text in texts])
    return found


def _skills_in(folder: Path) -> Iterator[Skill | BadSkill]:
    """Yield the skills in a folder by name; if the folder is a skill itself, yield only that."""
    try:
        names = sorted(each.name for each in folder.iterdir() if (each / FILE).is_file())
        if (folder / FILE).is_file():
            folder, names = folder.resolve().parent, [folder.resolve().name]
    except FileNotFoundError:
        raise SettingsError("there is no such folder: create it, or remove it here") from None
    except OSError as error:
        raise SettingsError(f"it can't be read: {refusal(error)}") from None
    for name in names:
        if not name.startswith("."):
            try:
                yield _skill(folder / name)
            except BadSkill as bad:
                yield bad


def _skill(folder: Path) -> Skill:
    path = folder / FILE
    try:
        text = _bytes(folder, FILE, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadSkill(path, "not a text file in UTF-8") from None
    except FileRefused as refused:
        raise BadSkill(path, refused.why) from None
    except OSError as error:
        raise BadSkill(path, f"can't be read: {refusal(error)}") from None
    top, lines, _ = _parted(path, text)
    _check(path, top, lines, folder.name)
    return Skill(name=top["name"], description=top["description"].strip(), folder=folder)


def _parted(path: Path, text: str) -> tuple[Mapping[str, Any], Mapping[str, int], str]:
    """Split a skill's text into its front matter, that part's lines, and the text below."""
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != _FENCE:
        raise BadSkill(path, f"it has to begin with {_FENCE}, its name and its description", 1)
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is None:
        raise BadSkill(path, f"{_FENCE} is opened but never closed", 1)
    table, places = _yaml(path, "\n".join(["", *lines[1:end]]))  # so that lines keep their numbers
    return table, places, "\n".join(lines[end + 1 :]).strip()


def _yaml(path: Path, text: str) -> tuple[Mapping[str, Any], Mapping[str, int]]:
    import yaml  # noqa: PLC0415 - only where there are skills

    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):  # a few of them can stand for gigabytes
                why = "has a YAML alias (*), which is not used here: write the value itself"
                raise BadSkill(path, why, event.start_mark.line + 1 if event.start_mark else None)
        table: Any = yaml.safe_load(text)
        root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise BadSkill(path, f"not valid YAML: {error.problem}", line) from None
    except (yaml.YAMLError, ValueError, RecursionError):  # such as a date that does not exist
        raise BadSkill(path, "not valid YAML", 1) from None
    if not isinstance(table, dict):
        raise BadSkill(path, "not a table: write lines such as `name: NAME`", 2)
    return table, {str(key.value): key.start_mark.line + 1 for key, _ in root.value}


def _check(path: Path, top: Mapping[str, Any], lines: Mapping[str, int], folder: str) -> None:
    for key, problem in _problems(top, folder):
        raise BadSkill(path, f"{key} {problem}", lines.get(key, 1))


def _problems(top: Mapping[str, Any], folder: str) -> Iterator[tuple[str, str]]:
    name = top.get("name")
    if name is None:
        yield "name", "is missing: set it to the name of the folder"
    elif not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _NAME_CHARS:
        yield "name", f"is {repr(name)[:_NAME_CHARS]}: use up to 64 of a-z, 0-9 and single -"
    elif name != folder:
        yield "name", f"is {name!r}, but the folder is {folder!r}: give both the same name"
    if not str(top.get("description") or "").strip():
        yield "description", "is missing: say what the skill is for, and when to use it"
    most = {"description": _DESCRIPTION_CHARS, "compatibility": _COMPATIBILITY_CHARS}
    for key in ("description", "license", "compatibility", "allowed-tools"):
        said = top.get(key)
        if said is not None and not isinstance(said, str):
            yield key, "is not text: put it in quotes"
        elif said is not None and len(said) > most.get(key, MOST_BYTES):
            yield key, f"has more than {most[key]:,} characters: shorten it"
    if not isinstance(top.get("metadata") or {}, dict):
        yield "metadata", "is not a table"


def _bytes(folder: Path, file: str, most: int) -> bytes:
    """Read a skill's file; raise `OSError` unless only this user or root can have written it."""
    is_open = all(S_IMODE(each.stat().st_mode) & OTHERS_ENTER for each in folder.resolve().parents)
    path, name = folder / file, f"{folder.name}/{file}"
    with os.fdopen(open_beneath(folder.parent, name), "rb") as opened:
        above = [each for each in path.parents if each.is_relative_to(folder.parent)]
        for each in above:
            check_ours(each, each.stat(), is_open=is_open, also=(_ROOT,), so=_NOT_USED)
        there = os.fstat(opened.fileno())
        check_ours(path, there, is_open=is_open, also=(_ROOT,), so=_NOT_USED)
        data = opened.read(most + 1)
    if len(data) > most:
        raise FileRefused(path, f"has more than {most:,} bytes: make it smaller")
    return data


_NOT_USED = "so it is not used"


# Reading


class SkillReader:
    """The tool with which an agent reads its skills."""

    effect: Effect = "reads"

    def __init__(self, skills: Sequence[Skill]) -> None:
        self.skills = {skill.name: skill for skill in sorted(skills, key=lambda each: each.name)}
        self._documents = Documents()
        self._read = FunctionTool(self.read, name=READ_SKILL, effect="reads")
        self.spec = self._read.spec

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Read one of a skill's files, or raise `ToolError` if it can't be read."""
        return await self._read.call(arguments)

    async def read(self, name: str, file: str = FILE) -> str:
        """Read the instructions of a skill, or another file of its folder.

        Args:
            name: the skill's name
            file: a file that the instructions name; by default, the instructions
        """
        skill = self.skills.get(name)
        if skill is None:
            there = f"the skills are {', '.join(self.skills)}"
            raise ToolError(f"there is no skill {name!r}: {did_you_mean(name, self.skills, there)}")
        file = "/".join(part for part in file.split("/") if part not in {"", "."})
        most = MOST_BYTES if file == FILE else MOST_FILE_BYTES
        try:
            data = await run_sync(_bytes, skill.folder, file, most)
        except FileNotFoundError:
            raise ToolError(f"the skill {name} has no file {file!r}: {_others(skill)}") from None
        except UnicodeEncodeError:
            raise ToolError(f"{file!r} can't be read: half of a character is in it") from None
        except OSError as error:
            why = why_refused(error) if isinstance(error, FileRefused) else refusal(error)
            raise ToolError(f"{file!r} of the skill {name} can't be read: {why}") from None
        if file == FILE:
            return await run_sync(_instructions, skill, data)
        found = await self._documents.read(data, owner="")
        if not found.text:
            raise ToolError(f"{file!r} of the skill {name} can't be read: {found.problem}")
        return "\n".join(filter(None, (found.text, found.problem)))


def _instructions(skill: Skill, data: bytes) -> str:
    try:
        _, _, text = _parted(skill.folder / FILE, data.decode("utf-8-sig", "replace"))
    except BadSkill:  # changed since then; the next reload reports it
        text = data.decode("utf-8-sig", "replace")
    return f"{text}\n\n[{_others(skill)}]"


def _others(skill: Skill) -> str:
    found = []
    for place, folders, files in os.walk(skill.folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        above = Path(place).relative_to(skill.folder)
        found += [shown_path((above / each).as_posix()) for each in sorted(files) if each != FILE]
        if len(found) > MOST_FILES:
            found[MOST_FILES:] = ["…"]
            break
    return f"its other files are {', '.join(found)}" if found else "it has no other files"
