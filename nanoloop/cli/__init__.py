"""The command line: finds the command, runs it, and reports errors in one sentence.

A command is a module here, loaded when called: its `add_arguments(parser)` declares what it takes
and its `run(args) -> int` runs it, unless it has actions (`add_actions`), each with its function.
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
    """The meaning of exit codes."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_CONFIGURED = 3
    NOT_FOUND = 4
    IN_USE = 5
    INTERRUPTED = 130


class CommandHelp(NamedTuple):
    """What `--help` says about a command without loading it."""

    promise: str
    examples: tuple[str, ...]
    flags: tuple[str, ...] = ("--config", "--data")
    """The flags of `FLAGS` that it takes."""


FLAGS = {
    "--config": ("FILE", "the settings file to read"),
    "--data": ("DIR", "the folder for all stored data"),
    "--model": ("NAME", "the model to use"),
    "--log-level": ("LEVEL", "the lowest level to log: debug, info, warning or error"),
}
"""Flags that several commands take, each with its value and meaning."""


COMMANDS = {
    "setup": CommandHelp(
        "choose the model, connect a bot, run it as a service",
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
        "show what a conversation's memory holds, correct its summary, or list pending summaries",
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
        "watch a conversation being trimmed and summarised, offline",
        ("nanoloop demo",),
        flags=("--data",),
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
    "version": CommandHelp(
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
"""Allowed anywhere on the command line; adds the traceback to an error."""

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
    """Run one command; returns its exit code."""
    adapt()
    words = sys.argv[1:] if argv is None else [*argv]
    is_debugged = DEBUG in words
    if told := namesake():
        say(told, err=True)
    try:
        code = _run([word for word in words if word != DEBUG])
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else Exit.DONE
    except BaseException as error:  # noqa: BLE001 - whatever ended the command is told
        code = _tell(error, is_debugged=is_debugged)
    if (lost := failure()) is not None:
        return _say(f"not all of the output could be written: {lost.strerror}", Exit.FAILED)
    return code


def namesake() -> str:
    """What to do if another project's files are mixed with ours; "" if they are not."""
    packages = os.path.dirname(os.path.dirname(__path__[0]))  # noqa: PTH120 - pathlib is slow to load
    for name in os.listdir(packages):  # noqa: PTH208 - as above
        if name.startswith("nanoloop-") and name.endswith(".dist-info"):
            with suppress(OSError), open(f"{packages}/{name}/RECORD") as files:  # noqa: PTH123
                if any(line.startswith("nanoloop/__init__.py,") for line in files):
                    return NAMESAKE
    return ""


NAMESAKE = (
    'nanoloop: the package "nanoloop" of another project is installed here too, and its '
    f"files are mixed with ours: `{sys.executable} -m pip uninstall nanoloop`, then install "
    f"{DISTRIBUTION} again (pip's --force-reinstall)"
)


def load_settings(args: argparse.Namespace, *, can_ask: bool = True) -> Settings:
    """The settings for a command; raises `SettingsError`.

    If a file in the current folder is not trusted, its user is asked once, at a terminal; or told
    what was left out.
    """
    from nanoloop.settings import Settings  # noqa: PLC0415 - `--help` does without pydantic

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
    """Whether the person at the terminal trusts the file; the answer is remembered."""
    from nanoloop.settings.trust import Trust  # noqa: PLC0415 - as above

    settings = "\n".join(f"  {line}" for line in left.lines)
    say(f"{left.path} in this folder is new, or has changed. It would set\n{settings}", err=True)
    is_trusted = is_agreed("Trust it?", nobody_there=SettingsError("not a terminal"))
    Trust(os.environ).answer(left.path, left.digest, is_trusted=is_trusted)
    return is_trusted


def _is_anyone_there() -> bool:
    """Whether somebody at a terminal can be asked; a background process would be stopped."""
    try:
        return os.isatty(0) and os.isatty(2) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # no terminal that controls jobs: nothing is in its background
        return True


def loop_options() -> dict[str, bool]:
    """The event loop of a daemon: the faster one if it is installed."""
    from importlib.util import find_spec  # noqa: PLC0415 - only daemons need it

    return {"use_uvloop": find_spec("uvloop") is not None}


GARBAGE_THRESHOLDS = (10_000, 20, 20)
"""Objects created between garbage collections of each generation.

A turn makes hundreds that live until its end: with Python's default of 700 they are examined while
they are in use, and promoted too early.
"""


def collect_garbage_seldom() -> None:
    """Call this once everything is loaded: collecting that regularly would delay every chat."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


Act = Callable[[argparse.Namespace, "Settings"], "int | Coroutine[Any, Any, int | None] | None"]
"""What an action does; it returns an exit code, or nothing for `Exit.DONE`."""


def add_actions(
    parser: argparse.ArgumentParser,
) -> Callable[[str, str, Act], argparse.ArgumentParser]:
    """Give a command actions; call the result with each one's name, summary and function."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    common = _Parser(add_help=False)
    for flag in FLAGS.keys() & parser._option_string_actions.keys():  # noqa: SLF001 - argparse has no other way
        # Taken here too, so that they may stand last; left out, those before the action count.
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
        import anyio  # noqa: PLC0415 - `--help` does without it

        waiting = done
        done = anyio.run(lambda: waiting)
    return Exit.DONE if done is None else done


def is_agreed(question: str, *, nobody_there: NanoloopError) -> bool:
    """Whether the person at the terminal agrees; raises `nobody_there` if there is no terminal."""
    if not (os.isatty(0) and os.isatty(2)):
        raise nobody_there
    with suppress(EOFError):
        return ask(f"{question} [y/N] ", err=True).strip().lower() in ("y", "yes")
    return False


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, f"nanoloop: {message}: see `{self.prog} --help`\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        say(message, end="", err=file is sys.stderr)


def _run(argv: Sequence[str]) -> int:
    if not argv and _is_chat():
        argv = ("chat",)  # which sets up first what it lacks
    # Only the program's own flags may stand before the command, and they take no value.
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
    if args.version:
        return int(import_module("nanoloop.cli.version").run(args))
    if name is None:
        parser.print_help()
        return Exit.USAGE
    for key, value in vars(args).items():
        if isinstance(value, str) and key not in _PATHS:
            setattr(args, key, _as_text(value))
    return int(args.run(args))


_PATHS = {"config", "data", "output", "file", "source", "target", "place"}
"""Arguments that may name a file; a file name need not be valid text."""


def _as_text(word: str) -> str:
    """The typed word as UTF-8, whatever the locale; bytes that are invalid in it are replaced."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def whole_parser() -> argparse.ArgumentParser:
    """The parser with the arguments of all commands, each of which is loaded for this."""
    parser, parsers = _parsers()
    for name in COMMANDS:
        _load(name, parsers[name])
    return parser


def actions_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parsers of its commands or actions, by their names; none if it has none."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            found: Mapping[str, argparse.ArgumentParser] = action.choices
            return found
    return {}


def _load(name: str, parser: argparse.ArgumentParser) -> None:
    module = import_module(f"nanoloop.cli.{name.replace('-', '_')}")
    parser.set_defaults(run=getattr(module, "run", None))
    module.add_arguments(parser)


def _mistyped(parser: argparse.ArgumentParser, argv: Sequence[str]) -> str | None:
    """What to say about the first unknown option or action, with the nearest known one."""
    words = iter(argv)
    for word in words:
        inner, options = actions_of(parser), parser._option_string_actions  # noqa: SLF001 - as above
        name = word.partition("=")[0]
        if word == "--":
            break
        if name in options:
            if name == word and options[name].nargs is None:
                next(words, None)  # its value
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
    """Whether argparse takes it for an option: not text with a space, and not a number."""
    return bool(re.fullmatch(r"-[^\s]*[^\s\d.][^\s]*", word)) and word != "-"


def _is_chat() -> bool:
    """Whether there is someone to talk with: at a terminal, or feeding messages."""
    try:
        return os.isatty(0) and os.isatty(1) if os.isatty(0) else stat.S_ISFIFO(os.fstat(0).st_mode)
    except OSError:  # it is closed
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
    """Report an error in a sentence, and return its code."""
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
    """The sentence for a bug: the same bug has the same incident id each time."""
    from hashlib import sha256  # noqa: PLC0415 - slow, and only wanted here

    about = f"{type(error).__name__} at {place_of(error)}"
    incident = sha256(about.encode()).hexdigest()[:6]
    first = about.partition(" < ")[0]
    return (
        f"a bug ended the command (incident {incident}, {first}): run it with {DEBUG} and report it"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The errors themselves, unwrapped from the groups that task groups put them in."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error


def exit_of(error: BaseException) -> Exit:
    """The exit code of a command that ends with this error; not for bugs."""
    return next(code for kind, code in _EXITS if isinstance(error, kind))


def _say(sentence: str, code: Exit) -> Exit:
    # It may quote a file, which a terminal must not obey.
    say(f"nanoloop: {printable(sentence)}", err=True)
    return code
