"""Any model, by a name that people know: who serves it, and with which key."""

from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop.app import App
from nanoloop.channels.direct import DirectChannel
from nanoloop.cli.reload import Reload
from nanoloop.errors import ProviderError, SettingsError, WrongKey
from nanoloop.parts import make_provider
from nanoloop.providers.vendors import VENDORS, address_in, split
from nanoloop.settings import Settings
from nanoloop.settings.vendors import lacking, server_of
from tests.openai_server import Answer, OpenAIServer

HELLO = [{"role": "user", "content": "Hello."}]
LOOK = {"type": "text", "text": "Look:"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
OWN_VENDORS = """
model = "groq:a"
summary_model = "mistral:s"
message_buffer_limit = 4
message_buffer_min = 2
store.url = "memory:"
recall.enabled = false
agents.cook.model = "mistral:c"
channels.terminal.agent = "cook"
"""


class Cook(DirectChannel):
    """A channel whose agent the settings name."""

    name = "terminal"


@pytest.fixture
def load(tmp_path):
    """Load with a file of that text, in an otherwise empty world."""

    def load(text="", **env):
        file = tmp_path / "nanoloop.toml"
        file.write_text(text)
        return Settings.load(config=file, env={"HOME": str(tmp_path)} | env)

    return load


@asynccontextmanager
async def two_vendors(load, text="", **env):
    """Settings with a stand-in for Groq's server and one for Mistral's."""
    async with OpenAIServer(otherwise="G.") as groq, OpenAIServer(otherwise="M.") as mistral:
        tables = (
            f'[providers.groq]\napi_key = "gsk"\nbase_url = "{groq.url}"\n'
            f'[providers.mistral]\napi_key = "mis"\nbase_url = "{mistral.url}"\n'
        )
        yield load(f"{text}\n{tables}", **env), groq, mistral


def asked(server):
    """Which models a server was asked for, with which key."""
    return [(each.json["model"], each.headers.get("authorization")) for each in server.requests]


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("groq:llama-3.3-70b", ("groq", "llama-3.3-70b")),
        ("openrouter:meta/llama:free", ("openrouter", "meta/llama:free")),
        ("ollama:qwen3:4b", ("ollama", "qwen3:4b")),
        ("local:tiny", ("local", "local:tiny")),
        ("/srv/groq:x.gguf", ("local", "/srv/groq:x.gguf")),
        ("qwen3:4b", ("", "qwen3:4b")),
        ("ft:gpt-5.4:me::7", ("", "ft:gpt-5.4:me::7")),
        ("Groq:x", ("", "Groq:x")),
        ("groq", ("", "groq")),
    ],
)
def test_only_a_word_of_the_table_is_a_vendor(model, parts):
    assert split(model) == parts


async def test_a_name_with_a_colon_goes_as_it_is_to_the_configured_server(load):
    async with OpenAIServer() as server:
        provider = make_provider(load(f'model = "qwen3:4b"\nbase_url = "{server.url}"'))
        await provider.chat(messages=HELLO)
        await provider.chat(messages=HELLO, model="ft:gpt-5.4:me::7")
        await provider.close()
        assert [name for name, _ in asked(server)] == ["qwen3:4b", "ft:gpt-5.4:me::7"]


async def test_each_vendor_is_asked_at_its_own_address_with_its_own_key(load):
    async with two_vendors(load, 'model = "groq:a"') as (settings, groq, mistral):
        provider = make_provider(settings)
        assert (await provider.chat(messages=HELLO)).text == "G."
        assert (await provider.chat(messages=HELLO, model="mistral:b:c")).text == "M."
        await provider.close()
    assert asked(groq) == [("a", "Bearer gsk")]
    assert asked(mistral) == [("b:c", "Bearer mis")]


async def test_one_vendors_models_share_their_connections(load):
    async with two_vendors(load, 'model = "groq:a"') as (settings, groq, _):
        provider = make_provider(settings)
        for model in ("groq:a", "groq:b", "groq:c"):
            await provider.chat(messages=HELLO, model=model)
        await provider.close()
        assert groq.connections_made == 1
        await groq.deserted()


async def test_an_agent_and_the_summary_are_each_at_a_vendor_of_their_own(load):
    async with two_vendors(load, OWN_VENDORS) as (settings, groq, mistral):
        app = App.of(settings)
        cook, usual = Cook(app.loop.bus), DirectChannel(app.loop.bus)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(app.run)
                assert (await cook.ask("Soup?")).text == "M."
                for number in range(3):
                    assert (await usual.ask(f"Hello {number}.")).text == "G."
                await mistral.arrived(2)
                app.stop()
                group.cancel_scope.cancel()
    assert asked(mistral)[:2] == [("c", "Bearer mis"), ("s", "Bearer mis")]
    assert {name for name, _ in asked(groq)} == {"a"}


async def test_options_are_one_vendors_own(load):
    text = 'model = "groq:a"\nprovider.options = {temperature = 0, seed = 1}'
    async with two_vendors(load, text, NANOLOOP_PROVIDERS__GROQ__OPTIONS='{"seed": 7}') as world:
        settings, groq, mistral = world
        provider = make_provider(settings)
        with_more = provider.with_options({"top_p": 1})
        await with_more.chat(messages=HELLO)
        await with_more.chat(messages=HELLO, model="mistral:b")
        await provider.close()
    for server, seed in ((groq, 7), (mistral, 1)):
        sent = server.requests[-1].json
        assert (sent["temperature"], sent["seed"], sent["top_p"]) == (0, seed, 1)


async def test_what_is_loaded_ahead_is_loaded_for_all_that_are_named(load):
    async with two_vendors(load, 'model = "groq:a"\nsummary_model = "mistral:b"') as world:
        provider = make_provider(world[0])
        await provider.load()
        assert (await provider.chat(messages=HELLO, model="mistral:b")).text == "M."
        await provider.close()


async def test_a_vendors_quirks_are_heeded_in_each_request(load):
    async with two_vendors(load, 'model = "groq:a"') as (settings, groq, mistral):
        provider = make_provider(settings)
        for model in ("groq:a", "mistral:b"):
            await provider.chat(messages=HELLO, model=model, on_text=lambda _: None)
        await provider.close()
    assert "stream_options" in groq.requests[-1].json
    assert "stream_options" not in mistral.requests[-1].json


async def test_a_refused_key_is_told_by_its_vendors_variable(load):
    async with two_vendors(load, 'model = "groq:a"') as (settings, groq, _):
        groq.otherwise = Answer(status=401, body=b"{}")
        provider = make_provider(settings)
        with pytest.raises(WrongKey, match="check GROQ_API_KEY"):
            await provider.chat(messages=HELLO)
        await provider.close()


async def test_a_vendor_that_takes_no_images_is_sent_none(load):
    async with OpenAIServer() as server:
        text = f'model = "deepseek:x"\nproviders.deepseek.base_url = "{server.url}"'
        provider = make_provider(load(text))
        await provider.chat(messages=[{"role": "user", "content": [LOOK, IMAGE]}])
        await provider.close()
        said = server.requests[-1].json["messages"][0]["content"]
        assert said == "Look:\n\n[an image that can't be shown]"


async def test_after_closing_nothing_is_asked_any_more(load):
    async with two_vendors(load, 'model = "groq:a"') as (settings, _, _):
        provider = make_provider(settings)
        await provider.close()
        await provider.close()
        with pytest.raises(ProviderError, match="closed"):
            await provider.chat(messages=HELLO)


async def test_a_vendor_named_later_without_a_key_is_told_and_ends_nothing(load):
    async with two_vendors(load, 'model = "groq:a"') as (settings, _, _):
        provider = make_provider(settings)
        with pytest.raises(ProviderError, match="set XAI_API_KEY"):
            await provider.chat(messages=HELLO, model="xai:grok")
        await provider.close()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('model = "groq:a"', ':1: model is "groq:a", but no key is set: set GROQ_API_KEY'),
        ('model = "opneai:a"', "no key is set: set OPENAI_API_KEY, or did you mean openai:a?"),
        ('model = "azure:a"', "no address is set: set AZURE_OPENAI_ENDPOINT"),
        ('model = "groq:"', "no model is named: write groq:NAME"),
        ('model = "ollama:a"\nsummary_model = "gemini:b"', ':2: summary_model is "gemini:b", but'),
        ('model = "ollama:a"\nsummary.fallback_model = "xai:b"', "set XAI_API_KEY"),
        ('model = "ollama:a"\nagents.cook.model = "gpt"', "set OPENAI_API_KEY"),
        ('model = "ollama:a"\n[agents.cook]\nmodel = "xai:b"', ":3: agents.cook.model is"),
    ],
)
def test_a_missing_key_is_told_at_start_with_its_place(load, text, told):
    with pytest.raises(SettingsError) as caught:
        App.of(load(text))
    assert told in str(caught.value)


@pytest.mark.parametrize("word", [word for word in VENDORS if word not in ("azure", "local")])
def test_a_key_in_its_variable_is_all_that_a_vendor_needs(load, word):
    model = f"{word}:x"
    keys = VENDORS[word].keys
    assert (lacking(load(), model) is None) == (not keys)
    for name in keys:
        settings = load(f'model = "{model}"', **{name: "k"})
        assert settings.has_model
        assert server_of(settings, word).key == "k"


async def test_anthropic_is_asked_by_a_provider_of_its_own(load):
    module = pytest.importorskip("nanoloop.providers.anthropic")
    provider = make_provider(load('model = "anthropic:claude"', ANTHROPIC_API_KEY="k"))
    assert isinstance(provider.provider_of("anthropic:claude"), module.AnthropicProvider)
    await provider.close()


def test_azure_is_reached_at_its_v1_address(load):
    env = {"AZURE_OPENAI_ENDPOINT": "https://me.openai.azure.com/", "AZURE_OPENAI_API_KEY": "k"}
    settings = load('model = "azure:mine"', **env)
    assert server_of(settings, "azure").url == "https://me.openai.azure.com/openai/v1"
    assert settings.has_model
    assert not load('model = "azure:mine"', AZURE_OPENAI_ENDPOINT="https://x").has_model


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ("0.0.0.0", "http://localhost:11434/v1"),
        ("10.0.0.7:9", "http://10.0.0.7:9/v1"),
        ("https://ai.example.org", "https://ai.example.org/v1"),
        ("http://[::1]:5/", "http://[::1]:5/v1"),
        (":99", "http://localhost:99/v1"),
    ],
)
def test_ollama_is_where_its_own_variable_says(load, said, url):
    assert address_in("OLLAMA_HOST", said) == url
    assert server_of(load(OLLAMA_HOST=said), "ollama").url == url


def test_openais_key_is_not_sent_where_another_server_is_configured(load):
    alone = load('api_key = "k"')
    assert server_of(alone, "openai").key == "k"
    beside = load('api_key = "k"\nbase_url = "http://localhost:1/v1"')
    assert server_of(beside, "openai").key is None
    assert server_of(beside, "").key == "k"


def test_a_known_address_has_its_vendors_quirks(load):
    assert not server_of(
        load(OPENAI_BASE_URL="https://api.mistral.ai/v1/"), ""
    ).vendor.quirks.streams_usage
    assert server_of(load(OPENAI_API_KEY="k"), "").vendor.quirks.takes_cache_key
    assert not server_of(load('base_url = "http://x/v1"'), "").vendor.quirks.takes_cache_key


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[providers.gorq]\napi_key = 'x1234567'",
            "is not a provider: did you mean providers.groq",
        ),
        ("[providers.groq]\nkey = 'x1234567'", "did you mean providers.groq.api_key?"),
        (
            "[providers.groq]\napi_key = 12345678",
            "providers.groq.api_key is ********, not a string",
        ),
        ("[providers.groq]\nbase_url = 'x'", '2: providers.groq.base_url is "x", not an address'),
        ("[providers.local]\nbase_url = 'x'", "use [local] instead"),
        ("[providers]\ngroq = 5", "providers.groq is 5, not a table"),
    ],
)
def test_what_is_wrong_with_a_vendors_table_is_told(load, text, told):
    with pytest.raises(SettingsError) as caught:
        load(text)
    assert told in str(caught.value)
    assert "1234567" not in str(caught.value)


BAD_ADDRESSES = {"AZURE_OPENAI_ENDPOINT": "my.openai.azure.com", "OLLAMA_HOST": "unix:/tmp/x"}


def test_another_programs_bad_address_matters_only_where_its_vendor_is_asked_for(load):
    settings = load('model = "groq:a"', **BAD_ADDRESSES)
    assert server_of(settings, "ollama").url == VENDORS["ollama"].url
    with pytest.raises(SettingsError, match="not an address: begin it with") as caught:
        load('model = "groq:a"\nagents.cook.model = "azure:b"', **BAD_ADDRESSES)
    assert "ollama" not in str(caught.value)


RELOADED = [
    ('agents.cook.model = "groq:b"\nproviders.groq.api_key = "k"', "SettingsRefused"),
    ('agents.cook.model = "xai:b"', "SettingsReloaded"),
    ('agents.cook.model = "xai:b"\nproviders.groq.api_key = "k"', "SettingsReloaded"),
]


@pytest.mark.parametrize(("text", "told"), RELOADED)
async def test_a_reload_takes_no_agent_whose_model_lacks_what_a_restart_brings(
    load, text, told, heard
):
    usual = 'model = "xai:a"\nproviders.xai.api_key = "k"\nstore.url = "memory:"\n'
    settings = load(usual)
    app = App.of(settings)
    Reload(app, settings, channels=[], load=lambda: load(usual + text))()
    assert type(heard[-1]).__name__ == told
    assert told == "SettingsReloaded" or "restart to apply it" in heard[-1].reason
