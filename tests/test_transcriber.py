"""Voice messages in words: a user's function, what goes wrong with it, and how it is named."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import anyio
import pytest

from nanoloop.app import App
from nanoloop.attachments import Attachments
from nanoloop.channels.kit import intake
from nanoloop.channels.kit.intake import NOT_READ, Files, Transcriber
from nanoloop.channels.kit.platform import File
from nanoloop.errors import SettingsError
from nanoloop.events import hearing
from nanoloop.parts import make_channels, make_transcriber
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from tests.packages import make_package
from tests.stages.command_line import CommandLine

EXAMPLES = Path(__file__).parent.parent / "examples"


async def fetch():
    return b"tea"


NOTE = File(kind="audio", fetch=fetch, mime_type="audio/ogg")


@pytest.fixture
def read(tmp_path):
    """What the model reads of a voice message, whether it is kept, and what was told of it."""

    async def read(function, *, limit_bytes=9, seconds=5):
        heard = []
        files = Files(
            channel="fake",
            limit_bytes=9,
            attachments=Attachments(tmp_path, limit_bytes=limit_bytes),
            transcriber=Transcriber(function, seconds=seconds),
        )
        with hearing(heard.append):
            said = await files.attachment(NOTE, owner="fake:a")
        return said.text, said.ref.startswith("attachment:"), [event.reason for event in heard]

    return read


async def later(file, data):
    return f"buy {data.decode()}"


class Whole:
    async def __call__(self, file, data):
        return f"buy {data.decode()}"


@pytest.mark.parametrize("function", [later, Whole(), lambda file, data: f"buy {data.decode()}"])
async def test_its_words_are_read_whether_the_function_is_async_or_not(read, function):
    assert await read(function) == ("buy tea", True, [])


def broken(file, data):
    raise RuntimeError(data.decode())


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (broken, "RuntimeError"),
        (lambda file, data: None, "ValueError"),
        (lambda file, data: " ", "ValueError"),
        (lambda file, data: b"tea", "ValueError"),
        (lambda file: "tea", "TypeError"),
    ],
)
async def test_one_that_can_not_be_read_is_kept_and_the_model_told(read, function, reason):
    assert await read(function) == (NOT_READ, True, [reason])


async def test_an_async_function_that_hangs_is_given_up(read):
    async def hang(file, data):
        await anyio.sleep_forever()

    assert await read(hang, seconds=0.01) == (NOT_READ, True, ["TimeoutError"])


async def test_a_sync_function_that_hangs_is_given_up(read):
    goes_on = threading.Event()
    said = await read(lambda file, data: goes_on.wait(30), seconds=0.01)
    goes_on.set()
    assert said == (NOT_READ, True, ["TimeoutError"])


async def test_one_that_can_not_be_kept_is_read_all_the_same(read):
    assert await read(later, limit_bytes=0) == ("buy tea", False, ["AttachmentsFull"])


async def test_a_recording_that_comes_again_is_not_asked_for_again(monkeypatch):
    monkeypatch.setattr(intake, "TRANSCRIPTS_REMEMBERED", 1)
    asked = []
    words = Transcriber(lambda file, data: asked.append(data) or data.decode()).words
    for data in (b"a", b"a", b"b", b"b", b"a"):
        assert await words(NOTE, data) == data.decode()
    assert asked == [b"a", b"b", b"a"]


async def test_other_files_are_not_given_to_it():
    files = Files(channel="fake", limit_bytes=9, transcriber=Transcriber(broken))
    attachment = await files.attachment(File(kind="video", fetch=fetch), owner="fake:a")
    assert attachment.text is None


# Its name in the settings


@pytest.fixture
def speech(tmp_path, monkeypatch):
    """Modules that a user may name."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nl_voices.py").write_text(
        "class Ear:\n    words_of = staticmethod(len)\nrate = 3\n"
    )
    (tmp_path / "nl_broken.py").write_text("1 / 0\n")
    (tmp_path / "nl_needy.py").write_text("import nl_missing\n")


def named(name):
    return Settings(channels={"transcribe": name})


def test_a_function_is_found_by_its_name(speech):
    ear = make_transcriber(named("nl_voices:Ear.words_of"))
    assert ear._function is len
    assert make_transcriber(Settings()) is None


async def test_each_platform_is_given_it(speech, tmp_path, monkeypatch):
    make_package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    channels = {"transcribe": "nl_voices:Ear.words_of", "quiet": {"token": "1:a"}}
    settings = Settings(data=tmp_path, channels=channels)
    app = App.of(settings, provider=ScriptedProvider())
    [channel] = make_channels(settings, app)
    assert channel._files._transcriber._function is len
    [channel] = make_channels(settings, app, transcriber=Transcriber(broken))
    assert channel._files._transcriber._function is broken


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nl_none:f", "there is no module nl_none: install it, or add its folder to PYTHONPATH"),
        ("nl_needy:f", "there is no module nl_missing: install it, or add its folder"),
        ("nl_broken:f", "importing nl_broken fails (ZeroDivisionError at nl_broken.py:1 <module>"),
        ("nl_voices:f", "nl_voices has no f: name an existing function"),
        ("nl_voices:rate", "rate is of type int: name a function instead"),
    ],
)
def test_what_can_not_be_called_is_refused_with_the_next_step(speech, name, why):
    with pytest.raises(SettingsError) as refused:
        make_transcriber(named(name))
    assert str(refused.value).startswith(f'channels.transcribe is "{name}", but {why}')


def test_a_name_that_no_function_has_is_refused():
    with pytest.raises(SettingsError, match=r"write it as package\.module:function"):
        Settings.load(env={}, flags={"channels.transcribe": "speech.words_of"}, cwd="/")


# The daemon


@pytest.mark.slow
async def test_the_daemon_does_not_start_without_it_and_the_check_says_so(tmp_path):
    text = 'channels.transcribe = "nl_none:f"\nchannels.quiet.token = "1:a"\n'
    (tmp_path / "nanoloop.toml").write_text(text)
    make_package(tmp_path / "packages")
    nanoloop = CommandLine(tmp_path, "http://127.0.0.1:9")
    nanoloop.set(PYTHONPATH=f"{tmp_path / 'packages'}:{nanoloop._env['PYTHONPATH']}")
    nanoloop.set(NANOLOOP_CONFIG="nanoloop.toml")
    told = 'nanoloop.toml:1: channels.transcribe is "nl_none:f", but there is no module nl_none'
    assert told in (await nanoloop.run("run", code=2))[1]
    assert f"{told}: install it" in (await nanoloop.run("check", code=1))[0]


class Hearing(BaseHTTPRequestHandler):
    """A server that understands one recording."""

    def do_POST(self):
        self.server.asked = self.path, self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"text": "buy tea"}')

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Hearing) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


async def test_the_example_asks_a_server_for_the_words(read, monkeypatch, server):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.syspath_prepend(EXAMPLES)
    speech = import_module("speech")
    assert await read(speech.words_of) == ("buy tea", True, [])
    path, body = server.asked
    assert path == "/v1/audio/transcriptions"
    assert b'filename="voice.ogg"' in body
