"""Starting is quick, and only who needs a heavy library loads it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = (
    "anthropic",
    "mcp",
    "openai",
    "pydantic",
    "pydantic_settings",
    "structlog",
    "rich",
    "prompt_toolkit",
    "asyncio",
)

IMPORT = "import nanoloop"
HELP = "from nanoloop.cli import main; main(['--help'])"


def loaded(code):
    """The heavy libraries that this code brings in."""
    report = f"{code}; import sys; print(*(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return done.stderr.split()


def test_a_provider_loads_no_sdk_before_it_is_asked():
    code = (
        "from nanoloop.providers.anthropic import AnthropicProvider; AnthropicProvider(model='m')"
    )
    assert not {"anthropic", "openai", "pydantic"} & set(loaded(code))


def seconds(code):
    """The best of a few runs, less what Python itself takes to start."""

    def best(code):
        return min(once(code) for _ in range(5))

    def once(code):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=True)
        return time.perf_counter() - begin

    return best(code) - best("pass")


@pytest.mark.parametrize("code", [IMPORT, HELP])
def test_a_start_loads_nothing_heavy(code):
    assert loaded(code) == []


def test_importing_a_public_name_loads_no_openai():
    assert "openai" not in loaded("from nanoloop.errors import SessionNotFound")


@pytest.mark.parametrize(("code", "limit"), [(IMPORT, 0.1), (HELP, 0.2)])
def test_a_start_is_quick(code, limit):
    assert seconds(code) < limit


def test_a_log_without_a_line_loads_no_structlog():
    code = "from nanoloop.telemetry import Telemetry; Telemetry(level='error')"
    assert "structlog" not in loaded(code)


def test_settings_load_without_openai_rich_and_structlog():
    code = "from nanoloop.settings import Settings; Settings.load(env={})"
    assert not {"openai", "rich", "structlog", "prompt_toolkit"} & set(loaded(code))


def test_a_loop_in_code_loads_no_settings_unless_a_part_is_given_by_name():
    code = "from nanoloop import AgentLoop, ScriptedProvider; AgentLoop(ScriptedProvider()"
    assert not {"openai", "pydantic", "pydantic_settings", "structlog"} & set(loaded(f"{code})"))
    assert "pydantic_settings" in loaded(f"{code}, store='memory:')")
