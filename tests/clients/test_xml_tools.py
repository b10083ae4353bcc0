"""Tags that the caller names are calls for every client: through ``patchbay proxy``, ``wrap`` and ``ToolRunner``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from patchbay import ToolRunner, wrap
from patchbay.testing import ScriptedUpstream
from support.processes import listening

QUESTION = {"role": "user", "content": "Which files are there?"}
SHELL = {
    "type": "function",
    "function": {
        "name": "run_shell",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
WROTE = "I look.\n<bash>\nls -la\n</bash>"


@contextmanager
def by_proxy(upstream: ScriptedUpstream) -> Iterator[openai.OpenAI]:
    flags = ["--port", "0", "--upstream", upstream.url, "--xml-tool", "bash=run_shell"]
    with (
        listening([sys.executable, "-m", "patchbay", "proxy", *flags], name="patchbay proxy", timeout=60) as child,
        openai.OpenAI(base_url=child.url, api_key="-", max_retries=0) as client,
    ):
        yield client


@contextmanager
def by_wrap(upstream: ScriptedUpstream) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=upstream.url, api_key="-", max_retries=0) as client:
        yield wrap(client, xml_tools={"bash": "run_shell"})


def ask(client: openai.OpenAI, messages: list[Any], *, streamed: bool) -> Any:
    request: dict[str, Any] = {"model": "m", "messages": messages, "tools": [SHELL]}
    if not streamed:
        return client.chat.completions.create(**request).choices[0]
    with client.chat.completions.stream(**request) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion().choices[0]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("way", [by_proxy, by_wrap])
def test_a_tag_is_a_call_and_its_result_reaches_the_model(way: Any, streamed: bool) -> None:
    with ScriptedUpstream([WROTE, "Two."], tools="refuse") as upstream, way(upstream) as client:
        first = ask(client, [QUESTION], streamed=streamed)
        assert ("tool_calls", "I look.") == (first.finish_reason, first.message.content)
        (call,) = first.message.tool_calls
        assert ("run_shell", '{"command": "ls -la"}') == (call.function.name, call.function.arguments)
        texts = {"role": "assistant", "content": "I look.", "tool_calls": [{**call.to_dict(), "type": "function"}]}
        result = {"role": "tool", "tool_call_id": call.id, "content": "a.txt b.txt"}
        last = ask(client, [QUESTION, texts, result], streamed=streamed)
        assert ("stop", "Two.", None) == (last.finish_reason, last.message.content, last.message.tool_calls or None)
        assert "a.txt b.txt" in upstream.chats[-1].json["messages"][-1]["content"]


@pytest.mark.parametrize("way", [by_proxy, by_wrap])
def test_runner_runs_calls_in_tool_tags(way: Any) -> None:
    def run_shell(command: str) -> str:
        return f"ran {command}"

    with ScriptedUpstream([WROTE, "Two."], tools="refuse") as upstream, way(upstream) as client:
        options = {"xml_tools": {"bash": "run_shell"}} if way is by_wrap else {}
        result = ToolRunner(client, tools=[run_shell], **options).run_sync("Which files are there?", model="m")
        assert ("Two.", ["ran ls -la"]) == (result.content, [execution.content for execution in result.tool_executions])
