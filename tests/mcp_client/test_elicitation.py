"""Questions of servers to the user: a person answers them as a request for approval, in both eras."""

from __future__ import annotations

import asyncio
import json

import pytest
from mcp_types import ElicitRequestFormParams

from executor.virtual_time import ManualClockLoop, later
from patchbay.approvals import ApprovalService, parse_policy
from patchbay.approvals.request import Answer
from patchbay.executor import Executor
from patchbay.hooks import HookManager, HookScope
from patchbay.mcp.elicitation import ask_person
from patchbay.types import ToolCall

from .rig import mounted, raw_server, sdk_server

BOUND = 90.0


class Person:
    """Someone at the terminal, who gives one answer, and is as slow as ``wait`` says."""

    def __init__(self, answer, wait=None) -> None:
        self.answer = answer
        self.wait = wait
        self.requests = []

    async def ask(self, request):
        self.requests.append(request)
        if self.wait is not None:
            await self.wait()
        return self.answer


async def ask(there, person, *, policy=None, **arguments):
    hooks = HookManager()
    service = ApprovalService(policy, terminal=person)
    if policy is not None:
        service.mount(hooks)
    else:
        service.stand_by(hooks)
    (name,) = (each for each in there.tools if each.endswith("__ask"))
    tool = there.registry.snapshot("default").tools[name]
    executor = Executor([tool], hooks=hooks)
    try:
        batch = executor.begin_run(scope=HookScope("default", "turn-1")).start_batch(
            [ToolCall("c1", name, json.dumps(arguments))]
        )
        try:
            execution = await anext(batch)
        finally:
            await batch.stop()
        return json.loads(execution.content) if execution.error is None else execution
    finally:
        await service.aclose()
        await hooks.aclose()


@pytest.mark.parametrize("server", [sdk_server, raw_server], ids=["in a second round", "in a request of the server"])
async def test_a_person_answers_a_form_or_a_link_or_declines(server):
    async with mounted(server(name="shop")) as there:
        person = Person(Answer("approve", by="ann", arguments={"size": "M"}))
        assert {"action": "accept", "content": {"size": "M"}} == await ask(there, person)
        (request,) = person.requests
        assert ("mcp__shop__ask.question", "mcp:shop", "Which size?") == (request.tool, request.source, request.facts["message"])
        assert (["size"], True) == (request.parameters["required"], "the MCP server 'shop' asks: Which size?" in request.why)

        assert {"action": "decline"} == await ask(there, Person(Answer("deny")))
        assert {"action": "cancel"} == await ask(there, Person(Answer("approve")))  # and left the form empty

        person = Person(Answer("approve"))
        allows_all = parse_policy({"default": "allow"})  # the tools' calls, and not a person's answers
        assert {"action": "accept"} == await ask(there, person, policy=allows_all, url=True)
        assert "https://x.example/pay" == person.requests[0].facts["url"]


def test_the_time_limit_of_a_call_pauses_while_a_person_thinks():
    async def call() -> str:
        async with asyncio.timeout(BOUND), mounted(raw_server(timeout=BOUND / 3)) as there:
            slow = Person(Answer("approve", arguments={"size": "S"}), lambda: later(BOUND / 2))
            return (await ask(there, slow))["action"]

    with asyncio.Runner(loop_factory=ManualClockLoop) as runner:
        assert "accept" == runner.run(call())


async def test_a_question_that_no_person_answers_in_time_is_cancelled():
    rule = {"tools": ["mcp__raw__ask.question"], "outcome": "ask", "deadline": 0.2}
    async with mounted(raw_server()) as there:
        silent = Person(Answer("approve"), asyncio.Event().wait)
        policy = parse_policy({"default": "allow", "rules": [rule]})
        assert {"action": "cancel"} == await ask(there, silent, policy=policy)


async def test_elicitation_is_cancelled_without_a_person(http_server):
    async with mounted(raw_server(), http_server) as there:
        assert {"action": "cancel"} == json.loads((await there.call("mcp__raw__ask")).content)
        assert {"action": "cancel"} == json.loads((await there.call("mcp__sdk__ask")).content)
    params = ElicitRequestFormParams(message="?", requested_schema={"type": "object", "properties": {}})
    assert "cancel" == (await ask_person(raw_server(), params)).action


async def test_elicitation_is_offered_to_servers_and_sampling_is_not():
    async with mounted(raw_server()) as there:
        offered = json.loads((await there.call("mcp__raw__env")).content)["client"]
        assert ("elicitation" in offered, "sampling" in offered) == (True, False)
