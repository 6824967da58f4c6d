"""A channel's folder can go: what has nothing to do with it stays as it was."""

import pytest

from nanoloop import plugins
from tests.packages import is_gone
from tests.without import ENDS_WELL, folder_of, own_tests, pytest_in, tree_without

HERE = [name for name in plugins.OURS["channels"] if not is_gone(name)]


@pytest.fixture
def tree(tmp_path):
    """A tree with these tests, `{"test_a": "import this"}`, and the folder of a channel."""

    def tree(tests):
        root = tmp_path / "tree"
        for path in (root / "tests" / "stages", root / folder_of("irc"), root / ".venv"):
            path.mkdir(parents=True)
        for name, text in tests.items():
            (root / "tests" / f"{name}.py").write_text(text)
        return root

    return tree


def names(paths):
    return {path.relative_to("tests").with_suffix("").as_posix() for path in paths}


def test_what_is_named_for_a_channel_or_imports_it_is_its_own(tree):
    tests = {
        "test_irc_words": "",
        "test_circus": "",
        "stages/chat": "from nanoloop.channels.irc.platform import Platform",
        "test_lines": "import nanoloop.channels.irc",
        "test_chats": "def later():\n    from tests.stages import chat",
        "test_others": "from tests import stages\nfrom nanoloop.channels.ircd import Platform",
    }
    own = {"test_irc_words", "stages/chat", "test_lines", "test_chats"}
    assert names(own_tests("irc", tree(tests))) == own


def test_the_tree_without_it_lacks_that_and_no_more(tree, tmp_path):
    root = tree({"test_irc": "", "test_chat": "", "stages/.lock": ""})
    (root / ".venv" / "lib.py").touch()
    left = tree_without("irc", tmp_path, root)
    found = {path.relative_to(left).as_posix() for path in left.rglob("*") if path.is_file()}
    assert found == {"tests/test_chat.py", "tests/stages/.lock.py"}
    assert not (left / folder_of("irc")).exists()
    assert (root / "tests" / "test_irc.py").exists()


TOUCHING = (
    "test_cli_config",
    "test_import_contracts",
    "test_platform",
    "test_plugins",
    "test_readme",
    "test_service",
    "test_settings",
    "test_structure",
)
"""What has to do with channels; all else is collected, and run by `python -m tests.without`."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n == "web" else pytest.mark.long) for n in HERE],
)
def test_without_a_channels_folder_all_else_is_there_and_stands(tmp_path, name):
    done = pytest_in(tree_without(name, tmp_path), "--numprocesses=0", "-k", " or ".join(TOUCHING))
    assert done.returncode == ENDS_WELL, done.stdout
