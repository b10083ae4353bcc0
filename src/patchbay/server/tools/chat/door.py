"""``/v1`` of the tool server: the proxy, and for chat completions of a role with tools, turns."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from typing import Any, Final

from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.executor import Executor
from patchbay.models.body import ChatBody, has_foreign_kind
from patchbay.models.exchange import Exchange
from patchbay.models.learnt import Learnt
from patchbay.models.modes import ModeMemory
from patchbay.models.offer import Offer
from patchbay.models.providers import provider_at
from patchbay.server.answers import NO_RETRY, NotFoundError, UpstreamStatusError, error_body, error_headers
from patchbay.server.app import ProxyApp
from patchbay.server.body import Receive
from patchbay.server.chat import Chat
from patchbay.server.headers import Headers
from patchbay.server.oversight import Oversight
from patchbay.server.reply import Reply, Send
from patchbay.server.request import Request
from patchbay.server.settings import ProxySettings
from patchbay.server.tools.chat.model import Way
from patchbay.server.tools.chat.role import ROLE_HEADER, SESSION_HEADER, role_of, session_of
from patchbay.server.tools.chat.settings import ChatSettings
from patchbay.server.tools.chat.stretches import Stretches
from patchbay.server.tools.chat.turning import Asked, RoleTools, Turn
from patchbay.tools.base import Tool
from patchbay.tools.registry import ToolRegistry
from patchbay.tools.registry.snapshot import Snapshot
from patchbay.types import read_specs

_ROLE: Final = "patchbay.role"
"""The key of the ASGI scope that holds the header."""

_SESSION: Final = "patchbay.session"
"""That of the other header."""

_OWN_HEADERS: Final = {ROLE_HEADER.lower().encode(): _ROLE, SESSION_HEADER.lower().encode(): _SESSION}
_NOT_PARAMETERS: Final = frozenset({"messages", "tools", "tool_choice", "stream"})
_BETWEEN_WORDS: Final = re.compile(rb"[\s,;:='\"]+")
_JSON_FORMATS: Final = frozenset({"json_object", "json_schema"})

_logger = logging.getLogger(__name__)


class ChatDoor(ProxyApp):
    """The proxy before the server's upstream, with the tools of ``registry``, and with hooks. ``token`` is never passed on."""

    def __init__(
        self,
        settings: ProxySettings,
        registry: ToolRegistry,
        chat: ChatSettings,
        oversight: Oversight,
        *,
        token: str | None = None,
    ) -> None:
        memory = ModeMemory()
        self._way = Way(lambda body: Exchange(body, chat.options, memory), provider_at(settings.upstream), Learnt())
        super().__init__(settings, self._way.make_exchange)
        self._registry = registry
        self._chat = chat
        self._oversight = oversight
        self._token = None if token is None else _digest(token.encode())
        self._token_length = len(token or "")
        self._stretches = Stretches(most=chat.max_kept, most_bytes=chat.max_kept_size, seconds=chat.kept_for)
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

    def _open(self, scope: Any, body: bytes) -> Chat:
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
        chat = Asked(
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
        return Turn(chat, self._tools_of(snapshot), self._way, self._stretches, self._chat, streaming=asked.stream)

    async def _carry_out(self, request: Request, chat: Chat) -> None:
        if isinstance(chat, Turn):
            await chat.run(request)
        else:
            await super()._carry_out(request, chat)

    async def _fail(self, reply: Reply, exchange: Chat | None, error: PatchbayError) -> None:
        if isinstance(exchange, Turn) and exchange.has_run and not reply.started:
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
    await Reply(send, []).whole(error.status, error_headers(error), error_body(error))


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
