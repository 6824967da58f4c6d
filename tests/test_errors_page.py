"""The table of startup errors has what the program prints, and nothing else."""

import os
import re
import socket
import subprocess
import sys

import pytest
from anyio.from_thread import start_blocking_portal
from cryptography.fernet import Fernet

from nanoloop.stores.encryption import KeySeal
from nanoloop.stores.sqlite import SqliteStore
from tests.packages import make_package
from tests.references import ROOT
from tests.test_doctor_pairs import ALONE, WEB
from tests.test_jsonl_upgrade import earlier_version

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## At startup")[2].partition("\n\n## ")[0]
MESSAGES = re.findall(r"^\| `(.*?)` \|", TABLE, re.MULTILINE)
MORE = {
    "a setting that is gone": "[bus]\ninbound_limit = 5",
    "as much as may be": "message_buffer_limit = 10",
    "neither true nor false": '[channels.web]\nenabled = "x"',
    "half an address": '[providers.groq]\nbase_url = "localhost"',
    "half a function": '[channels]\ntranscribe = "words"',
    "own tools": "[tools.functions]\n"
    + "".join(f'{name} = "mine:{name}"\n' for name in ("unhinted", "number", "clock"))
    + 'broken = "broken:it"\nopen = "open:it"\n',
    "no tool's name": '[tools.functions]\n"two words" = "mine:it"',
    "servers": "[tools.servers.a__b]\nenabled = false\n"
    '[tools.servers.two]\ncommand = ["a"]\nurl = "http://a"\n'
    '[tools.servers.keyed]\ncommand = ["a"]\nheaders = {"a b" = "c"}\n'
    '[tools.servers.passing]\nurl = "http://a"\nenv = ["A"]',
    "a server and a tool of one name": '[tools.files]\nfolder = "/tmp"\n'
    '[tools.servers.files]\nurl = "http://a"',
    "no such folder": '[tools.files]\nfolder = "/nowhere"',
    "all folders": '[tools.files]\nfolder = "/"',
    "no folder of skills": '[skills]\nfolders = ["/nowhere"]',
    "bad skills": '[skills]\nfolders = ["skills"]',
    "no skill matches": '[agents.cook]\nskills = ["tea"]',
    "too many skills": '[skills]\nfolders = ["skills"]',
    "no tool matches": '[agents.cook]\ntools = ["x__*"]',
    "a table that lacks something": 'model = "parrot:grey"\n[providers.parrot]',
    "a library that is missing": '[channels.matrix]\ntoken = "a"\nuser = "@a:b"\n'
    'homeserver = "http://127.0.0.1:9"',
    "no cryptography": f'[store]\nencryption_key = "{Fernet.generate_key().decode()}"' + WEB,
    "another's store": WEB,
    "an emptied store": WEB,
    "a link for a token": WEB,
    "an earlier version": '[store]\nurl = "jsonl:"' + WEB,
    "somebody's file": WEB,
    "somebody's link": WEB,
}
"""Beside those that the doctor is tested with."""
PARROT = """
from pydantic import BaseModel
from nanoloop.plugins import Plugin

class Settings(BaseModel):
    key: str

PLUGIN = Plugin(name="parrot", settings=Settings, make=lambda own, model: None)
"""
KEY = Fernet.generate_key().decode()
HIDDEN = {"no cryptography": "cryptography", "a library that is missing": "nio"}
"""Libraries that are not there then."""


SKILLS = {"bad skills": 1, "too many skills": 101}


def pattern(message):
    return re.compile(".*".join(map(re.escape, message.split("…"))))


def said_by(folder, case, text, *words):
    """What `nanoloop run`, or another command, says to these settings."""
    (folder / "nanoloop.toml").write_text(text)
    make_package(folder / "packages", PARROT, kind="providers", name="parrot")
    if name := HIDDEN.get(case):
        lacks = f"raise ModuleNotFoundError('no', name={name!r})"
        (folder / "packages" / f"{name}.py").write_text(lacks)
    ended = subprocess.run(
        [sys.executable, "-m", "nanoloop", *(words or ("run",))],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{folder / 'packages'}:{ROOT}",
            "HOME": str(folder),
            "OPENAI_BASE_URL": "http://127.0.0.1:9",
            "NANOLOOP_CONFIG": "" if case.startswith("somebody's") else "nanoloop.toml",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode != 0, case
    return ended.stderr.strip().removeprefix("nanoloop: ").split("\nnanoloop: ")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Each sentence by its case."""
    found = {}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for number, (case, text) in enumerate((ALONE | MORE).items()):
            folder = tmp_path_factory.mktemp(f"case{number}")
            prepare(folder, case)
            prepare_skills(folder / "skills", SKILLS.get(case, 0))
            found[case] = said_by(folder, case, text.replace("{port}", port))
    another = f'[store]\nencryption_key = "{Fernet.generate_key().decode()}"'
    own = f'[store]\nencryption_key = "{KEY}"'
    for case, text in (
        ("no key", ""),
        ("another key", another),
        ("no keys file", own),
        ("a keys file that was cut off", own),
    ):
        folder = tmp_path_factory.mktemp("sealed")
        prepare(folder, "sealed" if text != own else case)
        found[case] = said_by(folder, "sealed", text, "sessions", "show", "s")
    return found


def prepare(folder, case):
    """What lies in the data folder before."""
    data = folder / ".local" / "share" / "nanoloop"
    with start_blocking_portal() as portal:
        if case == "another's store":
            portal.call(keep, SqliteStore(data / "sessions.sqlite"))
        if case == "sealed":
            seal = KeySeal(Fernet.generate_key().decode())
            portal.call(keep, SqliteStore(data / "sessions.sqlite", seal=seal))
        if "keys file" in case:
            path = data / "secret-keys" / "store.keys"
            store = SqliteStore(data / "sessions.sqlite", seal=KeySeal(KEY, keys_file=path))
            portal.call(keep, store)
            whole = path.read_bytes().splitlines(keepends=True)
            path.unlink()
            if "cut off" in case:
                path.write_bytes(b"".join(whole[:-1]))
    if case == "an earlier version":
        (data / "sessions").mkdir(parents=True)
        earlier_version(data / "sessions").take()  # and holds it as long as these tests run
    if case == "a link for a token":
        data.mkdir(parents=True)
        (data / "web-token").symlink_to(folder / "elsewhere")
    if case == "own tools":
        (data / "tools").mkdir(parents=True)
        data.chmod(0o755)
        (data / "tools" / "mine.py").write_text("number = 5\ndef unhinted(city): ...\n")
        (data / "tools" / "broken.py").write_text("1 / 0\n")
        (data / "tools" / "open.py").touch()
        (data / "tools" / "open.py").chmod(0o666)
    if case == "somebody's link":
        (folder / "agents").mkdir()
        (folder / "agents" / "cook.md").symlink_to(ROOT / "README.md")
    if case in {"another's store", "an emptied store"}:
        data.mkdir(parents=True, exist_ok=True)
        (data / "installation.json").write_text('{"id": "mine", "store": "elsewhere"}')


def prepare_skills(folder, count):
    """So many; if only one, a bad one."""
    for number in range(count):
        (folder / f"a{number}").mkdir(parents=True)
        more = "description: x\n" if count > 1 else ""
        (folder / f"a{number}" / "SKILL.md").write_text(f"---\nname: a{number}\n{more}---\n")


async def keep(store):
    await store.create(id="s")
    await store.close()


def test_what_the_program_says_is_in_the_table(told):
    lines = {line for said in told.values() for line in said}
    assert [line for line in lines if not any(pattern(m).search(line) for m in MESSAGES)] == []


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_table_is_one_that_the_program_says(told, message):
    lines = [line for said in told.values() for line in said]
    assert any(pattern(message).search(line) for line in lines), message
