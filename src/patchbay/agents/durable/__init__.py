"""Durable runs of agents: each model answer and tool result is recorded once, by DBOS Transact, in SQLite or PostgreSQL."""

from patchbay.agents.durable.runs import DurableRuns as DurableRuns

__all__ = ["DurableRuns"]
