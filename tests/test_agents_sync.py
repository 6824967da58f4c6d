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


def test_a_program_that_asked_from_sync_code_ends_by_itself():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", ENDS],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: hi\n", "")
