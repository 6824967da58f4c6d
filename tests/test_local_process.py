import os
import signal
import sys
import threading
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from nanoloop.errors import ProviderError, SettingsError
from nanoloop.providers.local import provider as process_module
from nanoloop.providers.local import provider as server_module
from nanoloop.providers.local.provider import LocalProvider
from tests.stages.local_model import FETCHING_SECONDS, LONG, local, model_file, opened, said, until

pytestmark = pytest.mark.timeout(FETCHING_SECONDS)


@pytest.fixture(autouse=True, scope="module")
def _model_is_here():
    model_file()


def is_alive(pid):
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it went away just now, or this is no Linux
        return sys.platform != "linux"
    return state != "Z"


@pytest.mark.slow
async def test_after_its_process_was_killed_the_next_turn_is_answered(heard):
    async with opened() as provider:
        await provider.ready()
        before = provider.pid
        os.kill(before, signal.SIGKILL)
        assert (await provider.chat(messages=said("Are you there?"))).text
        assert provider.pid not in (None, before)
    assert [event.name() for event in heard] == ["model_loaded", "model_lost", "model_loaded"]


async def test_killed_in_the_middle_of_an_answer_it_says_so():
    async with opened(options=LONG) as provider:
        with pytest.raises(ProviderError, match=r"was killed \(SIGKILL\).*try again"):
            await provider.chat(
                messages=said("Count."), on_text=lambda _: os.kill(provider.pid, signal.SIGKILL)
            )


@pytest.mark.slow
async def test_an_end_counts_once_however_many_were_being_answered():
    begun = {"a": anyio.Event(), "b": anyio.Event()}

    async def ask(name):
        with pytest.raises(ProviderError, match="SIGKILL"):
            await provider.chat(messages=said(name), on_text=lambda _: begun[name].set())

    async with opened(options=LONG) as provider, anyio.create_task_group() as group:
        for name, event in begun.items():
            group.start_soon(ask, name)
            await event.wait()
        os.kill(provider.pid, signal.SIGKILL)
    assert provider._ends == 1


def runs(monkeypatch, *command):
    monkeypatch.setattr(process_module, "COMMAND", command)


async def test_one_that_breaks_down_while_it_loads_says_how_with_its_last_words(monkeypatch):
    runs(monkeypatch, sys.executable, "-c", "print('bad news', flush=1); import os; os.abort()")
    async with opened() as provider:
        with pytest.raises(ProviderError, match=r"tiny .* was killed \(SIGABRT\) \(bad news\)"):
            await provider.ready()


async def test_one_that_can_not_be_started_says_so(monkeypatch):
    runs(monkeypatch, "/none")
    async with opened() as provider:
        with pytest.raises(ProviderError, match="can't be started"):
            await provider.ready()


async def test_one_that_takes_too_long_to_load_is_ended(monkeypatch):
    runs(monkeypatch, sys.executable, "-c", "import sys; sys.stdin.read()")
    async with opened(start_timeout_seconds=0.2) as provider:
        with pytest.raises(ProviderError, match=r"was not loaded after 0.2 seconds"):
            await provider.ready()
        assert provider.pid is None


async def test_a_process_that_ends_again_and_again_is_left_alone_for_a_while():
    async with opened() as provider:
        provider._ends, provider._rests_until = 3, float("inf")
        with pytest.raises(ProviderError, match="3 times in a row"):
            await provider.chat(messages=said("Hi."))


@pytest.mark.slow
async def test_a_server_that_hangs_is_ended_and_started_anew(monkeypatch):
    monkeypatch.setattr(server_module, "HEALTH_SECONDS", 0.2)
    async with opened(call_timeout_seconds=3) as provider:
        await provider.ready()
        before = provider.pid
        os.kill(before, signal.SIGSTOP)
        with pytest.raises(ProviderError, match="did not finish"):
            await provider.chat(messages=said("Hi."))
        assert not is_alive(before)
        assert (await provider.chat(messages=said("Hi."))).text


@pytest.mark.slow
async def test_a_server_that_is_only_slow_is_left_alive_whatever_proxy_there_is(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with opened(call_timeout_seconds=0.3, options=LONG) as provider:
        await provider.ready()
        before = provider.pid
        with pytest.raises(ProviderError, match="did not finish"):
            await provider.chat(messages=said("Count."))
        assert provider.pid == before
        assert is_alive(before)


@pytest.mark.slow
async def test_closed_it_leaves_no_process_and_answers_no_more():
    async with opened() as provider:
        await provider.chat(messages=said("Hi."))
        pid = provider.pid
        await provider.close()
        assert not is_alive(pid)
        assert provider.pid is None
        with pytest.raises(ProviderError, match="closed"):
            await provider.chat(messages=said("Hi."))


@pytest.mark.slow
async def test_started_in_one_thread_it_outlives_it_and_answers_in_another():
    async with opened() as provider:

        def elsewhere():
            thread = threading.Thread(target=anyio.run, args=(provider.ready,))
            thread.start()
            thread.join()

        await to_thread.run_sync(elsewhere)
        before = provider.pid
        assert (await provider.chat(messages=said("Hi."))).text
        assert provider.pid == before


PROGRAM = """
import anyio, sys
from nanoloop.providers.local.provider import LocalProvider
provider = LocalProvider(sys.argv[1])
ask = {"messages": [{"role": "user", "content": "Hi."}]}
hear = lambda piece: print(provider.pid, flush=True)
anyio.run(lambda: provider.chat(**ask, on_text=hear))
"""


@pytest.mark.slow
async def test_with_the_program_killed_no_model_process_is_left():
    command = [sys.executable, "-c", PROGRAM, str(model_file())]
    async with await anyio.open_process(command, stderr=None) as program:
        pid = int((await program.stdout.receive()).split()[0])
        assert is_alive(pid)
        program.kill()
    await until(lambda: not is_alive(pid))


async def test_with_its_input_at_an_end_a_model_process_ends_without_being_killed():
    async with opened() as provider:
        await provider.chat(messages=said("Hi."))
        process = provider._server.process
        process._process.stdin.close()
        await until(lambda: process.has_ended)
        assert process.end == "ended with 0"


async def test_a_file_that_is_no_model_is_refused_with_a_next_step(tmp_path):
    whole = model_file().read_bytes()
    broken = {"short.gguf": whole[:20_000_000], "head.gguf": whole[:300], "other.gguf": b"hello"}
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        provider = LocalProvider(tmp_path / name)
        with pytest.raises(ProviderError, match=rf"{name} .* (again|another)"):
            await provider.chat(messages=said("Hi."))


async def test_without_a_file_or_what_runs_it_there_is_no_provider(tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match="nanoloop model list"):
        LocalProvider(tmp_path / "none.gguf")
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(SettingsError, match=r"pip install 'nanoloop-agent\[local\]'"):
        LocalProvider(tmp_path / "none.gguf")


@pytest.mark.slow
async def test_a_model_that_was_loaded_ahead_is_taken_over_by_the_next_provider_of_it():
    local().load_ahead()
    async with opened() as provider, opened() as another:
        ahead = process_module._ahead[str(model_file())]
        await ahead.ready()
        await provider.ready()
        assert provider.pid == ahead.pid
        await another.ready()
        assert another.pid not in (None, ahead.pid)
        assert (await provider.chat(messages=said("Are you there?"))).text


@pytest.mark.slow
async def test_a_model_that_was_loaded_ahead_in_another_way_makes_room():
    local(context_tokens=1024).load_ahead()
    async with opened() as provider:
        ahead = process_module._ahead[str(model_file())]
        await ahead.ready()
        await provider.ready()
        assert ahead.has_ended
        assert not is_alive(ahead.pid)
