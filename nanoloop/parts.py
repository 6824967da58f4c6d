"""Build the program's parts from its settings."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nanoloop import plugins
from nanoloop.agents import Agent, AgentLimits, Agents
from nanoloop.attachments import Attachments, Forgetting
from nanoloop.defaults import UPLOADS_BYTES
from nanoloop.errors import SettingsError
from nanoloop.events import SettingsRefused, announce
from nanoloop.files import remove_unfinished
from nanoloop.loop import AgentLoop
from nanoloop.memory import summarizer
from nanoloop.memory.index import Index, index_files
from nanoloop.memory.recall import Recall
from nanoloop.memory.summarizer import Summarizer
from nanoloop.memory.writer import PROMPT, SMALL_PROMPT
from nanoloop.models.catalogue import file_of
from nanoloop.pictures import Pictures
from nanoloop.protocols import Approve, Channel, Provider, Seal, Store, Tool, in_background
from nanoloop.providers.models import Models
from nanoloop.providers.vendors import VENDORS
from nanoloop.sampling import Sampling
from nanoloop.sentences import Sentences
from nanoloop.settings import AgentSettings, Approval, Settings
from nanoloop.settings.problems import DEFAULT_AGENT, InvalidSettings, Problem, seconds_in
from nanoloop.settings.vendors import (
    ServerSettings,
    call_timeout_seconds,
    context_tokens,
    is_small,
    models_of,
    no_model,
    own_of,
    server_of,
    summary_batch_chars,
    unaskable,
)
from nanoloop.skills import Skill, SkillReader, find_skills, listed, skills_of
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.installation import Installation
from nanoloop.stores.opening import Opening
from nanoloop.stores.place import default_url, path_of
from nanoloop.stores.place import shown as shown_place
from nanoloop.stores.sealed_files import FolderSealing
from nanoloop.tool_sources import (
    BUILT_IN,
    TOOLS,
    make_tools,
    packaged_tools,
    problem_at,
    problem_of,
    server_places,
)
from nanoloop.tools.approval import ApprovalRules
from nanoloop.tools.finding import within_budget
from nanoloop.tools.functions import called, function_named
from nanoloop.tools.listing import glob_for_model
from nanoloop.tools.logins import FOLDER as TOOL_LOGINS
from nanoloop.tools.logins import ServerLogins
from nanoloop.tools.prompts import ServerPrompt
from nanoloop.tools.servers import ToolServers
from nanoloop.tools.toolbox import ToolSource, chosen
from nanoloop.words import did_you_mean

if TYPE_CHECKING:
    from nanoloop.app import App
    from nanoloop.channels.kit.intake import Transcriber


INPUT_HISTORY = "input_history"
KEYS_FILE = Path("secret-keys", "store.keys")
"""The path of the keys file in the data folder, inside a folder that backups can leave out."""
ATTACHMENTS = "attachments"
"""The folder for uploaded files inside the data folder."""


def make_store(settings: Settings, *, read_only: bool = False) -> Store:
    """Return the configured store, wrapped to delete uploads with the data that refers to them."""
    store = open_store(settings, read_only=read_only)
    is_kept = settings.store.url != "memory:"
    return cast("Store", Forgetting(store, make_attachments(settings), is_kept=is_kept))


def open_store(settings: Settings, *, url: str | None = None, read_only: bool = False) -> Store:
    """Open the configured store, or one at another URL with the same settings."""
    opening = Opening(
        data=settings.data,
        durability=settings.store.durability,
        seal=make_seal(settings, url=url),
        timeout_seconds=settings.store.timeout_seconds,
        read_only=read_only,
    )
    return opening.open(url or settings.store.url or default_url(settings.data))


def make_installation(settings: Settings) -> Installation | None:
    """Return the data folder's record of its store, or None for a store in memory."""
    url = settings.store.url or default_url(settings.data)
    if url == "memory:":
        return None
    place = shown_place(url, settings.data)
    return Installation(settings.data / "installation.json", place=place)


def make_seal(settings: Settings, *, url: str | None = None) -> Seal | None:
    """Return the encryption for the store, or for the one at this URL; None without a key."""
    if settings.store.encryption_key is None:
        return None
    from nanoloop.stores.encryption import KeySeal  # noqa: PLC0415 - a separate extra

    key = settings.store.encryption_key.get_secret_value()
    return KeySeal(key, keys_file=keys_file(settings, url=url))


def keys_file(settings: Settings, *, url: str | None = None) -> Path | None:
    """Return the file with the keys of conversations, people and uploads, or None.

    Several machines with temporary data folders may use a database on a server, so such a store has
    these keys only if the settings name the file.
    """
    if settings.store.keys_file is not None:
        return settings.data / settings.store.keys_file
    place = url or settings.store.url or default_url(settings.data)
    if path_of(place, settings.data) is None and place != "memory:":
        return None
    return settings.data / KEYS_FILE


def folder_sealings(settings: Settings) -> Iterator[FolderSealing]:
    """Yield the encryption of each folder of files; same errors as `make_folder_sealing`."""
    yield make_folder_sealing(settings)
    yield FolderSealing(settings.data / TOOL_LOGINS, make_seal(settings))


def make_folder_sealing(settings: Settings) -> FolderSealing:
    """Return the encryption for uploads; raise `NotReadable` if another key encrypted them."""
    return FolderSealing(settings.data / ATTACHMENTS, make_seal(settings))


def make_attachments(settings: Settings) -> Attachments:
    """Return the folder of uploads; raise `NotReadable` like `make_folder_sealing`."""
    web = settings.channels.of_plugins.get("web")  # its setting applies to all channels' uploads
    limit = getattr(web, "uploads_bytes", UPLOADS_BYTES)
    folder = settings.data / ATTACHMENTS
    return Attachments(folder, limit_bytes=limit, sealing=make_folder_sealing(settings))


def recall_file(settings: Settings) -> Path:
    """Return the path of the search index, which might not exist."""
    return settings.data / "recall.sqlite"


def input_history(settings: Settings) -> Path | None:
    """Return the file for the terminal's input history, or None if the store is encrypted."""
    return settings.data / INPUT_HISTORY if settings.store.encryption_key is None else None


def former_files(settings: Settings) -> list[Path]:
    """Return plaintext files in the data folder that these settings no longer use."""
    if settings.store.url == "memory:":
        return []
    is_sealed = settings.store.encryption_key is not None
    index = [] if settings.recall.enabled and not is_sealed else index_files(recall_file(settings))
    return [*index, settings.data / INPUT_HISTORY] if is_sealed else index


def remove_plain_words(settings: Settings) -> list[Path]:
    """Delete plaintext files beside an encrypted store, while no process writes there.

    Return the files that still contain plaintext.
    """
    # Imported here, because only encrypting a store needs it.
    from nanoloop.channels.kit.drafts import NOTES, rewrite_notes  # noqa: PLC0415 - as above

    for file in former_files(settings):
        file.unlink(missing_ok=True)
    for folder in (settings.data, settings.data / ATTACHMENTS, settings.data / NOTES):
        remove_unfinished(folder)
    return rewrite_notes(settings.data)


def spent_file(settings: Settings) -> Path | None:
    """Return the file that counts the day's summary tokens, or None if no limit needs it."""
    is_kept = settings.store.url != "memory:" and settings.summary.daily_tokens is not None
    return settings.data / "spent.json" if is_kept else None


def make_provider(settings: Settings) -> Models:
    """Return the provider of all configured models.

    Raise `SettingsError` if a model can't be used, before anything is sent.
    """
    check_models(settings)
    models = make_models(settings)
    problems = []
    for key, model in models_of(settings):
        try:
            models.provider_of(model)
        except SettingsError as error:
            problems.append(no_model(settings, key, model, str(error)))
    if problems:
        raise InvalidSettings(problems)
    return models


def provider_named(model: str) -> Provider:
    """Return a model's provider, configured by the environment alone."""
    return make_provider(Settings.of_code({"model": model}))


def store_named(url: str) -> Store:
    """Return the store at this URL, configured by the environment alone."""
    return open_store(Settings.of_code({"store.url": url}))


def check_models(settings: Settings) -> None:
    """Raise `SettingsError` if a configured model lacks a key or an address."""
    if problems := unaskable(settings):
        raise InvalidSettings(problems)


def make_models(settings: Settings) -> Models:
    """Like `make_provider`, but create each model only when it is first used."""
    return Models(settings.model, partial(_made, settings))


def with_pictures(settings: Settings, provider: Provider) -> Provider:
    """Return the provider, extended to send the images that chats contain."""
    return Pictures(provider, make_attachments(settings))


def _made(settings: Settings, word: str, model: str) -> Provider:
    if word == "local":
        return _local(settings, model)
    if word and word not in VENDORS:
        return cast("Provider", plugins.load("providers", word).make(own_of(settings, word), model))
    server = server_of(settings, word)
    if word and server.lacks:
        raise SettingsError(server.lacks)
    if server.vendor.speaks == "anthropic":
        from nanoloop.providers.anthropic import (  # noqa: PLC0415 - if it is used
            NOT_KNOWN,
            AnthropicProvider,
        )

        asked = _asked(settings, server, model)
        general = {k: v for k, v in settings.provider.options.items() if k not in NOT_KNOWN}
        asked["options"] = {**general, **own_of(settings, word).options}
        return AnthropicProvider(**asked)
    from nanoloop.providers.openai import OpenAIProvider  # noqa: PLC0415 - if it is used

    return OpenAIProvider(
        quirks=server.vendor.quirks,
        key_name=server.key_name,
        **_asked(settings, server, model),
    )


def _asked(settings: Settings, server: ServerSettings, model: str) -> dict[str, Any]:
    """Return the arguments for calling a model server, whoever runs the server."""
    return {
        "model": model,
        "api_key": server.key,
        "base_url": server.url,
        "first_token_timeout_seconds": settings.provider.first_token_timeout_seconds,
        "call_timeout_seconds": settings.provider.call_timeout_seconds,
        "options": server.options,
    }


def _local(settings: Settings, model: str) -> Provider:
    from nanoloop.providers.local.provider import LocalProvider  # noqa: PLC0415 - an extra

    return LocalProvider(
        file_of(model, settings.models),
        model=model,
        context_tokens=context_tokens(settings, model),
        answer_tokens=settings.local.answer_tokens,
        threads=settings.local.threads,
        options=settings.provider.options,
        call_timeout_seconds=call_timeout_seconds(settings),
    )


def function_of(settings: Settings, key: str) -> Callable[..., Any] | None:
    """Return the function that `package.module:function` names, or None; raise `SettingsError`."""
    name = attrgetter(key)(settings)
    if name is None:
        return None
    try:
        found = function_named(name, beside=settings.origin(key).file)
        return called(found, name.partition(":")[2])
    except SettingsError as why:
        raise InvalidSettings([problem_of(settings, key, name, why)]) from why


def make_servers(settings: Settings) -> ToolServers:
    """Create the tool servers, without starting them; same errors as `server_places`."""
    return ToolServers(server_places(settings), folder=settings.data, logins=make_logins(settings))


def make_sampling(settings: Settings, provider: Provider, servers: ToolServers) -> Sampling:
    """Create what asks the model for tool servers, each within its budget of today."""

    def daily_tokens(server: str) -> int:  # as the settings are now, after a reload too
        return next((each.place.sampling_tokens for each in servers if each.name == server), 0)

    return Sampling(provider, folder=settings.data, daily_tokens=daily_tokens)


def make_logins(settings: Settings) -> ServerLogins:
    """Create the logins to tool servers, encrypted like the store; nothing is read yet."""
    return ServerLogins(settings.data, lambda folder: FolderSealing(folder, make_seal(settings)))


def renew_agents(settings: Settings, loop: AgentLoop, servers: ToolServers | None) -> None:
    """Give the agents the tools that the servers have now, from the next turn on."""
    try:
        loop.agents.renew(make_agents(settings, loop.recall, servers))
    except SettingsError as error:
        announce(SettingsRefused(reason=str(error)))


def make_agents(
    settings: Settings, recall: Recall | None = None, servers: ToolServers | None = None
) -> Agents:
    """Create the configured agents, including the default one."""
    sources = make_tools(settings, recall, servers)
    skills = find_skills(settings)
    terminal = settings.channels.terminal.agent
    usual = settings.agents.get(DEFAULT_AGENT, AgentSettings())
    return Agents(
        make_agent(settings, usual, sources=sources, skills=skills),
        {
            name: make_agent(settings, own, name, sources, skills)
            for name, own in settings.agents.items()
        },
        by_channel={} if terminal is None else {"terminal": terminal},
    )


def make_agent(
    settings: Settings,
    own: AgentSettings,
    name: str = DEFAULT_AGENT,
    sources: Sequence[ToolSource] = (ToolSource(name=BUILT_IN, tools=TOOLS),),
    skills: Sequence[Skill] = (),
) -> Agent:
    """Create an agent; its own settings override the general ones."""
    limits = AgentLimits(
        steps=own.max_steps or settings.turn.max_steps,
        tool_seconds=settings.tools.timeout_seconds,
        messages=own.message_buffer_limit,
        kept=own.message_buffer_min,
        approval=approval_rules(settings, own),
    )
    skills = skills_of(settings, own, name, skills)
    prompt = settings.prompt if own.prompt is None else own.prompt
    tools = within_budget(
        _tools_of(settings, own, name, sources),
        [source.tools for source in sources if source.is_budgeted],
        tokens=settings.tools.budget_tokens,
    )
    if skills:
        prompt = f"{prompt.rstrip()}\n\n{listed(skills)}"
        tools = [*tools, SkillReader(skills)]
    known = [each for source in sources for each in source.tools]
    known += [tool.spec.name for tool in tools if tool.spec.name not in known]
    key = f"agents.{name}.approve" if own.approve is not None else "tools.approve"
    told = settings.tools.approve if own.approve is None else own.approve
    if lost := _lost_rules(settings, told, known):
        raise InvalidSettings([_no_tool(settings, key, each, known) for each in lost])
    try:
        agent = Agent(
            name,
            prompt=prompt,
            model=own.model,
            tools=tools,
            limits=limits,
            settings=settings.session.rules(),
        )
    except ValueError as error:  # a package's tool has the name of another
        text = f"the tools of agent {name!r} can't be used: {error}"
        raise InvalidSettings([problem_at(settings, f"agents.{name}.tools", text)]) from error
    agent.language = own.language
    agent.prompts = _prompts_of(own, sources)
    return agent


def approval_rules(settings: Settings, own: AgentSettings) -> ApprovalRules:
    """Return which calls of an agent need approval: by its own rules, then servers', then general.

    A server's rules use the server's own names for its tools.
    """
    rules = [*_rules_in(own.approve)]
    for server, its in settings.tools.servers.items():
        named = ((glob_for_model(server, glob), which) for glob, which in _rules_in(its.approve))
        rules += named
    asked = settings.tools.approvals
    return ApprovalRules(
        rules=(*rules, *_rules_in(settings.tools.approve)),
        who=asked.who,
        seconds=seconds_in(asked.expires),
    )


def _rules_in(approve: Approval | None) -> Iterator[tuple[str, Approve]]:
    rules = {"*": approve} if isinstance(approve, str) else approve or {}
    for glob, which in rules.items():
        yield glob, which
        if plugins.is_installed("tools", glob):  # it may bring several
            yield f"{glob}__*", which


def _tools_of(
    settings: Settings, own: AgentSettings, agent: str, sources: Sequence[ToolSource]
) -> Sequence[Tool]:
    """Return the tools that an agent's list chooses; without a list, those of all sources."""
    if own.tools is None:
        # A small model calls tools instead of answering, so it gets only tools set explicitly.
        is_small_one = is_small(own.model or settings.model)
        usual = [each for each in sources if each.name != BUILT_IN or not is_small_one]
        return [tool for source in usual for tool in source.tools.values()]
    known = {name: tool for source in sources for name, tool in source.tools.items()}
    more = {each.removeprefix("!") for each in own.tools} - known.keys()
    more -= settings.tools.servers.keys()  # the name of a server means all of its tools
    more = {each for each in more if plugins.is_installed("tools", each)}
    known |= packaged_tools(settings, sorted(more - settings.tools.of_plugins.keys()))
    wanted = _in_full(own.tools, known, settings.tools.servers)
    names, lost = chosen(wanted, list(known))
    lost = [entry for entry in lost if not _is_of_a_server(settings, entry)]
    if lost:
        key = f"agents.{agent}.tools"
        raise InvalidSettings([_no_tool(settings, key, each, list(known)) for each in lost])
    return [known[name] for name in names]


def _prompts_of(own: AgentSettings, sources: Sequence[ToolSource]) -> Mapping[str, ServerPrompt]:
    """Return the prompts that an agent's list chooses, as if they were tools of their servers."""
    known = {name: prompt for source in sources for name, prompt in source.prompts.items()}
    if own.tools is None:
        return known
    names = {name.replace(":", "__", 1): name for name in known}
    picked, _ = chosen(_in_full(own.tools, names), list(names))
    return {names[each]: known[names[each]] for each in picked}


def _in_full(
    wanted: Iterable[str], known: Collection[str], servers: Iterable[str] = ()
) -> Sequence[str]:
    """Return a list in which the name of a server, or of a tool that brings several, is a glob."""
    groups = ({name.partition("__")[0] for name in known} | {*servers}) - {*known}
    return [f"{each}__*" if each.removeprefix("!") in groups else each for each in wanted]


def _is_of_a_server(settings: Settings, entry: str) -> bool:
    """Return True if the entry may match tools of a server, which are not known beforehand."""
    server, mark, _ = entry.removeprefix("!").partition("__")
    may_match = bool(mark) or server.endswith("*")
    return may_match and any(fnmatchcase(name, server) for name in settings.tools.servers)


def _lost_rules(settings: Settings, approve: Approval, known: Sequence[str]) -> list[str]:
    """Return the globs that match no tool: a mistyped one would let calls run unasked."""
    return [
        glob
        for glob in ([] if isinstance(approve, str) else approve)
        if not (fnmatch.filter(known, glob) or _is_of_a_server(settings, glob))
        and not plugins.is_installed("tools", glob)
    ]


def _no_tool(settings: Settings, key: str, entry: str, known: Sequence[str]) -> Problem:
    """Describe an entry of a setting that matches no tool."""
    name = entry.removeprefix("!")
    known = [*known, *(each for each in plugins.names("tools") if each not in known)]
    there = f"the tools are {', '.join(known)}"
    is_glob = any(sign in name for sign in "*?[")
    lacks = "but no tool matches that" if is_glob else "but there is no such tool"
    advice = there if is_glob else did_you_mean(name, known, there)
    group, mark, _ = name.partition("__")
    if mark and group in plugins.OURS["tools"] and group not in settings.tools.of_plugins:
        advice = f"add [tools.{group}] to the settings"
    return problem_at(settings, key, f"{key} has {entry!r}, {lacks}: {advice}")


def make_loop(
    settings: Settings,
    provider: Provider,
    store: Store,
    servers: ToolServers | None = None,
) -> AgentLoop:
    """Create the loop with its bus, summariser, recall and agents."""
    recall = make_recall(settings, store)
    said = settings.sentences.model_dump(exclude_unset=True)
    sentences = Sentences(said, language=settings.language)
    return AgentLoop(
        provider=provider,
        agents=make_agents(settings, recall, servers),
        store=store,
        sentences=sentences,
        summarizer=make_summarizer(settings, in_background(provider), store),
        recall=recall,
        message_buffer_limit=settings.message_buffer_limit,
        message_buffer_min=settings.message_buffer_min,
        context_tokens=settings.context_tokens,
        context_limit=settings.context_limit,
        handover=settings.handover,
        store_timeout_seconds=settings.store.timeout_seconds,
        max_concurrent_turns=settings.loop.max_concurrent_turns,
        with_time=settings.include_time,
        answer_unanswered=settings.loop.on_unanswered == "answer",
        shutdown_turns_seconds=settings.loop.shutdown_turns_seconds,
        shutdown_summaries_seconds=settings.loop.shutdown_turns_seconds / 2,
    )


def make_summarizer(settings: Settings, provider: Provider, store: Store) -> Summarizer:
    """Create the summariser that these settings describe."""
    return Summarizer(
        provider,
        settings.summary_model,
        store=store,
        timeout_seconds=settings.summary.timeout_seconds,
        batch_chars=summary_batch_chars(settings, summarizer.BATCH_CHARS),
        fallback_model=settings.summary.fallback_model,
        daily_tokens=settings.summary.daily_tokens,
        spent_file=spent_file(settings),
        idle_seconds=summarizer.IDLE_SECONDS,
        prompt=SMALL_PROMPT if is_small(settings.summary_model or settings.model) else PROMPT,
    )


def make_recall(settings: Settings, store: Store) -> Recall | None:
    """Create the search over earlier messages, or return None if it is disabled."""
    if not settings.recall.enabled:
        return None
    # An index of all words on disk would reveal what the encrypted files hide.
    is_kept = settings.store.url != "memory:" and settings.store.encryption_key is None
    index = Index(recall_file(settings) if is_kept else None)
    return Recall(store, index)


def recall_alone(settings: Settings) -> Recall | None:
    """Create a search that finds nothing, for commands that only list an agent's tools."""
    return Recall(InMemoryStore(), Index(None)) if settings.recall.enabled else None


def make_channels(
    settings: Settings, app: App, *, transcriber: Transcriber | None = None
) -> list[Channel]:
    """Create the configured channels, for `app.add`; raise `SettingsError` if one can't be used.

    `transcriber` replaces the configured function for voice messages.
    """
    # Imported here, because only `run` needs channels.
    from nanoloop.channels.kit.channel import make_channel, wanted  # noqa: PLC0415 - as above
    from nanoloop.channels.kit.drafts import rewrite_notes  # noqa: PLC0415 - as above

    rewrite_notes(settings.data, of=[name for name, _ in wanted(settings)])

    attachments = make_attachments(settings)
    transcriber = transcriber or make_transcriber(settings)
    return [
        make_with_program(settings, name, app)
        if plugins.load("channels", name).takes_program
        else make_channel(
            name,
            own,
            folder=settings.data,
            attachments=attachments,
            transcriber=transcriber,
            sentences=app.loop.sentences,
        )
        for name, own in wanted(settings)
    ]


def make_with_program(settings: Settings, name: str, app: App) -> Any:
    """Create a channel that takes a `Program`; raise `SettingsError` if it can't be used."""
    own = settings.channels.of(name)
    attachments = make_attachments(settings)
    program = plugins.Program(app=app, settings=settings, attachments=attachments)
    return plugins.load("channels", name).make(own, program)


def make_transcriber(settings: Settings) -> Transcriber | None:
    """Create the configured transcriber, if any; raise `SettingsError` if it can't be used."""
    from nanoloop.channels.kit.intake import Transcriber  # noqa: PLC0415 - as above

    function = function_of(settings, "channels.transcribe")
    if function is None:
        return None
    return Transcriber(function)
