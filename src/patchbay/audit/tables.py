"""The table of the audit: its rows, written and read.

What lives here: columns, and the statements over them. What does not: when they are carried out (``log``). The database itself
refuses to change a row; it does not refuse to delete one, which is how an audit that keeps less than everything forgets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from patchbay.audit.entries import LONGEST, AuditDecision, AuditEntry, AuditPage, AuditQuery
from patchbay.hooks import CallRecord
from patchbay.tools import well_formed

VERSION: Final = 1

DENIED: Final = ("tool_denied", "hook_abort")
"""The codes of calls that were refused: by themselves, or with the rest of their turn."""

MOST_DECISIONS: Final = 64

metadata = sa.MetaData()

_number = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # only an INTEGER counts up by itself there

audit = sa.Table(
    "patchbay_audit",
    metadata,
    sa.Column("id", _number, primary_key=True),
    sa.Column("writer", sa.Text, nullable=False),
    sa.Column("number", _number, nullable=False),
    sa.Column("time", sa.Double, nullable=False, index=True),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("session_key", sa.Text, nullable=False, index=True),
    sa.Column("turn", sa.Text, nullable=False, index=True),
    sa.Column("parent_turn", sa.Text, nullable=False, index=True),
    sa.Column("round", _number, nullable=False),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("sender", sa.Text, nullable=False),
    sa.Column("call_id", sa.Text, nullable=False),
    sa.Column("tool", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("decisions", sa.Text, nullable=False),
    sa.Column("responded_by", sa.Text, nullable=False),
    sa.Column("is_error", sa.Boolean, nullable=False),
    sa.Column("code", sa.Text, nullable=False),
    sa.Column("result_chars", _number, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("lost", _number, nullable=False),
    # A batch whose commit was not answered is written again, and kept once.
    sa.UniqueConstraint("writer", "number"),
    sqlite_autoincrement=True,  # the id of an entry that was forgotten is not given again
)
_is_loss = audit.c.lost > 0
sa.Index("ix_patchbay_audit_lost", audit.c.id, sqlite_where=_is_loss, postgresql_where=_is_loss)

_WORDS: Final = "the audit is append-only"
_GUARD: Final = "CREATE TRIGGER patchbay_audit_is_append_only BEFORE UPDATE ON patchbay_audit"
_REFUSE: Final = f"RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '{_WORDS}'; END $$"
_GUARDS: Final = (
    ("sqlite", f"{_GUARD} BEGIN SELECT RAISE(ABORT, '{_WORDS}'); END"),
    ("postgresql", f"CREATE OR REPLACE FUNCTION patchbay_audit_refuse() {_REFUSE}"),
    ("postgresql", f"{_GUARD} FOR EACH ROW EXECUTE FUNCTION patchbay_audit_refuse()"),
)
for _dialect, _statement in _GUARDS:
    _ddl = sa.DDL(_statement)  # type: ignore[no-untyped-call]
    sa.event.listen(audit, "after_create", _ddl.execute_if(dialect=_dialect))

_EMPTY: Final[dict[str, Any]] = {
    column.name: 0 if isinstance(column.type, sa.Integer | sa.Double) else "" for column in audit.columns if column.name != "id"
} | {"is_error": False, "decisions": "[]"}


def row_of(record: CallRecord) -> dict[str, Any]:
    """Return what is written of a call, but for who writes it. Raises what a program's own object in its context does."""
    meta = record.meta
    inbound = record.context.get("inbound")
    inbound = inbound if isinstance(inbound, Mapping) else {}
    return {
        "time": record.time,
        "agent": text(meta.agent_id),
        "session_key": text(meta.session_key),
        "turn": text(meta.turn_id),
        "parent_turn": text(meta.parent_turn_id),
        "round": meta.iteration,
        "channel": text(inbound.get("channel")),
        "sender": text(inbound.get("sender_id")),
        "call_id": text(record.call_id),
        "tool": text(record.tool),
        "source": text(record.source),
        "digest": text(record.digest),
        "decisions": json.dumps([[text(part) for part in each] for each in record.decisions[:MOST_DECISIONS]])
        if record.decisions
        else "[]",
        "responded_by": text(record.responded_by),
        "is_error": record.is_error,
        "code": text(record.code),
        "result_chars": record.result_chars,
        "seconds": record.seconds,
        "lost": 0,
    }


def row_of_loss(time: float, count: int) -> dict[str, Any]:
    """Return what is written where ``count`` calls could not be."""
    return {**_EMPTY, "time": time, "lost": count}


def text(value: Any) -> str:
    """Return a value as text that any database can hold, cut where it is long."""
    if not value:
        return ""
    said = value if isinstance(value, str) else str(value)
    said = said if len(said) <= LONGEST else f"{said[: LONGEST - 3]}..."
    if said.isascii() and "\x00" not in said:
        return said
    return well_formed(said).replace("\x00", "\ufffd")


def forget(connection: sa.Connection, *, before: float, most: int) -> int:
    """Delete entries of that time and older, the oldest first, and return how many there were."""
    oldest = sa.select(audit.c.id).where(audit.c.time < before).order_by(audit.c.time).limit(most)
    return connection.execute(audit.delete().where(audit.c.id.in_(oldest))).rowcount


def read_page(connection: sa.Connection, query: AuditQuery) -> AuditPage:
    """Return what is asked for. What was lost is read by itself: one question for both would have to look at every row."""
    fits = _fitting(connection, query)
    parts = [[*fits, audit.c.lost == 0], [_is_loss]] if fits else [[]]
    ascends, within = query.after is not None, _within(query)
    order = audit.c.id.asc() if ascends else audit.c.id.desc()
    asked = (sa.select(audit).where(*part, *within).order_by(order).limit(query.limit + 1) for part in parts)
    rows = [row for each in asked for row in connection.execute(each)]
    rows.sort(key=lambda row: int(row.id), reverse=not ascends)
    entries = tuple(_entry(row._mapping) for row in rows[: query.limit])  # noqa: SLF001  (its public name)
    more = len(rows) > query.limit and not ascends
    return AuditPage(entries, entries[-1].id if more else None)


def _fitting(connection: sa.Connection, query: AuditQuery) -> list[sa.ColumnElement[bool]]:
    """Return what must hold of a call."""
    column = audit.c
    fits: list[sa.ColumnElement[bool]] = []
    if query.tools:
        is_sqlite = connection.dialect.name == "sqlite"
        fits.append(sa.or_(*(_pattern(pattern, is_sqlite=is_sqlite) for pattern in query.tools)))
    for name, wanted in (("source", query.source), ("agent", query.agent), ("session_key", query.session)):
        if wanted is not None:
            fits.append(column[name] == text(wanted))
    if query.turn is not None:
        fits.append(sa.or_(column.turn == text(query.turn), column.parent_turn == text(query.turn)))
    if query.errors:
        fits.append(column.is_error)
    if query.denied:
        fits.append(column.code.in_(DENIED))
    return fits


def _within(query: AuditQuery) -> list[sa.ColumnElement[bool]]:
    """Return what must hold of any row."""
    column = audit.c
    bounds = (
        (query.since, column.time.__ge__),
        (query.until, column.time.__lt__),
        (query.before, column.id.__lt__),
        (query.after, column.id.__gt__),
    )
    return [fits(bound) for bound, fits in bounds if bound is not None]


def _pattern(pattern: str, *, is_sqlite: bool) -> sa.ColumnElement[bool]:
    """``*`` is any characters, ``?`` any one; capitals count, also where the database's LIKE has none."""
    pattern = text(pattern)
    if not any(each in pattern for each in "*?"):
        return audit.c.tool == pattern
    if is_sqlite:
        return audit.c.tool.op("GLOB", is_comparison=True)(pattern.replace("[", "[[]"))
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return audit.c.tool.like(escaped.replace("*", "%").replace("?", "_"), escape="\\")


def _entry(row: Mapping[Any, Any]) -> AuditEntry:
    members = dict(row)
    members["decisions"] = tuple(AuditDecision(*each) for each in json.loads(members["decisions"]))
    return AuditEntry(**members)
