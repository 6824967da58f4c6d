"""`nanoloop completion`: generates shell scripts that complete commands, options and values.

The scripts are built from the parser, so they match this version's commands.
"""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

from nanoloop.cli import FLAGS, Exit, actions_of, whole_parser
from nanoloop.cli.output import say
from nanoloop.events import Level


class Completed(NamedTuple):
    """The words that may follow one command or action, or the program's name."""

    where: str
    """The words so far, such as `sessions list`; empty for the program's name."""
    inner: Mapping[str, str]
    """The commands or actions that may follow, each with a description."""
    options: Sequence[Action]
    values: Sequence[Action]
    """The positional arguments."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop completion`."""
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell to print the script for")


def run(args: Namespace) -> int:
    """Print the completion script for the chosen shell."""
    say("\n".join(SHELLS[args.shell]([*completed(whole_parser())])))
    return Exit.DONE


def completed(parser: ArgumentParser, where: str = "") -> Iterator[Completed]:
    """Yield the possible words after this parser's command, and after each command below it."""
    actions, inner = parser._actions, actions_of(parser)  # noqa: SLF001 - argparse has no other way
    options = [each for each in actions if each.option_strings and each.help != SUPPRESS]
    yield Completed(
        where,
        inner={name: (one.description or "").partition(".")[0] for name, one in inner.items()},
        options=options,
        values=[action for action in actions if not action.option_strings and not inner],
    )
    for name, one in inner.items():
        for behind in completed(one, f"{where} {name}".strip()):
            # An action also accepts its command's options, which its own help does not repeat.
            more = [each for each in options if where and _names([each])[0] in FLAGS]
            yield behind._replace(options=[*behind.options, *more])


def _bash(places: Sequence[Completed]) -> Iterator[str]:
    yield "# Completes nanoloop in bash; written by `nanoloop completion bash`."
    yield "_nanoloop() {"
    yield from _walk(places, "${COMP_WORDS[@]:1:COMP_CWORD-1}")
    yield "  local now=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}"
    yield '  case "$at:$before" in'
    for place in places:
        for option in _with_value(place):
            if kind := _bash_kind(option):
                yield f"    {_pattern(place, option)}) {_bash_reply(kind)}; return;;"
    yield f"    {_any_value(places)}) return;;"
    yield "  esac"
    yield '  case "$at" in'
    for place in places:
        words = " ".join((*place.inner, *_names(place.options)))
        values = [_bash_reply(kind, more=True) for kind in map(_bash_kind, place.values) if kind]
        known = _bash_reply(f"-W '{words}'")
        yield f"    '{place.where}') {'; '.join((known, *values))};;"
    yield "  esac"
    yield "}"
    yield "complete -F _nanoloop nanoloop"


def _bash_reply(kind: str, *, more: bool = False) -> str:
    return f'COMPREPLY{"+" * more}=($(compgen {kind} -- "$now"))'


def _bash_kind(action: Action) -> str:
    if words := _choices(action):
        return f"-W '{' '.join(words)}'"
    return {"FILE": "-f", "DIR": "-d"}.get(str(action.metavar), "")


def _zsh(places: Sequence[Completed]) -> Iterator[str]:
    yield "#compdef nanoloop"
    yield "# Completes nanoloop in zsh; written by `nanoloop completion zsh`."
    yield "_nanoloop() {"
    yield from _walk(places, "${(@)words[2,CURRENT-1]}")
    yield "  local -a found"
    yield '  case "$at:${words[CURRENT-1]}" in'
    for place in places:
        for option in _with_value(place):
            if kind := _zsh_kind(option):
                yield f"    {_pattern(place, option)}) {kind}; return;;"
    yield f"    {_any_value(places)}) return;;"
    yield "  esac"
    yield '  case "$at" in'
    for place in places:
        told = {**place.inner, **{n: _about(o) for o in place.options for n in o.option_strings}}
        found = " ".join(_quoted(f"{name}:{about}") for name, about in told.items())
        values = [kind for kind in map(_zsh_kind, place.values) if kind]
        yield f"    '{place.where}') {'; '.join((f'found=({found})', *values))};;"
    yield "  esac"
    yield "  _describe nanoloop found"
    yield "}"
    # A file in `fpath` is the function's body; a sourced file has to register the function.
    yield "if [[ ${funcstack[1]} != _nanoloop ]]; then compdef _nanoloop nanoloop"
    yield 'else _nanoloop "$@"; fi'


def _zsh_kind(action: Action) -> str:
    if words := _choices(action):
        return f"compadd -- {' '.join(words)}"
    return {"FILE": "_files", "DIR": "_files -/"}.get(str(action.metavar), "")


def _walk(places: Sequence[Completed], words: str) -> Iterator[str]:
    """Yield shell code that sets `at` to the command or action that the earlier words name."""
    yield "  local at= word= skip="
    yield f'  for word in "{words}"; do'
    yield "    if [[ -n $skip ]]; then skip=; continue; fi"
    yield '    case "$word" in'
    yield f"      {'|'.join(_takers(places))}) skip=1; continue;;"
    yield "    esac"
    yield '    case "$at $word" in'
    yield f'      {"|".join(_steps(places))}) at="${{at:+$at }}$word";;'
    yield "    esac"
    yield "  done"


def _fish(places: Sequence[Completed]) -> Iterator[str]:
    takers = _takers(places)
    yield "# Completes nanoloop in fish; written by `nanoloop completion fish`."
    yield "function __nanoloop_at"
    yield "  set -l at ''"
    yield "  set -l skip 0"
    yield "  for word in (commandline -opc)[2..-1]"
    yield "    if test $skip = 1"
    yield "      set skip 0"
    yield f"    else if contains -- $word {' '.join(takers)}"
    yield "      set skip 1"
    yield f'    else if contains -- "$at $word" {" ".join(_steps(places))}'
    yield '      set at (string trim "$at $word")'
    yield "    end"
    yield "  end"
    yield '  test "$at" = "$argv[1]"'
    yield "end"
    yield "complete -c nanoloop -f"
    for place in places:
        here = f"complete -c nanoloop -n \"__nanoloop_at '{place.where}'\""
        yield from (f"{here} -a {name} -d {_quoted(about)}" for name, about in place.inner.items())
        yield from (f"{here} {kind}" for kind in map(_fish_kind, place.values) if kind)
        for option in place.options:
            kind = _fish_kind(option)
            needs = f" {'-r' if kind == '-F' else '-x'} {kind}".rstrip()  # -x: no file names
            takes = "" if option.nargs == 0 else needs
            yield f"{here} {_fish_names(option)}{takes} -d {_quoted(_about(option))}"


def _fish_names(option: Action) -> str:
    names = option.option_strings
    return " ".join(f"-{'l' if name[1] == '-' else 's'} {name.lstrip('-')}" for name in names)


def _fish_kind(action: Action) -> str:
    if words := _choices(action):
        return f"-a '{' '.join(words)}'"
    kinds = {"FILE": "-F", "DIR": "-a '(__fish_complete_directories)'"}
    return kinds.get(str(action.metavar), "")


SHELLS: Mapping[str, Callable[[Sequence[Completed]], Iterator[str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}


def _choices(action: Action) -> list[str]:
    if action.metavar == FLAGS["--log-level"][0]:
        return list(get_args(Level))
    return [str(choice) for choice in action.choices or ()]


def _with_value(place: Completed) -> list[Action]:
    return [option for option in place.options if option.nargs is None]


def _names(options: Sequence[Action]) -> list[str]:
    return [name for option in options for name in option.option_strings]


def _pattern(place: Completed, option: Action) -> str:
    return "|".join(f"'{place.where}:{name}'" for name in option.option_strings)


def _any_value(places: Sequence[Completed]) -> str:
    """Return a pattern for all options with a value, including values that can't be completed."""
    return "|".join(f"*:{name}" for name in _takers(places))


def _takers(places: Sequence[Completed]) -> list[str]:
    """Return the options that take the next word as their value."""
    return sorted({name for place in places for name in _names(_with_value(place))})


def _steps(places: Sequence[Completed]) -> Iterator[str]:
    """Yield each value of `at` combined with the next word that starts a command or action."""
    for place in places:
        before, _, last = place.where.rpartition(" ")
        if last:
            yield f"'{before} {last}'"


def _about(option: Action) -> str:
    return str(option.help) % vars(option)


def _quoted(text: str) -> str:
    """Quote text as a single shell word."""
    return "'" + text.replace("'", "'\\''") + "'"
