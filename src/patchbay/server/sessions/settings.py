"""What models the sessions of a server may have. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from patchbay.errors import ConfigurationError
from patchbay.realtime.config import RealtimeSettings
from patchbay.server.settings import ProxySettings
from patchbay.server.tools.chat.settings import ChatSettings


@dataclass(frozen=True, kw_only=True)
class SessionsSettings:
    """``realtime`` is the realtime model, ``upstream`` the server of the models for chats; None where there is none.

    ``chat`` is how the latter are told of tools. In seconds: a session that is to take over from one that is not idle waits
    ``swap_wait`` for it, and as long for another that is taking over; who comes to a role that is not free waits ``free_wait``,
    since its own last session may be on its way out; a client that takes nothing of what it is sent is left after
    ``send_timeout``.
    """

    realtime: RealtimeSettings | None = None
    upstream: ProxySettings | None = None
    chat: ChatSettings | None = None
    swap_wait: float = 10.0
    free_wait: float = 1.0
    send_timeout: float = 30.0

    def __post_init__(self) -> None:
        if self.realtime is not None:
            from patchbay.realtime.providers.registry import dialect_for

            dialect_for(self.realtime)  # says what is wrong with the name
        for name in ("swap_wait", "free_wait", "send_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be more than 0.")
