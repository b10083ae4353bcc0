"""Sessions as clients ask for them: made, and opened with a model that is known by its name.

What lives here: the server's settings and what a client wants, put together. What does not: whose turn it is (``door``), and what
a query may say (``asked``).
"""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from patchbay.errors import PatchbayError, UpstreamError, UpstreamTimeoutError
from patchbay.models.hosted import HostedModel, NotOneModelError
from patchbay.models.resolve import resolve_model
from patchbay.realtime import ChatSession, RealtimeLimits, RealtimeSession
from patchbay.realtime.providers.registry import dialect_for
from patchbay.server.oversight import Oversight
from patchbay.server.sessions.asked import Asked, NoModelError, realtime_settings
from patchbay.server.sessions.keys import check_key, with_reason
from patchbay.server.sessions.settings import SessionsSettings
from patchbay.server.tools.chat.settings import ChatSettings

if TYPE_CHECKING:
    from patchbay.server.sessions.held import Session

_NAMES: Final = 10.0
"""How long the upstream has to name its models (seconds)."""

_NO_END: Final = 30 * 86_400.0
"""How long an upstream may be silent that may be as long as it likes (seconds): its client knows a number alone."""


class Maker:
    """Makes the sessions of a server; chats share one client of the upstream, which ``aclose`` closes."""

    def __init__(self, oversight: Oversight, settings: SessionsSettings) -> None:
        self._oversight = oversight
        self._settings = settings
        self._chat = settings.chat or ChatSettings()
        self._chat_model: HostedModel | None = None

    def make(self, asked: Asked, key: str) -> Session:
        """Return a session as it was asked for, not open yet. Raises ConfigurationError."""
        oversight = self._oversight
        context = {"inbound": {"channel": "session", "chat_id": key}, "scope": {"role": asked.role}}
        if asked.kind == "realtime":
            settings = realtime_settings(asked, self._settings)
            own = self._settings.realtime
            assert own is not None
            check_key(settings, is_servers_own=dialect_for(settings) is dialect_for(own))
            return RealtimeSession(
                settings, hooks=oversight.hooks, media=oversight.media, session_key=key, agent_id=asked.role, context=context
            )
        return ChatSession(
            self._model(),
            hooks=oversight.hooks,
            media=oversight.media,
            instructions=asked.instructions,
            parameters={"model": asked.model} if asked.model else None,
            attachments=self._chat.attachments,
            limits=limits_of(self._chat),
            session_key=key,
            agent_id=asked.role,
            context=context,
        )

    async def open(self, session: Session, asked: Asked) -> str:
        """Open a session; return its model's name. Raises PatchbayError."""
        if not isinstance(session, RealtimeSession):
            # The first time that takes a second or more: the others are served meanwhile, and it counts against no deadline.
            await asyncio.to_thread(importlib.import_module, "openai")
            await session.connect()
            return asked.model or await self._only_model()
        try:
            await session.connect()
        except UpstreamError as error:
            raise with_reason(error, session.settings) from None
        return session.settings.model

    async def aclose(self) -> None:
        """Close the client of the upstream."""
        if self._chat_model is not None:
            await self._chat_model.aclose()

    async def _only_model(self) -> str:
        """Return the one model of the upstream. Raises UpstreamError, and NoModelError where it has several or names none.

        Before anything is said: who hears of it with the first answer has said that in vain.
        """
        try:
            async with asyncio.timeout(_NAMES):
                return await self._model().only_one()
        except NotOneModelError as error:
            raise NoModelError(f"The upstream {error.found}: say which, ?model=NAME.") from None
        except PatchbayError:  # some are TimeoutErrors of their own
            raise
        except TimeoutError:
            raise UpstreamTimeoutError(f"The upstream did not name its models within {_NAMES:g} s.") from None

    def _model(self) -> HostedModel:
        """The upstream as a model, one for all chats: each says which of its models it means."""
        if self._chat_model is None:
            upstream, options = self._settings.upstream, self._chat.options
            assert upstream is not None
            given = {field.name: getattr(options, field.name) for field in fields(options) if field.name != "tools"}
            model = resolve_model(
                upstream.upstream,
                api_key=upstream.upstream_key,
                headers=upstream.upstream_headers,
                timeout=upstream.upstream_timeout or _NO_END,
                tool_mode=options.tools,
                **{**given, "unknown_tools": "keep"},
            )
            assert isinstance(model, HostedModel)  # as one is that is named by its URL
            self._chat_model = model
        return self._chat_model


def limits_of(chat: ChatSettings) -> RealtimeLimits:
    """Return how far a turn of a chat may go: as far as one of its own does, where the server says nothing of it."""
    limits = RealtimeLimits(max_rounds=chat.max_iterations)
    return limits if chat.max_calls is None else replace(limits, max_calls=chat.max_calls)
