"""The command line: finds the command, runs it, and says in one sentence what went wrong.

A command is a module here, loaded when called: its `add_arguments(parser)` says what it takes, its
`run(args) -> int` does it, unless it has actions (`add_actions`), each with a function of its own.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from nanoloop.errors import (
    InvalidSessionId,
    NanoloopError,
    NoSuchModel,
    SessionNotFound,
    SettingsError,
    StoreLocked,
)
from nanoloop.words import did_you_mean

if TYPE_CHECKING:
    from nanoloop.settings import Settings


class Exit(IntEnum):
    """What the exit code tells a script."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_CONFIGURED = 3
    NOT_FOUND = 4
    IN_USE = 5
    INTERRUPTED = 130


class CommandHelp(NamedTuple):
    """What `--help` says of a command without loading it."""

    promise: str
    examples: tuple[str, ...]


COMMANDS = {
    "chat": CommandHelp(
        "talk with the model in the terminal",
        (
            "nanoloop chat",
            "nanoloop chat --local",
            "nanoloop chat --session work",
            'nanoloop chat -m "What is the time?"',
            "cat questions.txt | nanoloop chat --session quiz --json",
        ),
    ),
    "run": CommandHelp(
        "answer on all channels until told to stop",
        ("nanoloop run", "nanoloop run --config bot.toml --data /var/lib/bot"),
    ),
    "serve": CommandHelp(
        "serve the page and the API, for a browser and for programs",
        ("nanoloop serve", "nanoloop serve --port 9000", "nanoloop serve --host 0.0.0.0"),
    ),
    "status": CommandHelp(
        "show whether the daemon runs, how its channels stand, and what failed last",
        ("nanoloop status", "nanoloop status --json"),
    ),
    "check": CommandHelp(
        "see whether settings, model, store and channels are right, and what to do if not",
        ("nanoloop check", "nanoloop check --config bot.toml && nanoloop run --config bot.toml"),
    ),
    "pair": CommandHelp(
        "give people access to the bot by a code, and revoke it",
        (
            "nanoloop pair list",
            "nanoloop pair approve 7KM2PQRS",
            "nanoloop pair revoke telegram 12345678",
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
        "move all sessions to another store, check them, bring a database up to date",
        (
            "nanoloop store copy jsonl: sqlite:",
            "nanoloop store copy sqlite: postgresql://bot@db.example/bot",
            "nanoloop store check",
            "nanoloop store migrate postgresql://bot@db.example/bot",
        ),
    ),
    "memory": CommandHelp(
        "show what lies where in a conversation, correct its summary, list those that wait for one",
        (
            "nanoloop memory show work",
            "nanoloop memory edit work",
            'nanoloop memory edit work --text "We plan a trip to Rome."',
            "nanoloop memory status",
        ),
    ),
    "model": CommandHelp(
        "list models, fetch and remove model files for this machine",
        (
            "nanoloop model list",
            "nanoloop model get qwen2.5-coder-1.5b",
            "nanoloop model get https://host.example/big.gguf --sha256 SUM",
            "nanoloop model path smollm2-135m",
            "nanoloop model remove smollm2-135m",
        ),
    ),
    "demo": CommandHelp(
        "watch a conversation being trimmed and summarised, offline",
        ("nanoloop demo",),
    ),
    "config": CommandHelp(
        "show each setting and where its value came from",
        (
            "nanoloop config",
            "nanoloop config --json",
            "nanoloop config --example > nanoloop.toml",
        ),
    ),
}

_FLAGS = {
    "--config": ("FILE", "the settings file to read"),
    "--data": ("DIR", "the folder for everything that is kept"),
    "--model": ("NAME", "the model that answers"),
    "--log-level": ("LEVEL", "debug, info, warning or error"),
}
"""What every command takes."""

_EXITS: tuple[tuple[type[BaseException], Exit], ...] = (
    (KeyboardInterrupt, Exit.INTERRUPTED),
    (SettingsError, Exit.USAGE),
    (InvalidSessionId, Exit.USAGE),
    (SessionNotFound, Exit.NOT_FOUND),
    (NoSuchModel, Exit.NOT_FOUND),
    (StoreLocked, Exit.IN_USE),
    (NanoloopError, Exit.FAILED),
    (OSError, Exit.FAILED),
)

_EXIT_CODES = """\
exit codes:
  0    done
  1    failed; standard error says why in a sentence
  2    wrong usage or settings
  3    not configured: neither a key nor a server
  4    not found, a session for example
  5    the data folder is in use by an earlier version
  130  interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else Exit.DONE
    except (KeyboardInterrupt, NanoloopError, OSError, BaseExceptionGroup) as error:
        return _tell(error)
    return code


def load_settings(args: argparse.Namespace) -> Settings:
    """The settings for a command; raises `SettingsError`."""
    from nanoloop.settings import Settings  # noqa: PLC0415 - `--help` does without pydantic

    flags = {"data": args.data, "model": args.model, "log.level": args.log_level}
    return Settings.load(config=args.config, flags=flags)


def loop_options() -> dict[str, bool]:
    """The event loop of a daemon: the faster one if it is installed."""
    from importlib.util import find_spec  # noqa: PLC0415 - only daemons need it

    return {"use_uvloop": find_spec("uvloop") is not None}


GARBAGE_THRESHOLDS = (10_000, 20, 20)
"""New objects until the youngest are looked through, and how often that is until older ones are.

A turn makes hundreds that live until its end: with Python's own 700 they are looked through while
they are in use, and taken for older ones.
"""


def collect_garbage_seldom() -> None:
    """Call it once all is loaded: looking through that now and then would hold up every chat."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


Act = Callable[[argparse.Namespace, "Settings"], "int | Coroutine[Any, Any, int | None] | None"]
"""What an action does; it returns an exit code, or nothing for `Exit.DONE`."""


def add_actions(
    parser: argparse.ArgumentParser,
) -> Callable[[str, str, Act], argparse.ArgumentParser]:
    """Let a command have actions; call the result with each one's name, promise and function."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    common = _Parser(add_help=False)
    for flag in _FLAGS:
        # Taken here too, so that they may stand last; left out, those before the action count.
        common.add_argument(flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)

    def add(name: str, promise: str, act: Act) -> argparse.ArgumentParser:
        about = f"{promise[0].upper()}{promise[1:]}. Settings as in `{parser.prog} --help`."
        action = actions.add_parser(name, help=promise, description=about, parents=[common])
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
    """Whether the person at the terminal says yes; raises `nobody_there` if there is none."""
    if not (os.isatty(0) and os.isatty(2)):
        raise nobody_there
    with suppress(EOFError):
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        return input().strip().lower() in ("y", "yes")
    return False


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, f"nanoloop: {message}: `{self.prog} --help` shows what there is\n")


def _run(argv: Sequence[str]) -> int:
    # Only the program's own flags may stand before the command, and they take no value.
    name = next((word for word in argv if not word.startswith("-")), None)
    if name is not None and name not in COMMANDS:
        advice = "the command comes first" if argv[0].startswith("-") else _nearest(name)
        return _say(f"there is no command {name!r}: {advice}", Exit.USAGE)
    parser, parsers = _parsers()
    if name is not None:
        module = import_module(f"nanoloop.cli.{name}")
        parsers[name].set_defaults(run=getattr(module, "run", None))
        module.add_arguments(parsers[name])
    args = parser.parse_args(argv)
    if args.version:
        return _print_version()
    if name is None:
        parser.print_help()
        return Exit.USAGE
    return int(args.run(args))


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser(
        prog="nanoloop",
        description="A chatbot that answers now and forgets nothing.",
        epilog=_examples("nanoloop demo", "nanoloop chat", "nanoloop chat --help")
        + f"\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show the version and leave")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    common = _common_flags()
    return parser, {name: _subparser(commands, name, common) for name in COMMANDS}


def _subparser(
    commands: argparse._SubParsersAction[_Parser], name: str, common: _Parser
) -> _Parser:
    promise, examples = COMMANDS[name]
    return commands.add_parser(
        name,
        help=promise,
        description=f"{promise[0].upper()}{promise[1:]}.",
        epilog=_examples(*examples),
        parents=[common],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _common_flags() -> _Parser:
    flags = _Parser(add_help=False)
    group = flags.add_argument_group("settings, stronger than file and environment")
    for name, (metavar, promise) in _FLAGS.items():
        group.add_argument(name, metavar=metavar, help=promise)
    return flags


def _examples(*lines: str) -> str:
    return "\n".join(("examples:", *(f"  {line}" for line in lines)))


def _nearest(name: str) -> str:
    return did_you_mean(name, COMMANDS, "`nanoloop --help` lists them")


def _print_version() -> Exit:
    from importlib import metadata  # noqa: PLC0415 - slow, and only wanted here

    print("nanoloop", metadata.version("nanoloop"))
    return Exit.DONE


def _tell(error: BaseException) -> int:
    """Say what went wrong and give its code; a bug is raised as it is, with its traceback."""
    causes = [*_causes(error)]
    if not all(isinstance(cause, tuple(kind for kind, _ in _EXITS)) for cause in causes):
        raise error
    if any(isinstance(cause, BrokenPipeError) for cause in causes):
        return _leave_stdout()
    code = max(_code(cause) for cause in causes)
    for line in dict.fromkeys(line for cause in causes for line in str(cause).splitlines()):
        _say(line, code)
    return code


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The errors themselves, out of the groups that task groups wrap them in."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error


def _code(error: BaseException) -> Exit:
    return next(code for kind, code in _EXITS if isinstance(error, kind))


def _say(sentence: str, code: Exit) -> Exit:
    print(f"nanoloop: {sentence}", file=sys.stderr)
    return code


def _leave_stdout() -> Exit:
    # The reader has gone; Python would try to write the rest at its end, and complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.FAILED
