"""Whose a chat request is: which role it is for (its header, else its ``user``, else the first role), and of which session.

``/v1`` of the tool server: the proxy, and for chat completions of a role with tools, turns.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from patchbay.errors import ConfigurationError, InvalidRequestError, PatchbayError, UnknownRoleError
from patchbay.executor import Executor
from patchbay.models.body import ChatBody, has_foreign_kind
from patchbay.models.exchange import Exchange
from patchbay.models.learnt import Learnt
from patchbay.models.modes import ModeMemory
from patchbay.models.offer import Offer
from patchbay.models.providers import provider_at
from patchbay.server.chat.completion import ChatCompletion
from patchbay.server.chat.hidden_turns import HiddenTurnStore
from patchbay.server.chat.model import ModelBackend
from patchbay.server.chat.turn import ChatSettings, ChatTurnRequest, RoleTools, ToolChatTurn
from patchbay.server.errors import NO_RETRY, NotFoundError, UpstreamStatusError, error_body, error_headers
from patchbay.server.governance import Governance
from patchbay.server.http import Headers, Receive, ResponseWriter, Send
from patchbay.server.proxy import ProxyApp
from patchbay.server.settings import ProxySettings
from patchbay.server.upstream import ProxyRequest
from patchbay.tools.base import Tool
from patchbay.tools.registry import ToolRegistry
from patchbay.tools.registry.snapshot import Snapshot
from patchbay.types import read_specs

ROLE_HEADER: Final = "X-Patchbay-Role"
SESSION_HEADER: Final = "X-Patchbay-Session"

_LONGEST_SESSION: Final = 200


def role_of(header: bytes | None, user: Any, roles: Sequence[str]) -> str:
    """Return one of ``roles``.

    A header must name one, in UTF-8 or, for clients that send nothing but ASCII, percent-encoded. A ``user`` may be anything:
    only if it happens to be a role's name it says which. Raises UnknownRoleError, and ConfigurationError where there is no role.
    """
    if not roles:
        raise ConfigurationError("This server has no role.")
    if header:
        name = header.decode("utf-8", "replace")
        for each in (name, unquote(name)):
            if each in roles:
                return each
        raise UnknownRoleError(name)
    return user if isinstance(user, str) and user in roles else roles[0]


def session_of(header: bytes | None) -> str:
    """Return the key of the session that a client says it is in, "" where it says none. Raises InvalidRequestError."""
    return checked_session(unquote(header.decode("utf-8", "replace")) if header else "")


def checked_session(session: str) -> str:
    """Return a session's key as it is. Raises InvalidRequestError."""
    if len(session) > _LONGEST_SESSION or not session.isprintable():
        raise InvalidRequestError(f"{SESSION_HEADER} must be up to {_LONGEST_SESSION} printable characters.")
    return session


_ROLE: Final = "patchbay.role"
"""The key of the ASGI scope that holds the header."""

_SESSION: Final = "patchbay.session"
"""That of the other header."""

_OWN_HEADERS: Final = {ROLE_HEADER.lower().encode(): _ROLE, SESSION_HEADER.lower().encode(): _SESSION}
_NOT_PARAMETERS: Final = frozenset({"messages", "tools", "tool_choice", "stream"})
_BETWEEN_WORDS: Final = re.compile(rb"[\s,;:='\"]+")
_JSON_FORMATS: Final = frozenset({"json_object", "json_schema"})

_logger = logging.getLogger(__name__)


class ToolChatApp(ProxyApp):
    """The proxy before the server's upstream, with the tools of ``registry``, and with hooks. ``token`` is never passed on."""

    def __init__(
        self,
        settings: ProxySettings,
        registry: ToolRegistry,
        chat: ChatSettings,
        oversight: Governance,
        *,
        token: str | None = None,
    ) -> None:
        memory = ModeMemory()
        self._way = ModelBackend(lambda body: Exchange(body, chat.options, memory), provider_at(settings.upstream), Learnt())
        super().__init__(settings, self._way.make_exchange)
        self._registry = registry
        self._chat = chat
        self._oversight = oversight
        self._token = None if token is None else _digest(token.encode())
        self._token_length = len(token or "")
        self._stretches = HiddenTurnStore(most=chat.max_kept, most_bytes=chat.max_kept_size, seconds=chat.kept_for)
        self._tools: dict[str, RoleTools] = {}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope of HTTP that may come in."""
        said = {_OWN_HEADERS[name]: value for name, value in reversed(scope["headers"]) if name in _OWN_HEADERS}
        await super().__call__({**scope, "headers": self._passed_on(scope["headers"]), **said}, receive, send)

    def _passed_on(self, headers: Headers) -> Headers:
        """The headers without those that are meant for this server, and without its token, in whichever header that comes."""
        return [(name, value) for name, value in headers if name not in _OWN_HEADERS and not self._has_token(value)]

    def _has_token(self, value: bytes) -> bool:
        if self._token is None:
            return False
        words = (*value.split(), *_BETWEEN_WORDS.split(value))
        return any(hmac.compare_digest(_digest(word), self._token) for word in words if len(word) == self._token_length)

    def _open(self, scope: Any, body: bytes) -> ChatCompletion:
        asked = ChatBody(body)
        user = asked.value("user")
        role = role_of(scope.get(_ROLE), user, self._registry.roles)
        snapshot = self._registry.snapshot(role)
        has_tools = bool(snapshot.tools) and asked.value("tool_choice") != "none"
        chains = self._oversight.hooks.chains
        is_hooked = bool(chains.before_llm or chains.after_llm)
        # Functions, and tools of a kind that is not called by name and arguments, are between the client and its model.
        if asked.legacy or not (has_tools or is_hooked or self._stretches) or has_foreign_kind(given := asked.value("tools")):
            return super()._open(scope, body)
        history = self._stretches.restored(asked.messages)
        if not (has_tools or is_hooked or history.found):
            return super()._open(scope, body)
        if asked.count != 1:
            why = "this server calls tools" if has_tools else "this server has hooks"
            raise InvalidRequestError(f"'n' must be 1: {why}, and goes on with one answer.", param="n")
        wanted = asked.value("response_format")
        external = read_specs(given)
        chat = ChatTurnRequest(
            history,
            external,
            {spec.name: tool for spec, tool in zip(external, given or (), strict=True)},
            asked.value("tool_choice"),
            {name: asked.value(name) for name in asked.fields if name not in _NOT_PARAMETERS},
            include_usage=asked.include_usage,
            wants_json=isinstance(wanted, dict) and wanted.get("type") in _JSON_FORMATS,
            session=session_of(scope.get(_SESSION)),
            sender=user if isinstance(user, str) else "",
        )
        return ToolChatTurn(chat, self._tools_of(snapshot), self._way, self._stretches, self._chat, streaming=asked.stream)

    async def _carry_out(self, request: ProxyRequest, chat: ChatCompletion) -> None:
        if isinstance(chat, ToolChatTurn):
            await chat.run(request)
        else:
            await super()._carry_out(request, chat)

    async def _fail(self, reply: ResponseWriter, exchange: ChatCompletion | None, error: PatchbayError) -> None:
        if isinstance(exchange, ToolChatTurn) and exchange.has_run and not reply.started:
            error = _not_again(error)
        await super()._fail(reply, exchange, error)

    def _tools_of(self, snapshot: Snapshot) -> RoleTools:
        """The tools of a snapshot, put together once."""
        made = self._tools.get(snapshot.role)
        if made is None or made.snapshot is not snapshot:
            offer = made.offer if made is not None else Offer(self._way.provider)
            tools = [tool for tool in snapshot.tools.values() if _is_usable(tool)]
            made = self._tools[snapshot.role] = RoleTools(
                snapshot, Executor(tools, hooks=self._oversight.hooks, media=self._oversight.media), offer
            )
        return made


class NoUpstreamError(NotFoundError):
    """There is no model behind this server."""

    code = "no_upstream"

    def __init__(self) -> None:
        super().__init__("This server has no model to pass this on to: start it with patchbay serve --upstream URL.")


async def no_upstream(_scope: Any, _receive: Receive, send: Send) -> None:
    """Answer for ``/v1`` of a server without an upstream. An ASGI application."""
    error = NoUpstreamError()
    await ResponseWriter(send, []).whole(error.status, error_headers(error), error_body(error))


def _is_usable(tool: Tool) -> bool:
    """Whether a model can be told of the tool at all. One that fails here must not take the others with it."""
    try:
        _ = tool.spec
    except Exception:
        _logger.exception("The tool %r is left out: it cannot be described", tool.name)
        return False
    return True


def _not_again(error: PatchbayError) -> UpstreamStatusError:
    """The same answer, and that it is not to be asked for again: clients do so by themselves, and tools would run again."""
    kept = [pair for pair in error_headers(error) if pair[0] != NO_RETRY[0]]
    return UpstreamStatusError(error.status, error_body(error), [*kept, NO_RETRY])


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
