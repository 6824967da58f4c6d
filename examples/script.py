"""A script without `await`: asked once as a whole, and once in pieces."""

from nanoloop import AgentLoop, ScriptedProvider

# A real model that remembers between runs: AgentLoop("openai:gpt-5.4-mini", store="sqlite:bot.db")
with AgentLoop(ScriptedProvider(["Hello Ada!", "Ada, you told me just now."])) as loop:
    print("bot:", loop.ask_sync("Hello, I am Ada."))
    for piece in loop.stream_sync("What is my name?"):
        print(piece, end="", flush=True)
    print()
