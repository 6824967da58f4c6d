"""Connect to MCP servers. Only this file and `oauth` import `mcp`, which takes half a second.

Whatever a server sends is untrusted: it is limited here, and none of it reaches the log.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from mimetypes import guess_extension, guess_type
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio
import httpx2
from mcp import Client
from mcp import types as wire
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp.types import methods
from mcp.types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic import ValidationError

from nanoloop.errors import (
    DISTRIBUTION,
    LoginFailed,
    LoginWanted,
    QuestionAsked,
    ServerGone,
    SettingsError,
    ToolError,
)
from nanoloop.tools.file_results import FileResult, mime_type_or_unknown
from nanoloop.tools.listing import (
    ListedPrompt,
    ListedTool,
    Listing,
    listed_prompt,
    listed_tool,
    name_for_model,
    prompt_command,
    visible,
)
from nanoloop.tools.logins import ServerLogins, login_wanted
from nanoloop.tools.oauth import Access
from nanoloop.tools.prompts import PromptText
from nanoloop.tools.questions import LONGEST_MESSAGE, ToolQuestion, tool_question
from nanoloop.tools.servers import AskModel, ToolServerPlace
from nanoloop.tools.transports import LAST_LINES, http_stream, program

MOST_PAGES = 50
MOST_PROMPTS = 100
MOST_TOOLS = 500
"""How many of a server's tools are read."""
LONGEST_LIST = 2_000_000
"""How many characters the list of a server's tools may have, all pages together."""
LONGEST_TOOL = 500_000
"""How many of these one tool may have."""
_SIGNS = 4
"""How many characters a value in a list counts at least."""
MOST_ROUNDS = 10
"""How often a server may want to be called again without asking anything."""
ROUND_SECONDS = 0.05
_OK_CODES = range(300)
_REDIRECTS = range(300, 400)
_NAME_CHARS = 100
"""How much of an unusable tool's name is shown."""
_SAID_CHARS = 100
"""How much of a server's own words about a failed prompt is shown."""
_FRAME = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""What a list of tools must have in the newer protocol besides its tools."""
_GONE = "Session terminated"
"""The client's error message when a server no longer knows our session."""
DECLINED = (
    "[The server asked the user something while the call was running, as older protocols do. "
    "Nobody saw the question, and it was declined.]"
)


class ServerConnection:
    """A connection to a server. Calls may be made in any task."""

    def __init__(
        self,
        place: ToolServerPlace,
        logins: ServerLogins | None = None,
        sampling: AskModel | None = None,
    ) -> None:
        self.heard = 0
        """How many messages the server has sent."""
        self.why_gone = ""
        """Why the connection can no longer be used; empty while it can be used."""
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        """The last lines that the server's program wrote to standard error, for the operator."""
        self.place = place
        self.access = Access(place, logins) if place.auth and logins is not None else None
        """Adds the server's token to requests; None without a login."""
        self.sampling = sampling if place.sampling_tokens else None
        """Asks the model for the server; None if the server may not."""
        self._client: Client | None = None
        self._asked = 0
        """How many questions the server had for the user."""
        self._has_changed = False
        self._news = anyio.Event()
        self._listed = 0
        """How many characters of the list of tools have been received."""
        self.left_out: dict[str, str] = {}
        """The listed tools that can't be used, each with the reason."""
        self.status = 0
        """The last HTTP status that was an error."""

    async def has_changed(self) -> bool:
        """Wait until the server's tools have changed; return False if the connection is gone."""
        while not (self._has_changed or self.why_gone):
            self._news = anyio.Event()
            await self._news.wait()
        self._has_changed = False
        return not self.why_gone

    def end(self, why: str) -> None:
        """Mark the connection as gone, so that the server's task makes a new one."""
        self.why_gone = self.why_gone or why
        self._news.set()

    async def tools(self) -> Listing:
        """List the tools that can be used and those that can't."""
        client = self._able()
        self.left_out = {}
        self._listed = 0
        tools: dict[str, ListedTool] = {}
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            # Each page is limited before the next is read.
            page = await client.list_tools(cursor=cursor)
            self._read(page.tools, tools)
            cursor = page.next_cursor
            many = len(tools) + len(self.left_out)
            if cursor is None or many >= MOST_TOOLS or self._listed > LONGEST_LIST:
                break
        return Listing(
            tools=tuple(tools.values()),
            prompts=await self._prompts(client),
            left_out=dict(self.left_out),
            has_resources=client.server_capabilities.resources is not None,
        )

    def _read(self, found: Sequence[wire.Tool], tools: dict[str, ListedTool]) -> None:
        """Add the tools of a page that can be used; note the others."""
        for tool in found[: MOST_TOOLS - len(tools)]:
            name = name_for_model(self.place.name, tool.name)
            try:
                if name in tools:
                    raise ValueError(f"models see it as {name}, which is another")  # noqa: TRY301 - as below
                tools[name] = _listed(tool)
            except ValueError as why:
                self.left_out[_short(tool.name)] = str(why)

    async def _prompts(self, client: Client) -> tuple[ListedPrompt, ...]:
        """List the prompts that can be used; a server whose list can't be read has none."""
        prompts: dict[str, ListedPrompt] = {}
        if client.server_capabilities.prompts is None:
            return ()
        with suppress(MCPError, ValidationError, RuntimeError):
            for prompt in (await client.list_prompts()).prompts[:MOST_PROMPTS]:
                with suppress(ValueError):
                    name = prompt_command(self.place.name, prompt.name)
                    prompts.setdefault(name, _listed_prompt(prompt))
        return tuple(prompts.values())

    async def prompt(self, name: str, given: Mapping[str, str]) -> Sequence[PromptText]:
        """Get a prompt's messages; same errors as `call`."""
        try:
            result = await (await self._ready()).get_prompt(name, dict(given))
        except MCPError as error:
            raise _quoted(self._failed(error), error.message) from None
        except (ValidationError, RuntimeError) as error:
            raise _broken(error) from None
        return [PromptText(each.role, _named(each.content)) for each in result.messages]

    async def call(
        self, name: str, arguments: Mapping[str, Any], going_on: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a tool; raise `ToolError`, or `ServerGone` if the server can't be used.

        Raise `QuestionAsked` if the server first asks the person something; call again then, with
        what `going_on` returned for the answer.
        """
        asked = self._asked
        try:
            client = await self._ready()
            result = await self._rounds(client, name, dict(arguments), dict(going_on or {}))
        except MCPError as error:
            raise self._failed(error) from None
        except (ValidationError, RuntimeError) as error:
            raise _broken(error) from None
        text = "\n".join(filter(None, map(_told, result.content)))
        files = [file for each in result.content if (file := _file(each)) is not None]
        if not result.content and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        if self._asked > asked:
            text = f"{text}\n{DECLINED}".strip()
        if result.is_error:
            raise ToolError(text or "the tool failed and said nothing")
        return [text, *files] if files else text

    async def _rounds(
        self, client: Client, name: str, arguments: dict[str, Any], more: dict[str, Any]
    ) -> wire.CallToolResult:
        """Call a tool until it has a result; raise `QuestionAsked` if it asks the person."""
        for number in range(MOST_ROUNDS):
            result = await _called(client, name, arguments, more)
            if isinstance(result, wire.CallToolResult):
                return result
            if not isinstance(result, wire.InputRequiredResult):
                break
            more = {"request_state": result.request_state}
            requests = result.input_requests or {}
            if any(isinstance(asked, wire.ElicitRequest) for asked in requests.values()):
                raise QuestionAsked(_question(requests, result.request_state))
            if requests:
                said = {each: await self._said_to(asked) for each, asked in requests.items()}
                more["input_responses"] = said
            else:  # it only wants to be asked again
                await anyio.sleep(ROUND_SECONDS * (number + 1))
        raise ToolError("the server did not come to a result")

    async def _said_to(self, asked: object) -> wire.ListRootsResult | wire.CreateMessageResult:
        """Answer a server's request without a person; raise `ToolError` if it isn't offered."""
        if isinstance(asked, wire.ListRootsRequest):
            return wire.ListRootsResult(roots=[])
        if isinstance(asked, wire.CreateMessageRequest):
            return await self._sampled(asked.params)
        raise ToolError("the server asks for something that nanoloop does not offer")

    async def _sampled(self, params: wire.CreateMessageRequestParams) -> wire.CreateMessageResult:
        """Ask the model with only the server's words; raise `ToolError` if that is not allowed."""
        if self.sampling is None:
            raise ToolError(
                "the server wants to ask a model, which it may not: set sampling_tokens"
            )
        told = [{"role": each.role, "content": _only_text(each)} for each in params.messages]
        head = [{"role": "system", "content": params.system_prompt}] if params.system_prompt else []
        reply = await self.sampling(self.place.name, [*head, *told])
        text = wire.TextContent(type="text", text=reply.text)
        reason = "maxTokens" if reply.finish_reason == "length" else "endTurn"
        return wire.CreateMessageResult(
            role="assistant", content=text, model=reply.model or "unknown", stop_reason=reason
        )

    async def sample(
        self, context: ClientRequestContext, params: wire.CreateMessageRequestParams
    ) -> wire.CreateMessageResult | wire.ErrorData:
        """Answer a server that asks the model while a call is running, as older protocols do."""
        del context
        try:
            return await self._sampled(params)
        except ToolError as error:
            return wire.ErrorData(code=wire.INVALID_REQUEST, message=str(error))

    async def read(self, uri: str) -> Any:
        """Read one of the server's resources; raise the same errors as `call`."""
        try:
            result = await (await self._ready()).read_resource(uri)
        except MCPError as error:
            raise self._failed(error) from None
        except (ValidationError, RuntimeError) as error:
            raise _broken(error) from None
        text = "\n".join(filter(None, map(_content, result.contents)))
        files = [file for each in result.contents if (file := _blob(each)) is not None]
        return [text, *files] if files else text

    async def _ready(self) -> Client:
        """Return the client, once it has a token; raise `LoginWanted` before anything is sent."""
        client = self._able()
        if self.access is not None:
            try:
                await self.access.token()
            except (LoginWanted, LoginFailed):
                raise self._shut_out() from None
        return client

    def _shut_out(self) -> ToolError:
        """End the connection because there is no token; return the error for its call."""
        why = "" if self.access is None else self.access.why_not
        self.end(why)
        if why == login_wanted(self.place.name):
            return LoginWanted(why)
        return LoginFailed(f"{self.place.name} could not be called: {why}")

    def _able(self) -> Client:
        if self._client is None or self.why_gone:
            raise ServerGone(self.why_gone or "it is not connected")
        return self._client

    def _failed(self, error: MCPError) -> ToolError:
        if error.code == wire.CONNECTION_CLOSED or error.message == _GONE:
            self.end(
                "it no longer knows the session"
                if error.message == _GONE
                else "it closed the connection"
            )
            return ServerGone(self.why_gone)
        if self.access is not None and self.access.why_not:
            return self._shut_out()
        return ToolError(error.message or f"error {error.code}")

    # For `connected`

    def sift(self, message: SessionMessage) -> SessionMessage:
        """Remove any tools from a message that would make the whole list unreadable."""
        self.heard += 1
        body = message.message
        result = getattr(body, "result", None)
        if isinstance(result, dict) and isinstance(result.get("tools"), list):
            body.result = {**result, "tools": list(self._readable(result))}  # type: ignore[union-attr] # it has one
        return message

    def _readable(self, result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        is_modern = "resultType" in result
        which = LATEST_MODERN_VERSION if is_modern else LATEST_HANDSHAKE_VERSION
        left = LONGEST_LIST - _size({**result, "tools": ()}, LONGEST_LIST)
        for tool in result["tools"][:MOST_TOOLS]:
            name = tool.get("name") if isinstance(tool, dict) else None
            name = _short(name) if isinstance(name, str) else "a tool without a name"
            size = _size(tool, LONGEST_TOOL) if left > 0 else 0
            left -= size
            if left <= 0 or size > LONGEST_TOOL:
                what, most = ("the list", LONGEST_LIST) if left <= 0 else ("it", LONGEST_TOOL)
                self.left_out[name] = f"{what} has more than {most:,} characters"
                continue
            try:
                # Checked separately, so that one bad tool doesn't hide the others, and without the
                # rest of the result, which would be checked again for each tool. Results are not
                # checked against its output schema: what was done can't be undone by refusing to
                # read it.
                alone = {key: value for key, value in tool.items() if key != "outputSchema"}
                wire.Tool.model_validate(alone, by_name=False)
                methods.validate_server_result("tools/list", which, {**_FRAME, "tools": [alone]})
            except (ValidationError, AttributeError, TypeError, RecursionError):
                self.left_out[name] = "its schema or its description breaks the protocol"
            else:
                yield alone
        self._listed += LONGEST_LIST - left

    async def hear(self, message: object) -> None:
        """Handle a notification from the server."""
        if isinstance(
            message, wire.ToolListChangedNotification | wire.PromptListChangedNotification
        ):
            self._change()

    def _change(self) -> None:
        self._has_changed = True
        self._news.set()

    async def decline(
        self, context: ClientRequestContext, params: wire.ElicitRequestParams
    ) -> wire.ElicitResult:
        """Decline a question for the user, because there is no way to ask it yet."""
        del context, params  # its text is for people, and none of them sees it
        self._asked += 1
        return wire.ElicitResult(action="decline")

    async def use(self, client: Client) -> None:
        """Accept calls, and listen for changes, until cancelled."""
        self._client = client
        # In the newer protocol, only clients that ask are told of changes, and not every server
        # supports that.
        with suppress(Exception):
            async with client.listen(tools_list_changed=True, prompts_list_changed=True) as changes:
                async for _ in changes:
                    self._change()

    async def note(self, response: httpx2.Response) -> None:
        """Remember an HTTP error status, to explain later why there is no connection."""
        is_renewed = response.status_code == httpx2.codes.UNAUTHORIZED and self.access is not None
        if response.status_code not in _OK_CODES and not is_renewed:
            self.status = response.status_code


async def _called(
    client: Client, name: str, arguments: dict[str, Any], more: Mapping[str, Any]
) -> object:
    call = partial(client.session.call_tool, name, arguments, allow_input_required=True, **more)
    try:
        return await call()
    except MCPError as error:
        if error.code != wire.HEADER_MISMATCH:
            raise
    # The tool's schema has changed since it was listed: list it again, and call once more.
    await client.list_tools()
    return await call()


def _question(requests: Mapping[str, Any], request_state: str | None) -> ToolQuestion:
    """Return the server's question to the person; raise `ToolError` if it asks for more."""
    (name, asked), *others = requests.items()
    params = getattr(asked, "params", None)
    state = {"name": name, "request_state": request_state}
    if others or not isinstance(asked, wire.ElicitRequest):
        raise ToolError(
            "the server asks for something that nanoloop does not offer, such as a model"
        )
    if isinstance(params, wire.ElicitRequestURLParams):
        message = visible(params.message[:LONGEST_MESSAGE])
        return tool_question(f"{message}\n{visible(params.url)}", {}, None, state)
    schema = params.requested_schema if isinstance(params, wire.ElicitRequestFormParams) else {}
    message = visible(str(getattr(params, "message", ""))[:LONGEST_MESSAGE])
    return tool_question(message, schema.get("properties") or {}, schema.get("required"), state)


def _only_text(message: wire.SamplingMessage) -> str:
    """Return a message's text; raise `ToolError` if it has anything else."""
    content = message.content if isinstance(message.content, list) else [message.content]
    texts = [each.text for each in content if isinstance(each, wire.TextContent)]
    if len(texts) < len(content):
        raise ToolError("the server asks the model about more than text, which is not supported")
    return "\n".join(texts)


def going_on(state: Mapping[str, Any], answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a call needs to continue with the person's answer."""
    said = wire.ElicitResult(action=answer["action"], content=answer.get("content"))
    return {
        "input_responses": {str(state["name"]): said},
        "request_state": state.get("request_state"),
    }


@asynccontextmanager
async def connected(connection: ServerConnection) -> AsyncIterator[None]:
    """Connect to the server; enter and leave this context in the same task.

    Any exception may be raised, even a group that contains cancellations; `why` explains it.
    """
    place = connection.place
    transport = program(place, connection) if place.command else http_stream(place, connection)
    client = Client(
        transport,
        cache=None,
        client_info=wire.Implementation(name="nanoloop", version=version(DISTRIBUTION)),
        elicitation_callback=connection.decline,
        sampling_callback=connection.sample if connection.sampling else None,
        message_handler=connection.hear,
    )
    try:
        async with client, anyio.create_task_group() as group:
            group.start_soon(connection.use, client, name=f"changes of {place.name}")
            connection._client = client  # noqa: SLF001 - at once
            try:
                yield
            finally:
                group.cancel_scope.cancel()
    except (Exception, BaseExceptionGroup) as error:
        connection.end(why(error, connection))
        raise
    finally:
        connection.end("it was stopped")


def why(error: BaseException, connection: ServerConnection) -> str:
    """Return why a server can't be used, in words that may be logged, never the server's own."""
    if connection.why_gone:
        return connection.why_gone
    known = (_in_words(each, connection.status) for each in _each(error))
    return next(filter(None, known), f"it failed ({type(error).__name__})")


def _in_words(error: BaseException, status: int) -> str:
    match error:
        case ServerGone() | SettingsError() | LoginWanted() | LoginFailed():
            words = str(error)
        case TimeoutError():
            words = "it did not answer in time"
        case httpx2.ConnectError():
            words = "nothing answers at its url"
        case httpx2.HTTPError():
            words = f"HTTP failed ({type(error).__name__})"
        case MCPError() if status in _REDIRECTS:
            words = "it answers with a redirect, which is not followed: set url to its new address"
        case MCPError() if status:
            words = f"it answers with HTTP status {status}: check its url and its headers"
        case MCPError():
            words = f"it answers with an error ({error.code}): check that it is an MCP server"
        case _:
            words = ""
    return words


def _each(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _each(inner)
    else:
        yield error


def _quoted(failed: ToolError, said: str) -> ToolError:
    """Return the error with the server's words quoted, because a person reads them."""
    if not said or str(failed) != said:  # our own words
        return failed
    words = " ".join(visible(said[: 2 * _SAID_CHARS]).split())
    cut = f"{words[:_SAID_CHARS]} […]" if len(words) > _SAID_CHARS else words
    quoted = cut.replace('"', "'")
    return ToolError(f'the server says "{quoted}"')


def _broken(error: Exception) -> ToolError:
    return ToolError(
        f"the server's answer breaks the protocol ({type(error).__name__}); the call may have "
        "taken effect"
    )


def _size(value: object, most: int) -> int:
    """Return about how many characters of JSON a value has; stop counting beyond `most`."""
    size, waiting = 0, [value]
    while waiting and size <= most:
        match waiting.pop():
            case str() as text:
                size += len(text)
            case dict() as names:
                waiting += names.values()
                size += sum(map(len, names))
            case list() as values:
                waiting += values
        size += _SIGNS
    return size


def _short(name: str) -> str:
    """Return a tool's name as it is shown if the tool can't be used."""
    return visible(name[:_NAME_CHARS])


def _listed(tool: wire.Tool) -> ListedTool:
    hints = tool.annotations
    return listed_tool(
        tool.name,
        tool.description or tool.title or "",
        tool.input_schema,
        reads=bool(hints and hints.read_only_hint),
        idempotent=bool(hints and hints.idempotent_hint),
    )


def _listed_prompt(prompt: wire.Prompt) -> ListedPrompt:
    arguments = {each.name: bool(each.required) for each in prompt.arguments or ()}
    return listed_prompt(prompt.name, prompt.description or prompt.title or "", arguments)


def _named(block: wire.ContentBlock) -> str:
    """Return a part of a prompt as text; only name pictures and audio."""
    file = _file(block)
    return _told(block) if file is None else f"[data of type {file.shown_type}]"


def _told(block: wire.ContentBlock) -> str:
    """Return a part of a result as the model reads it."""
    match block:
        case wire.TextContent():
            return block.text
        case wire.ImageContent() | wire.AudioContent():
            return ""  # it is a file
        case wire.EmbeddedResource():
            return _content(block.resource)
        case wire.ResourceLink():
            about = f" ({block.title or block.name})" if block.title or block.name else ""
            return f"[resource{about}: {block.uri}]"


def _file(block: wire.ContentBlock) -> FileResult | None:
    """Return a picture, a recording or data, which is sent only if the model names it."""
    if isinstance(block, wire.EmbeddedResource):
        return _blob(block.resource)
    if isinstance(block, wire.ImageContent | wire.AudioContent):
        return _decoded(block.data, name=block.type, mime_type=block.mime_type)
    return None


_Resource = wire.TextResourceContents | wire.BlobResourceContents


def _blob(resource: _Resource) -> FileResult | None:
    if isinstance(resource, wire.TextResourceContents):
        return None
    name = unquote(urlsplit(str(resource.uri)).path).rstrip("/").rpartition("/")[2]
    return _decoded(resource.blob, name=name or "data", mime_type=resource.mime_type or "")


def _decoded(data: str, *, name: str, mime_type: str) -> FileResult | None:
    kind = _kind(mime_type)
    if guess_type(name)[0] is None:
        name += guess_extension(kind) or ""
    with suppress(binascii.Error, ValueError):
        return FileResult(base64.b64decode(data), name=name, mime_type=kind, send=False)
    return None


def _content(resource: _Resource) -> str:
    """Return a resource as the model reads it; data is a file, unless it can't be decoded."""
    if isinstance(resource, wire.TextResourceContents):
        return resource.text
    kind = _kind(resource.mime_type or "unknown")
    return "" if _blob(resource) is not None else f"[data of type {kind} that can't be read]"


def _kind(mime_type: str) -> str:
    """Return a server's MIME type without its parameters if it is one; empty if none is given."""
    is_none = mime_type.partition(";")[0].strip() in {"", "unknown"}
    return mime_type if is_none else mime_type_or_unknown(mime_type)
