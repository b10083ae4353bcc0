"""Turns chat completions into turns with tools: finds the request's role and session, the role's tools, and hidden turns."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from patchbay.cache import SizedCache
from patchbay.errors import ConfigurationError, InvalidRequestError, UnknownRoleError
from patchbay.executor import Executor
from patchbay.frontends.responses_answer import ResponsesEncoder
from patchbay.models.capabilities import Capabilities
from patchbay.models.encoder import AnswerEncoder, ChatEncoder
from patchbay.models.exchange import Exchange
from patchbay.models.providers import provider_at
from patchbay.models.request import RequestFields, has_other_tool_types
from patchbay.models.tool_encoder import ToolEncoder
from patchbay.server.chat.hidden_turns import HiddenTurnStore
from patchbay.server.chat.model import ModelBackend
from patchbay.server.chat.turn import RoleTools, ToolChatTurn
from patchbay.server.errors import NoUpstreamError, encoded_error_body, error_headers
from patchbay.server.governance import Governance
from patchbay.server.http import Receive, ResponseWriter, Send, is_token
from patchbay.server.models_view import LearntModels
from patchbay.server.settings import ChatSettings
from patchbay.tools.registry import ToolRegistry
from patchbay.tools.registry.registration import Snapshot
from patchbay.tools.tool import Tool
from patchbay.types import read_specs

if TYPE_CHECKING:
    from patchbay.server.chat.agents import ServedAgents
    from patchbay.server.stored_responses import ResponseRuns

ROLE_HEADER: Final = "X-Patchbay-Role"
SESSION_HEADER: Final = "X-Patchbay-Session"

_MAX_SESSION_CHARS: Final = 200


def role_of(header: bytes | None, user: Any, roles: Sequence[str]) -> str:
    """Return the role of a request: its header's, else its ``user`` if that is a role's name, else the first of ``roles``.

    The header is UTF-8, or percent-encoded. Raises UnknownRoleError, and ConfigurationError where there is no role.
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
    """Return the session key of a request's header, "" without one. Raises InvalidRequestError."""
    return checked_session(unquote(header.decode("utf-8", "replace")) if header else "")


def checked_session(session: str) -> str:
    """Return a valid session key. Raises InvalidRequestError."""
    if len(session) > _MAX_SESSION_CHARS or not session.isprintable():
        raise InvalidRequestError(f"{SESSION_HEADER} must be up to {_MAX_SESSION_CHARS} printable characters.")
    return session


_ROLE: Final = "patchbay.role"
"""The scope's key for the value of ROLE_HEADER."""

_SESSION: Final = "patchbay.session"
"""The scope's key for the value of SESSION_HEADER."""

_SCOPE_KEYS: Final = {ROLE_HEADER.lower().encode(): _ROLE, SESSION_HEADER.lower().encode(): _SESSION}
_MOST_SESSIONS: Final = 1000
_NOT_PARAMETERS: Final = frozenset({"messages", "tools", "tool_choice", "stream"})
_WORD_SEPARATORS: Final = re.compile(rb"[\s,;:='\"]+")
_JSON_FORMATS: Final = frozenset({"json_object", "json_schema"})

_logger = logging.getLogger(__name__)


class ToolChat:
    """Decides which chat completions become turns with the tools of ``registry`` and the hooks of ``governance``.

    The rest passes through an exchange, as in the plain proxy. ``token`` is the server's own, and never forwarded upstream.
    Requests whose model is one of ``agents`` are runs of it.
    """

    def __init__(
        self,
        upstream: str,
        registry: ToolRegistry,
        chat: ChatSettings,
        governance: Governance,
        *,
        token: str | None = None,
        agents: ServedAgents | None = None,
        hidden_turns: HiddenTurnStore | None = None,
    ) -> None:
        capabilities = Capabilities()
        self.learnt = LearntModels(capabilities, chat.options)
        """What is known of the upstream's models."""
        keeping = replace(chat.options, unknown_tools="keep")
        self._backend = ModelBackend(
            lambda body, encoder=None: Exchange(body, chat.options, capabilities, encoder),
            lambda body, encoder=None: Exchange(body, keeping, capabilities, encoder),
            provider_at(upstream),
            capabilities,
        )
        self._registry = registry
        self._chat = chat
        self._governance = governance
        self._token = token
        self._agents = agents
        self.hidden_turns = HiddenTurnStore(**chat.hidden_turn_limits) if hidden_turns is None else hidden_turns
        """What clients do not see of their conversations, by default in memory."""
        self._found: SizedCache[tuple[str, str], dict[str, None]] = SizedCache(most=_MOST_SESSIONS, most_bytes=0)
        self._found_by_response: SizedCache[tuple[str, str], dict[str, None]] = SizedCache(most=_MOST_SESSIONS, most_bytes=0)
        self._role_tools: dict[str, RoleTools] = {}

    @property
    def make_exchange(self) -> Callable[..., Exchange[bytes]]:
        """Makes the exchange of a completion without the registry's tools."""
        return self._backend.make_exchange

    @property
    def response_runs(self) -> ResponseRuns | None:
        """The durable runs of agents that make responses in the background."""
        return self._agents if self._agents is not None and self._agents.durable is not None else None

    @property
    def has_model_hooks(self) -> bool:
        """Whether hooks check requests to models, or the answers to them."""
        return self._governance.checks_models

    def read_headers(self, scope: Any) -> Any:
        """Return the scope of a request with this server's own headers moved to keys, and without its token in any header."""
        own = {_SCOPE_KEYS[name]: value for name, value in reversed(scope["headers"]) if name in _SCOPE_KEYS}
        headers = [(name, value) for name, value in scope["headers"] if name not in _SCOPE_KEYS and not self._has_token(value)]
        return {**scope, "headers": headers, **own}

    def _has_token(self, value: bytes) -> bool:
        if self._token is None:
            return False
        words = (*value.split(), *_WORD_SEPARATORS.split(value))
        return any(is_token(word, self._token) for word in words if len(word) == len(self._token))

    def begin_turn(self, scope: Any, body: bytes, encoder: AnswerEncoder[bytes] | None = None) -> ToolChatTurn | None:
        """Begin a turn; None where the request needs neither tools nor hooks. Raises PatchbayError.

        ``encoder`` writes the answer; without one it is one of chat completions.
        """
        parsed = RequestFields(body)
        user = parsed.value("user")
        if self._agents is not None and (name := parsed.value("model")) in self._agents:
            return self._begin_agent(self._agents, name, scope, parsed, encoder)
        snapshot = self._registry.snapshot(role_of(scope.get(_ROLE), user, self._registry.roles))
        has_tools = bool(snapshot.tools) and parsed.value("tool_choice") != "none"
        chains = self._governance.hooks.chains
        is_hooked = bool(chains.before_llm or chains.after_llm)
        # Legacy functions, and tools of other types than functions, are passed on as they are.
        if (
            parsed.legacy
            or not (has_tools or is_hooked or self.hidden_turns or self._chat.max_identical_client_calls)
            or has_other_tool_types(given := parsed.value("tools"))
        ):
            return None
        history = self.hidden_turns.restored(parsed.messages)
        has_limit = bool(given) and parsed.count == 1 and self._chat.max_identical_client_calls > 0
        if not (has_tools or is_hooked or history.found or has_limit):
            return None
        if parsed.count != 1:
            why = "this server calls tools" if has_tools else "this server has hooks"
            raise InvalidRequestError(f"'n' must be 1: {why}, and goes on with one answer.", param="n")
        response_format = parsed.value("response_format")
        external = read_specs(given)
        session, role = session_of(scope.get(_SESSION)), snapshot.role
        return ToolChatTurn(
            self._tools_of(snapshot),
            self._backend,
            self.hidden_turns,
            self._chat,
            encoder or ChatEncoder(),
            history,
            external,
            {spec.name: tool for spec, tool in zip(external, given or (), strict=True)},
            parsed.value("tool_choice"),
            {name: parsed.value(name) for name in parsed.fields if name not in _NOT_PARAMETERS},
            client_streams=parsed.stream,
            include_usage=parsed.include_usage,
            wants_json=isinstance(response_format, dict) and response_format.get("type") in _JSON_FORMATS,
            session=session,
            sender=user if isinstance(user, str) else "",
            found=self._found_in((role, session)) if session else self._found_up_to(role, encoder),
        )

    def search_tool(self, scope: Any, user: Any) -> str | None:
        """Return the name of the tool that searches the web, if the request's role has it. Raises UnknownRoleError."""
        name = self._chat.web_search
        snapshot = self._registry.snapshot(role_of(scope.get(_ROLE), user, self._registry.roles))
        return name if name in snapshot.tools else None

    def _begin_agent(
        self, agents: ServedAgents, name: str, scope: Any, parsed: RequestFields, encoder: AnswerEncoder[bytes] | None
    ) -> ToolChatTurn:
        """Begin a run of an agent, with its own tools. Raises InvalidRequestError."""
        from patchbay.server.chat.agents import AgentTurn

        if parsed.count != 1:
            raise InvalidRequestError("'n' must be 1: an agent goes on with one answer.", param="n")
        if parsed.value("tool_choice") not in (None, "auto", "none"):
            raise InvalidRequestError(f"The agent {name} calls its own tools alone: it cannot be made to call others.")
        response_format = parsed.value("response_format")
        if isinstance(response_format, dict) and response_format.get("type") != "text":
            raise InvalidRequestError(
                f"'response_format' must be text: the agent {name} has its own (output_schema).", param="response_format"
            )
        snapshot = Snapshot("", 0, {}, {})
        return AgentTurn(
            RoleTools(snapshot, Executor([]), ToolEncoder(self._backend.provider)),
            self._backend,
            self.hidden_turns,
            self._chat,
            encoder or ChatEncoder(),
            self.hidden_turns.restored(parsed.messages),
            (),
            {},
            None,
            {"model": name},
            client_streams=parsed.stream,
            include_usage=parsed.include_usage,
            wants_json=False,
            session=session_of(scope.get(_SESSION)),
            sender="",
            found=None,
            agents=agents,
            name=name,
        )

    def _found_in(self, session: tuple[str, str]) -> dict[str, None]:
        """Return the names of the tools found in a role's session, to be added to."""
        found = self._found.get(session)
        if found is None:
            found = {}
            self._found.put(session, found, 0)
        return found

    def _found_up_to(self, role: str, encoder: AnswerEncoder[bytes] | None) -> dict[str, None] | None:
        """Return the names of the tools found up to the previous response, to be added to; None outside the Responses API."""
        if not isinstance(encoder, ResponsesEncoder):
            return None
        found = dict(self._found_by_response.get((role, encoder.response["previous_response_id"])) or {})
        self._found_by_response.put((role, encoder.response["id"]), found, 0)
        return found

    def _tools_of(self, snapshot: Snapshot) -> RoleTools:
        """Return the executor and encoder of a snapshot's tools, built once per snapshot."""
        built = self._role_tools.get(snapshot.role)
        if built is None or built.snapshot is not snapshot:
            encoder = built.encoder if built is not None else ToolEncoder(self._backend.provider)
            executor = Executor(
                [tool for tool in snapshot.tools.values() if _has_spec(tool)],
                hooks=self._governance.hooks,
                media=self._governance.media,
                max_repeats=self._chat.max_identical_calls or None,
                search=self._chat.tool_search(),
            )
            built = self._role_tools[snapshot.role] = RoleTools(snapshot, executor, encoder)
        return built


async def no_upstream(_scope: Any, _receive: Receive, send: Send) -> None:
    """Serve ``/v1`` of a server without an upstream. An ASGI application."""
    error = NoUpstreamError()
    await ResponseWriter(send, []).whole(error.status, error_headers(error), encoded_error_body(error))


def _has_spec(tool: Tool) -> bool:
    """Return False for a tool whose spec cannot be built: it must not take the others with it."""
    try:
        _ = tool.spec
    except Exception:
        _logger.exception("The tool %r is left out: it cannot be described", tool.name)
        return False
    return True
