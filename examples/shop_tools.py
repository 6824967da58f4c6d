"""Tools for the settings: a file in the data folder's `tools/`, which the settings name.

[tools.functions]
stock = "shop_tools:stock"
order = "shop_tools:order"
"""

import os
import sqlite3
from contextlib import closing

from nanoloop import current_call, tool
from nanoloop.errors import ToolError

STOCK = {"apples": 12, "pears": 0}


def shop() -> sqlite3.Connection:
    """The shop, which notes each order under the id of the call that made it."""
    there = sqlite3.connect(os.environ.get("SHOP", "shop.sqlite"), isolation_level=None)
    there.execute("CREATE TABLE IF NOT EXISTS orders (call TEXT PRIMARY KEY, what TEXT, who TEXT)")
    return there


@tool(effect="reads")  # after a kill it runs again
def stock(fruit: str) -> str:
    """Say how many of a fruit there are.

    Args:
        fruit: its name, in the plural
    """
    return f"{STOCK.get(fruit, 0)} {fruit}"


def ordered(call: str) -> str | None:
    """What became of an order that was cut off: asked after a kill, or when `order` breaks off."""
    with closing(shop()) as there:
        found = there.execute("SELECT what FROM orders WHERE call = ?", [call]).fetchone()
    return f"{found[0]} ordered" if found else None


@tool(settle=ordered)
def order(fruit: str, count: int) -> str:
    """Order fruit."""
    if count > STOCK.get(fruit, 0):
        raise ToolError(f"there are only {STOCK.get(fruit, 0)} {fruit}")  # the model reads this
    call = current_call()
    call.say(f"Ordering {count} {fruit} …")  # the chat reads this at once
    who = call.sender.id if call.sender else ""
    with closing(shop()) as there:
        what = f"{count} {fruit}"
        there.execute("INSERT INTO orders VALUES (?, ?, ?)", [call.call, what, who])
    return f"{what} ordered"
