"""The summary seen happening: the window is cut, and the reply does not wait for the summary."""

import anyio

from nanoloop import AgentLoop, Summarizer
from nanoloop.channels.direct import DirectChannel
from nanoloop.events import Event, SummaryCommitted, SummaryStarted, WindowTrimmed, hearing
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore

SEEN = (WindowTrimmed, SummaryStarted, SummaryCommitted)
done = anyio.Event()


def see(event: Event) -> None:
    """Hear what happens in the loop; what is heard is also what the log says."""
    if isinstance(event, SEEN):
        print("   ", event)
    if isinstance(event, SummaryCommitted):
        done.set()


async def main() -> None:
    """Talk until the window is full, then let the summary come."""
    store, model = InMemoryStore(), ScriptedProvider()
    writer = ScriptedProvider(["They counted from one to four."], held=True)
    loop = AgentLoop(
        provider=model,
        store=store,
        summarizer=Summarizer(writer, store=store),
        message_buffer_limit=6,
        message_buffer_min=2,
    )
    chat = DirectChannel(loop.bus)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        for word in ("one", "two", "three", "four"):  # with "four" there are 7 messages
            print((await chat.ask(word)).text)
        print("answered, while the summary waits:", writer.waiting == 1)
        writer.release()
        await done.wait()
        print((await chat.ask("five")).text)
        print("the model was shown:", model.calls[-1].messages[0]["content"][-30:])
        loop.bus.close()


with hearing(see):
    anyio.run(main)
