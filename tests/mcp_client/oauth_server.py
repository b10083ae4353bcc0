"""An MCP server on the official SDK that asks for a login, with its own authorization server, which agrees to everything."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time

import uvicorn
from mcp.server.auth.provider import AccessToken, AuthorizationCode, RefreshToken, construct_redirect_uri
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from starlette.responses import PlainTextResponse

PORT = int(sys.argv[1])
SECONDS = int(sys.argv[2])
URL = f"http://127.0.0.1:{PORT}"
LOGIN_URL = f"http://{sys.argv[3]}:{PORT}"


class KnownClient(OAuthClientInformationFull):
    """A client that was registered by hand, for any port of its machine."""

    def validate_redirect_uri(self, redirect_uri):
        return redirect_uri


class Provider:
    """Everything in memory. Access tokens end after SECONDS."""

    def __init__(self) -> None:
        known = KnownClient(
            client_id="known",
            client_secret="its secret",
            redirect_uris=["http://127.0.0.1/callback"],
            token_endpoint_auth_method="client_secret_basic",
            scope="mcp:write",
        )
        self.clients = {"known": known}
        self.codes = {}
        self.refreshing = {}
        self.tokens = {}

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def register_client(self, client_info):
        self.clients[client_info.client_id] = client_info.model_copy(update={"scope": "mcp:write"})

    async def authorize(self, client, params):
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
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client, authorization_code):
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        del self.codes[authorization_code.code]
        return self.issue(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client, refresh_token):
        return self.refreshing.get(refresh_token)

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        del self.refreshing[refresh_token.token]
        return self.issue(client, scopes, refresh_token.resource)

    async def load_access_token(self, token):
        found = self.tokens.get(token)
        return found if found is not None and found.expires_at > time.time() else None

    async def revoke_token(self, token):
        pass

    def issue(self, client, scopes, resource):
        access, refresh = secrets.token_hex(20), secrets.token_hex(20)
        self.tokens[access] = AccessToken(
            token=access, client_id=client.client_id, scopes=scopes, expires_at=int(time.time()) + SECONDS, resource=resource
        )
        self.refreshing[refresh] = RefreshToken(token=refresh, client_id=client.client_id, scopes=scopes, resource=resource)
        return OAuthToken(access_token=access, token_type="Bearer", expires_in=SECONDS, refresh_token=refresh)


provider = Provider()
server = MCPServer(
    "guarded",
    auth_server_provider=provider,
    auth=AuthSettings(
        issuer_url=LOGIN_URL,
        resource_server_url=f"{URL}/mcp",
        client_registration_options=ClientRegistrationOptions(enabled=True),
    ),
)


@server.tool(structured_output=False)
def secret() -> str:
    """Return a secret."""
    return "42"


@server.tool(structured_output=False)
async def slow() -> str:
    """Take a moment."""
    await asyncio.sleep(0.5)
    return "slow"


@server.tool(structured_output=False)
def write() -> str:
    """Change something, which needs the scope mcp:write."""
    return "written"


class ScopeCheck:
    """Refuses calls of ``write`` without its scope, as RFC 6750 says."""

    def __init__(self, app) -> None:
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        given = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        found = provider.tokens.get(given)
        if b'"write"' in body and b"tools/call" in body and found is not None and "mcp:write" not in found.scopes:
            about = 'Bearer error="insufficient_scope", scope="mcp:write"'
            await PlainTextResponse("no", 403, {"WWW-Authenticate": about})(scope, receive, send)
            return
        read = iter([{"type": "http.request", "body": body}])

        async def again():
            return next(read, None) or await receive()

        await self.app(scope, again, send)


uvicorn.run(ScopeCheck(server.streamable_http_app(host="127.0.0.1")), host="127.0.0.1", port=PORT)
