import subprocess
import sys

ENDS = """

import subprocess
import sys
from nanoloop import Agent
from nanoloop.providers.scripted import ScriptedProvider
agent = Agent(provider=ScriptedProvider())
print(agent.ask_sync("hi"))
"""

FORKS = """

import os
import warnings
from nanoloop import Agent
from nanoloop.providers.scripted import ScriptedProvider
agent = Agent(provider=ScriptedProvider())
agent.ask_sync("hi")
warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: that there are threads
if os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
print(agent.ask_sync("ho"), flush=True)
"""


def ended(program):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", program],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_program_that_asked_from_sync_code_ends_by_itself():
    assert ended(ENDS) == (0, "You said: hi\n", "")


def test_a_fork_of_it_asks_and_ends_by_itself_too():
    assert ended(FORKS) == (0, "You said: ho\n", "")
