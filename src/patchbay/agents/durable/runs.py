"""The durable runs of a process: a thin layer over DBOS Transact, which has the queues, the records of steps and the recovery."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec
from sqlalchemy.exc import DBAPIError

from patchbay.agents.content import Content, Event, new_id
from patchbay.agents.durable.servers import TABLES, Servers
from patchbay.agents.durable.sessions import RunSessions
from patchbay.agents.durable.steps import EVENTS, RunSteps, base_name
from patchbay.agents.durable.watcher import WORKFLOW, Watcher
from patchbay.agents.run_config import RunConfig
from patchbay.agents.sessions.base import check_names
from patchbay.agents.sessions.database import DatabaseSessionService
from patchbay.database import Database, reason_of
from patchbay.errors import ConfigurationError, InvalidRequestError, RunExistsError, RunNotFoundError
from patchbay.tools.threads import run_in_thread

if TYPE_CHECKING:
    from dbos import WorkflowStatus

    from patchbay.agents.runner import Runner

T = TypeVar("T")

DEFAULT_URL: Final = "sqlite:///patchbay-runs.db"
_VERSION: Final = "1"
"""Of the records of steps; a process only goes on with runs of its own version."""

_POLL: Final = 0.5
"""Seconds between two looks at the queues, and at what other processes record."""

_FOLLOW: Final = 0.05
"""Seconds between two looks at the events of a run of this process."""

_STATUS: Final[Mapping[str, str]] = {"ENQUEUED": "queued", "DELAYED": "queued", "PENDING": "running", "CANCELLED": "cancelled"}
_open: list[DurableRuns] = []


@dataclass(frozen=True, kw_only=True)
class DurableRun:
    """A run as it is now. ``status`` is "queued", "running", "completed", "failed" or "cancelled"; times are in seconds.

    ``text`` is the answer of one that is completed, ``error`` (``code``, ``message``) the reason of one that has failed, and
    ``attempts`` counts the processes that have carried it out.
    """

    id: str
    agent: str
    status: str
    session: str
    user: str
    created_at: float
    ended_at: float | None = None
    attempts: int = 0
    text: str | None = None
    error: dict[str, str] | None = None
    usage: dict[str, int] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it."""
        return self.status not in ("queued", "running")


class DurableRuns:
    """Runs of agents that survive their process, in the database ``url`` (SQLite or PostgreSQL), one open object per process.

    ``concurrency`` is the number of runs that each process carries out at a time, ``per_minute`` the most that all of them begin
    in a minute (None: no limit); the last process that starts sets both for all. ``carries_out``: whether this process takes runs
    from the queues, or only adds them. ``drain_timeout``: seconds that the steps under way have when it is closed. The records of
    runs that ended ``keep_days`` ago are deleted (0: kept), but not their sessions; an id of one would begin a new run then.

    Needs ``patchbay-tools[durable]``; raises ConfigurationError without it, and for a database that cannot be used. Runs of one
    session are sequential, in the order in which they were added.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        concurrency: int = 10,
        per_minute: int | None = None,
        carries_out: bool = True,
        drain_timeout: float = 5.0,
        keep_days: float = 90.0,
    ) -> None:
        for name, number in (("concurrency", concurrency), ("per_minute", per_minute)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise ConfigurationError(f"{name} must be a whole number of at least 1, not {number!r}.")
        self.id = new_id()
        self.address = f"{socket.gethostname()}:{os.getpid()}"
        self.sessions = DatabaseSessionService(url)
        self._database = Database(url, TABLES)
        self._servers = Servers(self._database, self.id, self.address)
        self.on_change: Callable[[str, str], object] = lambda _run_id, _change: None
        """Called with the id of a run of this process, and "begun", "ended", "lost" or "given back"."""
        self._limits = concurrency, per_minute
        self._carries_out = carries_out
        self._drain_timeout = drain_timeout
        self._runners: dict[str, Runner] = {}
        self._active: dict[str, RunSteps] = {}
        self._workflow: Any = None
        self._watcher = Watcher(self._servers, self._active, self.id, carries_out=carries_out, keep_days=keep_days)
        self._starting = asyncio.Lock()
        self._stopping_since: float | None = None
        self._halted = asyncio.Event()

    @property
    def display_url(self) -> str:
        """The database's URL, without a password."""
        return self._database.display_url

    @property
    def agents(self) -> list[str]:
        """The names of the agents."""
        return list(self._runners)

    def add(self, runner: Runner) -> None:
        """Add the agent of ``runner``, before the start. Raises ConfigurationError for two agents of one name."""
        name = runner.agent.name
        if name in self._runners:
            raise ConfigurationError(f"There are two durable agents with the name {name!r}.")
        if self._workflow is not None:
            raise ConfigurationError(f"The agent {name!r} must be added before the durable runs start.")
        self._runners[name] = runner

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Open the database, and take runs from the queues. Does nothing the second time. Raises ConfigurationError."""
        async with self._starting:
            if self._workflow is not None:
                return
            if _open:
                raise ConfigurationError("A process has one DurableRuns at a time: close the other one first, or use it.")
            try:
                import dbos
            except ImportError as error:
                raise ConfigurationError("Durable runs need another package: pip install 'patchbay-tools[durable]'.") from error
            await run_in_thread(self._servers.beat)  # creates the table, and is there before the first run is taken
            _open.append(self)
            try:
                self._launch(dbos)
                await run_in_thread(self._register_queues)
            except Exception as error:
                await self.aclose()
                raise ConfigurationError(f"Durable runs cannot use {self.display_url}: {reason_of(error)}") from error

    def _launch(self, dbos: Any) -> None:
        log = logging.getLogger("dbos")
        if not log.handlers:
            log.addHandler(logging.NullHandler())  # else DBOS writes to stderr by itself
        url = self._database.url.set(drivername="postgresql" if self._database.is_postgres else "sqlite")
        database = dbos.DBOS(
            config={
                "name": "patchbay",
                "system_database_url": url.render_as_string(hide_password=False),
                "application_version": _VERSION,
                "executor_id": self.id,
                "log_level": "ERROR",
                "serializer": dbos.DBOSPortableJSONSerializer(),
            }
        )

        async def carry_out(text: str) -> str:
            return await self._carry_out(text)

        self._workflow = dbos.DBOS.workflow(name=WORKFLOW)(carry_out)
        dbos.DBOS.listen_queues([_queue(name) for name in self._runners] if self._carries_out else [])
        dbos.DBOS.launch()
        self._stopping_since = None
        self._halted.clear()
        self._watcher.start(database)

    def _register_queues(self) -> None:
        from dbos import DBOS

        concurrency, per_minute = self._limits
        limiter: Any = {"limit": per_minute, "period": 60.0} if per_minute is not None else None
        for name in self._runners:
            DBOS.register_queue(
                _queue(name),
                worker_concurrency=concurrency,
                partition_concurrency=1,  # a partition is a session
                limiter=limiter,
                polling_interval_sec=_POLL,
            )

    def stop(self) -> None:
        """Begin no further run and step, and end ``steps()``; ``aclose`` is to follow within the drain timeout."""
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
        for steps in self._active.values():
            steps.stopping = True

    async def aclose(self) -> None:
        """Stop. Runs end after the step under way, within the drain timeout; other processes go on with them."""
        if self not in _open:
            return
        from dbos import DBOS

        self.stop()
        assert self._stopping_since is not None
        if tasks := [steps.task for steps in self._active.values()]:
            await asyncio.wait(tasks, timeout=max(0.0, self._stopping_since + self._drain_timeout - time.monotonic()))
        self.stop_now()
        await run_in_thread(self._watcher.stop)
        await run_in_thread(lambda: DBOS.destroy(destroy_registry=True))
        asyncio.get_running_loop().set_default_executor(_executor())  # DBOS had put in its own, which is closed
        self._workflow = None
        _open.remove(self)
        with suppress(Exception):  # without it the row is old in ten seconds
            await run_in_thread(self._servers.leave)
        await self._database.close()
        await self.sessions.close()

    def stop_now(self) -> None:
        """Stop the runs of this process within their steps."""
        self._halted.set()
        for steps in self._active.values():
            steps.task.cancel()

    # What clients do

    async def submit(
        self,
        agent: str,
        message: str | Content,
        *,
        run_id: str | None = None,
        session: str | None = None,
        user: str = "user",
        config: RunConfig | None = None,
    ) -> DurableRun:
        """Add a run, and return it. With the id of one that exists nothing is added; ``session`` is by default one of its own.

        Raises InvalidRequestError, and RunExistsError for an id that another message has.
        """
        run_id = new_id() if run_id is None else run_id
        session = run_id if session is None else session
        check_names(agent, user, session, run_id)
        if agent not in self._runners:
            raise InvalidRequestError(f"There is no durable agent {agent!r}.")
        content = Content("user", [{"text": message}]) if isinstance(message, str) else message  # type: ignore[list-item]
        request = {"agent": agent, "user": user, "session": session, "content": msgspec.to_builtins(content)}
        request["config"] = _config_as_json(config or RunConfig())
        text = json.dumps(request, sort_keys=True)
        await self.start()

        def add() -> None:
            from dbos import DBOS, SetEnqueueOptions, SetWorkflowID

            with SetWorkflowID(run_id), SetEnqueueOptions(queue_partition_key=json.dumps([user, session])):
                DBOS.enqueue_workflow(_queue(agent), self._workflow, text)

        adding = asyncio.ensure_future(run_in_thread(add))
        try:
            await asyncio.shield(adding)
        except asyncio.CancelledError:
            await asyncio.wait((adding,))  # then it can be found, and cancelled
            raise
        found = await self._find(run_id)
        if found is None or _request_of(found) != request:
            raise RunExistsError(run_id)
        return _as_run(found)

    async def get(self, run_id: str) -> DurableRun:
        """Return a run. Raises RunNotFoundError."""
        await self.start()
        if (found := await self._find(run_id)) is None:
            raise RunNotFoundError(run_id)
        return _as_run(found)

    async def cancel(self, run_id: str) -> DurableRun:
        """Cancel a run, and return it. One that is over stays as it is. Raises RunNotFoundError."""
        from dbos import DBOS

        if not (await self.get(run_id)).is_over:
            await run_in_thread(lambda: DBOS.cancel_workflow(run_id))
        return await self.get(run_id)

    async def wait(self, run_id: str) -> DurableRun:
        """Return a run once it is over. Raises RunNotFoundError."""
        while True:  # its end may be written by another process
            with suppress(DBAPIError):  # the database is away
                if (run := await self.get(run_id)).is_over:
                    return run
            await asyncio.sleep(_POLL)

    async def steps(self, run_id: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the recorded steps of a run, from its first to its last, as they are recorded. Raises RunNotFoundError.

        They end with the run, and when this process stops. Each has ``id``, ``step`` (its name), ``kind`` ("model",
        "tool_begins" or "tool") and ``output``.
        """
        from dbos import DBOS

        seen: set[int] = set()
        while self._stopping_since is None:
            with suppress(DBAPIError):  # the database is away
                run = await self.get(run_id)
                recorded = await run_in_thread(lambda: DBOS.list_workflow_steps(run_id))
                for each in sorted(recorded, key=lambda step: step["completed_at_epoch_ms"] or 0):
                    name = base_name(each["function_name"])
                    if each["function_id"] not in seen and name != EVENTS and each["error"] is None:
                        seen.add(each["function_id"])
                        kind = "model" if " round " in name else "tool_begins" if name.endswith(" began") else "tool"
                        output = None if kind == "tool_begins" else json.loads(each["output"] or "null")
                        yield {"id": each["function_id"], "step": name, "kind": kind, "output": output}
                if run.is_over:
                    return
            await asyncio.sleep(_POLL)

    async def events(self, run_id: str) -> AsyncGenerator[Event, None]:
        """Yield all events of a run, as they happen; of one that another process carries out, when it is over."""
        from dbos import DBOS

        count = 0
        ending = asyncio.create_task(self.wait(run_id))
        try:
            while not ending.done():
                steps = self._active.get(run_id)
                for event in steps.events[count:] if steps is not None else ():
                    count += 1
                    yield event
                await asyncio.wait((ending,), timeout=_FOLLOW)
            ending.result()
        finally:
            ending.cancel()
        for step in await run_in_thread(lambda: DBOS.list_workflow_steps(run_id)):
            if base_name(step["function_name"]) == EVENTS and step["error"] is None:
                events = [msgspec.convert(body, Event) for body in json.loads(step["output"] or "{}")["events"]]
                for event in [each for each in events if each.author != "user"][count:]:
                    yield event

    async def _find(self, run_id: str) -> WorkflowStatus | None:
        from dbos import DBOS

        found = await run_in_thread(lambda: DBOS.list_workflows(workflow_ids=[run_id], name=WORKFLOW))
        return found[0] if found else None

    # What a process does with the runs that it has taken

    async def _carry_out(self, text: str) -> str:
        """Carry out a run to its end: DBOS's workflow. What was recorded by another process is not done again."""
        from dbos import DBOS

        request = json.loads(text)
        run_id = str(DBOS.workflow_id)
        if self._stopping_since is not None:
            await self._halted.wait()  # in its place of the queue, which would take the next one otherwise
            raise asyncio.CancelledError
        steps = self._active[run_id] = RunSteps(run_id)
        self.on_change(run_id, "begun")
        change = "ended"
        try:
            return await self._run(steps, request)
        except asyncio.CancelledError:
            if steps.failure is not None:
                steps.task.uncancel()
                raise steps.failure from None
            change = "lost" if steps.is_lost else "given back"
            raise  # nothing is recorded: another attempt goes on
        except DBAPIError as error:  # of its session
            change = "given back"
            raise asyncio.CancelledError from error
        finally:
            self.on_change(run_id, change)
            if self._active.get(run_id) is steps:
                del self._active[run_id]

    async def _run(self, steps: RunSteps, request: dict[str, Any]) -> str:
        runner, user, session = self._runners[request["agent"]], request["user"], request["session"]
        content = msgspec.convert(request["content"], Content)
        sessions = await RunSessions.of_run(
            runner.session_service,
            app_name=runner.app_name,
            user_id=user,
            session_id=session,
            agent=runner.agent.name,
            title=runner.title_of(content),
            run_id=steps.run_id,
        )

        error: dict[str, str] | None = None
        run = runner.with_steps(steps, sessions).run(user, session, content, _config_from_json(request["config"]))
        async for event in run:
            if not event.partial:
                steps.events.append(event)
            if event.error_code is not None and not event.partial:
                error = {"code": event.error_code, "message": event.error_message or ""}
            elif event.is_final_response():
                error = None

        async def outcome() -> str:
            result = {"text": run.text if error is None else None, "error": error, "usage": run.usage.counts()}
            return json.dumps({"result": result, "events": [msgspec.to_builtins(each) for each in sessions.new_events()]})

        done = json.loads(await steps.step(EVENTS, outcome))
        await sessions.append_to_stored([msgspec.convert(body, Event) for body in done["events"]])
        return json.dumps(done["result"])


def _queue(agent: str) -> str:
    return f"patchbay:{agent}"


def _executor() -> Any:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor()


def _config_as_json(config: RunConfig) -> dict[str, Any]:
    try:
        return {each.name: json.loads(json.dumps(getattr(config, each.name))) for each in fields(config)}
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"The context of a durable run must be JSON: {error}") from error


def _config_from_json(members: dict[str, Any]) -> RunConfig:
    return replace(RunConfig(**members), streaming=False)  # what is recorded are whole answers


def _request_of(found: WorkflowStatus) -> dict[str, Any]:
    given: dict[str, Any] = dict(found.input or {})
    request: dict[str, Any] = json.loads(given["args"][0])
    return request


def _as_run(found: WorkflowStatus) -> DurableRun:
    request = _request_of(found)
    result: dict[str, Any] = json.loads(found.output) if found.output else {}
    status = _STATUS.get(found.status, "completed" if result and result["error"] is None else "failed")
    if status == "failed" and not result:
        result = {"error": {"code": found.status, "message": str(found.error or "It was begun too often.")}}
    return DurableRun(
        id=found.workflow_id,
        agent=request["agent"],
        status=status,
        session=request["session"],
        user=request["user"],
        created_at=(found.created_at or 0) / 1000,
        ended_at=found.completed_at / 1000 if found.completed_at is not None else None,
        attempts=found.recovery_attempts or 0,
        **result,
    )
