import os
import struct
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.providers.local import child
from nanoloop.providers.local import child as room
from nanoloop.providers.local.child import Gguf, NotGguf, family_of
from nanoloop.providers.local.launch import MARK, Launch, Report

ORDER = Launch(
    path="/x/tiny.gguf", model="tiny", context_tokens=8192, parallel=2, threads=1, key="k"
)


def packed(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def header(*fields):
    """A header with these fields: key, kind, and the value as bytes."""
    parts = [packed(key) + struct.pack("<I", kind) + value for key, kind, value in fields]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(parts)) + b"".join(parts)


def number(key, value):
    return (key, 4, struct.pack("<I", value))


def text(key, value):
    return (key, 8, packed(value))


def words(key, *values):
    return (key, 9, struct.pack("<IQ", 8, len(values)) + b"".join(map(packed, values)))


FIELDS = (
    text("general.architecture", "llama"),
    words("tokenizer.ggml.tokens", "a", "b", "long one"),
    ("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 3) + b"\0" * 12),
    text("general.name", "Tiny"),
    number("llama.context_length", 4096),
    number("llama.block_count", 10),
    number("llama.embedding_length", 512),
    number("llama.attention.head_count", 8),
    number("llama.attention.head_count_kv", 2),
)


def model(**fields):
    return Gguf(**{"name": "", "size": 100, "context_tokens": 0, "token_bytes": 1} | fields)


def written(tmp_path, content):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(content)
    return path


def test_a_header_tells_name_context_and_what_a_token_takes(tmp_path):
    content = header(*FIELDS)
    read = Gguf.read(written(tmp_path, content))
    assert (read.name, read.context_tokens, read.size) == ("Tiny", 4096, len(content))
    assert read.token_bytes == 10 * 2 * (64 + 64) * 2


def test_what_a_header_does_not_say_is_zero(tmp_path):
    read = Gguf.read(written(tmp_path, header(text("general.architecture", "odd"))))
    assert (read.name, read.context_tokens, read.token_bytes) == ("", 0, 0)


@given(st.data())
def test_a_broken_header_is_no_model_and_no_crash(tmp_path_factory, data):
    whole = header(*FIELDS)
    cut = data.draw(st.integers(0, len(whole) - 1))
    path = written(tmp_path_factory.mktemp("cut"), whole[:cut])
    with pytest.raises(NotGguf):
        Gguf.read(path)


@given(st.binary(min_size=20, max_size=200))
def test_noise_after_the_first_letters_is_no_crash(tmp_path_factory, noise):
    path = written(tmp_path_factory.mktemp("noise"), b"GGUF" + noise)
    with suppress(NotGguf):
        Gguf.read(path)


@given(
    wished=st.integers(256, 200_000),
    learnt=st.integers(0, 200_000),
    room_bytes=st.integers(0, 10**10),
    parallel=st.integers(1, 8),
)
def test_a_context_is_no_more_than_wished_learnt_or_fits(wished, learnt, room_bytes, parallel):
    one = model(size=10**8, context_tokens=learnt, token_bytes=20_000)
    tokens = room.context_tokens(one, wished=wished, parallel=parallel, room=room_bytes)
    assert tokens <= wished
    assert tokens <= (learnt or wished)
    if tokens:
        assert room.needed_bytes(one, tokens=tokens, parallel=parallel) <= room_bytes


def test_with_less_memory_the_context_is_halved_until_it_fits():
    one = model(token_bytes=20_000)
    fits = room.needed_bytes(one, tokens=4096, parallel=2)
    assert room.context_tokens(one, wished=8192, parallel=2, room=fits) == 4096
    assert room.context_tokens(one, wished=8192, parallel=2, room=1000) == 0


def test_the_free_memory_is_no_more_than_a_container_allows(monkeypatch, tmp_path):
    assert room.free_bytes() > 0
    limit = tmp_path / "memory.max"
    limit.write_text("123456\n")
    monkeypatch.setattr(room, "LIMIT_FILE", limit)
    assert room.free_bytes() == 123_456


def test_where_the_system_tells_nothing_half_of_all_memory_is_taken_for_free(monkeypatch):
    monkeypatch.setattr(room, "MEMORY_FILE", Path("/none"))
    monkeypatch.setattr(room, "LIMIT_FILE", Path("/none"))
    assert room.free_bytes() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def test_what_is_kept_beside_takes_half_of_what_is_left_and_no_more_than_its_limit():
    one, mib = model(size=0), 2**20
    kept = [
        room.cache_mib(one, tokens=0, parallel=1, room=room.WORKING_BYTES + left * mib)
        for left in (-9, 0, 100, 10_000)
    ]
    assert kept == [0, 0, 50, room.CACHE_MIB]


def test_a_model_too_large_for_the_memory_says_what_it_needs():
    with pytest.raises(child.CannotRun, match=r"tiny needs 2.3 GB .* 0.5 GB is free: .* smaller"):
        child._tokens(model(size=2 * 10**9, token_bytes=1000), ORDER, 5 * 10**8)


def test_a_coder_gets_our_template_and_others_keep_their_own():
    for name in ("Qwen2.5 Coder 1.5B Instruct GGUF", "qwen2.5-coder-7b"):
        assert '{"name": "' in family_of(name).chat_template
    assert family_of("Qwen2.5 1.5B Instruct").chat_template == family_of("").chat_template == ""


def test_only_a_graphics_card_reads_much_at_one_go():
    def device(name):
        return {"type": SimpleNamespace(name=f"GGML_BACKEND_DEVICE_TYPE_{name}")}

    assert child._batch([device("CPU"), device("ACCEL")]) == child.BATCH
    assert child._batch([device("CPU"), device("IGPU")]) == child.GRAPHICS_BATCH


def test_orders_and_reports_arrive_as_they_were_sent():
    assert Launch.read(ORDER.line()) == ORDER
    report = Report(address="http://127.0.0.1:1", context_tokens=8192, calls_tools=True)
    blank, line, rest = report.line().split(b"\n")
    assert (blank, rest, Report.read(line)) == (b"", b"", report)
    assert Report.read(b"E llama: " + MARK) is None
