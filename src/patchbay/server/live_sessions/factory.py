"""Creates the sessions of a server: realtime models, chats with the upstream, agents; and checks their keys."""

from __future__ import annotations

import asyncio
import importlib
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from patchbay._redaction import Redactor
from patchbay.errors import ConfigurationError, PatchbayError, UpstreamError, UpstreamTimeoutError
from patchbay.models.attempt import ATTEMPT_LOG
from patchbay.models.chat_model import ChatRequest, ModelEvent
from patchbay.models.resolve import HostedModel, NotOneModelError, resolve_model
from patchbay.realtime import ChatSession, RealtimeLimits, RealtimeSession
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.providers.registry import NoKeyError, dialect_for, key_for, key_in_environment
from patchbay.server.governance import Governance
from patchbay.server.live_sessions.protocol import LiveSessionsSettings, NoModelError, SessionRequest, realtime_settings
from patchbay.server.request_log import CURRENT_REQUEST
from patchbay.server.request_state import RequestObserver
from patchbay.server.settings import ChatSettings
from patchbay.server.turns import TurnStore, record_of

if TYPE_CHECKING:
    from patchbay.server.chat.agents import AgentModel
    from patchbay.server.live_sessions.bridge import Session

_FLAG: Final = "--realtime-key"
_UNAUTHORIZED: Final = (401, 403)


def check_key(settings: RealtimeSettings, *, is_servers_own: bool) -> None:
    """Raise ConfigurationError where a session would have no key. ``is_servers_own``: its model is that of the flags."""
    try:
        key_for(settings)
    except NoKeyError as error:
        flag = f", or start it with {_FLAG}" if is_servers_own else ""
        raise ConfigurationError(
            f"There is no key for {dialect_for(settings).provider}: set {error.variables} in the server's environment{flag}."
        ) from None


def key_problem(settings: RealtimeSettings) -> str:
    """Return a warning about the key of the server's realtime model, "" if all is well."""
    try:
        check_key(settings, is_servers_own=True)
    except ConfigurationError as error:
        return f"Sessions with {settings.model} will fail. {error}"
    found = key_in_environment(dialect_for(settings))
    if found is None or key_for(settings):
        return ""
    where = (settings.url or "").partition("?")[0]  # the query may hold a secret
    return f"{found[0]} is not sent to {where}: it is for the provider's own servers. {_FLAG} gives a key for this one."


def with_reason(error: UpstreamError, settings: RealtimeSettings) -> UpstreamError:
    """Return the error of a model's server; if no key was sent, it says so."""
    if error.upstream_status not in _UNAUTHORIZED or key_for(settings):
        return error
    return UpstreamError(
        f"{error} (No key was sent: the environment's is for the provider's own servers; patchbay serve {_FLAG} gives another.)",
        upstream_status=error.upstream_status,
        body=error.body,
    )


_LIST_SECONDS: Final = 10.0
"""Seconds for the upstream to list its models."""

_NO_TIMEOUT: Final = 30 * 86_400.0
"""A timeout in place of none: the client needs a number."""


class ObservedModel:
    """The model of a live session, a ChatModel: its requests are turns of ``turns``, and have records when they have ended."""

    def __init__(
        self,
        model: HostedModel | AgentModel,
        observers: Sequence[RequestObserver],
        turns: TurnStore,
        *,
        agent: str,
        session: str,
    ) -> None:
        self.name = model.name
        self._model = model
        self._observers = observers
        self._turns = turns
        self._agent, self._session = agent, session

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer ``request``; see HostedModel."""
        began, failure, model = time.perf_counter(), None, self._model
        turn = self._turns.begin(uuid.uuid4().hex[:12], "session", None, Redactor())
        CURRENT_REQUEST.set(turn.id)
        turn.model = str(request.parameters.get("model") or model.name or "")
        turn.stream, turn.agent, turn.session = request.stream, self._agent, self._session
        for watch in self._turns.watchers:
            watch(turn)
        if not isinstance(model, HostedModel):
            model.turn_id = turn.id
        outer = ATTEMPT_LOG.get()
        ATTEMPT_LOG.set(turn)
        try:
            async with aclosing(model.respond(request)) as events:
                async for event in events:
                    yield event
        except PatchbayError as error:
            failure = error
            raise
        finally:
            ATTEMPT_LOG.set(outer)  # not by its token: a session may close this in another context
            if not isinstance(model, HostedModel):
                model.note_run(turn)
            if turn.attempts:
                turn.body = turn.attempts[0].source
            status, error_text = 200, ""
            if failure is not None:
                status, error_text = failure.status, Redactor().text(f"{failure.code}: {failure}")
            turn.end(time.perf_counter() - began, status=status, error=error_text, ending=None)
            self._turns.usage.add_turn(turn)
            for observe in self._observers:
                observe(record_of(turn))


class SessionFactory:
    """Creates sessions; chats share one client of the upstream, which ``aclose`` closes."""

    def __init__(
        self, governance: Governance, settings: LiveSessionsSettings, observers: Sequence[RequestObserver], turns: TurnStore
    ) -> None:
        self._governance = governance
        self._settings = settings
        self._observers = observers
        self._turns = turns
        self._chat = settings.chat or ChatSettings()
        self._chat_model: HostedModel | None = None

    def make(self, request: SessionRequest, key: str) -> Session:
        """Return a session as requested, not yet open. Raises ConfigurationError."""
        governance = self._governance
        common: dict[str, Any] = {
            "hooks": governance.hooks,
            "media": governance.media,
            "session_key": key,
            "agent_id": request.role,
            "context": {"inbound": {"channel": "session", "chat_id": key}, "scope": {"role": request.role}},
            "tool_search": self._chat.tool_search(),
        }
        if request.kind == "realtime":
            settings = realtime_settings(request, self._settings)
            own = self._settings.realtime
            assert own is not None
            check_key(settings, is_servers_own=dialect_for(settings) is dialect_for(own))
            return RealtimeSession(settings, **common)
        model: HostedModel | AgentModel
        if self._is_agent(request) and self._settings.agents is not None:
            common["hooks"] = None  # the agent's own runs call them
            model = self._settings.agents.model(request.model, key)
        else:
            model = self._model()
        return ChatSession(
            ObservedModel(model, self._observers, self._turns, agent=request.role, session=key),
            instructions=request.instructions,
            parameters={"model": request.model} if request.model else None,
            attachments=self._chat.attachments,
            limits=limits_of(self._chat),
            **common,
        )

    async def open(self, session: Session, request: SessionRequest) -> str:
        """Open a session; return its model's name. Raises PatchbayError."""
        if self._is_agent(request):
            await session.connect()
            return request.model
        if not isinstance(session, RealtimeSession):
            # The first import takes a second or more: others are served meanwhile, and it counts against no deadline.
            await asyncio.to_thread(importlib.import_module, "openai")
            await session.connect()
            return request.model or await self._only_model()
        try:
            await session.connect()
        except UpstreamError as error:
            raise with_reason(error, session.settings) from None
        return session.settings.model

    async def aclose(self) -> None:
        """Close the client of the upstream."""
        if self._chat_model is not None:
            await self._chat_model.aclose()

    def _is_agent(self, request: SessionRequest) -> bool:
        agents = self._settings.agents
        return agents is not None and request.kind == "offline" and request.model in agents

    async def _only_model(self) -> str:
        """Return the upstream's only model. Raises UpstreamError, and NoModelError where it has several or names none.

        This is checked before the first message, which would be lost otherwise.
        """
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                return await self._model().only_one()
        except NotOneModelError as error:
            raise NoModelError(f"The upstream {error.found}: say which, ?model=NAME.") from None
        except PatchbayError:  # some are TimeoutErrors of their own
            raise
        except TimeoutError:
            raise UpstreamTimeoutError(f"The upstream did not list its models within {_LIST_SECONDS:g} s.") from None

    def _model(self) -> HostedModel:
        """Return the upstream as a model, shared by all chats: each names the model it means."""
        if self._chat_model is None:
            upstream, options = self._settings.upstream, self._chat.options
            assert upstream is not None
            given = {field.name: getattr(options, field.name) for field in fields(options) if field.name != "tools"}
            model = resolve_model(
                upstream.upstream,
                api_key=upstream.upstream_key,
                headers=upstream.upstream_headers,
                timeout=upstream.upstream_timeout or _NO_TIMEOUT,
                tool_mode=options.tools,
                **{**given, "unknown_tools": "keep"},
            )
            assert isinstance(model, HostedModel)  # as for every URL
            self._chat_model = model
        return self._chat_model


def limits_of(chat: ChatSettings) -> RealtimeLimits:
    """Return the limits of a chat session's turns."""
    limits = RealtimeLimits(max_rounds=chat.max_iterations)
    return limits if chat.max_calls is None else replace(limits, max_calls=chat.max_calls)
