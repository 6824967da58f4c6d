"""An MCP server over HTTP that wants a login, with its authorization server, on this machine.

    python tests/servers/mcp_oauth.py FOLDER [PORT]

The first line that it prints is its port. Files in FOLDER decide how it behaves (`short-lived`,
`no-refresh`, `no-access`, `wrong-state`, `wrong-issuer`, `refused`, `down`, `elsewhere`,
`documents`; `closed` when it starts), and `ledger` has what it did. Whoever opens its login page
agrees at once.
"""

import base64
import secrets
import socket
import sys
import time
from pathlib import Path

import anyio
import uvicorn
from mcp import types as wire
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from starlette.requests import Request
from starlette.responses import JSONResponse

folder = Path(sys.argv[1])
READS = wire.ToolAnnotations(read_only_hint=True)
PATHS = {"authorization": "authorize", "token": "token", "registration": "register"}
MACHINE = ("robot", "very-secret")
"""The client of the machine flow, and its secret."""


def is_set(name):
    return (folder / name).exists()


def note(line):
    with (folder / "ledger").open("a") as file:
        file.write(f"{line}\n")


class Desk(OAuthClientInformationFull):
    """A client that the operator has registered, whatever port its answers come to."""

    def validate_redirect_uri(self, redirect_uri):
        assert str(redirect_uri).startswith("http://127.0.0.1:")
        return redirect_uri


DESK = Desk(
    client_id="desk", client_secret="desk-secret", token_endpoint_auth_method="client_secret_basic"
)


class Provider:
    """Keeps clients, codes and tokens in memory; each refresh token counts once."""

    def __init__(self, issuer):
        self.issuer = issuer
        self.clients, self.codes, self.tokens, self.refreshes = {}, {}, {}, {}

    async def get_client(self, client_id):
        if client_id.startswith("https://"):  # the address of a document about the client
            return Desk(client_id=client_id, token_endpoint_auth_method="none")
        return DESK if client_id == DESK.client_id else self.clients.get(client_id)

    async def register_client(self, client):
        note("registered")
        self.clients[client.client_id] = client

    async def authorize(self, client, params):
        answer = {"state": "another" if is_set("wrong-state") else params.state}
        answer["iss"] = "http://127.0.0.1:1" if is_set("wrong-issuer") else self.issuer
        if is_set("refused"):
            answer |= {"error": "access_denied", "error_description": "You\x1b[31m may not."}
            return construct_redirect_uri(str(params.redirect_uri), **answer)
        code = secrets.token_hex(20)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, **answer)

    async def load_authorization_code(self, _, code):
        return self.codes.get(code)

    async def exchange_authorization_code(self, client, code):
        del self.codes[code.code]
        note("logged in")
        return self.given(client.client_id, code.scopes, code.resource)

    def given(self, client_id, scopes, resource):
        seconds = 1 if is_set("short-lived") else 3600
        token, refresh = secrets.token_hex(20), secrets.token_hex(20)
        more = {"client_id": client_id, "scopes": scopes, "resource": resource}
        self.tokens[token] = AccessToken(token=token, expires_at=int(time.time()) + seconds, **more)
        self.refreshes[refresh] = RefreshToken(token=refresh, **more)
        return OAuthToken(
            access_token=token,
            expires_in=seconds,
            refresh_token=refresh,
            scope=" ".join(scopes) or None,
        )

    async def load_refresh_token(self, _, token):
        return None if is_set("no-refresh") else self.refreshes.get(token)

    async def exchange_refresh_token(self, client, refresh, scopes):
        await anyio.sleep(0.1)  # so that others come meanwhile
        note("refreshed")
        del self.refreshes[refresh.token]
        return self.given(client.client_id, scopes, refresh.resource)

    async def load_access_token(self, token):
        is_revoked = is_set("no-access")
        return None if is_revoked else self.tokens.get(token)

    async def revoke_token(self, token):
        note("revoked")
        self.refreshes.pop(token.token, None)


def machine_answer(provider, form, authorization):
    """The token endpoint for the machine flow, which the package's server does not have."""
    expected = base64.b64encode(":".join(MACHINE).encode()).decode()
    if authorization != f"Basic {expected}":
        return JSONResponse({"error": "invalid_client"}, status_code=401)
    note("machine")
    given = provider.given(MACHINE[0], [], form.get("resource"))
    return JSONResponse(given.model_dump(exclude={"refresh_token"}, exclude_none=True))


def make_app(port):
    issuer = f"http://127.0.0.1:{port}"
    provider = Provider(issuer)
    server = MCPServer(
        "tickets",
        log_level="CRITICAL",
        auth_server_provider=provider,
        auth=AuthSettings(
            issuer_url=issuer,
            resource_server_url=f"{issuer}/mcp",
            validate_token_resource=True,
            client_registration_options=ClientRegistrationOptions(enabled=not is_set("closed")),
            revocation_options=RevocationOptions(enabled=True),
        ),
    )

    @server.tool(annotations=READS)
    def echo(text: str) -> str:
        """Say it again."""
        return text

    app = server.streamable_http_app()

    async def before(scope, receive, send):
        """Answers what the package's own server can't, and lets the rest pass."""
        path = scope.get("path", "")
        if path.startswith("/.well-known/oauth-protected-resource") and is_set("elsewhere"):
            servers = ["http://192.0.2.1/"]
            said = {"resource": f"{issuer}/mcp", "authorization_servers": servers}
            await JSONResponse(said)(scope, receive, send)
            return
        if path == "/.well-known/oauth-authorization-server" and is_set("documents"):
            said = {"issuer": issuer, "client_id_metadata_document_supported": True}
            said |= {f"{name}_endpoint": f"{issuer}/{path}" for name, path in PATHS.items()}
            await JSONResponse(said)(scope, receive, send)
            return
        if scope["type"] == "http" and path == "/token":
            if is_set("down"):
                await JSONResponse({}, status_code=503)(scope, receive, send)
                return
            request = Request(scope, receive)
            body = await request.body()
            form = dict(await request.form())
            if form.get("grant_type") == "client_credentials":
                header = request.headers.get("authorization", "")
                await machine_answer(provider, form, header)(scope, receive, send)
                return
            pieces = iter([{"type": "http.request", "body": body, "more_body": False}])

            async def again():
                return next(pieces, {"type": "http.disconnect"})

            await app(scope, again, send)
            return
        await app(scope, receive, send)

    return before


async def serve(port):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        port = taken.getsockname()[1]
        http = uvicorn.Server(uvicorn.Config(make_app(port), log_config=None))
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        await http.serve(sockets=[taken])


anyio.run(serve, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
