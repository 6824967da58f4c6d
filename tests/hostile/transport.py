"""Hostile below the answer: HTTP, compression, redirects, connections that break or never end."""

from __future__ import annotations

import zlib
from base64 import b64decode
from collections.abc import Iterator
from functools import lru_cache

from tests.hostile.mode import (
    BODY,
    CHUNKED,
    CUT,
    DEAF,
    DONE,
    END,
    ERROR,
    HEADER,
    LAST,
    PATH,
    PIECE,
    STATUS,
    STOLEN,
    TOLD,
    chunk,
    delta,
    endless,
    error_body,
    head,
    message,
    mode,
    plain,
    streamed,
    whole,
)

TEXT = f"A {TOLD} speaks."
LONG_TIME = 3600.0
JSON_ERROR = "application/json"
OK = b"HTTP/1.1 200 OK\r\n"

UNBOUNDED = "aiohttp reads whatever comes at once, and has no bound on this"
UNASKED = "aiohttp keeps what comes on an idle connection for the next answer"

# Heads


@mode()
def endless_status_line(asked):
    return endless(b"x", b"HTTP/1.1 200 ")


@mode()
def endless_headers(asked):
    return endless(f"x-{HEADER}: a\r\n".encode(), OK)


@mode()
def endless_header_value(asked):
    return endless(b"x", OK + b"x-long: ")


@mode()
def endless_header_name(asked):
    return endless(b"x", OK)


@mode(known=UNBOUNDED)
def endless_words_in_between(asked):
    return endless(b"HTTP/1.1 100 Continue\r\n\r\n")


@mode(known=UNBOUNDED)
def endless_early_hints(asked):
    return endless(f"HTTP/1.1 103 Hints\r\nlink: <{HEADER}>\r\n\r\n".encode())


@mode(says=TEXT)
def thousand_headers(asked):
    headers = [f"x-{number}: {HEADER}" for number in range(1000)]
    yield whole(message(content=TEXT), *headers)


@mode(says=TEXT)
def cookie_flood(asked):
    """Each answer sets a hundred new names."""
    new = range(asked.count * 100, asked.count * 100 + 100)
    yield whole(message(content=TEXT), *[f"set-cookie: {HEADER}{n}={'v' * 50}" for n in new])


@mode(says=TEXT)
def cookie_of_its_own(asked):
    yield whole(message(content=TEXT), f"set-cookie: a={HEADER}; domain=example.org; path=/")


@mode(says=TEXT)
def odd_headers(asked):
    odd = ("x-a: \x01\x02", "x-b: é", " folded: a", "x-c : a", "x-d: a\rx-e: b")
    yield whole(message(content=TEXT), odd[asked.count % len(odd)])


@mode(says=TEXT)
def odd_statuses(asked):
    odd = ("000", "099", "299", "600", "999", "-1", "20O", "", "200 200", "99999999999999999999")
    yield whole(message(content=TEXT), status=odd[asked.count % len(odd)])
    yield END


@mode()
def not_http(asked):
    said = (
        b"SSH-2.0-OpenSSH_9.9 " + BODY.encode() + b"\r\n",
        b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + BODY.encode(),
        b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + BODY.encode(),
        b"<html>" + BODY.encode(),
        b"HTTP/2 200\r\n\r\n" + BODY.encode(),
        b"\r\n" * 1000 + BODY.encode(),
        b"ICY 200 OK\r\n\r\n" + BODY.encode(),
    )
    yield said[asked.count % len(said)]
    yield END


@mode()
def switching_protocols(asked):
    yield b"HTTP/1.1 101 " + STATUS.encode() + b"\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    yield b"\r\n" + BODY.encode()
    yield LONG_TIME


# Framing


def framed(framing: str, body: bytes) -> bytes:
    return head(framing, kind=JSON_ERROR) + body


@mode(known=UNBOUNDED)
def endless_chunk_extension(asked):
    return endless(b"x", head(CHUNKED) + b"5;ext=")


@mode(known=UNBOUNDED)
def endless_chunk_size(asked):
    return endless(b"0", head(CHUNKED))


@mode(says=TEXT)
def endless_trailers(asked):
    answered = streamed(delta(content=TEXT), delta("stop"))
    return endless(f"x-{HEADER}: a\r\n".encode(), answered.removesuffix(b"\r\n"))


@mode(says=TEXT)
def odd_chunk_sizes(asked):
    body = message(content=TEXT)
    size = b"%x" % len(body)
    odd = (b"ffffffffffffffffff", b"-1", b"7fffffffffffffff", b"0x" + size, b"", b" ", b"zz", b"+5")
    yield framed(CHUNKED, odd[asked.count % len(odd)] + b"\r\n" + body + b"\r\n" + LAST)
    yield END


@mode(says=TEXT)
def odd_lengths(asked):
    body = message(content=TEXT)
    right = len(body)
    odd = (10**30, -1, f"+{right}", f"{right}, {right}", f"0x{right:x}", "", "NaN", f"{right}.0")
    yield framed(f"content-length: {odd[asked.count % len(odd)]}", body)
    yield END


@mode()
def length_too_long(asked):
    body = message(content=TEXT)
    yield framed(f"content-length: {len(body) + 100}", body)
    yield END


@mode()
def length_too_short(asked):
    body = message(content=TEXT)
    yield framed(f"content-length: {len(body) - 10}", body)


@mode(says=TEXT)
def two_lengths(asked):
    body = message(content=TEXT)
    yield framed(f"content-length: {len(body)}\r\ncontent-length: {len(body) + 5}", body)
    yield END


@mode(says=TEXT)
def length_and_chunked(asked):
    body = chunk(message(content=TEXT)) + LAST
    yield framed(f"{CHUNKED}\r\ncontent-length: 5", body)
    yield END


@mode(says=TEXT)
def unasked_bytes_behind(asked):
    """What comes behind an answer must never be taken for the next one."""
    yield plain(asked, TEXT) + whole(message(content=STOLEN))


@mode(says=TEXT, known=UNASKED)
def unasked_bytes_later(asked):
    yield plain(asked, TEXT)
    yield 0.01
    yield whole(message(content=STOLEN))


# Compression


def deflated(data: bytes, bits: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, bits)
    return packer.compress(data) + packer.flush()


GZIP, ZLIB, RAW = 31, 15, -15
BOMB = 200_000_000
"""Bytes of a whole one, inflated."""
GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


@lru_cache(maxsize=4)
def whole_bomb(bits: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, bits)
    begin, end = message(content="MARK").split(b"MARK")
    parts = [packer.compress(begin)]
    parts += [packer.compress(b"a" * 1_000_000) for _ in range(BOMB // 1_000_000)]
    return b"".join([*parts, packer.compress(end), packer.flush()])


@lru_cache(maxsize=16)
def block(data: bytes) -> bytes:
    """A part of a deflated stream that may be repeated for ever."""
    packer = zlib.compressobj(9, zlib.DEFLATED, RAW)
    inflated = data * max(1, 8_000_000 // len(data))
    return packer.compress(inflated) + packer.flush(zlib.Z_FULL_FLUSH)


def endless_bomb(data: bytes, *, status: str = "200", begin: bytes = b"") -> Iterator[bytes]:
    packer = zlib.compressobj(9, zlib.DEFLATED, RAW)
    first = packer.compress(begin) + packer.flush(zlib.Z_FULL_FLUSH)
    before = head(CHUNKED, "content-encoding: gzip", status=status)
    return endless(chunk(block(data)), before + chunk(GZIP_HEAD + first))


A_RUN = r"a{1,3000000}"


@mode(says=A_RUN)
def gzip_bomb_whole(asked):
    yield whole(whole_bomb(GZIP), "content-encoding: gzip")


@mode(says=A_RUN)
def deflate_bomb_whole(asked):
    yield whole(whole_bomb(ZLIB), "content-encoding: deflate")


@mode(says=A_RUN)
def gzip_in_gzip(asked):
    yield whole(deflated(whole_bomb(GZIP), GZIP), "content-encoding: gzip, gzip")


@mode()
def gzip_bomb_of_one_line(asked):
    return endless_bomb(b"a", begin=b"data: ")


@mode(says=A_RUN)
def gzip_bomb_of_text(asked):
    return endless_bomb(delta(content="a" * 50))


@mode()
def gzip_bomb_of_comments(asked):
    return endless_bomb(b": a\n")


@mode()
def gzip_bomb_of_empty_lines(asked):
    return endless_bomb(b"\n")


@mode()
def gzip_bomb_in_errors(asked):
    """With a status that may be tried again, and one that may not."""
    status = ("500", "403", "429", "400")[asked.count % 4]
    return endless_bomb(b"a", status=status, begin=b'{"error": {"message": "' + BODY.encode())


BROTLI = (
    "z///f/glwuKxQCD3/p/////wSwDEYQGA7v0/////4ZcAiMMiAN37f/7//8MvARCHBQC69//8//+HXwIgDgsAdO//8x+8"
    "Hr8EQBwWAOhi1wM="
)
"""A hundred million times "a"."""


@mode()
def brotli_bomb(asked):
    yield whole(b64decode(BROTLI), "content-encoding: br")


@mode()
def brotli_bomb_in_errors(asked):
    yield whole(b64decode(BROTLI), "content-encoding: br", status="403")


@mode()
def zstd_bomb(asked):
    """A hundred blocks that each say a byte so often as a block may be long."""
    block = (0 | 1 << 1 | 131072 << 3).to_bytes(3, "little") + b"a"
    frame = b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x80" + block * 2000
    yield whole(frame, "content-encoding: zstd")


@mode()
def gzip_broken(asked):
    packed = deflated(message(content=TEXT), GZIP)
    broken = (packed[:20], b"not gzip " + BODY.encode(), packed[:10] + b"\xff" * 30, b"")
    yield whole(broken[asked.count % len(broken)], "content-encoding: gzip")


@mode(says=TEXT)
def odd_encodings(asked):
    odd = ("x-unknown", "identity", "gzip;q=1", "GZIP, identity", ",", HEADER)
    yield whole(message(content=TEXT), f"content-encoding: {odd[asked.count % len(odd)]}")


# Statuses

STATUSES = (
    400, 401, 402, 403, 404, 405, 408, 409, 413, 415, 418, 421, 422, 425, 429, 451, 500, 501, 502,
    503, 504, 507, 529,
)  # fmt: skip


def refused(status: int):
    bodies = (
        (error_body(f"Ask {ERROR}: VISIT http://{PATH}.example/?key=1"), JSON_ERROR),
        (f"<html><title>{BODY}</title>{ERROR}</html>".encode(), "text/html"),
        (BODY.encode(), "text/plain"),
        (b"", "text/plain"),
        (b'{"detail": [{"msg": "' + BODY.encode() + b'"}]}', JSON_ERROR),
        (b'{"error": "' + ERROR.encode() + b'"}', JSON_ERROR),
        (b'{"message": "' + ERROR.encode() + b'", "object": "error"}', JSON_ERROR),
        (b"[" + BODY.encode() * 1000, JSON_ERROR),
    )

    def play(asked):
        body, kind = bodies[asked.count % len(bodies)]
        yield whole(body, status=str(status), kind=kind)

    return play


for number in STATUSES:
    mode(name=f"status-{number}")(refused(number))


@mode()
def error_repeats_the_request(asked):
    """The key and the address come back."""
    status = ("401", "400", "500", "404")[asked.count % 4]
    yield whole(error_body(asked.head.decode("latin-1")), status=status)


@mode()
def empty_successes(asked):
    status = ("204", "205", "304", "206")[asked.count % 4]
    yield head("content-length: 0", status=status)
    yield END


@mode()
def nothing_at_all(asked):
    yield whole(b"")


@mode()
def endless_error_body(asked):
    status = ("500", "400", "429", "403")[asked.count % 4]
    return endless(chunk(BODY.encode() * 4000), head(CHUNKED, status=status))


@mode()
def endless_error_without_length(asked):
    return endless(BODY.encode(), head("connection: close", status="400"))


@mode()
def deep_json_in_errors(asked):
    yield whole(b'{"error": ' * 50_000, status=("400", "500")[asked.count % 2])


@mode()
def retry_after(asked):
    odd = (
        "10000000000", "-5", "NaN", "inf", "1e308", "0", "0.0001", "x" * 60000, "",
        "Fri, 31 Dec 9999 23:59:59 GMT", "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 99 Foo 9999",
        "\u0665", "9" * 5000,
    )  # fmt: skip
    value = odd[asked.count % len(odd)]
    status = ("429", "503")[asked.count % 2]
    yield whole(error_body(), f"retry-after: {value}", status=status)


@mode()
def retry_after_ms(asked):
    odd = ("10000000000000", "-1", "NaN", "0", "inf")
    value = odd[asked.count % len(odd)]
    yield whole(error_body(), f"retry-after-ms: {value}", "x-should-retry: true", status="429")


@mode()
def should_retry_always(asked):
    yield whole(error_body(), "x-should-retry: true", "retry-after: 0", status="400")


# Redirects


def moved(status: int | str, where: str) -> bytes:
    return whole(BODY, f"location: {where}", status=str(status), kind="text/plain")


@mode()
def redirect_to_itself(asked):
    yield moved((301, 302, 307, 308)[asked.count % 4], asked.path)


@mode()
def redirect_without_end(asked):
    yield moved(307, f"/{PATH}/{asked.count}/v1/chat/completions")


@mode()
def redirect_with_303(asked):
    yield moved(303, asked.path)


@mode()
def redirect_to_another_host(asked):
    """Who gets the key there says so."""
    if b"\r\nhost: localhost" in asked.head.lower():
        has_key = b"\r\nauthorization:" in asked.head.lower()
        yield plain(asked, STOLEN) if has_key else whole(error_body(), status="401")
        return
    port = asked.head.lower().partition(b"\r\nhost: ")[2].partition(b"\r\n")[0].rpartition(b":")[2]
    yield moved(307, f"http://localhost:{port.decode()}/v1/chat/completions")


@mode()
def redirect_to_odd_places(asked):
    odd = (
        "file:///etc/passwd", "ftp://127.0.0.1/", "//", "http://[::1", "http://127.0.0.1:99999/",
        "", "javascript:alert(1)", "http://0.0.0.0:1/", f"http://{PATH}.invalid/", "x" * 60000,
        "http://user:pass@127.0.0.1:1/", "\x00", "data:,a",
    )  # fmt: skip
    yield moved((302, 307)[asked.count % 2], odd[asked.count % len(odd)])


@mode()
def redirect_endlessly_far(asked):
    return endless(b"x", b"HTTP/1.1 307 " + STATUS.encode() + b"\r\nlocation: /")


# Connections

ANSWER = streamed(delta(role="assistant", content=TEXT), delta("stop"))


@mode()
def cut_at_once(asked):
    yield CUT if asked.count % 2 else END


@mode(says=rf"{TEXT}?")
def cut_at_each_stage(asked):
    """A little later each time, in order and with a reset."""
    yield ANSWER[: (asked.count * 37) % len(ANSWER)]
    yield CUT if asked.count % 2 else END


@mode()
def never_answers(asked):
    yield LONG_TIME


@mode()
def silent_behind_the_head(asked):
    yield head(CHUNKED)
    yield LONG_TIME


@mode(says=TEXT)
def silent_behind_the_first_word(asked):
    yield head(CHUNKED) + chunk(delta(content=TEXT))
    yield LONG_TIME


@mode(says=TEXT)
def silent_behind_the_last_word(asked):
    yield ANSWER.removesuffix(LAST)
    yield LONG_TIME


@mode()
def takes_connections_and_reads_nothing(asked):
    yield DEAF
    yield CUT


def drip(data: bytes, seconds: float = 1.0) -> Iterator[bytes | float]:
    for at in range(len(data)):
        yield data[at : at + 1]
        yield seconds


@mode()
def dripping_head(asked):
    return drip(ANSWER)


@mode(says=rf"{TEXT}?")
def dripping_answer(asked):
    yield head(CHUNKED)
    yield from drip(chunk(delta(content=TEXT)) * 100)


@mode(says=r"(a ?)*")
def dripping_words(asked):
    yield head(CHUNKED)
    while True:
        yield chunk(delta(content="a "))
        yield 1.0


@mode()
def dripping_comments(asked):
    yield head(CHUNKED)
    while True:
        yield chunk(b": a\n\n")
        yield 0.2


@mode()
def dripping_errors(asked):
    yield head("content-length: 100000", status="500")
    yield from drip(BODY.encode() * 4000)


@mode(says=TEXT, must=True)
def hangs_up_behind_each_answer(asked):
    yield whole(message(content=TEXT), "connection: close")
    yield END


@mode(says=TEXT, must=True)
def hangs_up_unannounced(asked):
    yield plain(asked, TEXT)
    yield END


@mode(says=TEXT)
def other_content_types(asked):
    odd = (
        "text/html", "image/png", "application/json; charset=utf-16", "application/json; charset=x",
        "text/event-stream; charset=utf-7", "multipart/mixed; boundary=a", "",
        "application/json; charset=rot13", "application/zip",
    )  # fmt: skip
    yield whole(message(content=TEXT), kind=odd[asked.count % len(odd)])


@mode()
def answers_in_html(asked):
    yield whole(f"<html><body><h1>{BODY}</h1>{DONE}</body></html>", kind="text/html")


@mode()
def large_pieces_of_nothing(asked):
    return endless(chunk(b" " * PIECE), head(CHUNKED, kind=JSON_ERROR))
