"""Addresses that somebody else gave: none leads into a private network, by any detour."""

import socket
import ssl
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.addresses import (
    MOST_HOSTS,
    AddressCheck,
    Fetcher,
    FetchLimits,
    check_address,
    is_public,
)
from nanoloop.errors import AddressRefused, FetchFailed
from nanoloop.intake import entry_of
from nanoloop.messages import Attachment, Inbound
from tests.certificates import certified
from tests.raw_server import RawServer

HERE = ["127.0.0.1/32"]
PUBLIC = "93.184.216.34"

# What an address may look like

HOSTS = [
    host
    for row in (
        "127.0.0.1 127.1 127.0.1 2130706433 017700000001 0177.0.0.1 0x7f000001 0x7f.0.0.1",
        "127.0.0.1. 0.0.0.0 0 10.0.0.1 100.64.0.1 169.254.169.254 0xa9fea9fe 172.16.0.1",
        "172.31.255.255 192.168.0.1 192.0.0.1 192.0.2.1 198.18.0.1 224.0.0.1 240.0.0.1",
        "255.255.255.255 168.63.129.16 1.2.3 1.2.3.256 08.8.8.8 [::1] [::] [fe80::1] [fc00::1]",
        "[fd12::1]",
        "[ff02::1] [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [::ffff:0:127.0.0.1]",
        "[64:ff9b::7f00:1] [64:ff9b:1::1] [2002:7f00:1::] [2001::1] [2001:db8::1]",
        "[fe80::1%25eth0] [v1.x] [93.184.216.34] [::1 [] localhost LOCALHOST localhost.",
        "a.localhost localhost.localdomain printer.local db.internal router.lan",
        "router.home.arpa metadata metadata.google.internal intranet",
    )
    for host in row.split()
]
SPELLINGS = [
    "http://example.org/a.png",
    "ftp://example.org/a.png",
    "file:///etc/passwd",
    "//example.org/a.png",
    "https:/example.org",
    "https:///127.0.0.1/",
    "https:127.0.0.1",
    "https://",
    "https://?a",
    "https://user@example.org/",
    "https://user:password@example.org/",
    "https://example.org@127.0.0.1/",
    "https://example.org:443@127.0.0.1/",
    "https://127.0.0.1\\@example.org/",
    "https://example.org\\@127.0.0.1/",
    "https://example.org;@127.0.0.1/",
    "https://127.0.0.1\t/",
    "https://127.0.\n0.1/",
    "https://exa mple.org/",
    "\thttps://127.0.0.1/",
    "https://127.0.0.1%2f@example.org/",
    "https://%31%32%37.0.0.1/",
    "https://\uff11\uff12\uff17.0.0.1/",
    "https://\u24db\u24de\u24d2alhost/",
    "https://127\u30020\u30020\u30021/",
    "https://ex\u00e4mple.org/",
    "https://example.org:0/",
    "https://example.org:x/",
    "https://example.org:99999/",
    "https://example.org\x00.evil/",
    f"https://example.org/{'a' * 5000}",
]


@pytest.mark.parametrize("url", [*(f"https://{host}/a" for host in HOSTS), *SPELLINGS])
async def test_a_private_or_doubtful_address_is_refused(url):
    with pytest.raises(AddressRefused):
        check_address(url)

    async def anywhere(*_):
        return ["127.0.0.1"]

    with pytest.raises(AddressRefused):
        await AddressCheck(resolve=anywhere).addresses_of(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a.png",
        "HTTPS://EXAMPLE.ORG./a b".replace(" ", "%20"),
        "https://xn--bcher-kva.example:8443/b%C3%BCcher?a=b@c#@127.0.0.1/",
        "https://example.org/b\u00fccher.png",
        f"https://{PUBLIC}/",
        "https://[2606:4700:4700::1111]:443/",
        "https://172.32.0.1/",
        "https://my_bucket.s3.example/",
    ],
)
def test_a_public_one_is_not(url):
    check_address(url)


@given(st.ip_addresses())
def test_no_address_counts_as_public_that_python_calls_private(address):
    assert not is_public(address) or (address.is_global and not address.is_multicast)


def check(*addresses, **more):
    """A check for which each name stands for these, and the names that were looked up."""
    asked = []

    async def resolve(host, port):
        asked.append(host)
        return addresses

    return AddressCheck(resolve=resolve, **more), asked


@pytest.mark.parametrize(
    "private", ["127.0.0.1", "10.1.2.3", "::1", "fe80::1%1", "169.254.169.254"]
)
async def test_a_name_that_stands_for_a_private_address_too_is_refused(private):
    for addresses in ([private], [PUBLIC, private], [private, PUBLIC]):
        with pytest.raises(AddressRefused, match="not a public address"):
            await check(*addresses)[0].check(["https://example.org/"])
    assert await check(PUBLIC)[0].addresses_of("https://example.org/") == [PUBLIC]


async def test_what_the_operator_allows_may_be_used_without_tls():
    own, _ = check("10.1.2.3", allowed=["10.0.0.0/8"])
    await own.check(["http://camera.lan/a.png", "https://10.9.9.9/"])
    for url in ("http://example.org/", "https://192.168.0.1/", f"http://{PUBLIC}/"):
        with pytest.raises(AddressRefused):
            await check(PUBLIC, allowed=["10.0.0.0/8"])[0].check([url])


async def test_a_name_without_addresses_is_refused():
    async def fails(*_):
        raise socket.gaierror

    with pytest.raises(AddressRefused, match="can't be resolved"):
        await AddressCheck(resolve=fails).check(["https://example.org/"])
    with pytest.raises(AddressRefused, match="can't be resolved"):
        await check()[0].check(["https://example.org/"])


async def test_a_host_is_looked_up_once_and_few_of_them_for_one_caller():
    some, asked = check(PUBLIC)
    await some.check(f"https://example.org/{number}" for number in range(100))
    assert asked == ["example.org"]
    with pytest.raises(AddressRefused, match=f"more than {MOST_HOSTS} hosts"):
        await some.check(f"https://{number}.example.org/" for number in range(MOST_HOSTS + 1))
    assert asked == ["example.org"]


async def test_the_systems_names_are_looked_up_in_a_thread(monkeypatch):
    def look_up(host, port, **_):
        assert threading.current_thread() is not threading.main_thread()
        return [(socket.AF_INET, 0, 0, "", (PUBLIC, port))] * 2

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert await AddressCheck().addresses_of("https://example.org/") == [PUBLIC]


# Fetching


def answer(body=b"", *lines, status="200 OK", length=None):
    size = len(body) if length is None else length
    head = [f"HTTP/1.1 {status}", f"Content-Length: {size}", "Content-Type: image/png", *lines]
    return "\r\n".join([*head, "", ""]).encode() + body


def moved(to, *lines):
    return answer(b"", f"Location: {to}", *lines, status="302 Found")


def fetcher(*addresses, **limits):
    """One that may use this machine's first address, for which all names stand."""
    checks, asked = check(*(addresses or ["127.0.0.1"]), allowed=HERE)
    return Fetcher(checks, limits=FetchLimits(**limits)), asked


def by_name(server, path="", name="example.org"):
    return server.url.replace("127.0.0.1", name) + path


async def test_what_is_there_comes_with_its_type():
    async with RawServer(answer(b"picture")) as server:
        found = await fetcher()[0].fetch(server.url)
    assert (found.data, found.mime_type, found.url) == (b"picture", "image/png", server.url)


async def test_it_connects_to_the_address_that_was_checked_and_looks_up_no_second():
    told = iter([["127.0.0.1"], ["127.0.0.2"]])

    async def rebinding(*_):
        return next(told)

    async with RawServer(answer(b"picture")) as server:
        fetching = Fetcher(AddressCheck(allowed=HERE, resolve=rebinding))
        assert (await fetching.fetch(by_name(server))).data == b"picture"
        assert b"\r\nHost: example.org:" in server.heard[0]
        with pytest.raises(AddressRefused):
            await fetching.fetch(by_name(server))
    assert server.count == 1


async def test_without_leave_this_machine_is_not_asked():
    async with RawServer(answer(b"picture")) as server:
        for url in (server.url, server.url.replace("http:", "https:"), by_name(server)):
            with pytest.raises(AddressRefused):
                await Fetcher().fetch(url)
    assert server.connections_made == 0


@pytest.mark.parametrize(
    "to",
    [
        "http://127.0.0.2:{port}/",
        "//127.0.0.2:{port}/",
        "http://2130706434:{port}/",
        "http://[::ffff:127.0.0.2]:{port}/",
        "http://me:secret@127.0.0.1:{port}/",
        "http://metadata.google.internal/",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
    ],
)
async def test_each_redirect_is_checked(to):
    async with RawServer(answer(b"secret")) as other:
        port = other.url.split(":")[-1].strip("/")
        async with RawServer(moved(to.format(port=port))) as server:
            told = {"example.org": ["127.0.0.1"]}

            async def resolve(host, _):
                return told.get(host, ["169.254.169.254"])

            with pytest.raises(AddressRefused):
                await Fetcher(AddressCheck(allowed=HERE, resolve=resolve)).fetch(by_name(server))
    assert other.connections_made == 0


async def test_nothing_is_carried_on_to_where_it_redirects():
    async with RawServer(answer(b"picture")) as other:
        cookie = "Set-Cookie: a=secret; Domain=example.org; Path=/"
        async with RawServer(moved(by_name(other, "b?c"), cookie)) as server:
            found = await fetcher()[0].fetch(by_name(server, "a"))
    assert found.url == by_name(other, "b?c")
    assert other.heard[0].startswith(b"GET /b?c HTTP/1.1\r\n")
    names = {line.partition(b":")[0].lower() for line in other.heard[0].split(b"\r\n")[1:] if line}
    assert names == {b"host", b"accept", b"accept-encoding", b"user-agent", b"connection"}


async def test_redirects_have_an_end():
    async with RawServer(moved("/again")) as server:
        with pytest.raises(FetchFailed, match="redirects more than 3 times"):
            await fetcher(redirects=3)[0].fetch(server.url)
    assert server.count == 4


CHUNK = b"10000\r\n" + b"x" * 65_536 + b"\r\n"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (answer(length=1001), "more than 1,000 bytes"),
        (answer(b"x" * 1001), "more than 1,000 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK, "more than 1,000"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000, "more than 1,000 bytes"),
        (answer(b"x", "Content-Encoding: gzip"), "compressed"),
        (answer(status="404 Not Found"), "answers 404"),
        (moved("https://[broken/"), "failed"),
        (answer(status="302 Found"), "answers 302"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "failed"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 5000 + b"\r\n", "failed"),
        (b"", "failed"),
    ],
)
async def test_what_is_too_much_or_no_answer_is_told(said, words):
    async with RawServer(said) as server:
        with pytest.raises(FetchFailed, match=words):
            await fetcher(most_bytes=1000)[0].fetch(server.url)
        await server.deserted()


async def test_all_of_it_has_a_time():
    async with RawServer(answer(b"x", length=100)) as server:
        with pytest.raises(FetchFailed, match=r"more than 0\.1 seconds"):
            await fetcher(seconds=0.1)[0].fetch(server.url)
        await server.deserted()


async def test_no_proxy_of_the_environment_is_used(monkeypatch):
    async with RawServer(answer(b"proxy")) as proxy, RawServer(answer(b"picture")) as server:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert (await fetcher()[0].fetch(by_name(server))).data == b"picture"
    assert proxy.connections_made == 0


@pytest.mark.parametrize("name", ["example.org", "example.com", "127.0.0.1"])
async def test_a_certificate_has_to_be_trusted_and_for_the_name(tmp_path, monkeypatch, name):
    certified(tmp_path, "example.org")
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with RawServer(answer(b"picture"), trust=trust) as server:
        with pytest.raises(FetchFailed, match="Certificate"):
            await fetcher()[0].fetch(by_name(server, name=name))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        if name == "example.com":
            with pytest.raises(FetchFailed, match="Certificate"):
                await fetcher()[0].fetch(by_name(server, name=name))
        else:
            assert (await fetcher()[0].fetch(by_name(server, name=name))).data == b"picture"


def test_a_channels_image_is_shown_only_if_its_address_is_public():
    def shown(ref):
        image = Attachment(kind="image", ref=ref)
        message = Inbound(channel="x", chat="1", text="look", attachments=(image,))
        return entry_of(message).content["parts"][1]["type"]

    for ref in ("https://example.org/a.png", "data:image/png;base64,", "attachment:1"):
        assert shown(ref) == "image_url"
    for ref in ("http://example.org/a.png", "https://10.0.0.1/a.png", "https://router.lan/", "x"):
        assert shown(ref) == "text"
