"""What a proof does to a world: talk in every way there is, and change histories meanwhile."""

from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
import anyio.lowlevel

from nanoloop.errors import HistoryNotLoaded, SessionNotFound

CHATS = ("a", "b", "c")
TOOLS = ("look", "look fail", "look look look", "fail fail", "nowhere look", "look aloud")
ODD = ("crash", "unreachable", "huge", "silent")
WEIGHTS = {}


def step(weight):
    """A step, and how often it is taken."""

    def named(function):
        WEIGHTS[function] = weight
        return function

    return named


@step(30)
async def talk(world, chat, rules):
    await world.say(chat)


@step(15)
async def use_tools(world, chat, rules):
    await world.say(chat, f"tools {world.chance.choice(TOOLS)}")


@step(6)
async def go_wrong(world, chat, rules):
    await world.say(chat, world.chance.choice(ODD))


@step(4)
async def repeat(world, chat, rules):
    mark = world.put(chat, "hello")
    world.put(chat, "hello", mark)
    await world.heard(mark)


@step(5)
async def burst(world, chat, rules):
    marks = [world.put(world.chance.choice(CHATS), "hello") for _ in range(6)]
    await world.heard(*marks)


@step(4)
async def stop_a_tool(world, chat, rules):
    world.hanging = anyio.Event()
    mark = world.put(chat, "tools look hang look")
    with anyio.fail_after(5):
        await world.hanging.wait()
    await world.heard(mark, world.put(chat, "/stop"))


@step(3)
async def command(world, chat, rules):
    await world.say(chat, world.chance.choice(["/status", "/summary", "/history"]))


@step(4)
async def compact(world, chat, rules):
    await world.say(chat, "/compact")
    world.swapped((await world.session_of(chat)).id)


@step(2)
async def begin_anew(world, chat, rules):
    await world.say(chat, "/new")


async def queue_a_beginning(world, chat, rules):
    """It waits for its turn, as all that changes something does."""
    await world.hand_in(chat, "/new")


async def queue_compact(world, chat, rules):
    await world.hand_in(chat, "/compact")


@step(6)
async def in_the_middle(world, chat, rules):
    """Something else happens while a turn waits for its model."""
    async with answering(world, chat) as mark:
        others = [queue_a_beginning, command, queue_compact, delete, release, fork, stop, crash]
        await world.chance.choice(others)(world, chat, rules)
    if mark not in world.excused:
        await world.heard(mark)


@asynccontextmanager
async def answering(world, chat):
    """A message, given by its mark, is being answered meanwhile."""
    world.talker.gate.close()
    before = world.talker.gate.count
    mark = world.put(chat, "held")
    with anyio.fail_after(5):
        await world.talker.gate.reached(before + 1)
    yield mark
    world.talker.gate.open()
    await world.quiet()


async def stop(world, chat, rules):
    await world.say(chat, "/stop")


@step(6)
async def wait_in_line(world, chat, rules):
    """More is said while a message is answered, and then something happens."""
    async with answering(world, chat):
        marks = [await world.hand_in(chat, "hello") for _ in range(3)]
        chosen = world.chance.choice(marks)
        changes = [partial(edit, mark=chosen), partial(take_back, mark=chosen)]
        others = [queue_a_beginning, command, delete, stop, crash, *changes]
        await world.chance.choice(others)(world, chat, rules)


@step(4)
async def change_the_question(world, chat, rules):
    """What is being answered is changed, perhaps more than once, or taken back."""
    async with answering(world, chat) as mark:
        more = [await world.hand_in(chat, "hello")] if world.heads() else []
        for _ in range(world.chance.randint(1, 2)):
            await world.chance.choice([edit, take_back])(world, chat, rules, mark=mark)
    if more:
        await world.heard(*more)


@step(4)
async def change_during_a_tool(world, chat, rules):
    """A message is changed whose tools have begun, or an older one of that chat."""
    older = await world.say(chat)
    world.hanging = anyio.Event()
    mark = world.put(chat, "tools look hang look")
    with anyio.fail_after(5):
        await world.hanging.wait()
    which = world.chance.choice([older.reply_to, mark])
    await world.chance.choice([edit, take_back])(world, chat, rules, mark=which)
    await world.say(chat, "/stop")
    await world.quiet()


@step(3)
async def change_later(world, chat, rules):
    await edit(world, chat, rules, mark=(await world.say(chat)).reply_to)


async def edit(world, chat, rules, mark):
    rules.rewritten((await world.session_of(chat)).id)
    await world.hand_in(chat, "hello again", edits=mark)


async def take_back(world, chat, rules, mark):
    rules.rewritten((await world.session_of(chat)).id)
    await world.hand_in(chat, "", deletes=mark)


@step(4)
async def talk_in_a_burst(world, chat, rules):
    marks = [await world.hand_in(chat, "hello", burst_seconds=0.001) for _ in range(3)]
    world.excused.update(marks[:-1])  # their answer is the last one's
    await world.heard(marks[-1])


@step(4)
async def be_offline(world, chat, rules):
    """Nothing can be sent for a while, and the loop may end meanwhile."""
    world.is_offline, dies = True, world.heads()
    mark = await world.hand_in(chat, "hello")
    if world.heads():  # then the answer is there, and owed
        await world.idle()
    if dies:
        await world.end(at_once=True)
    world.is_offline = False
    if dies:
        await world.begin()
    await world.heard(mark)


@step(2)
async def pin(world, chat, rules):
    session = await world.session_of(chat)
    world.swapped(session.id)
    await world.say(chat, f"/pin {session.last_seq}")


@step(2)
async def erase(world, chat, rules):
    session = await world.session_of(chat)
    if any(entry.role == "user" for entry in session.window):
        rules.rewritten(session.id)
        async with world.calm():
            rules.emptied(session)  # a summary that is being written is late
            await world.say(chat, "/forget last")


@step(2)
async def delete(world, chat, rules):
    session_id = (await world.session_of(chat)).id
    await world.store.delete(session_id)
    rules.gone(session_id)
    # What was asked there goes with it.
    world.excused |= {mark for asked, mark in world.asked if asked == chat} - set(world.answered)


@step(3)
async def fork(world, chat, rules):
    """A chat goes on in a copy."""
    whole = await world.store.get((await world.session_of(chat)).id)
    seqs = [entry.seq for entry in whole.history() if entry.role == "assistant"]
    made = whole.fork(world.chance.choice(seqs) if seqs else None)
    await world.store.add(made)
    await world.loop.sessions.switch(f"{world.name}:{chat}", made.id)


async def change(world, chat, rules, act):
    """Change the history of a session on purpose; what needs the whole in memory may say so."""
    session = await world.session_of(chat)
    try:
        await act(session)
    except (HistoryNotLoaded, SessionNotFound):  # the last where somebody deleted it
        return
    rules.rewritten(session.id)
    with suppress(SessionNotFound):  # somebody deleted it
        await world.store.save(session)


@step(4)
async def undo(world, chat, rules):
    async def act(session):
        session.undo()

    await change(world, chat, rules, act)


@step(1)
async def reset(world, chat, rules):
    async def act(session):
        session.reset_history()
        rules.emptied(session)

    await change(world, chat, rules, act)


@step(1)
async def clear(world, chat, rules):
    async def act(session):
        session.clear()
        rules.emptied(session)

    await change(world, chat, rules, act)


@step(4)
async def resize(world, chat, rules):
    async def act(session):
        session.set_memo_update_handler(lambda memo, messages: {"heard": len(messages)})
        session.settings["session.limit.messages"] = world.chance.randint(1, 5)
        read = partial(world.store.entries, session.id)
        await session.async_resize(world.chance.choice(["lite", "deep"]), read=read)

    await change(world, chat, rules, act)


@step(4)
async def limit(world, chat, rules):
    """From now on the window is cut with each answer, where no handler has a say in it."""

    async def act(session):
        session.set_memo_update_handler(None)
        session.configure(limit={"messages": world.chance.randint(1, 6)})

    await change(world, chat, rules, act)


@step(2)
async def resize_by_hand(world, chat, rules):
    """A handler shows any part of the history it likes."""

    async def act(session):
        def handler(full, current, memo, settings):
            # A call whose result is shown no more pairs with a later result of the same id.
            parts = [m for m in current if m["role"] == "tool" or m.get("tool_calls")]
            left_out = next((m for m in current[1:-1] if m not in parts), None)
            if not world.repeats_ids:
                left_out = current[1] if len(current) > 1 else None
            return full, [m for m in current if m is not left_out], memo

        session.set_resize_handlers("odd", handler)
        read = partial(world.store.entries, session.id)
        if session.window:
            await session.async_resize("odd", read=read)

    await change(world, chat, rules, act)


@step(8)
async def under_a_summary(world, chat, rules):
    """A history changes while its summary is being written, which comes back later."""
    gate = world.digester.faulty.gate
    world.now += 1000
    before, world.digester.holds_next = gate.count, True
    for _ in range(4):
        await world.say(chat)
    if gate.count == before:  # this chat is being summarised already, or rests
        world.digester.holds_next = False
        return
    other = world.chance.choice([reset, clear, delete, begin_anew, undo, resize, fork])
    await other(world, chat, rules)
    if world.chance.random() < 0.5:
        await world.say(chat)
    gate.open(gate.waiting)
    await world.say(chat)


@step(6)
async def release(world, chat, rules):
    """Late summaries come back, some or all of them."""
    gate = world.digester.faulty.gate
    gate.open(world.chance.randint(1, 3))
    await anyio.lowlevel.checkpoint()


@step(6)
async def time_passes(world, chat, rules):
    world.now += world.chance.choice([1, 10, 1000])


@step(3)
async def fail_to_save(world, chat, rules):
    """The disk is full, for a save or two."""
    world.save_faults.extend(world.chance.choices(["fine", "before", "after"], k=3))
    mark = world.put(chat, world.chance.choice(["hello", "tools look fail"]))
    await world.heard(mark)
    await well_again(world, chat)


async def well_again(world, chat):
    world.save_faults.clear()
    with suppress(SessionNotFound):
        await world.store.save(await world.session_of(chat))


@step(3)
async def fail_to_hold(world, chat, rules):
    """As much, for messages that have to wait."""
    async with answering(world, chat):
        world.save_faults.extend(world.chance.choices(["fine", "before", "after"], k=3))
        marks = [world.put(chat, "hello") for _ in range(3)]
        with anyio.fail_after(5):
            while world.loop.waiting(f"{world.name}:{chat}") < len(marks):
                await anyio.lowlevel.checkpoint()
    await world.heard(*marks)
    await well_again(world, chat)


@step(3)
async def restart(world, chat, rules):
    await world.quiet()
    await world.end(at_once=False)
    await world.begin()


@step(2)
async def crash(world, chat, rules):
    await world.end(at_once=True)
    world.talker.gate.open()
    await world.begin()


def chosen(chance):
    return chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))[0]
