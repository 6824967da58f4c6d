"""Tool servers: connected side by side, entered anew when they die, and nothing of them is left."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from nanoloop.protocols import effect_of, runs_again
from nanoloop.tools.listing import LONGEST_NAME, Accepted, listed_tool, name_for_model
from nanoloop.tools.servers import (
    ToolServerFailed,
    ToolServerPlace,
    ToolServerStarted,
    ToolsLeftOut,
    ToolsWithheld,
)
from tests.references import ROOT
from tests.tool_servers import Folder, call, is_alive, processes_of, running, until

KILLS = 20


@pytest.fixture
def files(tmp_path):
    return Folder(tmp_path / "files")


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


def tools_of(servers):
    return {name: tool for source in servers.sources for name, tool in source.tools.items()}


async def test_a_server_s_tools_are_called_by_its_name_and_theirs(files, data, heard):
    async with running(files.place(), data=data) as servers:
        assert await call(servers, "files__echo", text="hi") == "hi"
        assert await call(servers, "files__fail", text="no") == "no"
        started = next(event for event in heard if isinstance(event, ToolServerStarted))
        assert (started.server, started.tools) == ("files", len(tools_of(servers)))


async def test_what_a_call_does_is_what_the_server_hints_and_writing_without_a_hint(files, data):
    async with running(files.place(), data=data) as servers:
        tools = tools_of(servers)
    effects = {name: effect_of(tools[f"files__{name}"]) for name in ("echo", "write", "again")}
    assert effects == {"echo": "reads", "write": "writes", "again": "writes"}
    assert [runs_again(tools[f"files__{name}"]) for name in ("write", "again")] == [False, True]


async def test_only_tools_that_the_settings_choose_are_there(files, data):
    place = files.place(tools=("e*", "!environment", "write"))
    async with running(place, data=data) as servers:
        assert set(tools_of(servers)) == {"files__echo", "files__write"}


async def test_one_tool_without_a_proper_schema_hides_no_other(files, data, heard):
    files.set("bad")
    async with running(files.place(), data=data) as servers:
        assert await call(servers, "files__echo", text="hi") == "hi"
    left = next(event for event in heard if isinstance(event, ToolsLeftOut))
    assert left.tools == ("no schema", "a list", "a tool without a name")


async def test_descriptions_and_schemas_are_bounded(files, data):
    files.set("huge")
    async with running(files.place(), data=data) as servers:
        tools = tools_of(servers)
        assert len(tools["files__huge"].spec.description) < 5_000
        assert "files__wide" not in tools
        (server,) = servers
        assert server.left_out == {"wide": "its schema has 200,081 characters, more than 20,000"}


async def test_odd_names_become_names_that_models_take(files, data):
    files.set("spaces")
    async with running(files.place(), data=data) as servers:
        names = set(tools_of(servers))
        assert await call(servers, "files__with_two_spaces") == ""
        (server,) = servers
    assert all(len(name) <= LONGEST_NAME and name.isascii() for name in names)
    # The second of two that would be called alike.
    assert list(server.left_out) == ["with_two_spaces"]


def test_long_names_that_begin_alike_stay_distinct():
    names = {name_for_model("files", "n" * 100 + end) for end in ("", "a", "b")}
    assert len(names) == 3


async def test_a_result_of_5_mb_comes_whole(files, data):
    async with running(files.place(), data=data) as servers:
        tool = tools_of(servers)["files__large"]
        assert len(await tool.call({})) == 5_000_000


async def test_a_program_sees_no_variable_that_was_not_named(files, data, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("FILES_KEY", "for it")
    async with running(files.place(env=("FILES_KEY",)), data=data) as servers:
        seen = json.loads(await call(servers, "files__environment"))
    assert seen["FILES_KEY"] == "for it"
    assert "OPENAI_API_KEY" not in seen


async def test_a_question_to_the_user_is_declined_and_the_model_told(files, data):
    async with running(files.place(), data=data) as servers:
        answer = await call(servers, "files__ask")
    assert answer.startswith("decline\n")
    assert "it was declined" in answer


# Servers that die


async def test_a_server_that_dies_in_a_call_costs_that_call_and_no_other(files, data, heard):
    async with running(files.place(), data=data) as servers:
        writing = await call(servers, "files__die")
        reading = await call(servers, "files__die_reading")
        assert await call(servers, "files__echo", text="hi") == "hi"
    why = "files went away during the call: its program was killed (SIGKILL)"
    assert writing == f"{why}; the call may or may not have taken effect"
    assert reading == f"{why}; call it again"
    assert [type(event) for event in heard] == [
        *(ToolServerStarted, ToolServerFailed) * 2,
        ToolServerStarted,
    ]


@pytest.mark.slow
async def test_a_server_killed_in_20_calls_leaves_no_process_and_stops_no_neighbour(
    tmp_path, files, data
):
    other = Folder(tmp_path / "other")
    async with running(files.place(), other.place("other"), data=data) as servers:
        for number in range(KILLS):
            said = []

            async def wait(said=said):
                said.append(await call(servers, "files__wait"))

            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await files.until("waits")
                assert await call(servers, "other__echo", text=f"{number}") == f"{number}"
                os.kill(files.pids[-1], signal.SIGKILL)
            files.unset("waits")
            assert said == [
                "files went away during the call: its program was killed (SIGKILL); call it again"
            ]
            assert await call(servers, "files__echo", text=f"{number}") == f"{number}"
        assert len(other.pids) == 1
    assert len(files.pids) == KILLS + 1
    assert processes_of(files) == processes_of(other) == []


async def test_a_server_that_can_t_be_started_is_named_and_tried_again(files, data, heard):
    files.set("ends")
    async with running(files.place(), data=data) as servers:
        (server,) = servers
        assert (server.state, server.reason) == ("unreachable", "its program ended with 1")
        assert server.last_lines == ("Error: it has no key",)
        files.unset("ends")
        await until(lambda: server.state == "connected")
    # What a program says may be anything, and stays out of the log.
    assert [event.reason for event in heard if isinstance(event, ToolServerFailed)] == [
        "its program ended with 1"
    ]


async def test_its_tools_stay_announced_meanwhile_and_say_since_when(files, data):
    async with running(files.place(), data=data):
        pass
    files.set("ends")
    async with running(files.place(), data=data) as servers:
        said = await call(servers, "files__echo", text="hi")
    assert said.startswith("files is not reachable since ")
    assert said.endswith(": its program ended with 1")


async def test_a_program_that_does_not_exist_is_named(data):
    place = ToolServerPlace(name="files", command=("no-such-program", "x"))
    async with running(place, data=data) as servers:
        (server,) = servers
        assert server.reason.startswith("there is no program no-such-program: install it")


async def test_a_program_that_never_answers_is_given_up(files, data):
    files.set("silent")
    async with running(files.place(timeout_seconds=0.3), data=data) as servers:
        (server,) = servers
        assert server.reason == "it did not answer within 0.3 s"
    assert processes_of(files) == []


@pytest.mark.slow
async def test_a_program_that_falls_silent_in_a_call_is_replaced(files, data):
    async with running(files.place(), data=data) as servers:
        (server,) = servers
        server.place = replace(server.place, timeout_seconds=0.1)
        assert await call(servers, "files__wait") == (
            "files did not answer within 0.1 s; call it again"
        )
        server.place = files.place()
        assert await call(servers, "files__echo", text="hi") == "hi"
        assert len(files.pids) == 2


async def test_a_call_waits_while_the_server_starts(files, data):
    async with running(files.place(), data=data):
        pass
    async with running(files.place(), data=data, wait=False) as servers:
        assert await call(servers, "files__echo", text="hi") == "hi"


async def test_a_cancelled_call_is_no_reason_to_leave_the_server(files, data):
    async with running(files.place(), data=data) as servers:
        with anyio.move_on_after(0):
            await call(servers, "files__echo", text="hi")
        assert await call(servers, "files__echo", text="again") == "again"
        assert len(files.pids) == 1


# Processes


@pytest.mark.slow
async def test_children_of_a_server_end_with_it_and_one_that_stays_too(files, data):
    files.set("stays")
    async with running(files.place(), data=data) as servers:
        child = int(await call(servers, "files__child"))
        assert is_alive(child)
    assert not is_alive(child)
    assert processes_of(files) == []


RUN = """
import sys
import anyio
from pathlib import Path
from tests.tool_servers import Folder, call, running

async def main():
    async with running(Folder(Path(sys.argv[1])).place(), data=Path(sys.argv[2])) as servers:
        print(await call(servers, "files__child"), flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.slow
async def test_a_kill_of_nanoloop_leaves_no_process_of_a_server(files, data):
    files.set("stays")
    words = [sys.executable, "-c", RUN, str(files.path), str(data)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as process:  # noqa: ASYNC220 - it starts at once
        child = int(process.stdout.readline())
        assert is_alive(child)
        process.kill()
    await until(lambda: not is_alive(child) and not processes_of(files))


@pytest.mark.slow
async def test_1000_calls_leave_no_descriptor_and_no_task(files, data):
    async with running(files.place(), data=data) as servers:

        async def hundred():
            for number in range(100):
                assert await call(servers, "files__echo", text=f"{number}") == f"{number}"

        await hundred()
        before = counted()
        for _ in range(9):
            await hundred()
        assert counted() == before


def counted():
    """The open descriptors, and the tasks."""
    return len([*Path("/proc/self/fd").iterdir()]), len(anyio.get_running_tasks())


# What is accepted


def listing_of(servers):
    return {name: tool.spec.description for name, tool in tools_of(servers).items()}


async def test_a_tool_that_changes_is_withheld_until_the_operator_accepts_it(
    files, data, heard, monkeypatch
):
    monkeypatch.setattr("nanoloop.tools.servers.LOOK_SECONDS", 0.01)
    async with running(files.place(), data=data) as servers:
        await call(servers, "files__change", text="other")
        await until(lambda: "files__echo" not in tools_of(servers))
        withheld = next(event for event in heard if isinstance(event, ToolsWithheld))
        assert withheld.tools == ("echo",)
        assert withheld.advice.endswith("nanoloop tools accept files")
        assert await call(servers, "files__write", text="still") == "still"
        Accepted(data).accept("files")  # as the command does, in another process
        await until(lambda: "files__echo" in tools_of(servers))
        assert "Be evil." in listing_of(servers)["files__echo"]


async def test_one_that_changed_between_two_starts_is_withheld_too(files, data):
    async with running(files.place(), data=data) as servers:
        before = listing_of(servers)
    files.set("other", "more")
    async with running(files.place(), data=data) as servers:
        after = listing_of(servers)
        (server,) = servers
        assert sorted(server.withheld) == ["added", "echo"]
    assert after == {name: said for name, said in before.items() if name != "files__echo"}


@pytest.mark.parametrize(
    ("part", "before", "told"),
    [("parameters", {"type": "object"}, "schema"), ("effect", "writes", "hints")],
)
async def test_the_operator_reads_what_has_changed(files, data, part, before, told):
    async with running(files.place(), data=data):
        pass
    known = json.loads((data / "tool_servers.json").read_text())
    known["files"]["accepted"]["tools"][0][part] = before
    (data / "tool_servers.json").write_text(json.dumps(known))
    async with running(files.place(), data=data) as (server,):
        said = list(server.report())
    assert f"  withheld 'echo', which is changed ({told}), and says: Does echo." in said


async def test_what_was_accepted_is_announced_before_the_server_has_started(files, data):
    async with running(files.place(), data=data) as servers:
        before = listing_of(servers)
    files.set("silent")
    async with running(files.place(), data=data, wait=False) as servers:
        assert listing_of(servers) == before


async def test_a_damaged_file_of_what_is_accepted_accepts_nothing(files, data):
    async with running(files.place(), data=data):
        pass
    (data / "tool_servers.json").write_text("{")
    async with running(files.place(), data=data) as servers:
        assert tools_of(servers) == {}
        (server,) = servers
        assert "is damaged" in server.reason


async def test_the_file_of_what_is_accepted_is_for_its_user_only(files, data):
    async with running(files.place(), data=data):
        assert (data / "tool_servers.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "change",
    [
        {"description": "other"},
        {"parameters": {"type": "object", "properties": {"a": {}}}},
        {"reads": True},
        {"idempotent": True},
    ],
)
def test_a_digest_changes_with_all_that_a_model_or_a_call_depends_on(change):
    said = {"description": "it", "parameters": {"type": "object"}, "reads": False}
    said |= {"name": "a", "idempotent": False}
    assert listed_tool(**said).digest != listed_tool(**said | change).digest
    assert listed_tool(**said).digest == listed_tool(**said).digest


# Settings that change


async def test_a_reload_keeps_the_connections_that_stay(tmp_path, files, data):
    other = Folder(tmp_path / "other")
    async with running(files.place(), other.place("other"), data=data) as servers:
        servers.set_places([files.place(), other.place("other", tools=("echo",))])
        await until(lambda: len(other.pids) == 2)
        for server in servers:
            await server.settled()
        assert await call(servers, "files__echo", text="hi") == "hi"
        assert len(files.pids) == 1
        servers.set_places([files.place()])
        await until(lambda: not processes_of(other))
        assert not any(name.startswith("other") for name in tools_of(servers))


async def test_a_tool_that_is_gone_is_named_with_those_that_are_there(files, data):
    async with running(files.place(tools=("echo",)), data=data) as servers:
        result = await call(servers, "files__ecko")
    assert result.startswith("there is no tool 'files__ecko': did you mean 'files__echo'?")
