"""Defect 24: the runner's loop, over a scripted text-only model on a real socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import openai
import pytest

import patchbay
from patchbay.testing.script import Raw, Text

from .doors import sdk_client
from .reading import compact
from .upstream import PATIENCE, Upstream

T = TypeVar("T")


def call(name: str, **arguments: Any) -> str:
    """A call block."""
    return f"```tool_call\n{compact({'name': name, 'arguments': arguments})}\n```"


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run, bounded."""
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


def client(upstream: Upstream) -> openai.AsyncOpenAI:
    """The bare async client; the runner wraps it."""
    return openai.AsyncOpenAI(base_url=upstream.url, api_key="unused", max_retries=0, timeout=PATIENCE)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


USER = [{"role": "user", "content": "1 + 2?"}]


async def _run(upstream: Upstream, model: str, tools: list[Any], *, tool_choice: Any = None, **options: Any) -> Any:
    async with client(upstream) as connected:
        runner = patchbay.ToolRunner(connected, tools=tools, **options)
        return await runner.run(USER, model, tool_choice=tool_choice)


def test_d24_required_applies_to_the_first_round_only(upstream: Upstream, model: str) -> None:
    upstream.on(model, call("add", a=1, b=2), "It is 3.")
    result = run(_run(upstream, model, [add], tool_choice="required"))
    assert ("It is 3.", "stop", 2) == (result.content, result.finish_reason, result.iterations)


def test_d24_calls_of_one_round_run_at_the_same_time_and_results_are_in_call_order(upstream: Upstream, model: str) -> None:
    upstream.on(model, "\n".join([call("meet", who="a"), call("meet", who="b"), call("meet", who="c")]), "Done.")
    together = threading.Barrier(3, timeout=PATIENCE)

    def meet(who: str) -> str:
        """Wait for the others."""
        together.wait()
        return who

    result = run(_run(upstream, model, [meet]))
    assert ["a", "b", "c"] == [execution.content for execution in result.tool_executions]
    tool_messages = [message for message in result.messages if message["role"] == "tool"]
    assert ["a", "b", "c"] == [message["content"] for message in tool_messages]


def test_d24_a_tool_that_takes_too_long_is_a_result(upstream: Upstream, model: str) -> None:
    upstream.on(model, call("forever"), "It took too long.")
    let_go = asyncio.Event()

    async def forever() -> str:
        """Never return."""
        await let_go.wait()
        return "never"

    result = run(_run(upstream, model, [forever], tool_timeout=0.05))
    assert "It took too long." == result.content
    assert [True] == [execution.is_error for execution in result.tool_executions]
    assert "forever" in upstream.seen[model][1].prompt()


async def test_d24_cancelling_stops_the_tools_and_asks_the_model_nothing_more(upstream: Upstream, model: str) -> None:
    upstream.on(model, "\n".join([call("wait", n=n) for n in range(3)]), "Too late.")
    stopped: list[int] = []
    begun = asyncio.Queue[int]()

    async def wait(n: int) -> str:
        """Wait."""
        begun.put_nowait(n)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(n)
        return ""

    task = asyncio.create_task(_run(upstream, model, [wait]))
    for _ in range(3):
        await begun.get()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [0, 1, 2] == sorted(stopped)
    assert 1 == len(upstream.seen[model])


def counted(text: str, prompt: int, completion: int) -> Raw:
    """A whole answer that says how many tokens it took."""
    body = {
        "id": "c", "object": "chat.completion", "created": 7, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }  # fmt: skip
    return Raw([compact(body).encode()], content_type="application/json")


def test_d24_usage_is_summed_over_rounds(upstream: Upstream, model: str) -> None:
    upstream.on(model, counted(call("add", a=1, b=2), 100, 10), counted("It is 3.", 120, 3))
    usage = run(_run(upstream, model, [add])).usage
    assert (220, 13, 233) == (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_d24_an_answer_that_was_cut_off_does_not_look_like_success(upstream: Upstream, model: str, reason: str) -> None:
    upstream.on(model, Text("It is", finish_reason=reason))
    result = run(_run(upstream, model, [add]))
    assert (reason, "It is") == (result.finish_reason, result.content)


def test_d24_a_call_that_was_cut_off_is_not_run_and_not_a_success(upstream: Upstream, model: str) -> None:
    upstream.on(model, Text('```tool_call\n{"name": "add", "arguments": {"a": 1, "b"', finish_reason="length"))
    result = run(_run(upstream, model, [add], max_iterations=2))
    assert result.finish_reason in ("length", "max_iterations")
    assert not [execution for execution in result.tool_executions if not execution.is_error]


def test_d24_what_a_callback_raises_does_not_end_the_run(upstream: Upstream, model: str) -> None:
    upstream.on(model, call("add", a=1, b=2), "It is 3.")
    told: list[str] = []

    def on_call(made: Any, iteration: int) -> None:
        told.append(f"{made.name} {iteration}")
        raise RuntimeError("broken callback")

    async def on_result(execution: Any, iteration: int) -> None:
        told.append(f"{execution.content} {iteration}")
        raise RuntimeError("broken callback")

    result = run(_run(upstream, model, [add], on_tool_call=on_call, on_tool_result=on_result))
    assert ("It is 3.", ["add 1", "3 1"]) == (result.content, told)


async def _events(upstream: Upstream, model: str, tools: list[Any]) -> list[Any]:
    async with client(upstream) as connected:
        runner = patchbay.ToolRunner(connected, tools=tools)
        return [event async for event in runner.run_stream(USER, model)]


def test_d24_the_final_event_has_the_executions_and_the_usage(upstream: Upstream, model: str) -> None:
    upstream.on(model, f"<think>Hm.</think>\nI add.\n{call('add', a=1, b=2)}", "It is 3.")
    seen = run(_events(upstream, model, [add]))
    final = seen[-1]
    assert ("final", "It is 3.", "stop") == (final.type, final.content, final.finish_reason)
    assert ["3"] == [execution.content for execution in final.tool_executions]
    assert final.usage.total_tokens > 0
    kinds = [event.type for event in seen]
    assert {"text", "reasoning", "tool_call", "tool_result", "iteration_end", "final"} == set(kinds)
    assert kinds.index("reasoning") < kinds.index("text") < kinds.index("tool_call") < kinds.index("tool_result")


def test_d24_unknown_tools_bad_arguments_and_throwing_handlers_are_results(upstream: Upstream, model: str) -> None:
    def broken(x: int) -> int:
        """Fail."""
        raise ValueError("no such luck")

    upstream.on(
        model,
        "\n".join([call("add", a="one", b=2), call("broken", x=1), call("add", a=1, b=2)]),
        "One of three.",
    )
    result = run(_run(upstream, model, [add, broken]))
    assert "One of three." == result.content
    assert [True, True, False] == [execution.is_error for execution in result.tool_executions]
    assert "no such luck" in result.tool_executions[1].content
    assert "3" == result.tool_executions[2].content


def test_d24_the_loop_has_a_ceiling(upstream: Upstream, model: str) -> None:
    upstream.on(model, call("add", a=1, b=2))
    result = run(_run(upstream, model, [add], max_iterations=3))
    assert ("max_iterations", 3) == (result.finish_reason, result.iterations)
    with pytest.raises(patchbay.MaxIterationsError) as caught:
        run(_run(upstream, model, [add], max_iterations=3, raise_on_max_iterations=True))
    assert 3 == caught.value.iterations


def test_d24_a_failing_server_is_an_error(upstream: Upstream, model: str) -> None:
    upstream.on(model, Raw([b'{"error":{"message":"boom"}}'], status=500, content_type="application/json"))
    with pytest.raises(patchbay.UpstreamError):
        run(_run(upstream, model, [add]))


def test_d24_a_sync_client_runs_the_same(upstream: Upstream, model: str) -> None:
    upstream.on(model, call("add", a=1, b=2), "It is 3.")
    with sdk_client(upstream.url) as connected:
        result = patchbay.ToolRunner(connected, tools=[add]).run_sync(USER, model)
    assert ("It is 3.", ["3"]) == (result.content, [execution.content for execution in result.tool_executions])
