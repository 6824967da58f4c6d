"""`nanoloop completion` in a real shell."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

from nanoloop.cli import COMMANDS, Exit, actions_of, main, whole_parser


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The script for a shell, in a file."""
    folder = tmp_path_factory.mktemp("completion")

    def script(shell):
        words = [sys.executable, "-m", "nanoloop", "completion", shell]
        (file := folder / shell).write_bytes(subprocess.check_output(words))
        return file

    return script


@pytest.fixture(scope="module")
def complete(script, tmp_path_factory):
    """What bash offers for the last of these words."""
    file, folder = script("bash"), tmp_path_factory.mktemp("here")
    (folder / "bot.toml").touch()
    (folder / "data").mkdir()

    def complete(*words):
        asks = (
            f'source {file}; COMP_WORDS=(nanoloop "$@"); COMP_CWORD=$#; '
            "$(complete -p nanoloop | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
            "printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", asks, "bash", *words],
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
        )
        assert done.stderr == ""
        return done.stdout.split()

    return complete


def test_every_command_is_offered(complete):
    assert {*COMMANDS, "check", "--help"} <= {*complete("")}
    assert complete("sess") == ["sessions"]


@pytest.mark.parametrize("command", [*COMMANDS, "check"])
def test_every_action_and_option_of_a_command_is_offered(complete, command):
    parser = actions_of(whole_parser())[command]
    options = [name for name, option in parser._option_string_actions.items() if option.help]
    assert {*options, *actions_of(parser)} <= {*complete(command, "")}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["sessions", "li"], ["list"]),
        (["sessions", "--data", "list", "sh"], ["show"]),
        (["sessions", "list", "--js"], ["--json"]),
        (["sessions", "list", "--da"], ["--data"]),
        (["sessions", "usage", "--by", ""], ["agent", "channel", "month"]),
        (["run", "--log-level", "w"], ["warning"]),
        (["run", "--config", "b"], ["bot.toml"]),
        (["sessions", "list", "--data", ""], ["data"]),
        (["completion", "z"], ["zsh"]),
        (["sessions", "import", "bot"], ["bot.toml"]),
        (["chat", "-m", "r"], []),
        (["sessions", "list", "--wh"], []),
        (["demo", "--mod"], []),
    ],
)
def test_a_word_is_completed_to_what_may_stand_there(complete, words, offered):
    assert complete(*words) == offered


def test_a_person_at_a_real_prompt_presses_tab(script):
    shown = 'nanoloop() { echo "[$*]"; }'
    keys = f"source {script('bash')}\nPS1=\n{shown}\nnanoloop sessio\tusage --b\tmonth\n"
    done = subprocess.run(
        ["bash", "--norc", "-i"], input=keys, capture_output=True, text=True, check=False
    )
    assert "[sessions usage --by month]" in done.stdout + done.stderr


@pytest.fixture
def needs():
    """Skips the test if there is no such shell."""

    def needs(shell):
        if not shutil.which(shell):
            pytest.skip(f"{shell} is not installed")

    return needs


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_is_one_that_the_shell_can_read(script, needs, shell):
    needs(shell)
    subprocess.run([shell, "-n", script(shell)], check=True)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("nanoloop sess", ["sessions"]),
        ("nanoloop sessions --data list sh", ["show"]),
        ("nanoloop sessions usage --by ", ["agent", "channel", "month"]),
        ("nanoloop run --config b", ["bot.toml"]),
        ("nanoloop sessions list --agent ", []),
        ("nanoloop completion z", ["zsh"]),
    ],
)
def test_fish_offers_what_may_stand_there(script, needs, tmp_path, line, offered):
    needs("fish")
    (tmp_path / "bot.toml").touch()
    asks = f"source {script('fish')}; complete -C {line!r}"
    words = ["fish", "--no-config", "-c", asks]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [row.partition("\t")[0] for row in done.stdout.splitlines()] == offered


@pytest.mark.slow
@pytest.mark.parametrize("is_sourced", [True, False])
def test_a_person_at_a_prompt_of_zsh_presses_tab(script, needs, tmp_path, is_sourced):
    needs("zsh")
    (tmp_path / "_nanoloop").write_bytes(script("zsh").read_bytes())
    begin = "autoload -Uz compinit; compinit -D -u"
    begin = f"{begin}; source {script('zsh')}" if is_sourced else f"fpath+=({tmp_path}); {begin}"
    shown = typed(
        ["zsh", "-f", "-i"],
        {
            f"PS1=; {begin}; nanoloop() {{ echo \"[$*]\" }}; echo re''ady\n": "ready",
            "nanoloop sessio\tusage --b\tmonth\n": "[sessions usage --by month]",
        },
        cwd=tmp_path,
    )
    assert "[sessions usage --by month]" in shown


def typed(command, talk, *, cwd):
    """What a terminal shows while this is typed; each line once the answer before it is there."""
    here, there = pty.openpty()
    env = {**os.environ, "TERM": "dumb", "ZDOTDIR": str(cwd)}
    shell = subprocess.Popen(command, stdin=there, stdout=there, stderr=there, cwd=cwd, env=env)
    os.close(there)
    shown, until = "", time.monotonic() + 20
    try:
        for keys, answer in talk.items():
            os.write(here, keys.encode())
            while answer not in shown and time.monotonic() < until:
                if select.select([here], [], [], 0.1)[0]:
                    shown += os.read(here, 4096).decode(errors="replace")
    finally:
        shell.kill()
        shell.wait()
        os.close(here)
    return shown


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_of_every_action(script, shell):
    said = script(shell).read_text()
    for name, parser in actions_of(whole_parser()).items():
        for action in actions_of(parser):
            assert f"'{name} {action}'" in said


def test_an_unknown_shell_is_refused_with_those_that_there_are(capsys):
    assert main(["completion", "tcsh"]) == Exit.USAGE
    assert "bash" in capsys.readouterr().err
