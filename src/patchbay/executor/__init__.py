"""The executor of all tool calls: find, check, run under a deadline, settle, record.

Every call ends as one ToolExecution, whose error tells a model what to do next (law 2). A failing call never loses its siblings,
and each is recorded the moment it settles (laws 1, 3).
"""

from __future__ import annotations

from patchbay.executor.batch import Batch, ToolProgress
from patchbay.executor.executor import CANCEL_GRACE, MAX_REPEATS, MAX_RESULT_CHARS, Executor, Run
from patchbay.executor.limits import Budget
from patchbay.executor.results import ToolExecution

__all__ = [
    "CANCEL_GRACE",
    "MAX_REPEATS",
    "MAX_RESULT_CHARS",
    "Batch",
    "Budget",
    "Executor",
    "Run",
    "ToolExecution",
    "ToolProgress",
]
