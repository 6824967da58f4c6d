"""Model files from the web: a real server, and all that may go wrong on the way."""

import hashlib
import ssl
from dataclasses import replace

import pytest

from nanoloop.errors import ModelError, NoRoom, NotFetched
from nanoloop.models import download
from nanoloop.models.catalogue import Address, Model, at
from nanoloop.models.download import REDIRECTS
from tests.certificates import certified
from tests.servers.file_server import FileServer
from tests.servers.forwarding import HttpProxy, running

CONTENT = b"GGUF" + bytes(range(256)) * 2000
SUM = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server():
    with FileServer(CONTENT) as server:
        yield server


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)


def model(server, name="tiny.gguf", **known):
    return Model(name="tiny", sources=(Address(server.url(name)),), **known)


def left_in(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


async def test_a_file_comes_whole_and_leaves_nothing_else(server, tmp_path):
    path = await download.fetch(model(server, sha256=SUM), tmp_path / "models")
    assert path == tmp_path / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert left_in(path.parent) == ["tiny.gguf"]


async def test_what_is_there_is_not_fetched_again(server, tmp_path):
    for _ in range(2):
        await download.fetch(model(server), tmp_path)
    assert len(server.asked) == 1


async def test_a_lost_connection_is_taken_up_where_it_broke(server, tmp_path):
    server.cuts = [100_000, 50_000]
    path = await download.fetch(model(server, sha256=SUM), tmp_path)
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("known", [{}, {"sha256": SUM}])
async def test_a_later_call_goes_on_where_an_earlier_one_gave_up(server, tmp_path, known):
    server.cuts = [100_000, 0, 0, 0, 0]
    with pytest.raises(NotFetched, match="repeatedly"):
        await download.fetch(model(server, **known), tmp_path)
    server.asked.clear()
    path = await download.fetch(model(server, **known), tmp_path)
    assert server.ranges == ["bytes=100000-"]
    assert path.read_bytes() == CONTENT


async def test_a_file_that_changed_meanwhile_is_fetched_from_its_beginning(server, tmp_path):
    server.cuts = [100_000, 0, 0, 0, 0]
    with pytest.raises(NotFetched):
        await download.fetch(model(server), tmp_path)
    server.tag, server.content = '"second"', CONTENT[::-1].replace(b"FUGG", b"") + CONTENT
    server.content = b"GGUF" + server.content
    path = await download.fetch(model(server), tmp_path)
    assert path.read_bytes() == server.content


async def test_without_a_version_or_a_sum_nothing_old_is_gone_on_with(server, tmp_path):
    server.tag = 'W/"weak"'
    server.cuts = [100_000, 50_000]
    path = await download.fetch(model(server), tmp_path)
    assert set(server.ranges) == {None}
    assert path.read_bytes() == CONTENT


async def test_a_server_without_ranges_sends_it_all_again(server, tmp_path):
    server.knows_ranges = False
    server.cuts = [100_000]
    path = await download.fetch(model(server, sha256=SUM), tmp_path)
    assert path.read_bytes() == CONTENT


async def test_a_part_longer_than_the_file_there_is_thrown_away(server, tmp_path):
    download.part_of(tmp_path / "tiny.gguf").write_bytes(CONTENT * 2)
    path = await download.fetch(model(server, sha256=SUM), tmp_path)
    assert path.read_bytes() == CONTENT


async def test_a_redirect_is_followed(server, tmp_path):
    path = await download.fetch(model(server, "moved/tiny.gguf", sha256=SUM), tmp_path)
    assert path.read_bytes() == CONTENT


async def test_redirects_without_an_end_are_given_up(server, tmp_path):
    with pytest.raises(NotFetched, match="redirects endlessly"):
        await download.fetch(model(server, "forever/tiny.gguf"), tmp_path)
    assert len(server.asked) == REDIRECTS


async def test_a_server_that_says_no_length_is_believed_to_the_end(server, tmp_path):
    server.says_length = False
    path = await download.fetch(model(server, sha256=SUM), tmp_path)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("known", [{"sha256": "0" * 64}, {"size_bytes": 7}])
async def test_another_file_than_was_wanted_is_refused_and_not_kept(server, tmp_path, known):
    with pytest.raises(NotFetched, match=r"(not|instead of) (0{64}|7)"):
        await download.fetch(model(server, **known), tmp_path)
    assert left_in(tmp_path) == []


async def test_a_web_page_is_no_model(server, tmp_path):
    server.content = b"<html>please log in</html>"
    with pytest.raises(NotFetched, match="not a GGUF file"):
        await download.fetch(model(server), tmp_path)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(("status", "told"), [(404, "no such file"), (403, "authorised users")])
async def test_a_refusal_is_told_at_once_and_without_secrets(server, tmp_path, status, told):
    server.status = status
    with pytest.raises(NotFetched, match=told) as raised:
        await download.fetch(model(server, "tiny.gguf?token=hidden"), tmp_path)
    assert "hidden" not in str(raised.value)
    assert len(server.asked) == 1


async def test_no_network_is_told_with_the_next_step(tmp_path):
    nowhere = Model(name="tiny", sources=(Address("http://127.0.0.1:9"),))
    with pytest.raises(NotFetched, match=r"model get tiny.*\n.*nothing answers"):
        await download.fetch(nowhere, tmp_path)


# Proxies and certificates


def far(server):
    """The file under a name that only a proxy knows."""
    url = server.url().replace("127.0.0.1", "models.example")
    return Model(name="tiny", sha256=SUM, sources=(Address(url),))


@pytest.mark.parametrize("name", ["HTTP_PROXY", "all_proxy"])
async def test_a_proxy_is_used_with_its_password(server, tmp_path, monkeypatch, name):
    async with running(HttpProxy(user="me", password="p%40ss")) as proxy:
        monkeypatch.setenv(name, proxy.url)
        proxy.password = "p@ss"
        path = await download.fetch(far(server), tmp_path)
    assert path.read_bytes() == CONTENT
    assert proxy.asked == [f"GET {far(server).sources[0].url}"]


async def test_a_redirect_has_the_proxy_of_its_own_host(server, tmp_path, monkeypatch):
    async with running(HttpProxy()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        server.moved_to = "http://models.example:" + server.root.rpartition(":")[2]
        await download.fetch(model(server, "moved/tiny.gguf"), tmp_path)
    assert proxy.asked == [f"GET {far(server).sources[0].url}"]


async def test_hosts_that_need_no_proxy_are_asked_directly(server, tmp_path, monkeypatch):
    async with running(HttpProxy()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        await download.fetch(model(server), tmp_path)
        monkeypatch.setenv("NO_PROXY", "models.example")
        with pytest.raises(NotFetched, match="nothing answers"):
            await download.fetch(far(server), tmp_path / "other")
    assert proxy.asked == []


@pytest.mark.parametrize("trusted", [True, False])
async def test_only_a_certificate_that_is_trusted_will_do(tmp_path, monkeypatch, trusted):
    certified(tmp_path, "models.example")
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with FileServer(CONTENT, trust=trust) as server:
        async with running(HttpProxy()) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            if trusted:
                monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
                await download.fetch(far(server), tmp_path / "models")
            else:
                with pytest.raises(NotFetched, match=r"not trusted.*SSL_CERT_FILE"):
                    await download.fetch(far(server), tmp_path / "models")
    assert len(proxy.asked) == 1


async def test_certificates_that_are_not_there_are_told(server, tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(NotFetched, match=r"SSL_CERT_FILE .* names an unreadable path"):
        await download.fetch(model(server), tmp_path)


@pytest.mark.parametrize(
    ("proxy", "told"),
    [
        ("http://me:secret@127.0.0.1:9", "the proxy does not answer"),
        ("socks5://me:secret@127.0.0.1:9", "socks5://127.0.0.1:9 is a SOCKS proxy"),
        ("http://me:secret@127.0.0.1:99999", "names a proxy that can't be used"),
    ],
)
async def test_a_proxy_of_no_use_is_told_without_secrets(
    server, tmp_path, monkeypatch, proxy, told
):
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(NotFetched, match=told) as raised:
        await download.fetch(far(server), tmp_path)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("trust", [None, ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)])
async def test_a_proxy_that_turns_away_says_so(tmp_path, monkeypatch, trust):
    with FileServer(CONTENT, trust=trust) as server:
        async with running(HttpProxy(user="me", password="secret")) as proxy:
            for name in ("HTTP_PROXY", "HTTPS_PROXY"):
                monkeypatch.setenv(name, proxy.url.replace("secret", "wrong"))
            with pytest.raises(NotFetched, match=r"the proxy requires a login \(407\)"):
                await download.fetch(far(server), tmp_path)
    assert proxy.turned_away == 1


async def test_the_next_source_goes_on_with_what_the_first_one_gave(server, tmp_path):
    with FileServer(CONTENT) as broken:
        broken.cuts = [100_000, 0, 0, 0, 0]
        first = model(broken, sha256=SUM)
        both = replace(first, sources=first.sources + model(server).sources)
        path = await download.fetch(both, tmp_path)
    assert server.ranges == ["bytes=100000-"]
    assert path.read_bytes() == CONTENT


async def test_a_hubs_file_is_found_at_whatever_address_the_hub_is(server, tmp_path):
    place = Address("{hub}/me/tiny/resolve/main/a.gguf")
    hub = Model(name="tiny", sha256=SUM, sources=(place,))
    with pytest.raises(NotFetched, match=r"the hub \(me/tiny\).*HF_ENDPOINT"):
        await download.fetch(hub, tmp_path)
    await download.fetch(hub, tmp_path, hub=server.root)
    assert server.asked == [("/me/tiny/resolve/main/a.gguf", None)]


async def test_without_room_nothing_is_fetched_and_the_sizes_are_told(
    server, tmp_path, monkeypatch
):
    full = type("Usage", (), {"free": 1_000})
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: full)
    with pytest.raises(NoRoom, match=r"needs 1 MB of free space and has 0 MB"):
        await download.fetch(model(server), tmp_path)


async def test_a_folder_that_can_not_be_written_is_named(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match=r"can't be written .*NANOLOOP_MODELS"):
        await download.fetch(model(server), tmp_path / "file" / "models")


async def test_what_arrives_is_told(server, tmp_path):
    told = []
    await download.fetch(model(server, sha256=SUM), tmp_path, tell=told.append)
    assert [progress.step for progress in told][-1] == "checking"
    assert told[-2].done == told[-2].total == len(CONTENT)


def test_an_address_names_its_model_or_is_none():
    assert at("https://host.example/a/big.gguf?x=1").name == "big"
    for wrong in ("https://host.example/big.bin", "https://host.example/.gguf", "big"):
        with pytest.raises(ModelError, match=r"end with \.gguf"):
            at(wrong)
