"""The one door that every tool call goes through: find, check, run under a deadline, settle, record.

Whatever happens to a call it ends as one ToolExecution, and its error is one that a model can act on (law 2); a failing call
never loses its siblings, and each is recorded the moment it settles (laws 1, 3). What a tool is lives in ``patchbay.tools``;
when a model is asked again lives in ``patchbay.loop``.
"""

from __future__ import annotations

from patchbay.executor.batch import Batch, ToolProgress
from patchbay.executor.executor import CANCEL_GRACE, MAX_REPEATS, MAX_RESULT_CHARS, Executor
from patchbay.executor.limits import Budget
from patchbay.executor.results import ToolExecution
from patchbay.executor.run import Run

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
