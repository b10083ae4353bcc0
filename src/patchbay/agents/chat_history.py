"""The messages between users and agents as searchable text, and the tool that searches them."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final, Self

import msgspec
from typing_extensions import override


class ChatMessage(msgspec.Struct, kw_only=True):
    """One message. ``role`` is "user" or "assistant", ``created_at`` is seconds since the epoch, ``l2_json`` an audit's note."""

    id: int = 0
    user_id: str = "default"
    agent: str = ""
    session_id: str = ""
    role: str = ""
    content: str = ""
    l2_json: str = ""
    created_at: float = 0.0


class BaseChatHistoryService(ABC):
    """Stores and finds messages. Every ``limit`` is a number of messages; below 1 the result is empty."""

    @abstractmethod
    async def add_message(self, user_id: str, agent: str, session_id: str, role: str, content: str, l2_json: str = "") -> None:
        """Store a message, from either side."""

    @abstractmethod
    async def get_session_history(self, session_id: str, *, limit: int = 100) -> list[ChatMessage]:
        """Return the newest messages of a session, the oldest of them first."""

    @abstractmethod
    async def get_agent_history(self, user_id: str, agent: str, *, limit: int = 50) -> list[ChatMessage]:
        """Return the newest messages between a user and an agent, the newest first."""

    @abstractmethod
    async def search(self, user_id: str, agent: str, keyword: str, *, limit: int = 20) -> list[ChatMessage]:
        """Return the newest messages between them that contain ``keyword``, ignoring case, the newest first."""

    @abstractmethod
    async def delete_agent_history(self, user_id: str, agent: str) -> int:
        """Delete the messages between a user and an agent; return their number."""

    @abstractmethod
    async def delete_session_history(self, session_id: str) -> int:
        """Delete the messages of a session; return their number."""

    @abstractmethod
    async def count(self, user_id: str, agent: str | None = None) -> int:
        """Return the number of a user's messages, with one agent or with all."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Close files and connections."""


class InMemoryChatHistoryService(BaseChatHistoryService):
    """Stores messages in memory; returns copies."""

    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._ids = itertools.count(1)

    @override
    async def add_message(self, user_id: str, agent: str, session_id: str, role: str, content: str, l2_json: str = "") -> None:
        message = ChatMessage(
            id=next(self._ids),
            user_id=user_id,
            agent=agent,
            session_id=session_id,
            role=role,
            content=content,
            l2_json=l2_json,
            created_at=time.time(),
        )
        self._messages.append(message)

    @override
    async def get_session_history(self, session_id: str, *, limit: int = 100) -> list[ChatMessage]:
        return self._newest(limit, session_id=session_id)[::-1]

    @override
    async def get_agent_history(self, user_id: str, agent: str, *, limit: int = 50) -> list[ChatMessage]:
        return self._newest(limit, user_id=user_id, agent=agent)

    @override
    async def search(self, user_id: str, agent: str, keyword: str, *, limit: int = 20) -> list[ChatMessage]:
        return self._newest(limit, keyword.casefold(), user_id=user_id, agent=agent)

    @override
    async def delete_agent_history(self, user_id: str, agent: str) -> int:
        return self._delete(user_id=user_id, agent=agent)

    @override
    async def delete_session_history(self, session_id: str) -> int:
        return self._delete(session_id=session_id)

    @override
    async def count(self, user_id: str, agent: str | None = None) -> int:
        return sum(1 for item in self._messages if item.user_id == user_id and agent in (None, item.agent))

    def _newest(self, limit: int, folded: str = "", **fields: str) -> list[ChatMessage]:
        matching = (item for item in reversed(self._messages) if _has_fields(item, fields) and folded in item.content.casefold())
        return [msgspec.structs.replace(item) for item in itertools.islice(matching, max(0, limit))]

    def _delete(self, **fields: str) -> int:
        before = len(self._messages)
        self._messages = [item for item in self._messages if not _has_fields(item, fields)]
        return before - len(self._messages)


def _has_fields(message: ChatMessage, fields: dict[str, str]) -> bool:
    return all(getattr(message, name) == value for name, value in fields.items())


_LONGEST_SHOWN: Final = 200
_MOST_SHOWN: Final = 100


def create_history_tool(
    history_service: BaseChatHistoryService, *, default_agent: str = "", user_id: str = "default"
) -> Callable[[str, str, int], Awaitable[str]]:
    """Return ``search_history(keyword="", agent="", limit=10)`` for an agent's ``tools``: an async function that returns text.

    It only finds messages of ``user_id``, whatever the model asks for; ``default_agent`` is searched if it names none. A message
    is one line, ``[MM-DD HH:MM] User|AI: text``, in local time, cut at 200 characters; the newest comes first.
    """

    async def search_history(keyword: str = "", agent: str = "", limit: int = 10) -> str:
        """Search what the user and an agent said to each other before, the newest first.

        :param keyword: What to look for, letter for letter; empty for the newest messages.
        :param agent: The agent that was talked with; empty for the usual one.
        :param limit: The most messages to show, 1 to 100.
        """
        searched = agent or default_agent
        if not searched:
            return "No agent specified."
        limit = min(max(limit, 1), _MOST_SHOWN)
        if keyword:
            found = await history_service.search(user_id, searched, keyword, limit=limit)
        else:
            found = await history_service.get_agent_history(user_id, searched, limit=limit)
        return "\n".join(map(_line, found)) if found else "No history found."

    return search_history


history_tool = create_history_tool
"""Another name of ``create_history_tool``."""


def _line(message: ChatMessage) -> str:
    when = datetime.fromtimestamp(message.created_at, UTC).astimezone()
    who = "User" if message.role == "user" else "AI"
    text = message.content
    excerpt = text[:_LONGEST_SHOWN] + ("..." if len(text) > _LONGEST_SHOWN else "")
    # A message with line breaks must not look like several.
    return f"[{when:%m-%d %H:%M}] {who}: {' '.join(excerpt.split())}"
