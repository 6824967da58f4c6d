"""All settings with their defaults, units and meanings, and which of them conflict.

From weakest to strongest: the default, the TOML file, the environment, a flag.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    StringConstraints,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from nanoloop import defaults
from nanoloop.events import Level
from nanoloop.files import user_folder
from nanoloop.messages import Language
from nanoloop.sentences import ENGLISH
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.keys import ByName, Folder, Messages, Names, Seconds, Section, Unit
from nanoloop.settings.plugins import NoSettings, PluginTable, PluginTables
from nanoloop.settings.problems import (
    InvalidSettings,
    all_gone,
    conflicts,
    function_name,
    http_address,
)
from nanoloop.settings.sources import DEFAULT, Origin, read_environment, read_sources
from nanoloop.settings.vendors import VendorSettings, lacking, table_for, with_names
from nanoloop.stores.place import store_url

PROMPT = (
    "You are a friendly and capable assistant in a chat. Answer briefly and plainly, in the "
    "language you are spoken to. Use a tool where it helps, and say so when you do not know."
)
Sentence = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class StoreSettings(Section):
    """Where conversations are kept."""

    url: Annotated[str, AfterValidator(store_url)] | None = Field(
        default=None, examples=["sqlite:"]
    )
    """`sqlite:FILE`, `jsonl:FOLDER` (plain files), `redis://…`, `postgresql://…`, `memory:`."""
    durability: Literal["flush", "fsync"] = "flush"
    """What a stored message survives: `flush` a killed process, `fsync` a power cut too."""
    timeout_seconds: Seconds = defaults.STORE_TIMEOUT_SECONDS
    """How long a database that does not answer is retried before the chat is told."""
    encryption_key: SecretStr | None = Field(default=None, examples=["..."])
    """Encrypts conversations. Of several keys, separated by commas, the first one encrypts."""


class LoopSettings(Section):
    """When messages are answered, and how the loop stops."""

    max_concurrent_turns: Annotated[int, Field(ge=1), Unit("turns")] = defaults.MAX_CONCURRENT_TURNS
    """How many turns run at the same time; 1 answers one message after the other."""
    on_unanswered: Literal["answer", "report"] = "answer"
    """Messages left unanswered by a stop: `answer` them at the next start, or `report` them."""
    shutdown_turns_seconds: Seconds = defaults.SHUTDOWN_TURNS_SECONDS
    """How long running turns may take to finish after a stop; summaries get half of that."""


class TurnSettings(Section):
    """One answer, from the question to the last word."""

    max_steps: Annotated[int, Field(ge=1), Unit("model calls")] = defaults.MAX_STEPS
    """How many times the model may be called in one turn."""


class ToolTable(NoSettings):
    """A tool from another package; agents without a list of tools may then call it too."""


class ToolSettings(PluginTables):
    """Calls that the model makes."""

    kind = "tools"
    usual = ToolTable

    timeout_seconds: Seconds = defaults.TOOL_TIMEOUT_SECONDS
    """How long one tool call may take; the model is then told that it took too long."""


class ProviderSettings(Section):
    """Calls to the model."""

    first_token_timeout_seconds: Seconds = defaults.FIRST_TOKEN_TIMEOUT_SECONDS
    """How long the server may take to begin its answer."""
    call_timeout_seconds: Seconds = defaults.CALL_TIMEOUT_SECONDS
    """How long a whole answer may take."""
    options: dict[str, Any] = Field(default_factory=dict, examples=[{"temperature": 0.3}])
    """Extra fields for each request; never put a secret here."""


class LocalSettings(Section):
    """A model in a process of this machine: model = "local:NAME" (`nanoloop model list`)."""

    context_tokens: Annotated[int, Field(ge=256), Unit("tokens")] | None = Field(
        default=None, examples=[8192]
    )
    """How much context one conversation may use; by default, what suits the model."""
    answer_tokens: Annotated[int, Field(ge=1), Unit("tokens")] = defaults.LOCAL_ANSWER_TOKENS
    """How long an answer may get; a longer one is cut off, and the log says so."""
    threads: Annotated[int, Field(ge=1), Unit("threads")] | None = Field(default=None, examples=[1])
    """How many threads to use; by default, as many as suit the machine."""
    hub: Annotated[str, AfterValidator(http_address)] | None = Field(
        default=None, examples=["https://hub.example"]
    )
    """A model hub for files that the package index does not have; HF_ENDPOINT too."""


class SummarySettings(Section):
    """The summary of what left the window, made in the background."""

    timeout_seconds: Seconds = defaults.SUMMARY_TIMEOUT_SECONDS
    """How long one call may take; after that it is retried later."""
    fallback_model: str | None = Field(default=None, min_length=1, examples=["gpt-5.4"])
    """The model to use if the first one fails; by default, none."""
    daily_tokens: Annotated[int, Field(ge=1), Unit("tokens")] | None = Field(
        default=None, examples=[1_000_000]
    )
    """The most tokens for one day's summaries; the rest wait for midnight. Default: no limit."""


class SessionSettings(Section):
    """Resizing a chat's history after its answers. By default no chat is resized."""

    mode: Literal["lite", "memo"] = "lite"
    """Whether a resize also updates a memo of the conversation (`memo`), or only cuts."""
    messages: Messages | None = Field(default=None, examples=[40])
    """With more messages the window is cut to this number, instead of the buffer's rule."""
    chars: Annotated[int, Field(ge=1), Unit("characters")] | None = Field(
        default=None, examples=[12_000]
    )
    """When the window has this many characters, it is cut, and the memo is updated."""
    every_n_turns: Annotated[int, Field(ge=1), Unit("answers")] | None = Field(
        default=None, examples=[8]
    )
    """The memo is updated after this many answers."""

    def rules(self) -> dict[str, Any]:
        """The values that were set, in the form of a session's own settings."""
        limit = {"messages": self.messages, "chars": self.chars}
        limit = {name: count for name, count in limit.items() if count is not None}
        resize = {} if self.every_n_turns is None else {"every_n_turns": self.every_n_turns}
        said: dict[str, Any] = {"limit": limit, "resize": resize}
        if self.mode != "lite":
            said["mode"] = self.mode
        said = {name: value for name, value in said.items() if value}
        return {"session": said} if said else {}


class RecallSettings(Section):
    """Finding again what was said: /recall, and the tool of that name."""

    enabled: bool = True
    """Whether messages are indexed: in the data folder, or in memory if they are encrypted."""


class LogSettings(Section):
    """What is logged to standard error. Never message text, never keys."""

    level: Level = "info"
    """The lowest level to log."""
    format: Literal["auto", "text", "json"] = "auto"
    """`text` for people, `json` one object a line; `auto` is text on a terminal, else JSON."""
    stall_seconds: Seconds = defaults.STALL_SECONDS
    """After how long a line says where the event loop of a daemon stands still."""


class SentenceSettings(Section):
    """What chats are told when something fails, to reword; in `language`."""

    model_down: Sentence = ENGLISH["model_down"]
    """The model's server can't be reached, or it failed."""
    model_busy: Sentence = ENGLISH["model_busy"]
    """It accepts no more requests, or your credit there is used up."""
    model_key: Sentence = ENGLISH["model_key"]
    """It refused the key."""
    model_unknown: Sentence = ENGLISH["model_unknown"]
    """It has no model of that name."""
    too_long: Sentence = ENGLISH["too_long"]
    """The request is longer than the model can read."""
    refused: Sentence = ENGLISH["refused"]
    """A content filter stopped the answer."""
    no_images: Sentence = ENGLISH["no_images"]
    """It accepts no pictures, and a client's can't be left out."""
    bad_image: Sentence = ENGLISH["bad_image"]
    """It can't read a picture of a client."""
    empty: Sentence = ENGLISH["empty"]
    """The model said nothing."""
    timeout: Sentence = ENGLISH["timeout"]
    """The model took longer than it may."""
    store_down: Sentence = ENGLISH["store_down"]
    """The store can't be reached, or it failed."""
    changed: Sentence = ENGLISH["changed"]
    """Another writer changed the conversation first."""
    damaged: Sentence = ENGLISH["damaged"]
    """The stored conversation is damaged."""
    gone: Sentence = ENGLISH["gone"]
    """The conversation was deleted or has expired."""
    recall_down: Sentence = ENGLISH["recall_down"]
    """The index of what was said can't be used."""
    files_full: Sentence = ENGLISH["files_full"]
    """All uploaded files together have reached their limit."""
    full: Sentence = ENGLISH["full"]
    """Too many messages of all chats are waiting: this one was not accepted."""
    busy: Sentence = ENGLISH["busy"]
    """Too many messages of this chat are waiting: this one was not accepted."""
    interrupted: Sentence = ENGLISH["interrupted"]
    """A restart came before the answer, and on_unanswered is "report"."""
    crashed: Sentence = ENGLISH["crashed"]
    """Anything else."""
    kept: Sentence = ENGLISH["kept"]
    """Follows the others if the message is stored."""
    incident: Sentence = ENGLISH["incident"]
    """The word before the id that finds the failure in the log and in `nanoloop status`."""


class TerminalSettings(Section):
    """The chat in the terminal that `nanoloop run` offers."""

    enabled: bool = True
    """Whether `nanoloop run` reads standard input too; `nanoloop chat` always does."""
    agent: str | None = Field(default=None, examples=["cook"])
    """The agent for new conversations here; by default, the default agent."""


class ChannelSettings(PluginTables):
    """The channels, a table each; platforms are plugins with settings of their own."""

    kind = "channels"
    usual = PlatformSettings
    always = ("web",)
    gone: ClassVar = {
        "others": "write [channels.NAME] for [channels.others.NAME], and what stood in its options "
        "beside the rest"
    }

    transcribe: Annotated[str, AfterValidator(function_name)] | None = Field(
        default=None, examples=["speech:words_of"]
    )
    """Your function that transcribes voice messages, as `package.module:function`."""
    terminal: TerminalSettings = TerminalSettings()


class AgentSettings(Section):
    """A named agent; what it leaves out is as above. It can also be a file: agents/cook.md."""

    prompt: str | None = Field(default=None, examples=["You are a patient cook."])
    """Its system prompt."""
    model: str | None = Field(default=None, min_length=1, examples=["gpt-5.4"])
    """The model it uses."""
    tools: Names | None = Field(default=None, examples=[["clock"]])
    """The tools it may call; left out, it may call all of them."""
    max_steps: Annotated[int, Field(ge=1), Unit("model calls")] | None = Field(
        default=None, examples=[20]
    )
    """How many times its model may be called in one turn."""
    message_buffer_limit: Messages | None = Field(default=None, examples=[50])
    """With more messages than this its window is cut."""
    message_buffer_min: Messages | None = Field(default=None, examples=[10])
    """How many of the newest messages stay in it after a cut."""
    language: Language | None = Field(default=None, examples=["fr"])
    """The language of the bot's own messages in its chats, such as answers to commands."""


class Settings(BaseSettings):
    """What a user may choose. Made in code it takes what it is given and reads nothing else."""

    model_config = SettingsConfigDict(
        case_sensitive=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        strict=True,
        use_attribute_docstrings=True,
    )

    data: Folder = Field(
        default_factory=lambda: user_folder("data", os.environ),
        examples=["~/.local/share/nanoloop"],
    )
    """The folder for all stored data; a relative path is taken from where nanoloop is started."""
    models: Folder = Field(
        default_factory=lambda: user_folder("data", os.environ) / "models",
        examples=["~/.local/share/nanoloop/models"],
    )
    """The folder for downloaded model files; several data folders may share it."""
    model: str = Field("gpt-5.4-mini", min_length=1)
    """The model that answers: VENDOR:NAME, your server's name for it, or a .gguf's path."""
    summary_model: str | None = Field(None, min_length=1, examples=["gpt-5.4-nano"])
    """The model that summarises; by default, the one that answers."""
    api_key: SecretStr | None = Field(None, examples=["..."])
    """The key for the model's server; better kept in OPENAI_API_KEY than in a file."""
    base_url: Annotated[str, AfterValidator(http_address)] | None = Field(
        None, examples=["http://localhost:11434/v1"]
    )
    """The address of the model's server (also OPENAI_BASE_URL); by default, OpenAI's."""
    prompt: str = PROMPT
    """The system prompt: who the assistant is and how it talks."""
    language: Language = "en"
    """The language of what the bot itself tells chats; each agent and platform may have another."""
    include_time: bool = False
    """Whether the model is told the date and time of the newest message."""
    message_buffer_limit: Messages = defaults.MESSAGE_BUFFER_LIMIT
    """With more messages than this the window is cut, and what leaves it is summarised."""
    message_buffer_min: Messages = defaults.MESSAGE_BUFFER_MIN
    """How many of the newest messages stay word for word after a cut."""
    context_tokens: Annotated[int, Field(ge=1000), Unit("tokens")] | None = Field(
        None, examples=[32_000]
    )
    """With more tokens (estimated) old tool results are shortened and the window is cut."""
    context_limit: Annotated[int, Field(ge=1), Unit("tokens")] | None = Field(
        None, examples=[128_000]
    )
    """How much the model can read; a conversation that uses most of it is logged."""
    handover: bool = False
    """Whether messages stay in the prompt until the summary that covers them is written."""

    store: StoreSettings = StoreSettings()
    loop: LoopSettings = LoopSettings()
    turn: TurnSettings = TurnSettings()
    tools: ToolSettings = ToolSettings()
    provider: ProviderSettings = ProviderSettings()
    providers: Annotated[
        dict[str, PluginTable],
        ByName(table_for, usual=VendorSettings, example="groq"),
        BeforeValidator(with_names),
    ] = Field(default_factory=dict)
    local: LocalSettings = LocalSettings()
    summary: SummarySettings = SummarySettings()
    session: SessionSettings = SessionSettings()
    recall: RecallSettings = RecallSettings()
    log: LogSettings = LogSettings()
    sentences: SentenceSettings = SentenceSettings()
    channels: ChannelSettings = Field(default_factory=ChannelSettings)
    agents: dict[str, AgentSettings] = Field(default_factory=dict)

    _origins: dict[str, Origin] = PrivateAttr(default_factory=dict)
    _file: Path | None = PrivateAttr(default=None)

    @classmethod
    def load(
        cls,
        *,
        config: Path | str | None = None,
        flags: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
    ) -> Settings:
        """Load the settings; raises `SettingsError` with every problem, one per line.

        `flags` maps dotted keys to what was typed; None means that a flag was not given.
        """
        env = os.environ if env is None else env
        read = read_sources(cls, config=config, flags=flags or {}, env=env, cwd=Path(cwd or "."))
        settings = read.together(cls)
        settings._origins, settings._file = read.origins, read.file  # noqa: SLF001 - its own
        return settings

    @classmethod
    def of_code(cls, said: Mapping[str, str], *, env: Mapping[str, str] | None = None) -> Settings:
        """The environment's settings, overridden by `said`; reads no file. Raises like `load`.

        `said` maps dotted keys to values given by a program.
        """
        return read_environment(cls, said, os.environ if env is None else env).together(cls)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the names are pydantic-settings' own
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only what the code passes, so that settings built by hand hold no surprises."""
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_gone(cls, said: Any) -> Any:
        if isinstance(said, Mapping) and (problems := list(all_gone(said))):
            raise InvalidSettings(problems)
        return said

    @model_validator(mode="after")
    def _refuse_conflicts(self) -> Self:
        if problems := conflicts(self):
            raise InvalidSettings(problems)
        return self

    @property
    def file(self) -> Path | None:
        """The settings file that was read, or None."""
        return self._file

    @property
    def has_model(self) -> bool:
        """Whether the default model has all it needs to be called, such as a key or a server."""
        return lacking(self, self.model) is None

    def origin(self, key: str) -> Origin:
        """Where the value of a dotted key came from."""
        return self._origins.get(key, DEFAULT)
