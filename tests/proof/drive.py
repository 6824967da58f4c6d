"""Random steps in a world, the rules after each, and at the end: all that waits gets covered."""

from collections import deque

import anyio

from tests.proof.rules import Rules
from tests.proof.steps import CHATS, chosen, talk, use_tools
from tests.proof.world import World

STEPS_SHOWN = 15


class Broken(AssertionError):
    """A rule was broken; says the seed, the last steps and the rule."""


async def drive(seed, operations, folder=None):
    """Take so many steps; raises `Broken`. Returns how often each step was taken."""
    taken = {}
    async with World(seed, folder) as world:
        rules = Rules(world)
        last = deque(maxlen=STEPS_SHOWN)
        for number in range(operations):
            act, chat = chosen(world.chance), world.chance.choice(CHATS)
            taken[act.__name__] = taken.get(act.__name__, 0) + 1
            last.append(f"{number} {act.__name__} {chat}")
            await act(world, chat, rules)
            if act in (talk, use_tools):
                await rules.window_is_bounded(chat)
            await _expect(rules, seed, last)
        await settle(world)
        last.append("settled")
        await _expect(rules, seed, last)
        await _expect_covered(world, seed)
        await _expect_answered(rules, seed)
    return taken


async def _expect(rules, seed, last):
    if wrong := await rules.check():
        steps = "\n  ".join(last)
        raise Broken(f"seed {seed}, after\n  {steps}\n" + "\n".join(wrong))


async def settle(world):
    """The model is well again, late summaries return, the loop is begun anew."""
    world.digester.is_well = True
    world.digester.faulty.gate.open()
    await world.quiet()
    await world.end(at_once=False)
    world.now += 1_000_000
    await world.begin()
    with anyio.fail_after(20):
        await world.loop.summarizer.drain(20)


async def _expect_covered(world, seed):
    left = [info.id async for info in world.inner.list() if info.pending]
    if left:
        raise Broken(f"seed {seed}: {len(left)} sessions have work that nobody takes up")


async def _expect_answered(rules, seed):
    if wrong := await rules.nothing_is_left():
        raise Broken(f"seed {seed}, at the end\n" + "\n".join(wrong))
