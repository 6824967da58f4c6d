"""The command line: finds the command, runs it, and reports errors in one sentence.

Each command but `version` is a module in this package, imported when it is used. Its
`add_arguments(parser)` declares the arguments and its `run(args) -> int` runs the command. A
command with actions (`add_actions`) has a function for each action instead of `run`, or beside it
if an action is optional.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import stat
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from importlib import import_module
from traceback import format_exception
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from nanoloop import __version__
from nanoloop.channels.screen import printable
from nanoloop.cli.output import adapt, ask, failure, say
from nanoloop.errors import (
    DISTRIBUTION,
    InvalidSessionId,
    NanoloopError,
    NoSuchModel,
    NothingToServe,
    SessionNotFound,
    SettingsError,
    StoreLocked,
    place_of,
)
from nanoloop.words import did_you_mean

if TYPE_CHECKING:
    from nanoloop.settings import Settings
    from nanoloop.settings.trust import LeftOut


class Exit(IntEnum):
    """The exit codes of all commands."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_CONFIGURED = 3
    NOT_FOUND = 4
    IN_USE = 5
    INTERRUPTED = 130


class CommandHelp(NamedTuple):
    """The help text of a command, available without importing its module."""

    promise: str
    examples: tuple[str, ...]
    flags: tuple[str, ...] = ("--config", "--data")
    """The options from `FLAGS` that the command accepts."""


FLAGS = {
    "--config": ("FILE", "the settings file to read"),
    "--data": ("DIR", "the folder for all stored data"),
    "--model": ("NAME", "the model to use"),
    "--log-level": ("LEVEL", "the lowest level to log: debug, info, warning or error"),
}
"""Options shared by several commands, each with its value and meaning."""


VERSION = "version"
COMMANDS = {
    "setup": CommandHelp(
        "choose the model, connect a bot, and run it as a service",
        (
            "nanoloop setup",
            "nanoloop setup --model ollama:qwen3:4b",
            "nanoloop setup --model groq:llama-3.3-70b-versatile --api-key - < key.txt",
            "nanoloop setup --telegram-token 12345678:AbC-dEf --service",
        ),
        flags=("--config", "--data", "--model"),
    ),
    "chat": CommandHelp(
        "talk with the model in the terminal",
        (
            "nanoloop chat",
            "nanoloop chat --local",
            "nanoloop chat --session work",
            'nanoloop chat -m "What is the time?"',
            "cat questions.txt | nanoloop chat --session quiz --json",
        ),
        flags=tuple(FLAGS),
    ),
    "run": CommandHelp(
        "run the daemon, which answers on all channels until it is stopped",
        ("nanoloop run", "nanoloop run --config bot.toml --data /var/lib/bot"),
        flags=tuple(FLAGS),
    ),
    "serve": CommandHelp(
        "serve the web page and the API",
        ("nanoloop serve", "nanoloop serve --port 9000", "nanoloop serve --host 0.0.0.0"),
        flags=tuple(FLAGS),
    ),
    "status": CommandHelp(
        "show whether the daemon is running, the state of its channels, and the latest failures",
        ("nanoloop status", "nanoloop status --json"),
    ),
    "doctor": CommandHelp(
        "find out what prevents `nanoloop run` from working, and suggest the next step",
        (
            "nanoloop doctor",
            "nanoloop doctor --json",
            "nanoloop doctor --config bot.toml && nanoloop run --config bot.toml",
        ),
        flags=("--config", "--data", "--model"),
    ),
    "connect": CommandHelp(
        "connect a bot account on a chat platform, and save it in the settings",
        (
            "nanoloop connect telegram",
            "nanoloop connect telegram --token 12345678:AbC-dEf --operator 12345678",
            "nanoloop connect matrix --register --operator @ann:example.org",
        ),
    ),
    "service": CommandHelp(
        "run the daemon as a service that starts at each login",
        (
            "nanoloop service install",
            "nanoloop service status",
            "nanoloop service logs --follow",
            "nanoloop service restart",
            "nanoloop service uninstall",
        ),
    ),
    "pair": CommandHelp(
        "give people access to the bot with a code, or revoke their access",
        (
            "nanoloop pair list",
            "nanoloop pair approve 7KM2PQRS",
            "nanoloop pair revoke telegram 12345678",
            "nanoloop pair logins",
            "nanoloop pair logout 0c6fb1a29d17",
        ),
    ),
    "sessions": CommandHelp(
        "find, show, export, import, fork or prune stored conversations",
        (
            "nanoloop sessions list --search tea --older-than 30d",
            "nanoloop sessions show work",
            "nanoloop sessions export work --format json > work.json",
            "nanoloop sessions import work.json --as again",
            "nanoloop sessions fork work --from 12 --as other",
            "nanoloop sessions forget work 12-15",
            "nanoloop sessions prune --older-than 90d --dry-run",
        ),
    ),
    "store": CommandHelp(
        "copy all sessions to another store, check them, or upgrade a database",
        (
            "nanoloop store copy jsonl: sqlite:",
            "nanoloop store copy sqlite: postgresql://bot@db.example/bot",
            "nanoloop store check",
            "nanoloop store migrate postgresql://bot@db.example/bot",
        ),
    ),
    "memory": CommandHelp(
        "show a conversation's memory, correct its summary, or list pending summaries",
        (
            "nanoloop memory show work",
            "nanoloop memory edit work",
            'nanoloop memory edit work --text "We plan a trip to Rome."',
            "nanoloop memory status",
        ),
    ),
    "model": CommandHelp(
        "list, download or remove models for this machine",
        (
            "nanoloop model list",
            "nanoloop model get qwen2.5-coder-1.5b",
            "nanoloop model get https://host.example/big.gguf --sha256 SUM",
            "nanoloop model path smollm2-135m",
            "nanoloop model remove smollm2-135m",
        ),
        flags=("--config",),
    ),
    "demo": CommandHelp(
        "watch how a conversation is trimmed and summarised, offline",
        ("nanoloop demo",),
        flags=("--data",),
    ),
    "tools": CommandHelp(
        "list the tools that each agent may call, try one, or log in to a server of tools",
        (
            "nanoloop tools",
            "nanoloop tools --json",
            'nanoloop tools call clock \'{"zone": "Europe/Berlin"}\'',
            "nanoloop tools accept files",
            "nanoloop tools login tickets",
        ),
    ),
    "approvals": CommandHelp(
        "list the tool calls that wait for approval, and approve or refuse them",
        (
            "nanoloop approvals list",
            "nanoloop approvals yes telegram:42 2",
            'nanoloop approvals no telegram:42 2 "too expensive"',
        ),
    ),
    "debug-report": CommandHelp(
        "write everything stored about a conversation to one file, without secrets",
        ("nanoloop debug-report telegram:42", "nanoloop debug-report work --output work.json"),
    ),
    "docs": CommandHelp(
        "read the documentation of this version",
        ("nanoloop docs", "nanoloop docs operations", "nanoloop docs --search webhook"),
        flags=(),
    ),
    "config": CommandHelp(
        "show each setting and where its value came from",
        (
            "nanoloop config",
            "nanoloop config --json",
            "nanoloop config --example > nanoloop.toml",
            "nanoloop config --schema > nanoloop.schema.json",
        ),
        flags=tuple(FLAGS),
    ),
    "completion": CommandHelp(
        "print a script that completes commands and options in your shell",
        (
            "nanoloop completion bash > ~/.local/share/bash-completion/completions/nanoloop",
            'nanoloop completion zsh > "${fpath[1]}/_nanoloop"',
            "nanoloop completion fish > ~/.config/fish/completions/nanoloop.fish",
        ),
        flags=(),
    ),
    VERSION: CommandHelp(
        "show the versions of nanoloop and Python",
        ("nanoloop version",),
        flags=(),
    ),
}

OTHER_NAMES = {"check": "doctor"}
"""Alternative names of commands."""

_EXITS: tuple[tuple[type[BaseException], Exit], ...] = (
    (KeyboardInterrupt, Exit.INTERRUPTED),
    (SettingsError, Exit.USAGE),
    (InvalidSessionId, Exit.USAGE),
    (SessionNotFound, Exit.NOT_FOUND),
    (NoSuchModel, Exit.NOT_FOUND),
    (NothingToServe, Exit.NOT_CONFIGURED),
    (StoreLocked, Exit.IN_USE),
    (NanoloopError, Exit.FAILED),
    (OSError, Exit.FAILED),
)
_EXPECTED = tuple(kind for kind, _ in _EXITS)
DEBUG = "--debug"
"""Accepted anywhere on the command line; shows the traceback of an error."""

_EXIT_CODES = """\
exit codes:
  0    done
  1    failed; standard error says why
  2    wrong usage or settings
  3    not configured: no model to ask, or nothing to serve
  4    not found, for example a session
  5    the data folder is in use by an earlier version
  130  interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    adapt()
    words = sys.argv[1:] if argv is None else [*argv]
    is_debugged = DEBUG in words
    if told := namesake():
        say(told, err=True)
    try:
        code = _run([word for word in words if word != DEBUG])
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else Exit.DONE
    except BaseException as error:  # noqa: BLE001 - any error that ends the command is reported
        code = _tell(error, is_debugged=is_debugged)
    if (lost := failure()) is not None:
        return _say(f"not all of the output could be written: {lost.strerror}", Exit.FAILED)
    return code


def namesake() -> str:
    """Return advice if another project's files are mixed with ours, otherwise an empty string."""
    packages = os.path.dirname(os.path.dirname(__path__[0]))  # noqa: PTH120 - pathlib is slow to load
    for name in os.listdir(packages):  # noqa: PTH208 - as above
        if name.startswith("nanoloop-") and name.endswith(".dist-info"):
            with suppress(OSError), open(f"{packages}/{name}/RECORD") as files:  # noqa: PTH123
                if any(line.startswith("nanoloop/__init__.py,") for line in files):
                    return NAMESAKE
    return ""


NAMESAKE = (
    'nanoloop: another project\'s package "nanoloop" is installed here too, and its '
    f"files are mixed with ours: `{sys.executable} -m pip uninstall nanoloop`, then install "
    f"{DISTRIBUTION} again (pip's --force-reinstall)"
)


def load_settings(args: argparse.Namespace, *, can_ask: bool = True) -> Settings:
    """Load the settings for a command; raise `SettingsError` if they are invalid.

    If a file in the current folder is not trusted, ask the user about it once if there is a
    terminal; otherwise, report which settings were left out.
    """
    from nanoloop.settings import Settings  # noqa: PLC0415 - `--help` must not load pydantic

    typed = vars(args)
    flags = {key: typed.get(key.replace(".", "_")) for key in ("data", "model", "log.level")}
    settings = Settings.load(config=typed.get("config"), flags=flags)
    left = settings.left_out
    if left is None or not can_ask or typed.get("told_of") == left.digest:
        return settings
    args.told_of = left.digest
    if not left.is_refused and _is_anyone_there() and _is_trusted(left):
        return load_settings(args)
    say(f"nanoloop: {left.sentence}", err=True)
    return settings


def _is_trusted(left: LeftOut) -> bool:
    """Ask the user whether to trust the file, and remember the answer."""
    from nanoloop.settings.trust import Trust  # noqa: PLC0415 - as above

    settings = "\n".join(f"  {line}" for line in left.lines)
    say(f"{left.path} in this folder is new, or has changed. It would set\n{settings}", err=True)
    is_trusted = is_agreed("Trust it?", nobody_there=SettingsError("not a terminal"))
    Trust(os.environ).answer(left.path, left.digest, is_trusted=is_trusted)
    return is_trusted


def _is_anyone_there() -> bool:
    """Return whether a user at a terminal can be asked; asking would stop a background process."""
    try:
        return os.isatty(0) and os.isatty(2) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # without job control, nothing runs in the background
        return True


def loop_options() -> dict[str, bool]:
    """Return the event loop options for a daemon: uvloop if it is installed."""
    from importlib.util import find_spec  # noqa: PLC0415 - only daemons need it

    return {"use_uvloop": find_spec("uvloop") is not None}


GARBAGE_THRESHOLDS = (10_000, 20, 20)
"""How many objects may be created before each generation is garbage-collected.

A turn creates hundreds of objects that live until it ends. With Python's default of 700, they would
be examined while still in use, and promoted too early.
"""


def collect_garbage_seldom() -> None:
    """Reduce garbage collection; call this once all modules are loaded.

    Otherwise, collecting the loaded modules over and over would delay every chat.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


Act = Callable[[argparse.Namespace, "Settings"], "int | Coroutine[Any, Any, int | None] | None"]
"""Runs an action; returns an exit code, or None for `Exit.DONE`."""


def add_actions(
    parser: argparse.ArgumentParser, *, is_needed: bool = True
) -> Callable[[str, str, Act], argparse.ArgumentParser]:
    """Let a command have actions; call the result with each action's name, summary and function.

    If an action is optional, the command's `run` is called when no action is given.
    """
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=is_needed, title="actions"
    )
    common = _Parser(add_help=False)
    for flag in FLAGS.keys() & parser._option_string_actions.keys():  # noqa: SLF001 - argparse has no other way
        # Accepted after the action too; if omitted there, the value from before the action is used.
        common.add_argument(flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)

    def add(name: str, promise: str, act: Act) -> argparse.ArgumentParser:
        about = f"{promise[0].upper()}{promise[1:]}. For common options see `{parser.prog} --help`."
        action = actions.add_parser(
            name, help=promise, description=about, parents=[common], allow_abbrev=False
        )
        action.set_defaults(run=partial(_run_action, act))
        return action

    return add


def _run_action(act: Act, args: argparse.Namespace) -> int:
    done = act(args, load_settings(args))
    if isinstance(done, Coroutine):
        import anyio  # noqa: PLC0415 - `--help` must not load anyio

        waiting = done
        done = anyio.run(lambda: waiting)
    return Exit.DONE if done is None else done


def is_agreed(question: str, *, nobody_there: NanoloopError) -> bool:
    """Ask for confirmation at the terminal; raises `nobody_there` if there is no terminal."""
    if not (os.isatty(0) and os.isatty(2)):
        raise nobody_there
    with suppress(EOFError):
        return ask(f"{question} [y/N] ", err=True).strip().lower() in ("y", "yes")
    return False


class _Parser(argparse.ArgumentParser):
    """Reports each error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, f"nanoloop: {message}: see `{self.prog} --help`\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        say(message, end="", err=file is sys.stderr)


def _run(argv: Sequence[str]) -> int:
    if not argv and _is_chat():
        argv = ("chat",)  # which runs the setup if necessary
    # Only the program's own options may come before the command, and they take no value.
    typed = next((word for word in argv if not word.startswith("-")), None)
    name = None if typed is None else OTHER_NAMES.get(typed, typed)
    if name is not None and name not in COMMANDS:
        advice = "put the command first" if argv[0].startswith("-") else _nearest(name)
        return _say(f"there is no command {name!r}: {advice}", Exit.USAGE)
    parser, parsers = _parsers()
    if name is not None:
        _load(name, parsers[name])
    if mistake := _mistyped(parser, argv):
        return _say(mistake, Exit.USAGE)
    args = parser.parse_args(argv)
    if args.version or name == VERSION:
        return _tell_version()
    if name is None:
        parser.print_help()
        return Exit.USAGE
    for key, value in vars(args).items():
        if isinstance(value, str) and key not in _PATHS:
            setattr(args, key, _as_text(value))
    return int(args.run(args))


def _tell_version() -> int:
    """Print the versions of nanoloop and Python on one line."""
    import platform  # noqa: PLC0415 - slow, and only wanted here

    where = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    say(f"nanoloop {__version__} ({where})")
    return Exit.DONE


_PATHS = {"config", "data", "output", "file", "source", "target", "place"}
"""Arguments that may be file names, and so need not be valid text."""


def _as_text(word: str) -> str:
    """Decode an argument as UTF-8 whatever the locale, replacing invalid bytes."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def whole_parser() -> argparse.ArgumentParser:
    """Import all commands and return the parser with their arguments."""
    parser, parsers = _parsers()
    for name in COMMANDS:
        _load(name, parsers[name])
    return parser


def actions_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parsers for a parser's commands or actions by name; empty if it has none."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            found: Mapping[str, argparse.ArgumentParser] = action.choices
            return found
    return {}


def _load(name: str, parser: argparse.ArgumentParser) -> None:
    if name == VERSION:
        return
    module = import_module(f"nanoloop.cli.{name.replace('-', '_')}")
    parser.set_defaults(run=getattr(module, "run", None))
    module.add_arguments(parser)


def _mistyped(parser: argparse.ArgumentParser, argv: Sequence[str]) -> str | None:
    """Describe the first unknown option or action and suggest the nearest; None if all exist."""
    words = iter(argv)
    for word in words:
        inner, options = actions_of(parser), parser._option_string_actions  # noqa: SLF001 - as above
        name = word.partition("=")[0]
        if word == "--":
            break
        if name in options:
            if name == word and options[name].nargs is None:
                next(words, None)  # skip its value
        elif _is_option(word) and word[:2] not in options:
            otherwise = f"`{parser.prog} --help` lists its options"
            near = did_you_mean(name, options.keys() - {"-h", "--help"}, otherwise, shown=str)
            return f"{parser.prog} has no option {name}: {near}"
        elif inner and not _is_option(word):
            if word not in inner:
                advice = did_you_mean(word, inner, f"choose from {', '.join(inner)}")
                return f"{parser.prog} has no action {word!r}: {advice}"
            parser = inner[word]
    return None


def _is_option(word: str) -> bool:
    """Return whether argparse treats a word as an option, not as a number or text with spaces."""
    return bool(re.fullmatch(r"-[^\s]*[^\s\d.][^\s]*", word)) and word != "-"


def _is_chat() -> bool:
    """Return whether input comes from a terminal or a pipe, so that plain `nanoloop` can chat."""
    try:
        return os.isatty(0) and os.isatty(1) if os.isatty(0) else stat.S_ISFIFO(os.fstat(0).st_mode)
    except OSError:  # standard input is closed
        return False


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser(
        prog="nanoloop",
        description="A chatbot that answers now and forgets nothing.",
        epilog=_examples("nanoloop", "nanoloop demo", "nanoloop chat --help")
        + f"\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.add_argument(DEBUG, action="store_true", help="show the traceback if the command fails")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    return parser, {name: _subparser(commands, name) for name in COMMANDS}


def _subparser(commands: argparse._SubParsersAction[_Parser], name: str) -> _Parser:
    promise, examples, flags = COMMANDS[name]
    parser = commands.add_parser(
        name,
        aliases=[other for other, meant in OTHER_NAMES.items() if meant == name],
        help=promise,
        description=f"{promise[0].upper()}{promise[1:]}.",
        epilog=_examples(*examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    group = parser.add_argument_group("settings that override the file and the environment")
    for flag in flags:
        metavar, about = FLAGS[flag]
        group.add_argument(flag, metavar=metavar, help=about)
    return parser


def _examples(*lines: str) -> str:
    return "\n".join(("examples:", *(f"  {line}" for line in lines)))


def _nearest(name: str) -> str:
    return did_you_mean(name, COMMANDS, "`nanoloop --help` lists them")


def _tell(error: BaseException, *, is_debugged: bool) -> int:
    """Report an error in one sentence and return its exit code."""
    if is_debugged:
        say("".join(format_exception(error)), end="", err=True)
    causes = [*_causes(error)]
    bugs = [cause for cause in causes if not isinstance(cause, _EXPECTED)]
    if bugs:
        return _say(_bug(bugs[0]), Exit.FAILED)
    code = max(exit_of(cause) for cause in causes)
    for line in dict.fromkeys(line for cause in causes for line in str(cause).splitlines()):
        _say(line, code)
    return code


def _bug(error: BaseException) -> str:
    """Describe a bug in one sentence; the same bug always gets the same incident id."""
    from hashlib import sha256  # noqa: PLC0415 - slow to import, and only needed here

    about = f"{type(error).__name__} at {place_of(error)}"
    incident = sha256(about.encode()).hexdigest()[:6]
    first = about.partition(" < ")[0]
    return (
        f"a bug ended the command (incident {incident}, {first}): run it with {DEBUG} and report it"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors inside the exception groups that task groups raise."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error


def exit_of(error: BaseException) -> Exit:
    """Return the exit code for an expected error; bugs are not in this table."""
    return next(code for kind, code in _EXITS if isinstance(error, kind))


def _say(sentence: str, code: Exit) -> Exit:
    # Control characters are replaced, because the sentence may quote a file.
    say(f"nanoloop: {printable(sentence)}", err=True)
    return code
