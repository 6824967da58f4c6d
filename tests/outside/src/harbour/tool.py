"""A tool with a setting of its own."""

from collections.abc import Callable

from pydantic import BaseModel

from nanoloop import tool
from nanoloop.plugins import Plugin


class TideSettings(BaseModel):
    """What `[tools.tide]` takes."""

    metres: float = 2.0


def make(own: TideSettings | None) -> Callable[[str], str]:
    """The tool of these settings."""
    metres = (own or TideSettings()).metres

    @tool(effect="reads")
    def tide(place: str) -> str:
        """Tell how high the tide is at a place."""
        return f"{metres} m at {place}"

    return tide


PLUGIN = Plugin(name="tide", settings=TideSettings, make=make)
