"""A server of tools, as a program of its own that the settings name. It needs the extra `mcp`.

[tools.servers.fruit]
command = ["python", "fruit_server.py"]
"""

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("fruit", log_level="ERROR")
STOCK = {"apples": 12, "pears": 0}


@server.tool(annotations=ToolAnnotations(read_only_hint=True))  # else a call counts as writing
def stock(fruit: str) -> str:
    """Say how many of a fruit there are."""
    return f"{STOCK[fruit]} {fruit}"


@server.tool()
def order(fruit: str, count: int) -> str:
    """Order fruit."""
    STOCK[fruit] += count
    return f"{count} {fruit} ordered"


if __name__ == "__main__":
    server.run()
