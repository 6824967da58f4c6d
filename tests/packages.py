"""Packages with a plugin, as pip leaves them behind."""

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


def make_package(folder, code=QUIET, *, kind="channels", name="quiet"):
    """Install that code as a plugin of that name, by an entry point of its own."""
    about = folder / f"{name}s-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}s\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[nanoloop.{kind}]\n{name} = {name}s:PLUGIN\n")
    (folder / f"{name}s.py").write_text(code)
