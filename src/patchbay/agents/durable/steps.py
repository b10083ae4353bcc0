"""The steps of one durable run: answers of models and results of tools, each with a name that is the same in every attempt."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, NoReturn

import msgspec
from sqlalchemy.exc import DBAPIError

from patchbay.agents.content import Event, new_id
from patchbay.agents.run_config import RunFailed, as_run_failed
from patchbay.executor import ToolExecution
from patchbay.executor.call_log import InterruptedCallError, decode_execution, encode_execution, may_run_twice
from patchbay.loop.events import IncompleteAnswerError
from patchbay.models.chat_model import ChatModel, ChatRequest, ModelEvent, ModelReply
from patchbay.tools import Tool
from patchbay.tools.tool import normalized_annotations
from patchbay.types import ToolCall

EVENTS: Final = "events"
"""The step that records the events of the whole run, before they are appended to its session."""


_AGAIN: Final = " again"


def base_name(name: str) -> str:
    """Return the name of a step without what was added where its outcome could not be recorded. No agent's name has a blank."""
    while name.endswith(_AGAIN):
        name = name.removesuffix(_AGAIN)
    return name


def step_id(name: str) -> int:
    """Return DBOS's number of the step ``name``: 31 bits of a hash. Its own counter depends on the order of parallel steps."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).digest()) >> 1


class RunSteps:
    """The steps of the run ``run_id`` in this attempt, for the task that created this object.

    ``events``: of this attempt. ``stopping``: no further step begins. ``is_lost``: the run is not this process's any more.
    ``failure`` is why it fails. The task is cancelled with each of them.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.attempt = new_id()
        self.events: list[Event] = []
        self.stopping = False
        self.is_lost = False
        self.failure: Exception | None = None
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self._uses: dict[str, int] = {}

    def of_agent(self, name: str, invocation_id: str, branch: str | None) -> AgentSteps:
        """Return the steps of one turn of an agent: the first, second, ... of this agent in its branch."""
        outer = invocation_id.removeprefix(self.run_id).lstrip(".")  # the calls of agents as tools
        path = "/".join(filter(None, (outer, branch, name)))
        number = self._uses[path] = self._uses.get(path, 0) + 1
        return AgentSteps(self, f"{path}#{number}")

    async def step(self, name: str, work: Callable[[], Awaitable[str]]) -> str:
        """Return the recorded result of the step ``name``; without one, that of ``work()``, once it is recorded."""
        from dbos import DBOS, PortableWorkflowError
        from dbos import error as errors

        if DBOS.step_id is not None:
            return await work()  # a part of another step, as where a hook has sent a call to an agent
        if self.stopping:
            await self._end()
        try:
            return await self._record(name, work)
        except errors.DBOSWorkflowConflictIDError:
            self.is_lost = True
        except DBAPIError:
            pass  # the run goes on when its database is back
        except PortableWorkflowError:  # DBOS could not record the outcome, and recorded that error in its place
            return await self.step(name + _AGAIN, work)
        except Exception as error:  # noqa: BLE001  (the work raises none: it is not the step that was recorded)
            self.failure = error
        return await self._end()

    async def _record(self, name: str, work: Callable[[], Awaitable[str]]) -> str:
        from dbos import DBOS

        reservation = DBOS.reserve_step()
        reservation._step_ctx.function_id = step_id(name)  # noqa: SLF001  (it has no public way to name a step)

        async def recorded() -> str:
            return await work()

        return await reservation.run_async({"name": name}, recorded)

    async def _end(self) -> NoReturn:
        """Cancel the run's task, and the step that the current task has come to."""
        self.task.cancel()
        await asyncio.sleep(0)  # the cancellation arrives here, if this is the run's task, and not in a ``finally``
        raise asyncio.CancelledError


class AgentSteps:
    """The steps of one turn of an agent: rounds of its model, and calls (a CallLog)."""

    def __init__(self, steps: RunSteps, name: str) -> None:
        self._steps = steps
        self._name = name
        self._rounds = self._replies = 0

    def model(self, model: ChatModel) -> ChatModel:
        """Return ``model`` with recorded answers."""
        return _RecordedModel(self, model)

    async def round(self, ask: Callable[[str], Awaitable[str]]) -> str:
        """Return the recorded answer of the model's next round; ``ask`` gets its name."""
        self._rounds += 1
        name = f"{self._name} round {self._rounds}"
        return await self._steps.step(name, lambda: ask(f"{self._steps.run_id}\n{name}"))

    def next_reply(self) -> int:
        """Return the number of the reply whose calls are run now."""
        self._replies += 1
        return self._replies

    async def settle(self, reply: int, place: int, call: ToolCall, run: Callable[[], Awaitable[ToolExecution]]) -> ToolExecution:
        """Return the recorded outcome of a call; without one, that of ``run()``, once it is recorded."""
        context = contextvars.copy_context()  # outside of the step, for the one of ``begin``

        async def work() -> str:
            token = _OUTSIDE.set(context)
            try:
                return encode_execution(await run())
            finally:
                _OUTSIDE.reset(token)

        return decode_execution(call, await self._steps.step(f"{self._name} call {reply}.{place}", work))

    async def begin(self, reply: int, place: int, tool: Tool) -> None:
        """Record that the tool begins. Raises InterruptedCallError if it did in another attempt, and may not run twice."""
        if may_run_twice(normalized_annotations(tool.annotations)):
            return
        attempt = self._steps.attempt

        async def work() -> str:
            return attempt

        step = self._steps.step(f"{self._name} call {reply}.{place} began", work)
        if await asyncio.create_task(step, context=_OUTSIDE.get()) != attempt:
            raise InterruptedCallError(tool.name)


_OUTSIDE: contextvars.ContextVar[contextvars.Context] = contextvars.ContextVar("outside of the step of a call")


class _RecordedModel:
    """A model whose answers are steps. Its calls get ids by their place, which are the same in every attempt."""

    def __init__(self, steps: AgentSteps, model: ChatModel) -> None:
        self._steps = steps
        self._model = model

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Yield the whole answer. Raises RunFailed."""

        async def ask(name: str) -> str:
            try:
                end = await self._ask(replace(request, stream=False))
            except Exception as error:  # noqa: BLE001  (a failure is recorded as an answer is)
                failure = as_run_failed(error)
                return json.dumps({"code": failure.code, "message": str(failure)})
            calls = [replace(call, id=_call_id(name, place)) for place, call in enumerate(end.reply.tool_calls)]
            end = replace(end, reply=replace(end.reply, tool_calls=tuple(calls)))
            return json.dumps({"answer": msgspec.to_builtins(end)})

        recorded: dict[str, Any] = json.loads(await self._steps.round(ask))
        if "answer" not in recorded:
            raise RunFailed(recorded["code"], recorded["message"])
        yield msgspec.convert(recorded["answer"], ModelReply)

    async def _ask(self, request: ChatRequest) -> ModelReply:
        responses = self._model.respond(request)
        try:
            async for event in responses:
                if isinstance(event, ModelReply):
                    return event
        finally:
            if (close := getattr(responses, "aclose", None)) is not None:
                await close()
        raise IncompleteAnswerError


def _call_id(name: str, place: int) -> str:
    return f"call_{hashlib.sha256(f'{name} {place}'.encode()).hexdigest()[:24]}"
