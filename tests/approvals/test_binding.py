"""Exactly the approved call runs (law 9, P15), whatever a model, a hook, the tool or another process does meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pydantic import BaseModel

from patchbay.approvals import ApprovalService
from patchbay.approvals.request import MAX_ARGUMENTS
from patchbay.errors import ApprovalConflictError
from patchbay.executor import Executor, ToolExecution
from patchbay.hooks import HookManager, Modify
from patchbay.hooks.events import digest_of
from patchbay.tools import FunctionTool, Tool
from patchbay.types import ToolCall
from support.running import run
from support.tables import rows

from .approval_calls import SCOPE, ask, call_of, running_calls, service_at, stop, waiting


class RecordingTool(Tool):
    """A tool that records its arguments and their text, as a tool of another process receives them."""

    def __init__(self, name: str = "delete") -> None:
        super().__init__(name, parameters={"type": "object"})
        self.heard: list[tuple[str, str]] = []

    async def run(self, arguments, context):
        self.heard.append((json.dumps(arguments), context.raw_arguments))
        arguments.clear()  # it may change its own copy
        return "done"


def executor_with(service: ApprovalService, tool: Tool, *hooks: object, **options) -> Executor:
    manager = HookManager()
    for number, hook in enumerate(hooks):
        manager.mount(f"hook{number}", hook)
    service.mount(manager)
    return Executor([tool], hooks=manager, max_repeats=None, **options)


async def run_approved(service: ApprovalService, executor: Executor, raw: str) -> tuple[str, ToolExecution]:
    """Make a call and approve it; return the arguments of the request, and the execution."""
    task, request = await ask(service, ToolCall("1", "delete", raw), executor=executor)
    assert digest_of("delete", json.loads(request.arguments)) == request.digest
    await service.decide(request.id, "approve", digest=request.digest)
    return request.arguments, (await task)[0]


@pytest.mark.parametrize(("raw", "shown"), [*rows(__file__, "spellings.jsonl"), (f'{{"n": {10**300}}}', f'{{"n": {10**300}}}')])
async def test_tool_receives_the_arguments_in_the_approved_spelling(raw, shown):
    tool = RecordingTool()
    async with service_at() as service:
        seen, _ = await run_approved(service, executor_with(service, tool), raw)
        [(arguments, text)] = tool.heard
    assert (shown, shown, shown) == (seen, arguments, text)


def test_calls_that_are_spelled_otherwise_are_one_and_numbers_of_other_types_are_not():
    same = ['{"a": 1, "b": 2}', '{"b":2,"a":1}', '{"a": 9, "b": 2, "a": 1}']
    others = [
        '{"a": 1}',
        '{"a": 1.0}',
        '{"a": true}',
        '{"a": "1"}',
        '{"a": -1}',
        '{"a": 0.0}',
        '{"a": -0.0}',
        '{"a": null}',
        "{}",
    ]
    others += ['{"a": "\\u00e9"}', '{"a": "e\\u0301"}', '{"a": "\\ud800"}', '{"a": "\\ud801"}', '{"a": [1]}', '{"a": {"1": 1}}']
    assert 1 == len({digest_of("delete", json.loads(each)) for each in same})
    assert len(others) == len({digest_of("delete", json.loads(each)) for each in others})
    assert digest_of("delete", {}) != digest_of("Delete", {}) != digest_of("delete\n", {})


def test_tool_receives_only_the_arguments_changed_by_the_hook():
    """The text that the model wrote is not what was approved."""

    class Mended:
        async def before_tool(self, call):
            return Modify({"arguments": {"path": "/mended"}})

    async def main():
        tool = RecordingTool()
        async with service_at() as service:
            seen, _ = await run_approved(service, executor_with(service, tool, Mended()), '{"path": "/etc"}')
            return seen, tool.heard

    mended = '{"path": "/mended"}'
    assert (mended, [(mended, mended)]) == run(main())


async def test_tool_replaced_during_the_decision_does_not_run():
    first, second = RecordingTool(), RecordingTool()
    async with service_at() as service:
        executor = executor_with(service, first)
        batch_run = executor.begin_run(scope=SCOPE)
        batch = batch_run.start_batch([call_of()])
        [request] = await waiting(service)
        batch_run.set_tools({"delete": second})
        await service.decide(request.id, "approve")
        [_] = [each async for each in batch]
        await batch.stop()
        assert (1, 0) == (len(first.heard), len(second.heard))


class Order(BaseModel):
    amount: float


@pytest.mark.parametrize(("written", "shown"), [("inf", "Infinity"), ("-inf", "-Infinity"), ("nan", "NaN")])
async def test_non_json_number_is_shown_as_itself(written, shown):
    """A tool's own model may take it; null would be something else."""

    def delete(order: Order) -> str:
        return str(order.amount)

    async with service_at() as service:
        executor = executor_with(service, FunctionTool(delete))
        seen, execution = await run_approved(service, executor, json.dumps({"order": {"amount": written}}))
        assert ({"order": {"amount": shown}}, written) == (json.loads(seen), execution.content)


@pytest.mark.parametrize("change", [{"arguments": '{"path": "/tmp"}'}, {"tool": "show"}, {"arguments": "["}, {"arguments": "[]"}])
async def test_request_that_does_not_match_its_digest_is_not_decided(change):
    async with service_at() as service:
        task, request = await ask(service, call_of("/etc"), executor=executor_with(service, RecordingTool()))
        assert request.is_genuine
        get = service.store.get

        async def changed(request_id):
            return replace(await get(request_id), **change)

        service.store.get = changed
        with pytest.raises(ApprovalConflictError, match="not what the call would run with"):
            await service.decide(request.id, "approve")
        await stop(task)


async def test_arguments_of_any_length_are_shown_completely_or_denied():
    tool = RecordingTool()
    async with service_at() as service:
        executor = executor_with(service, tool)
        longest = json.dumps({"path": "x" * (MAX_ARGUMENTS - len('{"path": ""}'))})
        seen, _ = await run_approved(service, executor, longest)
        assert seen == longest
        [execution] = await running_calls(executor, ToolCall("1", "delete", json.dumps({"path": "x" * MAX_ARGUMENTS})))
        assert ("tool_denied", 1) == (execution.result.code, len(tool.heard))
