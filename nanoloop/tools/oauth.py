"""OAuth for MCP servers: logging in, renewing a login, and adding its token to requests.

Whatever servers send here is untrusted: it is limited, and none of it reaches the log.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from secrets import compare_digest
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from anyio.to_thread import run_sync
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.exceptions import OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import is_valid_client_metadata_url, validate_authorization_response_iss
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from mcp.types.version import LATEST_HANDSHAKE_VERSION
from pydantic import AnyUrl, ValidationError

from nanoloop.addresses import trusted_certificates
from nanoloop.errors import LoginFailed, LoginWanted, NotReadable, SettingsError
from nanoloop.events import announce
from nanoloop.proxies import is_this_machine, proxy_for
from nanoloop.tools.listing import visible
from nanoloop.tools.logins import ServerLogin, ServerLogins, login_wanted, renewed_at
from nanoloop.tools.servers import ToolLoginNotStored, ToolServerPlace

MOST_BYTES = 1_000_000
"""The maximum size of an authorization server's answer."""
RENEW_SECONDS = 30.0
_ERROR_CHARS = 200
"""How many characters of an authorization server's error the operator is shown."""
_PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
_REFUSED = (400, 401)
"""The statuses with which an authorization server refuses a refresh token or a client."""

# Its log lines quote what servers send.
for _name in ("mcp", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


# Logging in


async def log_in(
    place: ToolServerPlace,
    *,
    redirect: str,
    show: Callable[[str], Awaitable[None]],
    answer: Callable[[str], Awaitable[str]],
) -> ServerLogin:
    """Log in as a person does; raise `LoginFailed` if that fails.

    `show` receives the address to open in a browser, and `answer` returns the address that the
    browser is then redirected to, which begins with `redirect` and has the `state` it is given.
    """
    person = _Person(place, redirect=redirect, show=show, answer=answer)
    provider = OAuthClientProvider(
        place.url,
        OAuthClientMetadata(redirect_uris=[AnyUrl(redirect)], client_name="nanoloop"),
        _LoginMemory(_own_client(place, redirect)),
        redirect_handler=person.ask,
        callback_handler=person.answered,
        client_metadata_url=place.client_id if _is_metadata(place) else None,
    )
    person.context = provider.context
    return await _obtained(place, provider)


async def machine_login(place: ToolServerPlace) -> ServerLogin:
    """Log in with the client's own id and secret; raise `LoginFailed` if that fails."""
    provider = ClientCredentialsOAuthProvider(
        place.url, _LoginMemory(None), place.client_id, place.client_secret, issuer=place.issuer
    )
    with anyio.move_on_after(RENEW_SECONDS):
        return await _obtained(place, provider)
    raise LoginFailed("its authorization server did not answer in time")


def _is_metadata(place: ToolServerPlace) -> bool:
    """Return True if the client's id is the address of a document about it."""
    return not place.client_secret and is_valid_client_metadata_url(place.client_id)


def _own_client(place: ToolServerPlace, redirect: str) -> OAuthClientInformationFull | None:
    if not place.client_id or _is_metadata(place):
        return None
    return OAuthClientInformationFull(
        client_id=place.client_id,
        client_secret=place.client_secret or None,
        token_endpoint_auth_method="client_secret_basic" if place.client_secret else "none",
        redirect_uris=[AnyUrl(redirect)],
        issuer=place.issuer or None,
    )


class _LoginMemory:
    """What the SDK's provider stores during one login."""

    def __init__(self, client: OAuthClientInformationFull | None) -> None:
        self._client = client
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


class _Person:
    """Sends a person to the authorization server, and checks the answer."""

    def __init__(
        self,
        place: ToolServerPlace,
        *,
        redirect: str,
        show: Callable[[str], Awaitable[None]],
        answer: Callable[[str], Awaitable[str]],
    ) -> None:
        self._place = place
        self._redirect = redirect
        self._show = show
        self._answer = answer
        self._state = ""
        self.context: OAuthContext | None = None

    async def ask(self, url: str) -> None:
        if not _is_safe(url, self._place):  # a browser opens it
            raise LoginFailed("its login page is not at an https address")
        self._state = parse_qs(urlsplit(url).query).get("state", [""])[0]
        await self._show(url)

    async def answered(self) -> AuthorizationCodeResult:
        address = (await self._answer(self._state)).strip()
        if not address.startswith(f"{self._redirect}?"):
            raise LoginFailed(
                f"the address that the browser is sent to begins with {self._redirect}"
            )
        said = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        if not compare_digest(said.get("state", "").encode(), self._state.encode()):
            raise LoginFailed("this is the answer to another login (its state differs)")
        self._check_issuer(said.get("iss"))
        if "error" in said:
            why = visible(said.get("error_description", ""))[:_ERROR_CHARS]
            code = visible(said["error"])[:_ERROR_CHARS]
            raise LoginFailed(f"the authorization server refused ({code}){why and f': {why}'}")
        return AuthorizationCodeResult(
            code=said.get("code", ""), state=said["state"], iss=said.get("iss")
        )

    def _check_issuer(self, issuer: str | None) -> None:
        try:
            validate_authorization_response_iss(
                issuer, None if self.context is None else self.context.oauth_metadata
            )
        except OAuthFlowError:
            raise LoginFailed("this is the answer of another authorization server") from None


async def _obtained(place: ToolServerPlace, provider: OAuthClientProvider) -> ServerLogin:
    """Make a request that the server answers by asking for a login, and log in."""
    headers = {**place.headers, "Accept": "application/json, text/event-stream"}
    headers["MCP-Protocol-Version"] = LATEST_HANDSHAKE_VERSION
    try:
        async with _client(place) as http:
            request = http.build_request("POST", place.url, json=_PING, headers=headers)
            response = await http.send(request, auth=provider, stream=True)
            await response.aclose()
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - also what parses metadata
        raise LoginFailed(_in_words(error)) from None
    if provider.context.current_tokens is None:
        raise LoginFailed(f"it asks for no login (HTTP status {response.status_code})")
    if response.status_code in _REFUSED[1:]:
        raise LoginFailed("it does not accept the login that its authorization server gave")
    return _login_of(place, provider.context)


def _in_words(error: BaseException) -> str:
    """Return why a login failed, in our own words."""
    match error:
        case LoginFailed():
            words = str(error)
        case OAuthRegistrationError():
            words = (
                "its authorization server does not register nanoloop: register a client there "
                "yourself, and set client_id (and client_secret)"
            )
        case OAuthTokenError():
            words = "its authorization server refused to give a token"
        case OAuthFlowError() if "issuer" in str(error):
            words = "its authorization server says that it is another one"
        case OAuthFlowError() | ValidationError():
            words = "what it says about its login is inconsistent"
        case httpx2.ConnectError():
            words = "nothing answers at its url, or at that of its authorization server"
        case _:
            words = f"the login broke off ({type(error).__name__})"
    return words


def _login_of(place: ToolServerPlace, context: OAuthContext) -> ServerLogin:
    tokens, client, metadata = context.current_tokens, context.client_info, context.oauth_metadata
    assert tokens is not None  # noqa: S101 - checked by the caller
    assert client is not None  # noqa: S101 - there are no tokens without one
    base = context.get_authorization_base_url(place.url)
    end = metadata.revocation_endpoint if metadata else None
    return ServerLogin(
        url=place.url,
        client=client.model_dump(mode="json", exclude_none=True),
        token=tokens.access_token,
        refresh=tokens.refresh_token or "",
        until=renewed_at(tokens.expires_in),
        scope=tokens.scope or "",
        resource=context.get_resource_url() if context.protected_resource_metadata else "",
        token_url=str(metadata.token_endpoint) if metadata else f"{base}/token",
        revocation_url=str(end or ""),
    )


# Renewing


async def revoke(place: ToolServerPlace, login: ServerLogin) -> bool:
    """Tell the authorization server that the login has ended; return False if that failed."""
    if not login.revocation_url:
        return False
    data = {"token": login.refresh or login.token}
    try:
        answer = await _posted(place, login, login.revocation_url, data)
    except (LoginFailed, LoginWanted):
        return False
    return answer.is_success


async def _refreshed(place: ToolServerPlace, login: ServerLogin) -> ServerLogin:
    data = {"grant_type": "refresh_token", "refresh_token": login.refresh}
    data |= {"resource": login.resource} if login.resource else {}
    answer = await _posted(place, login, login.token_url, data)
    if answer.status_code in _REFUSED:
        raise LoginWanted(login_wanted(place.name))
    try:
        if not answer.is_success:
            raise LoginFailed(f"its login can't be renewed now (HTTP status {answer.status_code})")
        new = OAuthToken.model_validate_json(answer.content)
    except ValidationError:
        raise LoginFailed("its login can't be renewed now (not an answer with a token)") from None
    return replace(
        login,
        token=new.access_token,
        refresh=new.refresh_token or login.refresh,
        until=renewed_at(new.expires_in),
    )


async def _posted(
    place: ToolServerPlace, login: ServerLogin, url: str, data: dict[str, str]
) -> httpx2.Response:
    """Send a form to the authorization server as the client that the login belongs to."""
    try:
        client = OAuthClientInformationFull.model_validate(login.client)
        metadata = OAuthClientMetadata(redirect_uris=None)
        context = OAuthContext(
            place.url, metadata, _LoginMemory(client), None, None, client_info=client
        )
        data, headers = context.prepare_token_auth({**data, "client_id": client.client_id}, {})
        with anyio.fail_after(RENEW_SECONDS):
            async with _client(place) as http:
                return await http.post(url, data=data, headers=headers)
    except (OAuthFlowError, ValidationError):  # an unusable client
        raise LoginWanted(login_wanted(place.name)) from None
    except (httpx2.HTTPError, TimeoutError) as error:
        raise LoginFailed(f"its login can't be renewed now ({type(error).__name__})") from None


class Access(httpx2.Auth):
    """Adds a server's access token to each request, and renews it if necessary."""

    def __init__(self, place: ToolServerPlace, logins: ServerLogins) -> None:
        self._place = place
        self._logins = logins
        self.why_not = ""
        """Why there is no usable token; empty if there is one."""

    async def token(self, *, refused: str = "") -> str:
        """Return a token, other than the refused one; raise `LoginWanted` or `LoginFailed`."""
        login = await self._kept()
        if login is not None and login.is_good(refused=refused):
            return login.token
        try:
            login = await self._renewed(refused)
        except (LoginWanted, LoginFailed) as error:
            self.why_not = str(error)
            raise
        self.why_not = ""
        return login.token

    async def _kept(self) -> ServerLogin | None:
        """Return the login, unless it is for a different address or client than in the settings."""
        try:
            login = await run_sync(self._logins.of, self._place.name)
        except (NotReadable, SettingsError):
            command = f"nanoloop tools login {self._place.name}"
            raise LoginFailed(f"its login can't be read: `{command}` says why") from None
        wanted = self._place.client_id
        if login is None or login.url != self._place.url:
            return None
        is_ours = not wanted or _is_metadata(self._place) or login.client.get("client_id") == wanted
        return login if is_ours else None

    async def _renewed(self, refused: str) -> ServerLogin:
        place = self._place
        async with self._logins.alone(place.name):
            login = await self._kept()  # another process may have been faster
            if login is not None and login.is_good(refused=refused):
                return login
            if place.auth == "client_credentials":
                new = await machine_login(place)
                await self._keep(new)
                return new
            if login is None or not login.refresh:
                raise LoginWanted(login_wanted(place.name))
            # Finish even if cancelled: a refresh token works only once, and the answer has the next
            # one.
            with anyio.CancelScope(shield=True):
                login = await _refreshed(place, login)
                await self._keep(login)
            return login

    async def _keep(self, login: ServerLogin) -> None:
        try:
            await run_sync(self._logins.keep, self._place.name, login)
        except SettingsError as error:
            announce(ToolLoginNotStored(server=self._place.name, reason=str(error)))

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send a request with the token; send it again if a refused token could be renewed."""
        token = await self.token()
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == httpx2.codes.UNAUTHORIZED:
            # If that fails, the response shows the refusal; this request was certainly not carried
            # out.
            with suppress(LoginWanted, LoginFailed):
                token = await self.token(refused=token)
                request.headers["Authorization"] = f"Bearer {token}"
                yield request


# Requests to authorization servers


def _is_safe(url: str, place: ToolServerPlace) -> bool:
    """Return True for https, or for an address on this machine if the tool server is here too."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return True
    hosts = (parts.hostname or "", urlsplit(place.url).hostname or "")
    return parts.scheme == "http" and all(map(is_this_machine, hosts))


@asynccontextmanager
async def _client(place: ToolServerPlace) -> AsyncIterator[httpx2.AsyncClient]:
    trusted: Any = True
    if not place.url.startswith("http:"):
        trusted = await run_sync(trusted_certificates)
    async with httpx2.AsyncClient(
        transport=_Guarded(place, trusted),
        headers={"Accept-Encoding": "identity"},
        timeout=RENEW_SECONDS,
        trust_env=False,
        follow_redirects=False,
    ) as http:
        yield http


class _Guarded(httpx2.AsyncBaseTransport):
    """Sends tokens and secrets only where nobody else can read them, and limits the answers."""

    def __init__(self, place: ToolServerPlace, trusted: Any) -> None:
        self._place = place
        self._trusted = trusted
        self._known: dict[str | None, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = str(request.url)
        if not _is_safe(url, self._place):
            raise LoginFailed("its authorization server is not at an https address")
        proxy = proxy_for(url)
        if proxy not in self._known:
            self._known[proxy] = httpx2.AsyncHTTPTransport(verify=self._trusted, proxy=proxy)
        response = await self._known[proxy].handle_async_request(request)
        response.stream = _Limited(response.stream)  # type: ignore[arg-type] # an async one
        return response

    async def aclose(self) -> None:
        for transport in self._known.values():
            await transport.aclose()


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._inner:
            size += len(piece)
            if size > MOST_BYTES:
                raise LoginFailed("its authorization server sends too long an answer")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
