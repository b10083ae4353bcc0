"""Runner: sessions, locks, bus, history, and all ways to iterate over a run."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import textwrap

import pytest

from patchbay.agents import (
    AgentTool,
    Blob,
    Content,
    EventBus,
    InMemoryChatHistoryService,
    LlmAgent,
    Part,
    RunConfig,
    Runner,
    SequentialAgent,
)
from patchbay.models.chat_model import ModelReply
from patchbay.models.resolve import HostedModel
from patchbay.testing import ScriptedModel, ScriptedUpstream, Text
from patchbay.tools import Toolset
from patchbay.types import Reply, Usage
from support.running import run

from .turns import TextAgent, call, line, lines, log, roles, run_turn


def noop() -> str:
    return "ok"


def agent(*steps, **fields) -> LlmAgent:
    return LlmAgent(**{"name": "a", "model": ScriptedModel(steps), **fields})


# --- sessions


def test_first_message_is_the_session_title_and_the_last_agent_is_the_one_that_answered():
    model = ScriptedModel(["one", "two"])
    runner = Runner(SequentialAgent(name="all", sub_agents=[LlmAgent(name="a", model=model), TextAgent("b")]), "shop")
    for message in ("How much is the fish in your window today?", "And the chips?"):
        run(run_turn(runner, message))
        session = run(runner.session_service.get_session("shop", "u", "s"))
        assert ("shop", "u", "s", "all", "b") == (
            session.app_name, session.user_id, session.id, session.agent_name, session.last_agent
        )  # fmt: skip
        assert "How much is the fish in your w" == session.title
    run(run_turn(Runner(LlmAgent(name="a", model=ScriptedModel(["else"]))), "3?"))
    assert ["assistant: one", "assistant: b", "user: And the chips?"] == roles(model.requests[1])[1:]


def test_events_of_a_run_share_an_id_that_differs_between_runs():
    runner = Runner(agent(call("noop"), "one", "two", tools=[noop]))
    first, second = run(run_turn(runner)), run(run_turn(runner))
    assert 1 == len({event.invocation_id for event in first})
    assert first[0].invocation_id != second[0].invocation_id
    kept = run(runner.session_service.get_session("patchbay", "u", "s")).events
    assert [first[0].invocation_id] * 4 + [second[0].invocation_id] * 2 == [event.invocation_id for event in kept]


def test_too_long_message_is_refused_and_nothing_is_stored():
    runner = Runner(agent("never"))
    events = run(run_turn(runner, "four", run_config=RunConfig(max_message_length=3)))
    assert ["system! MESSAGE_TOO_LONG"] == lines(events)
    assert run(runner.session_service.get_session("patchbay", "u", "s")) is None
    assert ["a: never"] == lines(run(run_turn(runner, "fou", run_config=RunConfig(max_message_length=3))))


@pytest.mark.parametrize("role", ["user", "model"])
def test_a_message_may_be_a_content_with_an_image_and_is_always_the_users(role):
    model = ScriptedModel(["a cat"])
    message = Content(role, [Part("What is it?"), Part(inline_data=Blob("image/png", b"\x89PNG"))])
    runner = Runner(LlmAgent(name="a", model=model))
    run(run_turn(runner, message))
    (sent,) = model.requests[0].messages
    assert "user" == sent["role"]
    assert ["text", "image_url"] == [part["type"] for part in sent["content"]]
    kept = run(runner.session_service.get_session("patchbay", "u", "s"))
    assert ("user", b"\x89PNG") == (kept.events[0].content.role, kept.events[0].content.parts[1].inline_data.data)
    assert role == message.role  # what was given is not changed


async def test_run_async_is_run():
    assert ["a: ok"] == lines([event async for event in Runner(agent("ok")).run_async(user_id="u", session_id="s", message="hi")])


# --- the events


async def test_text_and_usage_are_those_of_the_run_so_far():
    replies = [Reply("let me see", tool_calls=(call("noop"),)), Reply("done")]
    steps = [ModelReply(reply, "stop", Usage(1, 2, 3)) for reply in replies]
    events = Runner(agent(*steps, tools=[noop])).run("u", "s", "hi")
    assert (None, Usage(), None) == (events.text, events.usage, events.context)
    assert [
        ("a > noop", None, Usage(1, 2, 3)),
        ("a < noop", None, Usage(1, 2, 3)),
        ("a: done", "done", Usage(2, 4, 6)),
    ] == [(line(event), events.text, events.usage) async for event in events]
    assert 2 == events.context.llm_call_count


async def test_events_can_be_read_one_by_one():
    events = Runner(agent(call("noop"), "done", tools=[noop])).run("u", "s", "hi")
    first = await anext(events)
    rest = [event async for event in events]
    with pytest.raises(StopAsyncIteration):
        await anext(events)
    await events.aclose()
    assert (["a > noop", "a < noop", "a: done"], []) == (lines([first, *rest]), [event async for event in events])


async def test_run_without_a_consumer_does_nothing():
    runner = Runner(agent("never"))
    untouched, closed, dropped = (runner.run("u", "s", "hi") for _ in range(3))
    await closed.aclose()
    await closed.aclose()
    aiter(dropped)
    await dropped.aclose()
    assert (None, None) == (untouched.text, await runner.session_service.get_session("patchbay", "u", "s"))


def hanging() -> tuple[asyncio.Event, list[str], object]:
    begun, left = asyncio.Event(), []

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            left.append("tool")

    return begun, left, hang


@pytest.mark.parametrize("held", [True, False])
async def test_leaving_a_loop_over_the_events_stops_the_run_and_frees_the_session(held):
    gc.collect()  # what other tests have left would be let go of in the midst of this one, and some of it in a task
    before = asyncio.all_tasks()
    _, left, hang = hanging()

    async def quick(tool_context) -> str:
        tool_context.progress("half way")
        return "ok"

    runner = Runner(agent([call("hang"), call("quick", "2")], "next", tools=[hang, quick]))
    gc.disable()  # what is let go of must be let go of at once
    try:
        events = runner.run("u", "s", "hi")
        if held:
            async for event in events:
                if event.progress is not None:
                    break
        else:
            del events
            async for event in runner.run("u", "s", "hi"):
                if event.progress is not None:
                    break
        # The run is still known here, and the next one of the session does not wait for ever.
        after = lines(await run_turn(runner))
    finally:
        gc.enable()
    assert set() == asyncio.all_tasks() - before
    kept = await log(runner)
    assert ["tool"] == left
    assert ["a: next"] == after
    assert sorted(["a < quick", "a < hang"]) == sorted(kept[2:-2]) or ["a < hang quick"] == kept[2:-2]
    assert ["user: hi", "a: next"] == kept[-2:]


async def test_runs_on_one_session_are_serialised():
    both = []

    async def slow() -> str:
        both.append("begins")
        for _ in range(20):
            await asyncio.sleep(0)
        both.append("ends")
        return "ok"

    model = ScriptedModel([call("slow"), "one", call("slow"), "two", call("slow"), "three"])
    runner = Runner(LlmAgent(name="a", model=model, tools=[slow]))
    await asyncio.gather(*(run_turn(runner, str(number)) for number in range(3)))
    kept, requests = await log(runner), [roles(request) for request in model.requests]
    assert ["begins", "ends"] * 3 == both
    assert ["user: 0", "a > slow", "a < slow", "a: one", "user: 1", "a > slow", "a < slow", "a: two"] == kept[:8]
    assert 3 * 4 == len(kept)
    assert "user: 2" == requests[4][-1]
    assert "assistant: two" == requests[4][-2]


async def test_runs_on_different_sessions_do_not_wait_for_each_other():
    both = asyncio.Barrier(2)

    async def meet() -> str:
        await both.wait()
        return "met"

    model = ScriptedModel([call("meet"), call("meet"), "done", "done"])
    runner = Runner(LlmAgent(name="a", model=model, tools=[meet]))
    assert ["a: done", "a: done"] == [
        lines(events)[-1] for events in await asyncio.gather(run_turn(runner, session="1"), run_turn(runner, session="2"))
    ]


# --- without async


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_a_plain_loop_runs_the_turn_in_a_running_event_loop_too(in_a_loop):
    def play() -> None:
        events = Runner(agent(call("noop"), "done", tools=[noop])).run("u", "s", "hi")
        assert ["a > noop", "a < noop", "a: done"] == lines(events)
        assert ("done", []) == (events.text, list(events))

    async def inside() -> None:
        play()

    run(inside()) if in_a_loop else play()


def test_leaving_a_plain_loop_stops_the_tools_and_frees_the_session():
    left = []

    async def hang(tool_context) -> None:
        tool_context.progress("I hang")
        try:
            await asyncio.Event().wait()
        finally:
            left.append("tool")

    runner = Runner(agent(call("hang"), "next", tools=[hang]))
    events = runner.run("u", "s", "hi")
    for event in events:
        if event.progress is not None:
            break
    assert ["tool"] == left
    assert ["a: next"] == lines(runner.run("u", "s", "hi"))


SCRIPT = """
    import asyncio
    from patchbay.agents import LlmAgent, Runner
    from patchbay.testing import ScriptedModel
    from patchbay.types import ToolCall

    async def hang():
        print("hangs", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print("left", flush=True)

    runner = Runner(LlmAgent(name="a", model=ScriptedModel([ToolCall("1", "hang", "{}"), "next"]), tools=[hang]))
    try:
        %s
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print([event.content.text for event in runner.run("u", "s", "again")], flush=True)
"""


@pytest.mark.parametrize("how", ["plain", "async"])
def test_an_interrupt_from_the_keyboard_stops_the_tools_and_frees_the_session(how):
    body = "list(runner.run('u', 's', 'hi'))"
    if how == "async":
        body = "async def all():\n            async for _ in runner.run('u', 's', 'hi'): pass\n        asyncio.run(all())"
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT % body)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert "hangs\n" == child.stdout.readline()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait(30)
    assert "left\ninterrupted\n['next']\n" == out, err
    assert "" == err


# --- events


async def test_bus_gets_the_events_of_a_run_in_order():
    bus, received = EventBus(), []

    async def listen(event) -> None:
        received.append((event.type, event.data))

    bus.subscribe("*", listen)
    runner = Runner(agent([call("noop"), call("missing", "2")], "done", "again", tools=[noop]), bus=bus)
    await run_turn(runner)
    await bus.drain()
    first, received[:] = received[:], []
    await run_turn(runner)
    await bus.drain()
    assert [
        "session.created",
        "session.updated",
        "agent.start",
        "llm.request",
        "llm.response",
        "tool.call",
        "tool.call",
        "tool.result",
        "tool.error",
        "tool.result",
        "llm.request",
        "llm.response",
        "agent.response",
    ] == [topic for topic, _ in first]
    assert ("session.created", {"session_id": "s", "user_id": "u", "title": "hi"}) == first[0]
    assert ("tool.call", {"tool": "noop", "args": {}, "call_id": "1"}) == first[5]
    assert ("tool.result", {"tool": "noop", "response": {"result": "ok"}, "call_id": "1"}) in first[7:10]
    assert ("agent.response", {"agent": "a", "text": "done", "session_id": "s"}) == first[-1]
    assert ["session.updated", "agent.start", "llm.request", "llm.response", "agent.response"] == [topic for topic, _ in received]


def test_messages_of_both_sides_are_in_the_history():
    history = InMemoryChatHistoryService()
    runner = Runner(agent(call("noop"), "done", tools=[noop]), history_service=history)
    run(run_turn(runner, "do it"))
    messages = run(history.get_session_history("s"))
    assert [("u", "a", "user", "do it"), ("u", "a", "assistant", "done")] == [
        (message.user_id, message.agent, message.role, message.content) for message in messages
    ]


def test_failing_history_does_not_stop_the_run(caplog):
    class Broken(InMemoryChatHistoryService):
        async def add_message(self, *_args, **_fields):
            raise OSError("full")

    runner = Runner(agent("done"), history_service=Broken())
    assert ["a: done"] == lines(run(run_turn(runner)))
    assert 2 == sum("history" in record.message for record in caplog.records)


# --- the session service


def test_session_deleted_during_a_run_ends_it_with_an_error():
    from patchbay.errors import SessionNotFoundError

    async def delete(tool_context) -> str:
        service = tool_context.invocation_context.session_service
        await service.delete_session("patchbay", "u", "s")
        return "deleted"

    with pytest.raises(SessionNotFoundError):
        run(run_turn(Runner(agent(call("delete"), "never", tools=[delete]))))


# --- closing


class ClosedToolset(Toolset):
    """A set without tools that records its end."""

    def __init__(self, name: str, closed: list[str]) -> None:
        self.name = name
        self.closed = closed

    async def get_tools(self):
        return []

    async def aclose(self):
        self.closed.append(self.name)


@pytest.mark.parametrize("form", ["with", "async with"])
def test_a_runner_closes_all_agents_of_the_tree_and_its_agent_tools(form):
    closed: list[str] = []

    def named(name: str, *tools, **fields) -> LlmAgent:
        return LlmAgent(name=name, model="m", tools=[*tools, ClosedToolset(name, closed)], **fields)

    async def enter(runner: Runner) -> None:
        async with runner:
            pass

    inner = named("inner", sub_agents=[named("below")])
    root = SequentialAgent(name="root", sub_agents=[named("left", AgentTool(inner)), named("again", AgentTool(inner))])
    if form == "async with":
        run(enter(Runner(root)))
    else:
        with Runner(root):
            pass
    assert ["left", "inner", "below", "again"] == closed


def test_loop_over_a_model_url_closes_its_client(monkeypatch):
    closed = []
    aclose = HostedModel.aclose

    async def noted(model):
        await aclose(model)
        closed.append(repr(model))

    monkeypatch.setattr(HostedModel, "aclose", noted)
    with ScriptedUpstream([Text("Done.")]) as upstream:
        runner = Runner(LlmAgent(name="a", model=f"{upstream.url}#m"))
        assert ["Done."] == [event.content.text for event in runner.run("u", "s", "hi")]
        assert [] == closed
        runner.close()
    assert [f"<HostedModel m at {upstream.url}>"] == closed


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Runner("a"), "agent must be"),
        (lambda: Runner(agent("x"), session_service="sqlite:///x.db"), r"DatabaseSessionService\(url\)"),
        (lambda: Runner(agent("x"), bus=5), "EventBus"),
        (lambda: Runner(agent("x")).run("u", "s", "hi", {"streaming": True}), "RunConfig"),
        *(
            (lambda message=message: Runner(agent("x")).run("u", "s", message), "message must be")
            for message in (None, b"hi", ["hi"])
        ),
    ],
)
def test_invalid_arguments_are_type_errors(make, words):
    with pytest.raises(TypeError, match=words):
        make()
