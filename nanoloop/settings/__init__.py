"""All settings with their defaults, units and meanings, and the conflicts between them.

Lowest priority first: the default, the TOML file, the environment, a flag.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
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
from nanoloop.protocols import Approve
from nanoloop.sentences import ENGLISH
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.keys import (
    HARMLESS,
    ByName,
    Folder,
    Messages,
    Names,
    Seconds,
    Section,
    Unit,
)
from nanoloop.settings.plugins import NoSettings, PluginTable, PluginTables
from nanoloop.settings.problems import (
    InvalidSettings,
    all_gone,
    conflicts,
    duration,
    function_name,
    http_address,
)
from nanoloop.settings.sources import DEFAULT, Origin, read_environment, read_sources
from nanoloop.settings.trust import LeftOut
from nanoloop.settings.vendors import VendorSettings, lacking, table_for, with_names
from nanoloop.stores.place import store_url

PROMPT = (
    "You are a friendly and capable assistant in a chat. Answer briefly and plainly, in the user's "
    "language. Use a tool if it helps, and say so if you do not know something."
)
Sentence = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class StoreSettings(Section):
    """Where conversations are stored."""

    url: Annotated[str, AfterValidator(store_url)] | None = Field(
        default=None, examples=["sqlite:"]
    )
    """The store: `sqlite:FILE`, `jsonl:FOLDER`, `redis://…`, `postgresql://…` or `memory:`."""
    durability: Literal["flush", "fsync"] = "flush"
    """How safe a stored message is: `flush` survives a killed process, `fsync` also a power cut."""
    timeout_seconds: Seconds = defaults.STORE_TIMEOUT_SECONDS
    """How long to retry a database that does not answer before telling the chat."""
    encryption_key: SecretStr | None = Field(default=None, examples=["..."])
    """The key that encrypts conversations; older keys may follow, separated by commas."""
    keys_file: Folder | None = Field(default=None, examples=["/srv/nanoloop-keys/store.keys"])
    """The file with a key for each conversation and person; exclude it from the store's backups."""


class LoopSettings(Section):
    """When messages are answered, and how the loop stops."""

    max_concurrent_turns: Annotated[int, Field(ge=1), Unit("turns"), HARMLESS] = (
        defaults.MAX_CONCURRENT_TURNS
    )
    """How many turns may run at the same time; with 1, messages are answered one by one."""
    on_unanswered: Annotated[Literal["answer", "report"], HARMLESS] = "answer"
    """Answer unanswered messages at startup, or only report them."""
    shutdown_turns_seconds: Annotated[Seconds, HARMLESS] = defaults.SHUTDOWN_TURNS_SECONDS
    """How long running turns may take to finish at shutdown; summaries get half of that."""


class TurnSettings(Section):
    """Limits for a single answer."""

    max_steps: Annotated[int, Field(ge=1), Unit("model calls")] = defaults.MAX_STEPS
    """How many times the model may be called in one turn."""


def _issuer(value: str) -> str:
    _address_or_none(value)
    return value  # compared character by character


def _address_or_none(value: str) -> str:
    return http_address(value) if value else value


Approval = Approve | dict[str, Approve]
"""One rule for all calls, or a rule for each glob of tool names; the first match counts."""
Duration = Annotated[str, AfterValidator(duration)]


class ApprovalSettings(Section):
    """Asking a person before a tool call runs; `approve` says for which calls."""

    who: Literal["asker", "operators"] = "asker"
    """Who may answer: the person whose message led to the call, or the operators."""
    expires: Duration = "24h"
    """How long a call waits for an answer before it is given up, such as 30m, 24h or 7d."""


class ToolServerSettings(Section):
    """An MCP server. Agents may call its tools as `NAME__tool`. Set its command or its url."""

    command: Names = Field(default=(), examples=[["mcp-server-filesystem", "/srv/docs"]])
    """The program to start, with its arguments."""
    url: Annotated[str, AfterValidator(_address_or_none)] = ""
    """The address of a server (streamable HTTP), instead of a command."""
    headers: dict[str, SecretStr] = Field(default_factory=dict, examples=[{}])
    """HTTP headers for each request to the url, such as a key; never shown."""
    auth: Literal["", "oauth", "client_credentials"] = ""
    """How to log in at the url: in a browser with `nanoloop tools login NAME`, or as a client."""
    client_id: str = ""
    """The client's id at the authorization server; by default, `oauth` registers one."""
    client_secret: SecretStr | None = Field(default=None, examples=[""])
    """The client's secret; never shown."""
    issuer: Annotated[str, AfterValidator(_issuer)] = ""
    """The authorization server that the client's id and secret are sent to, and no other."""
    redirect_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """The port on this machine that a login's answer is sent to; 0 takes a free one."""
    env: Names = Field(default=(), examples=[["GITHUB_TOKEN"]])
    """Environment variables to pass to the program in addition to the usual ones."""
    tools: Names | None = Field(default=None, examples=[["read_*", "!read_media_file"]])
    """Which of the server's tools to use: names or globs (`!` excludes); by default, all."""
    timeout_seconds: Seconds | None = Field(default=None, examples=[20])
    """How long the server may take to start or to answer; default: tools.timeout_seconds."""
    sampling_tokens: Annotated[int, Field(ge=0), Unit("tokens")] = 0
    """How many tokens of the model the server may use each day for its own questions."""
    approve: Approval | None = Field(default=None, examples=["writes"])
    """Which of the server's calls a person has to approve; by default, as tools.approve says."""
    enabled: bool = True
    """Whether to use the server."""


def _server_table(_: str) -> type[BaseModel]:
    return ToolServerSettings


class ToolTable(NoSettings):
    """A tool from a package, or one that needs a table; agents without a list get it too."""


class ToolSettings(PluginTables):
    """Tool calls by the model."""

    kind = "tools"
    usual = ToolTable

    timeout_seconds: Annotated[Seconds, HARMLESS] = defaults.TOOL_TIMEOUT_SECONDS
    """How long one tool call may take before it is stopped and the model is told."""
    functions: dict[str, str] = Field(
        default_factory=dict, examples=[{"weather": "mytools:weather"}]
    )
    """Your own functions as tools, by name; modules may be in the data folder's `tools`."""
    budget_tokens: Annotated[int, Field(ge=0), Unit("tokens")] = defaults.TOOL_BUDGET_TOKENS
    """How much the servers' tools may take in each request; the model looks up the rest."""
    approve: Approval = "never"
    """Which calls a person has to approve: never, writes or always, for all or by tool name."""
    approvals: ApprovalSettings = ApprovalSettings()
    servers: Annotated[
        dict[str, ToolServerSettings],
        ByName(_server_table, usual=ToolServerSettings, example="files"),
    ] = Field(default_factory=dict)


class SkillSettings(Section):
    """Skills: instructions for certain tasks, which agents read when one fits."""

    folders: Annotated[tuple[Folder, ...], Field(strict=False)] = Field(
        default=(), examples=[["~/skills"]]
    )
    """Folders with skills, each a folder with a file `SKILL.md`."""


class ProviderSettings(Section):
    """Calls to the model."""

    first_token_timeout_seconds: Annotated[Seconds, HARMLESS] = defaults.FIRST_TOKEN_TIMEOUT_SECONDS
    """How long the server may take to begin its answer."""
    call_timeout_seconds: Annotated[Seconds, HARMLESS] = defaults.CALL_TIMEOUT_SECONDS
    """How long a whole answer may take."""
    options: dict[str, Any] = Field(default_factory=dict, examples=[{"temperature": 0.3}])
    """Extra fields for each request; never put a secret here."""


class LocalSettings(Section):
    """Models that run on this machine: model = "local:NAME" (`nanoloop model list`)."""

    context_tokens: Annotated[Annotated[int, Field(ge=256), Unit("tokens")] | None, HARMLESS] = (
        Field(default=None, examples=[8192])
    )
    """How much context one conversation may use; by default, it depends on the model."""
    answer_tokens: Annotated[int, Field(ge=1), Unit("tokens"), HARMLESS] = (
        defaults.LOCAL_ANSWER_TOKENS
    )
    """How long an answer may be; a longer one is cut off, and the log says so."""
    threads: Annotated[Annotated[int, Field(ge=1), Unit("threads")] | None, HARMLESS] = Field(
        default=None, examples=[1]
    )
    """How many threads to use; by default, it depends on the machine."""
    hub: Annotated[str, AfterValidator(http_address)] | None = Field(
        default=None, examples=["https://hub.example"]
    )
    """A model hub for files that the package index does not have (also HF_ENDPOINT)."""


class SummarySettings(Section):
    """The summary of messages that left the window, written in the background."""

    timeout_seconds: Annotated[Seconds, HARMLESS] = defaults.SUMMARY_TIMEOUT_SECONDS
    """How long one call may take before it is stopped and retried later."""
    fallback_model: str | None = Field(default=None, min_length=1, examples=["gpt-5.4"])
    """The model to use if the summary model fails; by default, none."""
    daily_tokens: Annotated[int, Field(ge=1), Unit("tokens")] | None = Field(
        default=None, examples=[1_000_000]
    )
    """How many tokens summaries may use per day; the rest wait for midnight. Default: no limit."""


class SessionSettings(Section):
    """Rules that resize a chat's history after each answer. By default there are none."""

    mode: Literal["lite", "memo"] = "lite"
    """The kind of resize: `lite` only trims the window, `memo` also updates a memo of the chat."""
    messages: Messages | None = Field(default=None, examples=[40])
    """How many messages the window may have; replaces the message buffer's rule."""
    chars: Annotated[int, Field(ge=1), Unit("characters")] | None = Field(
        default=None, examples=[12_000]
    )
    """How many characters the window may have before it is trimmed and the memo is updated."""
    every_n_turns: Annotated[int, Field(ge=1), Unit("answers")] | None = Field(
        default=None, examples=[8]
    )
    """After how many answers the memo is updated."""

    def rules(self) -> dict[str, Any]:
        """Return the values that were set, in the form of a session's own settings."""
        limit = {"messages": self.messages, "chars": self.chars}
        limit = {name: count for name, count in limit.items() if count is not None}
        resize = {} if self.every_n_turns is None else {"every_n_turns": self.every_n_turns}
        said: dict[str, Any] = {"limit": limit, "resize": resize}
        if self.mode != "lite":
            said["mode"] = self.mode
        said = {name: value for name, value in said.items() if value}
        return {"session": said} if said else {}


class RecallSettings(Section):
    """Search in earlier messages, with the /recall command and the `recall` tool."""

    enabled: bool = True
    """Index messages for the search: in the data folder, or in memory if they are encrypted."""


class LogSettings(Section):
    """The log on standard error; it never contains message text or keys."""

    level: Annotated[Level, HARMLESS] = "info"
    """The lowest level to log."""
    format: Annotated[Literal["auto", "text", "json"], HARMLESS] = "auto"
    """`text` for people, `json` for programs; `auto` is text on a terminal, otherwise JSON."""
    stall_seconds: Annotated[Seconds, HARMLESS] = defaults.STALL_SECONDS
    """How long a daemon's event loop may be blocked before the log says where."""


class SentenceSettings(Section):
    """The sentences that chats receive if something fails; reword them here, in `language`."""

    model_down: Sentence = ENGLISH["model_down"]
    """The model's server can't be reached, or it failed."""
    model_busy: Sentence = ENGLISH["model_busy"]
    """The model's server accepts no more requests, or your credit there is used up."""
    model_key: Sentence = ENGLISH["model_key"]
    """The model's server refused the key."""
    model_unknown: Sentence = ENGLISH["model_unknown"]
    """The model's server has no model of that name."""
    too_long: Sentence = ENGLISH["too_long"]
    """The request is longer than the model can read."""
    refused: Sentence = ENGLISH["refused"]
    """A content filter stopped the answer."""
    no_images: Sentence = ENGLISH["no_images"]
    """The model accepts no pictures, and an API client's pictures can't be dropped."""
    bad_image: Sentence = ENGLISH["bad_image"]
    """The model can't read a picture from an API client."""
    empty: Sentence = ENGLISH["empty"]
    """The model's answer is empty."""
    timeout: Sentence = ENGLISH["timeout"]
    """The model exceeded its time limit."""
    store_down: Sentence = ENGLISH["store_down"]
    """The store can't be reached, or it failed."""
    changed: Sentence = ENGLISH["changed"]
    """Another writer changed the conversation first."""
    damaged: Sentence = ENGLISH["damaged"]
    """The stored conversation is damaged."""
    gone: Sentence = ENGLISH["gone"]
    """The conversation was deleted or has expired."""
    recall_down: Sentence = ENGLISH["recall_down"]
    """The search index can't be used."""
    files_full: Sentence = ENGLISH["files_full"]
    """All uploaded files together have reached their limit."""
    full: Sentence = ENGLISH["full"]
    """Too many messages are waiting in all chats together; this one was not accepted."""
    busy: Sentence = ENGLISH["busy"]
    """Too many messages are waiting in this chat; this one was not accepted."""
    interrupted: Sentence = ENGLISH["interrupted"]
    """nanoloop was restarted before it answered, and on_unanswered is "report"."""
    crashed: Sentence = ENGLISH["crashed"]
    """An unexpected error occurred."""
    kept: Sentence = ENGLISH["kept"]
    """Added to the other sentences if the message was stored."""
    incident: Sentence = ENGLISH["incident"]
    """The word before the id that identifies a failure in the log and in `nanoloop status`."""


class TerminalSettings(Section):
    """The chat in the terminal that `nanoloop run` offers."""

    enabled: Annotated[bool, HARMLESS] = True
    """Read standard input in `nanoloop run`, too; `nanoloop chat` always does."""
    agent: str | None = Field(default=None, examples=["cook"])
    """The agent for new conversations in the terminal; by default, the default agent."""


class ChannelSettings(PluginTables):
    """The channels, one table each; platforms are plugins with their own settings."""

    kind = "channels"
    usual = PlatformSettings
    always = ("web",)
    gone: ClassVar = {
        "others": "write [channels.NAME] instead of [channels.others.NAME], and move its options "
        "up into it"
    }

    transcribe: Annotated[str, AfterValidator(function_name)] | None = Field(
        default=None, examples=["speech:words_of"]
    )
    """Your function that transcribes voice messages, as `package.module:function`."""
    terminal: TerminalSettings = TerminalSettings()


class AgentSettings(Section):
    """A named agent; settings left out are as above. It can also be a file: agents/cook.md."""

    prompt: Annotated[str | None, HARMLESS] = Field(
        default=None, examples=["You are a patient cook."]
    )
    """The agent's system prompt."""
    model: str | None = Field(default=None, min_length=1, examples=["gpt-5.4"])
    """The agent's model."""
    tools: Names | None = Field(default=None, examples=[["clock"]])
    """Names and globs of the tools that the agent may call (`!` excludes); by default, all."""
    approve: Approval | None = Field(default=None, examples=["always"])
    """Which of the agent's tool calls a person has to approve; overrides tools.approve."""
    skills: Names | None = Field(default=None, examples=[["pdf-*"]])
    """Names and globs of the skills that the agent may read (`!` excludes); by default, all."""
    max_steps: Annotated[int, Field(ge=1), Unit("model calls")] | None = Field(
        default=None, examples=[20]
    )
    """How many times the agent's model may be called in one turn."""
    message_buffer_limit: Annotated[Messages | None, HARMLESS] = Field(default=None, examples=[50])
    """How many messages the agent's window may have before it is trimmed."""
    message_buffer_min: Annotated[Messages | None, HARMLESS] = Field(default=None, examples=[10])
    """How many of the newest messages are kept when the agent's window is trimmed."""
    language: Annotated[Language | None, HARMLESS] = Field(default=None, examples=["fr"])
    """The language of the bot's own messages in the agent's chats, such as answers to commands."""


class Settings(BaseSettings):
    """All settings. If created in code, they have only the values passed; nothing else is read."""

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
    """The folder for all stored data; a relative path is resolved against the working directory."""
    models: Folder = Field(
        default_factory=lambda: user_folder("data", os.environ) / "models",
        examples=["~/.local/share/nanoloop/models"],
    )
    """The folder for downloaded model files; several data folders may share it."""
    model: str = Field("gpt-5.4-mini", min_length=1)
    """The model that answers: VENDOR:NAME, its name on your server, or the path of a .gguf file."""
    summary_model: str | None = Field(None, min_length=1, examples=["gpt-5.4-nano"])
    """The model that summarises; by default, the one that answers."""
    api_key: SecretStr | None = Field(None, examples=["..."])
    """The key for the model's server; OPENAI_API_KEY is a safer place than a file."""
    base_url: Annotated[str, AfterValidator(http_address)] | None = Field(
        None, examples=["http://localhost:11434/v1"]
    )
    """The address of the model's server (also OPENAI_BASE_URL); by default, OpenAI's."""
    prompt: Annotated[str, HARMLESS] = PROMPT
    """The system prompt: who the assistant is and how it talks."""
    language: Annotated[Language, HARMLESS] = "en"
    """The language of the bot's own messages; an agent or a platform may use another one."""
    include_time: Annotated[bool, HARMLESS] = False
    """Tell the model the date and time of the newest message."""
    message_buffer_limit: Annotated[Messages, HARMLESS] = defaults.MESSAGE_BUFFER_LIMIT
    """How many messages the window may have before it is trimmed and the rest is summarised."""
    message_buffer_min: Annotated[Messages, HARMLESS] = defaults.MESSAGE_BUFFER_MIN
    """How many of the newest messages are kept word for word when the window is trimmed."""
    context_tokens: Annotated[Annotated[int, Field(ge=1000), Unit("tokens")] | None, HARMLESS] = (
        Field(None, examples=[32_000])
    )
    """How many tokens (estimated) a request may have before it is shortened."""
    context_limit: Annotated[Annotated[int, Field(ge=1), Unit("tokens")] | None, HARMLESS] = Field(
        None, examples=[128_000]
    )
    """How many tokens the model can read; the log warns if a conversation uses most of them."""
    handover: Annotated[bool, HARMLESS] = False
    """Keep messages in the prompt until a summary covers them."""

    store: StoreSettings = StoreSettings()
    loop: LoopSettings = LoopSettings()
    turn: TurnSettings = TurnSettings()
    tools: ToolSettings = ToolSettings()
    skills: SkillSettings = SkillSettings()
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
    _files: tuple[Path, ...] = PrivateAttr(default=())
    _own_file: Path | None = PrivateAttr(default=None)
    _left_out: LeftOut | None = PrivateAttr(default=None)

    @classmethod
    def load(
        cls,
        *,
        config: Path | str | None = None,
        flags: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
    ) -> Settings:
        """Load the settings; raise `SettingsError` with every problem, one per line.

        `flags` maps dotted keys to the values typed; None means that a flag was not given.
        `left_out` has the values that an untrusted file in the current folder can't set.
        """
        env = os.environ if env is None else env
        read = read_sources(cls, config=config, flags=flags or {}, env=env, cwd=Path(cwd or "."))
        settings = read.together(cls)
        settings._origins, settings._files = read.origins, read.files  # noqa: SLF001 - its own
        settings._own_file, settings._left_out = read.own_file, read.left_out  # noqa: SLF001 - its own
        return settings

    @classmethod
    def of_code(cls, said: Mapping[str, str], *, env: Mapping[str, str] | None = None) -> Settings:
        """Combine the environment's settings with a program's own; same errors as `load`.

        `said` maps dotted keys to the program's values, which take priority. No file is read.
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
        """Use only the values passed in code, so that nothing else affects them."""
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
        """The settings file that was read (of two, the one that takes priority), or None."""
        return self._files[0] if self._files else None

    @property
    def files(self) -> Sequence[Path]:
        """All settings files that were read, highest priority first."""
        return self._files

    @property
    def own_file(self) -> Path | None:
        """The settings file from the user's folder, named explicitly, or trusted; else None."""
        return self._own_file

    @property
    def left_out(self) -> LeftOut | None:
        """The settings that an untrusted file in the current folder can't set, or None."""
        return self._left_out

    @property
    def has_model(self) -> bool:
        """True if everything needed to call the default model is set, such as key and server."""
        return lacking(self, self.model) is None

    def origin(self, key: str) -> Origin:
        """Return where the value of a dotted key came from."""
        return self._origins.get(key, DEFAULT)
