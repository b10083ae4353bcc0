"""The long results of a database's sessions: texts by short ids, the newest of each session.

What lives here: one session's texts, kept and read. What does not: what becomes of them when the session is deleted; the table's
foreign key sees to that.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from patchbay.agents.sessions.session import Session
from patchbay.agents.sessions.tables import results, sessions
from patchbay.errors import SessionNotFoundError
from patchbay.store import Store
from patchbay.tools.kept import KEPT_CHARS

_ID: Final = re.compile(r"result_([1-9][0-9]{0,8})", re.ASCII)
_UTF8: Final = ("utf-8", "surrogatepass")

HAS_RESULTS: Final = sa.exists().where(results.c.session_pk == sessions.c.pk).correlate(sessions).label("has_results")
"""A column of a query of ``sessions``: whether there are texts of the session."""


class DatabaseResults:
    """The texts of ``session`` in ``store``, ``max_chars`` characters at most: the oldest go first, the newest always stays.

    A text is kept in one transaction, which holds the session's row first: so texts of one session get one order, whatever
    processes they come from, and no number is given twice.
    """

    __slots__ = ("_max_chars", "_session", "_store")

    def __init__(self, store: Store, session: Session, *, max_chars: int = KEPT_CHARS) -> None:
        self._store = store
        self._session = session
        self._max_chars = max_chars

    async def keep(self, text: str) -> str:
        """Keep ``text`` and return its id, the same for the same text. Raises SessionNotFoundError."""
        number = await self._store.write(lambda connection: self._put(connection, text))
        self._session.has_results = True
        return f"result_{number}"

    async def read(self, result_id: str) -> str | None:
        """Return the text, or None if it is not kept."""
        if (found := _ID.fullmatch(result_id)) is None:
            return None
        query = (
            sa.select(results.c.text)
            .join(sessions, results.c.session_pk == sessions.c.pk)
            .where(self._mine(), results.c.number == int(found[1]))
        )

        def work(connection: Connection) -> str | None:
            kept: bytes | None = connection.scalar(query)
            return None if kept is None else kept.decode(*_UTF8)

        return await self._store.read(work)

    def _mine(self) -> sa.ColumnElement[bool]:
        mine = self._session
        return sa.and_(sessions.c.app_name == mine.app_name, sessions.c.user_id == mine.user_id, sessions.c.id == mine.id)

    def _put(self, connection: Connection, text: str) -> int:
        pk = connection.scalar(sa.select(sessions.c.pk).where(self._mine()).with_for_update())
        if pk is None:
            raise SessionNotFoundError(self._session.id)
        of_session = results.c.session_pk == pk
        data = text.encode(*_UTF8)
        digest = hashlib.sha256(data).digest()
        known: int | None = connection.scalar(sa.select(results.c.number).where(of_session, results.c.digest == digest))
        if known is not None:
            return known
        counted = sa.select(sa.func.coalesce(sa.func.max(results.c.number), 0), sa.func.coalesce(sa.func.sum(results.c.size), 0))
        last, size = connection.execute(counted.where(of_session)).one()
        number = int(last) + 1  # of the last one, which always stays: so no number comes back
        row = {"session_pk": pk, "number": number, "digest": digest, "size": len(text), "text": data}
        connection.execute(results.insert().values(row))
        if size + len(text) > self._max_chars:
            self._drop_oldest(connection, pk, number)
        return number

    def _drop_oldest(self, connection: Connection, pk: int, newest: int) -> None:
        of_session = results.c.session_pk == pk
        sizes = sa.select(results.c.number, results.c.size).where(of_session).order_by(results.c.number.desc())
        size = 0
        for number, chars in connection.execute(sizes).all():
            size += chars
            if size > self._max_chars and number != newest:
                connection.execute(sa.delete(results).where(of_session, results.c.number <= number))
                return
