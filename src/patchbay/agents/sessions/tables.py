"""The tables of a database's sessions.

The log is the truth; the state's rows are what its deltas have come to, one row per key, changed in the transaction that appends
the event. Bodies and values are JSON text, and so are state keys: PostgreSQL's text cannot hold every string that JSON can.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, LargeBinary, MetaData, Table, Text, UniqueConstraint

VERSION: Final = 1

metadata = MetaData()

sessions = Table(
    "patchbay_sessions",
    metadata,
    Column("pk", Integer, primary_key=True, autoincrement=True),
    Column("app_name", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("agent_name", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("last_agent", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("last_seq", Integer, nullable=False),  # whoever counts it up has the row, and so the next place in the log
    UniqueConstraint("app_name", "user_id", "id", name="uq_patchbay_sessions"),
    Index("ix_patchbay_sessions_updated", "app_name", "user_id", "updated_at"),
    sqlite_autoincrement=True,  # a deleted session's number is not given to another one
)

events = Table(
    "patchbay_events",
    metadata,
    Column("session_pk", Integer, ForeignKey(sessions.c.pk, ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("event_id", Text, nullable=False),
    Column("body", Text, nullable=False),
    UniqueConstraint("session_pk", "event_id", name="uq_patchbay_events"),  # an event is kept once
)

session_state = Table(
    "patchbay_session_state",
    metadata,
    Column("session_pk", Integer, ForeignKey(sessions.c.pk, ondelete="CASCADE"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

shared_state = Table(
    "patchbay_shared_state",
    metadata,
    Column("app_name", Text, primary_key=True),
    Column("user_id", Text, primary_key=True),  # "" for the keys of the application; the keys' prefixes keep them apart
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

results = Table(
    "patchbay_results",
    metadata,
    Column("session_pk", Integer, ForeignKey(sessions.c.pk, ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("digest", LargeBinary, nullable=False),
    Column("size", Integer, nullable=False),  # in characters
    # UTF-8. Last: SQLite need not walk through it to the other columns.
    Column("text", LargeBinary, nullable=False),
    UniqueConstraint("session_pk", "digest", name="uq_patchbay_results"),  # a text is kept once
)
