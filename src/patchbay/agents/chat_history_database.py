"""Chat histories in a database: SQLite or PostgreSQL, by URL."""

from __future__ import annotations

import os
import time
from typing import Any, Final

import sqlalchemy as sa
from typing_extensions import override

from patchbay.agents.chat_history import BaseChatHistoryService, ChatMessage
from patchbay.agents.sessions.base import storable
from patchbay.database import Database
from patchbay.database_tables import Tables

_metadata = sa.MetaData()
TABLES: Final = Tables("history", 1, _metadata)
_messages = sa.Table(
    "patchbay_messages",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("session_id", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("folded", sa.Text, nullable=False),  # for searches: databases fold case differently, or only that of ASCII
    sa.Column("l2_json", sa.Text, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Index("ix_patchbay_messages_agent", "user_id", "agent", "id"),
    sa.Index("ix_patchbay_messages_session", "session_id", "id"),
    sqlite_autoincrement=True,
)
_NAMES: Final = tuple(name for name in ChatMessage.__struct_fields__)
_COLUMNS: Final = tuple(_messages.c[name] for name in _NAMES)


class DatabaseChatHistoryService(BaseChatHistoryService):
    """Stores messages in the database at ``url``: ``sqlite:///FILE``, the path of a SQLite file, or ``postgresql://HOST/NAME``.

    It may be the sessions' database. Messages are in the order of their insertion, whatever the clock said.
    """

    def __init__(self, url: str | os.PathLike[str] = "sqlite:///history.db") -> None:
        self._store = Database(url, TABLES)

    async def add_message(self, user_id: str, agent: str, session_id: str, role: str, content: str, l2_json: str = "") -> None:
        """Store a message; characters that databases cannot store are replaced."""
        given = {
            "user_id": user_id, "agent": agent, "session_id": session_id, "role": role, "content": content, "l2_json": l2_json,
        }  # fmt: skip
        row: dict[str, Any] = {name: storable(text) for name, text in given.items()}
        row |= {"folded": row["content"].casefold(), "created_at": time.time()}
        await self._store.write(lambda connection: connection.execute(_messages.insert().values(row)))

    @override
    async def get_session_history(self, session_id: str, *, limit: int = 100) -> list[ChatMessage]:
        return (await self._newest(limit, _messages.c.session_id == storable(session_id)))[::-1]

    @override
    async def get_agent_history(self, user_id: str, agent: str, *, limit: int = 50) -> list[ChatMessage]:
        return await self._newest(limit, _between(user_id, agent))

    @override
    async def search(self, user_id: str, agent: str, keyword: str, *, limit: int = 20) -> list[ChatMessage]:
        # Not LIKE: it has wildcards, and limits the pattern's length.
        position = sa.func.strpos if self._store.is_postgres else sa.func.instr
        found = position(_messages.c.folded, storable(keyword).casefold()) > 0
        return await self._newest(limit, sa.and_(_between(user_id, agent), found))

    @override
    async def delete_agent_history(self, user_id: str, agent: str) -> int:
        return await self._delete(_between(user_id, agent))

    @override
    async def delete_session_history(self, session_id: str) -> int:
        return await self._delete(_messages.c.session_id == storable(session_id))

    @override
    async def count(self, user_id: str, agent: str | None = None) -> int:
        condition = _messages.c.user_id == storable(user_id) if agent is None else _between(user_id, agent)
        query = sa.select(sa.func.count()).select_from(_messages).where(condition)
        return await self._store.read(lambda connection: connection.scalar(query) or 0)

    async def close(self) -> None:
        """Close the database. The service may be used again."""
        await self._store.close()

    async def _newest(self, limit: int, which: sa.ColumnElement[bool]) -> list[ChatMessage]:
        query = sa.select(*_COLUMNS).where(which).order_by(_messages.c.id.desc()).limit(max(0, limit))
        return await self._store.read(
            lambda connection: [ChatMessage(**dict(zip(_NAMES, row, strict=True))) for row in connection.execute(query)]
        )

    async def _delete(self, which: sa.ColumnElement[bool]) -> int:
        return int(await self._store.write(lambda connection: connection.execute(sa.delete(_messages).where(which)).rowcount))


def _between(user_id: str, agent: str) -> sa.ColumnElement[bool]:
    return sa.and_(_messages.c.user_id == storable(user_id), _messages.c.agent == storable(agent))
