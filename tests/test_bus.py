import anyio
import pytest

from nanoloop.bus import SHORTEST_REST_SECONDS, InProcessBus
from nanoloop.errors import BusFull, SendLater
from nanoloop.events import SendFailed, TextStreamed
from nanoloop.messages import Inbound, Outbound
from nanoloop.sentences import ENGLISH


class Chats:
    """A channel that notes what it sends; a held chat waits for its gate."""

    name = "test"
    streams = True

    def __init__(self):
        self.sent = []
        self.gates = {}

    async def run(self, bus):
        pass

    async def send(self, item):
        if item.chat in self.gates:
            await self.gates[item.chat].wait()
        if item.text == "fail":
            raise OSError("the network is down")
        self.sent.append((item.chat, item.text))


def said(text, chat="a", **more):
    return Inbound(channel="test", chat=chat, text=text, **more)


def answer(text, chat="a", channel="test"):
    return Outbound(channel=channel, chat=chat, text=text)


async def test_a_message_is_only_gone_when_it_is_acknowledged():
    async with InProcessBus() as bus:
        bus.put_nowait(said("one"))
        bus.put_nowait(said("two"))
        async for delivery in bus.deliveries():
            await delivery.ack()
            break
        bus.close()
        again = [delivery.message.text async for delivery in bus.deliveries()]
    assert again == ["two"]


async def test_a_consumer_that_died_leaves_its_messages_to_the_next():
    async with InProcessBus() as bus:
        bus.put_nowait(said("one"))
        async for _ in bus.deliveries():
            break  # taken, not acknowledged
        bus.close()
        assert [d.message.text async for d in bus.deliveries()] == ["one"]


async def test_a_full_bus_tells_the_sender_and_the_chat():
    channel = Chats()
    async with InProcessBus(inbound_limit=1) as bus:
        bus.attach(channel)
        bus.put_nowait(said("one"))
        with pytest.raises(BusFull, match="1 messages are already waiting"):
            bus.put_nowait(said("two", chat="b"))
        await bus.flush()
    assert channel.sent == [("b", ENGLISH["full"])]


async def test_some_room_in_the_bus_is_kept_for_those_who_have_nothing_in_it():
    async with InProcessBus(inbound_limit=4) as bus:
        for chat in "abc":
            bus.put_nowait(said("flood", chat=chat, account="one"))
        with pytest.raises(BusFull):
            bus.put_nowait(said("flood", chat="d", account="one"))
        bus.put_nowait(said("hello", chat="e"))
        taken = []
        async for delivery in bus.deliveries():
            taken.append(delivery.message.text)
            await delivery.ack()
            if len(taken) == 4:
                break
        bus.put_nowait(said("flood", chat="d", account="one"))
    assert taken == ["flood", "flood", "flood", "hello"]


async def test_a_waiting_sender_gets_in_when_a_message_is_acknowledged():
    async with InProcessBus(inbound_limit=1) as bus, anyio.create_task_group() as group:
        bus.put_nowait(said("one"))
        group.start_soon(bus.put, said("two"))
        await anyio.wait_all_tasks_blocked()
        taken = []
        async for delivery in bus.deliveries():
            taken.append(delivery.message.text)
            await delivery.ack()
            if len(taken) == 2:
                break
    assert taken == ["one", "two"]


async def test_a_slow_chat_holds_up_no_other():
    channel = Chats()
    channel.gates["slow"] = anyio.Event()
    async with InProcessBus() as bus:
        bus.attach(channel)
        await bus.publish(answer("1", chat="slow"))
        await bus.publish(answer("2", chat="quick"))
        await anyio.wait_all_tasks_blocked()
        assert channel.sent == [("quick", "2")]
        channel.gates["slow"].set()
        await bus.flush()


async def test_texts_of_one_chat_keep_their_order_with_pieces_between():
    channel = Chats()
    async with InProcessBus() as bus:
        bus.attach(channel)
        bus.publish_nowait(TextStreamed(channel="test", chat="a", session_id="s", text="he"))
        bus.publish_nowait(TextStreamed(channel="test", chat="a", session_id="s", text="llo"))
        await bus.publish(answer("hello"))
        await bus.flush()
    assert channel.sent == [("a", "he"), ("a", "llo"), ("a", "hello")]


async def test_pieces_are_dropped_before_a_whole_text_would_have_no_room():
    channel = Chats()
    channel.gates["a"] = anyio.Event()
    async with InProcessBus(outbound_limit=4) as bus:
        bus.attach(channel)
        for number in range(10):
            bus.publish_nowait(
                TextStreamed(channel="test", chat="a", session_id="s", text=str(number))
            )
        with anyio.fail_after(1):
            await bus.publish(answer("whole"))
        channel.gates["a"].set()
        await bus.flush()
    assert channel.sent[-1] == ("a", "whole")
    assert len(channel.sent) == 3


async def test_pieces_that_had_no_room_go_out_with_the_next_one():
    channel = Chats()
    channel.gates["a"] = anyio.Event()
    async with InProcessBus(outbound_limit=4) as bus:
        bus.attach(channel)
        for number in range(10):
            if number == 9:
                channel.gates["a"].set()
                await bus.flush()
            bus.publish_nowait(
                TextStreamed(channel="test", chat="a", session_id="s", text=str(number))
            )
        await bus.flush()
    assert "".join(text for _, text in channel.sent) == "0123456789"


async def test_a_failed_send_is_an_event_and_the_next_one_goes_out(heard):
    channel = Chats()
    async with InProcessBus() as bus:
        bus.attach(channel)
        await bus.publish(answer("fail"))
        await bus.publish(answer("fine"))
        await bus.publish(answer("lost", channel="nowhere"))
        await bus.flush()
    assert channel.sent == [("a", "fine")]
    assert heard == [
        SendFailed(channel="test", chat="a", error="OSError"),
        SendFailed(channel="nowhere", chat="a", error="no such channel"),
    ]


async def test_a_closed_bus_takes_nothing_and_ends_its_deliveries():
    async with InProcessBus() as bus, anyio.create_task_group() as group:

        async def consume():
            assert [delivery async for delivery in bus.deliveries()] == []

        group.start_soon(consume)
        await anyio.wait_all_tasks_blocked()
        bus.close()
        with pytest.raises(BusFull):
            bus.put_nowait(said("late"))


@pytest.mark.parametrize("seconds", [0, -1, 0.001])
async def test_a_channel_that_names_no_time_to_wait_is_left_alone_a_little_all_the_same(seconds):
    chats, rests = Chats(), []

    async def send(_):
        if not rests:
            raise SendLater("busy", seconds=seconds)

    async def sleep(rest):
        rests.append(rest)

    chats.send = send
    async with InProcessBus(sleep=sleep) as bus:
        bus.attach(chats)
        await bus.publish(answer("one"))
        await bus.flush()
    assert rests == [SHORTEST_REST_SECONDS]
