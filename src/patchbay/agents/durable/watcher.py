"""A thread that looks after the durable runs of a process, and after those that no process carries out."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from patchbay.agents.durable.servers import BEAT, Servers
from patchbay.agents.durable.steps import RunSteps
from patchbay.database import reason_of

WORKFLOW: Final = "patchbay.run"
"""The name of DBOS's workflow."""

_WATCH: Final = 1.0
"""Seconds between two looks at runs that are not this process's any more."""

_PRUNE: Final = 3600.0
_PRUNED: Final = 1000
"""Seconds between two deletions of old runs, and the most that one deletes."""

_logger = logging.getLogger(__name__)


class Watcher:
    """The thread of the process ``own_id``, whose runs are ``active``: not in its event loop, so that a busy one loses no runs.

    Where ``carries_out`` it also frees the runs of processes that are gone, and deletes those that ended ``keep_days`` ago.
    """

    def __init__(
        self, servers: Servers, active: Mapping[str, RunSteps], own_id: str, *, carries_out: bool, keep_days: float
    ) -> None:
        self._servers = servers
        self._active = active
        self._own_id = own_id
        self._carries_out = carries_out
        self._keep_days = keep_days
        self._dbos: Any = None
        self._idle: set[str] = set()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, dbos: Any) -> None:
        """Start the thread, for the runs of the running event loop. ``dbos`` is the instance of DBOS."""
        self._dbos = dbos
        self._stopped.clear()
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._watch, args=(loop,), name="patchbay-durable", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for its end."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        next_beat = next_prune = time.monotonic()
        problem = ""
        while not self._stopped.is_set():
            now = time.monotonic()
            try:
                if now >= next_beat:
                    next_beat = now + BEAT
                    if not self._servers.beat(deletes=self._carries_out):
                        _logger.warning("This process was not seen for too long, and others may have its runs: it stops them")
                        loop.call_soon_threadsafe(self._lose, None)
                    if self._carries_out:
                        self._free_runs()
                    problem = ""
                if self._active:
                    self._find_lost(loop)
                if self._carries_out and self._keep_days and now >= next_prune:
                    next_prune = now + _PRUNE
                    if self._prune():
                        next_prune = now
            except Exception as error:  # noqa: BLE001  (the database is away: the next time)
                if not problem:
                    problem = reason_of(error)
                    _logger.warning("The durable runs cannot be watched, which is tried again: %s", problem)
            self._stopped.wait(_WATCH)

    def _free_runs(self) -> None:
        """Put runs back into their queues: those of processes without a row, and those that this one took and does not carry out.

        Doing so twice, or in two processes at once, does no harm.
        """
        from dbos import DBOS

        # Listed before the rows are read: a process has a row before it takes a run.
        pending = DBOS.list_workflows(status="PENDING", name=WORKFLOW, load_input=False, load_output=False)
        living = self._servers.living()
        idle = {each.workflow_id for each in pending if each.executor_id == self._own_id} - self._active.keys()
        for each in pending:
            if each.executor_id not in living or each.workflow_id in idle & self._idle:
                database = self._dbos._sys_db  # noqa: SLF001  (DBOS has no public way to recover one run)
                database.reenqueue_for_recovery(each.workflow_id, [each.executor_id], each.queue_name)
        self._idle = idle  # seen twice: not one that was taken just now

    def _find_lost(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop the runs that were cancelled, or taken by another process."""
        from dbos import DBOS

        ids = list(self._active)
        listed = DBOS.list_workflows(workflow_ids=ids, load_input=False, load_output=False)
        own = {each.workflow_id for each in listed if each.status in ("PENDING", "SUCCESS") and each.executor_id == self._own_id}
        if lost := set(ids) - own:
            loop.call_soon_threadsafe(self._lose, lost)

    def _lose(self, ids: set[str] | None) -> None:
        for run_id, steps in list(self._active.items()):
            if ids is None or run_id in ids:
                steps.is_lost = True
                steps.task.cancel()

    def _prune(self) -> bool:
        """Delete runs that ended too long ago, as other processes may at the same time. Returns whether there may be more."""
        from dbos import DBOS

        before = (datetime.now(UTC) - timedelta(days=self._keep_days)).isoformat()
        old = DBOS.list_workflows(name=WORKFLOW, completed_before=before, limit=_PRUNED, load_input=False, load_output=False)
        if old:
            DBOS.delete_workflows([each.workflow_id for each in old])
        return len(old) == _PRUNED
