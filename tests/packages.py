"""Packages with a plugin, as pip leaves them behind; and ours whose folder may be gone."""

import re

from nanoloop import plugins

QUIET = """
import anyio
from pydantic import SecretStr
from nanoloop.channels.kit import PlatformSettings, Plugin, Refused
from nanoloop.testing.channels import FakeChats, FakePlatform

class Quiet(FakePlatform):
    def __init__(self, token):
        super().__init__(FakeChats())
        self.name, self.token = "quiet", token

    async def listen(self, hear, connected):
        if self.token == "wrong":
            raise Refused("the token is wrong: get another one")
        connected()
        await anyio.sleep_forever()

class QuietSettings(PlatformSettings):
    needs = ("token",)
    token: SecretStr | None = None

def make(own, folder):
    return Quiet(own.token.get_secret_value())

PLUGIN = Plugin(name="quiet", settings=QuietSettings, make=make)
"""
"""A chat platform in which nobody says anything; the token "wrong" is refused."""


def is_gone(name):
    """Whether that channel is one of ours, and its folder is not there."""
    return name in plugins.OURS["channels"] and not plugins.is_installed("channels", name)


def names_what_is_gone(text):
    """Whether it has settings of a channel whose folder is gone."""
    gone = filter(is_gone, plugins.OURS["channels"])
    return any(re.search(rf"\bchannels\.{name}\b", text) for name in gone)


def sections_without_what_is_gone(text):
    """A page of settings, without the sections of channels whose folder is gone."""
    sections = re.split(r"(?=^## )", text, flags=re.MULTILINE)
    return "".join(each for each in sections if not names_what_is_gone(each.partition("\n")[0]))


def without_what_is_gone(text):
    """An example of settings, without the tables of channels whose folder is gone."""
    header = r"# [^\n]*\n#?\["
    for name in filter(is_gone, plugins.OURS["channels"]):
        text = re.sub(rf"{header}channels\.{name}\b.*?(?={header})", "", text, flags=re.DOTALL)
    return text


def make_package(folder, code=QUIET, *, kind="channels", name="quiet"):
    """Install that code as a plugin of that name, by an entry point of its own."""
    about = folder / f"{name}s-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}s\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[nanoloop.{kind}]\n{name} = {name}s:PLUGIN\n")
    (folder / f"{name}s.py").write_text(code)
