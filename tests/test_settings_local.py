"""What settings leave open is filled in as a model on this machine needs it."""

from pathlib import Path

from nanoloop.memory import writer
from nanoloop.parts import make_agents, make_summarizer
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import (
    AgentSettings,
    LocalSettings,
    ProviderSettings,
    Settings,
    SummarySettings,
)
from nanoloop.settings.vendors import (
    SMALL_PROMPT,
    call_timeout_seconds,
    context_tokens,
    suited,
    summary_batch_chars,
)
from nanoloop.stores.in_memory import InMemoryStore

TINY = Settings(model="local:smollm2-135m")


def test_a_conversation_leaves_room_for_the_answer_in_the_models_context():
    assert suited(TINY).context_tokens == 6144
    small = TINY.model_copy(update={"local": LocalSettings(context_tokens=2048)})
    assert suited(small).context_tokens == 1536


def test_a_summary_has_time_and_a_batch_that_the_model_can_read():
    summary = suited(TINY).summary
    assert summary.timeout_seconds == 600
    assert summary_batch_chars(TINY, 24_000) == 16384


def test_what_the_user_said_stays():
    said = SummarySettings(timeout_seconds=7)
    settings = suited(TINY.model_copy(update={"summary": said, "context_tokens": 5000}))
    assert settings.summary == said
    assert settings.context_tokens == 5000


def test_a_servers_model_changes_nothing():
    assert suited(Settings()) == Settings()


def test_a_file_that_nobody_knows_gets_the_usual_context():
    assert context_tokens(Settings(model=str(Path("/srv/own.gguf")))) == 8192


def test_a_local_summary_beside_a_servers_model_has_time_and_a_batch_of_its_own():
    settings = Settings(summary_model="local:smollm2-135m")
    assert suited(settings).summary.timeout_seconds == 600
    assert summary_batch_chars(settings, 24_000) == 16384
    assert suited(settings).context_tokens is None
    beside = TINY.model_copy(update={"summary_model": "gpt-5.4-nano"})
    assert suited(beside).summary == Settings().summary
    assert summary_batch_chars(beside, 24_000) == 24_000


def test_an_answer_here_may_take_longer_than_a_servers():
    assert call_timeout_seconds(TINY) == 900
    said = ProviderSettings(call_timeout_seconds=70)
    assert call_timeout_seconds(TINY.model_copy(update={"provider": said})) == 70


def test_a_small_model_is_told_less_and_keeps_what_waits_for_its_summary():
    assert suited(TINY).prompt == SMALL_PROMPT
    assert suited(TINY).handover
    said = Settings(model=TINY.model, prompt="You are a cook.", handover=False)
    assert (suited(said).prompt, suited(said).handover) == ("You are a cook.", False)
    own = Settings(model="/srv/llama-70b.gguf")
    assert (suited(own).prompt, suited(own).handover) == (own.prompt, False)


def test_a_small_model_that_summarises_is_told_less_too():
    def prompt(settings):
        return make_summarizer(settings, ScriptedProvider(), InMemoryStore()).prompt

    assert prompt(TINY) == writer.SMALL_PROMPT
    assert prompt(Settings(summary_model=TINY.model)) == writer.SMALL_PROMPT
    assert prompt(TINY.model_copy(update={"summary_model": "gpt-5.4-nano"})) == writer.PROMPT


def test_a_small_model_has_the_tools_that_someone_named_for_it():
    names = {"a": AgentSettings(tools=["clock"]), "b": AgentSettings(model="gpt-5.4")}
    agents = make_agents(TINY.model_copy(update={"agents": names}))
    found = (agent.toolbox.specs for agent in (agents.default, agents["a"], agents["b"]))
    tools = [[spec.name for spec in specs] for specs in found]
    assert tools == [[], ["clock"], ["clock", "calculator"]]
