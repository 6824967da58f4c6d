"""Every setting with its default, unit and meaning, and what may not stand together.

Weak to strong: the default, the TOML file, the environment, a flag.
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
from nanoloop.settings.sources import DEFAULT, Origin, read_sources
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
    """`sqlite:FILE`, `jsonl:FOLDER` (readable files), `redis://…`, `postgresql://…`, `memory:`."""
    durability: Literal["flush", "fsync"] = "flush"
    """What survives a message in files: `flush` a killed process, `fsync` a power cut too."""
    timeout_seconds: Seconds = defaults.STORE_TIMEOUT_SECONDS
    """How long a database that does not answer is tried before the chat is told."""
    encryption_key: SecretStr | None = Field(default=None, examples=["..."])
    """Seals what is said and known in the files; of several, with commas, the first one seals."""


class LoopSettings(Section):
    """Who is answered when, and how the loop ends."""

    max_concurrent_turns: Annotated[int, Field(ge=1), Unit("turns")] = defaults.MAX_CONCURRENT_TURNS
    """Turns that run side by side, drawn by owner; 1 answers one message after the other."""
    on_unanswered: Literal["answer", "report"] = "answer"
    """A message that a stop left unanswered: `answer` it at the next start, or only `report` it."""
    shutdown_turns_seconds: Seconds = defaults.SHUTDOWN_TURNS_SECONDS
    """How long running turns may finish after a stop; running summaries get half as long then."""


class TurnSettings(Section):
    """One answer, from the question to the last word."""

    max_steps: Annotated[int, Field(ge=1), Unit("model calls")] = defaults.MAX_STEPS
    """How often the model may be asked in one turn, tool results included."""


class ToolTable(NoSettings):
    """A tool of another package by its NAME; agents that name no tools may then call it too."""


class ToolSettings(PluginTables):
    """Calls that the model makes."""

    kind = "tools"
    usual = ToolTable

    timeout_seconds: Seconds = defaults.TOOL_TIMEOUT_SECONDS
    """How long one tool call may take; the model is then told that it took too long."""


class ProviderSettings(Section):
    """Calls to the model."""

    first_token_timeout_seconds: Seconds = defaults.FIRST_TOKEN_TIMEOUT_SECONDS
    """How long the server may take until the answer begins."""
    call_timeout_seconds: Seconds = defaults.CALL_TIMEOUT_SECONDS
    """How long a whole answer may take."""
    options: dict[str, Any] = Field(default_factory=dict, examples=[{"temperature": 0.3}])
    """Further fields of each request, for the server's own knobs; never put a secret here."""


class LocalSettings(Section):
    """A model in a process of this machine: model = "local:NAME" (`nanoloop model list`)."""

    context_tokens: Annotated[int, Field(ge=256), Unit("tokens")] | None = Field(
        default=None, examples=[8192]
    )
    """How much one conversation may take of its memory; left out, what suits the model."""
    answer_tokens: Annotated[int, Field(ge=1), Unit("tokens")] = defaults.LOCAL_ANSWER_TOKENS
    """How long an answer may become; a longer one is cut off there, and the log says so."""
    threads: Annotated[int, Field(ge=1), Unit("threads")] | None = Field(default=None, examples=[1])
    """Threads that compute; left out, what suits the machine."""
    hub: Annotated[str, AfterValidator(http_address)] | None = Field(
        default=None, examples=["https://hub.example"]
    )
    """A model hub to fetch from where the package index has no such model; HF_ENDPOINT too."""


class SummarySettings(Section):
    """The summary of what left the window, made in the background."""

    timeout_seconds: Seconds = defaults.SUMMARY_TIMEOUT_SECONDS
    """How long one call may take; what it covered is then tried again later."""
    fallback_model: str | None = Field(default=None, min_length=1, examples=["gpt-5.4"])
    """The model that is asked where the first one fails; left out, there is none."""
    daily_tokens: Annotated[int, Field(ge=1), Unit("tokens")] | None = Field(
        default=None, examples=[1_000_000]
    )
    """What all summaries of a day may take; further ones wait for midnight. Left out: no limit."""


class SessionSettings(Section):
    """Resizing a chat's history behind its answers. What is left out here resizes none."""

    mode: Literal["lite", "memo"] = "lite"
    """Whether a resize brings a memo of the conversation up to date, or cuts only."""
    messages: Messages | None = Field(default=None, examples=[40])
    """With more messages the window is cut down to so many, in place of the buffer's rule."""
    chars: Annotated[int, Field(ge=1), Unit("characters")] | None = Field(
        default=None, examples=[12_000]
    )
    """From so many characters on the window is cut below them, and the memo made anew."""
    every_n_turns: Annotated[int, Field(ge=1), Unit("answers")] | None = Field(
        default=None, examples=[8]
    )
    """After how many answers the memo is brought up to date."""

    def rules(self) -> dict[str, Any]:
        """What was set, as a session's own settings have it."""
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
    """Whether all words are indexed in the data folder, or in memory where files are sealed."""


class LogSettings(Section):
    """What is told on standard error. Never message text, never keys."""

    level: Level = "info"
    """The least important lines to write."""
    format: Literal["auto", "text", "json"] = "auto"
    """`text` for people, `json` one object a line; `auto` is text on a terminal, else JSON."""


class SentenceSettings(Section):
    """What chats are told when something fails, to reword or translate."""

    model_down: Sentence = ENGLISH["model_down"]
    """The model's server can't be reached, or it failed."""
    model_busy: Sentence = ENGLISH["model_busy"]
    """It takes no more requests, or no credit is left there."""
    model_key: Sentence = ENGLISH["model_key"]
    """It refused the key."""
    model_unknown: Sentence = ENGLISH["model_unknown"]
    """It has no model of that name."""
    too_long: Sentence = ENGLISH["too_long"]
    """The request is longer than the model can read."""
    refused: Sentence = ENGLISH["refused"]
    """A content filter stopped the answer."""
    no_images: Sentence = ENGLISH["no_images"]
    """It takes no pictures, and those of a client can't be left out."""
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
    """What is stored of the conversation makes no sense."""
    gone: Sentence = ENGLISH["gone"]
    """The conversation was deleted or has expired."""
    recall_down: Sentence = ENGLISH["recall_down"]
    """The index of what was said can't be used."""
    files_full: Sentence = ENGLISH["files_full"]
    """All uploaded files together take as much room as they may."""
    full: Sentence = ENGLISH["full"]
    """Too many messages of all chats wait: this one was not taken."""
    busy: Sentence = ENGLISH["busy"]
    """Too many messages of this chat wait: this one was not taken."""
    interrupted: Sentence = ENGLISH["interrupted"]
    """A restart came before the answer, and on_unanswered is "report"."""
    crashed: Sentence = ENGLISH["crashed"]
    """Anything else."""
    kept: Sentence = ENGLISH["kept"]
    """Follows the others where the message is kept."""
    incident: Sentence = ENGLISH["incident"]
    """The word before the id by which you find the failure in the log and in `nanoloop status`."""


class TerminalSettings(Section):
    """The chat in the terminal that `nanoloop run` offers."""

    enabled: bool = True
    """Whether `nanoloop run` reads standard input too; `nanoloop chat` always does."""
    agent: str | None = Field(default=None, examples=["cook"])
    """The agent for new conversations here; left out, it is the one for all."""


class ChannelSettings(PluginTables):
    """The ways in and out for chats, a table each; platforms are plugins, and bring their own."""

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
    """Your function that tells what is said in a voice message, as `package.module:function`."""
    terminal: TerminalSettings = TerminalSettings()


class AgentSettings(Section):
    """An agent with a name; what it leaves out is as above. Or a file: agents/cook.md."""

    prompt: str | None = Field(default=None, examples=["You are a patient cook."])
    """Its system prompt."""
    model: str | None = Field(default=None, min_length=1, examples=["gpt-5.4"])
    """The model that answers for it."""
    tools: Names | None = Field(default=None, examples=[["clock"]])
    """The tools it may call; left out, it may call all of them."""
    max_steps: Annotated[int, Field(ge=1), Unit("model calls")] | None = Field(
        default=None, examples=[20]
    )
    """How often its model may be asked in one turn."""
    message_buffer_limit: Messages | None = Field(default=None, examples=[50])
    """With more messages than this its window is cut."""
    message_buffer_min: Messages | None = Field(default=None, examples=[10])
    """How many of the newest messages stay in it after a cut."""


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
    """The folder for everything that is kept; relative to where nanoloop is started."""
    models: Folder = Field(
        default_factory=lambda: user_folder("data", os.environ) / "models",
        examples=["~/.local/share/nanoloop/models"],
    )
    """The folder for model files that were fetched; several data folders may share it."""
    model: str = Field("gpt-5.4-mini", min_length=1)
    """The model that answers: VENDOR:NAME, or a name as your server has it; or a .gguf's path."""
    summary_model: str | None = Field(None, min_length=1, examples=["gpt-5.4-nano"])
    """The model that summarises; left out, it is the one that answers."""
    api_key: SecretStr | None = Field(None, examples=["..."])
    """The key for the model's server; better kept in OPENAI_API_KEY than in a file."""
    base_url: Annotated[str, AfterValidator(http_address)] | None = Field(
        None, examples=["http://localhost:11434/v1"]
    )
    """Where the model's server is, OPENAI_BASE_URL too; left out, it is OpenAI's own."""
    prompt: str = PROMPT
    """The system prompt: who the assistant is and how it talks."""
    include_time: bool = False
    """Whether the model is told date and time, beside the newest message."""
    message_buffer_limit: Messages = defaults.MESSAGE_BUFFER_LIMIT
    """With more messages than this the window is cut, and what leaves it is summarised."""
    message_buffer_min: Messages = defaults.MESSAGE_BUFFER_MIN
    """How many of the newest messages stay word for word after a cut."""
    context_tokens: Annotated[int, Field(ge=1000), Unit("tokens")] | None = Field(
        None, examples=[32_000]
    )
    """With more tokens, roughly counted, old tool results are shortened and the window is cut."""
    context_limit: Annotated[int, Field(ge=1), Unit("tokens")] | None = Field(
        None, examples=[128_000]
    )
    """What the model can read at once; a conversation that takes most of it gets a log line."""
    handover: bool = False
    """Whether what left the window stays in the prompt until the summary that covers it is made."""

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
        """The settings of this start; raises `SettingsError` with every problem, one a line.

        `flags` maps dotted keys to what was typed; None stands for a flag left out.
        """
        env = os.environ if env is None else env
        read = read_sources(cls, config=config, flags=flags or {}, env=env, cwd=Path(cwd or "."))
        settings = read.together(cls)
        settings._origins, settings._file = read.origins, read.file  # noqa: SLF001 - its own
        return settings

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the names are pydantic-settings' own
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what the code passes: whoever builds settings by hand wants no surprise."""
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
        """Whether nothing is missing, such as a key or a server, to ask the model for all."""
        return lacking(self, self.model) is None

    def origin(self, key: str) -> Origin:
        """Where the value of a dotted key came from."""
        return self._origins.get(key, DEFAULT)
