"""A tool that lets a model search what was said before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from patchbay.agents.history import BaseChatHistoryService, ChatMessage

_LONGEST_SHOWN: Final = 200
_MOST_SHOWN: Final = 100


def create_history_tool(
    history_service: BaseChatHistoryService, *, default_agent: str = "", user_id: str = "default"
) -> Callable[[str, str, int], Awaitable[str]]:
    """Return ``search_history(keyword="", agent="", limit=10)`` for an agent's ``tools``: an async function that returns text.

    It finds the messages of ``user_id`` alone, whatever the model asks for; ``default_agent`` is searched where it names none. A
    message is one line, ``[MM-DD HH:MM] User|AI: text``, in local time, cut at 200 characters; the newest comes first.
    """

    async def search_history(keyword: str = "", agent: str = "", limit: int = 10) -> str:
        """Search what the user and an agent said to each other before, the newest first.

        :param keyword: What to look for, letter for letter; empty for the newest messages.
        :param agent: The agent that was talked with; empty for the usual one.
        :param limit: The most messages to show, 1 to 100.
        """
        whose = agent or default_agent
        if not whose:
            return "No agent specified."
        limit = min(max(limit, 1), _MOST_SHOWN)
        if keyword:
            found = await history_service.search(user_id, whose, keyword, limit=limit)
        else:
            found = await history_service.get_agent_history(user_id, whose, limit=limit)
        return "\n".join(map(_line, found)) if found else "No history found."

    return search_history


history_tool = create_history_tool
"""The factory's other name."""


def _line(message: ChatMessage) -> str:
    when = datetime.fromtimestamp(message.created_at, UTC).astimezone()
    who = "User" if message.role == "user" else "AI"
    text = message.content
    shown = text[:_LONGEST_SHOWN] + ("..." if len(text) > _LONGEST_SHOWN else "")
    # A message is one line: one that holds line breaks must not pass for several.
    return f"[{when:%m-%d %H:%M}] {who}: {' '.join(shown.split())}"
