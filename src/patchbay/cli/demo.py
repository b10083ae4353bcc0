"""``patchbay demo``: a model that only writes text calls two tools, through a real proxy, and prints what each side was sent.

The client is the loop that every user of the ``openai`` package writes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from patchbay.cli.children import listening
from patchbay.cli.terminal import styles

if TYPE_CHECKING:
    from types import FrameType

    import openai

QUESTION = "Please multiply 12345678901234567890 by 3, and count the lines of the module `argparse`."

_MAX_ROUNDS = 4
_WIDTH = 80
_MAX_LINES = 16

_COUNT_LINES = """
import importlib.util, json, os, sys
module = sys.argv[1]
with open(importlib.util.find_spec(module).origin, encoding="utf-8") as file:
    print(json.dumps({"module": module, "lines": sum(1 for _ in file), "pid": os.getpid()}))
"""


def multiply(a: int, b: int) -> str:
    """Multiply two integers exactly."""
    return json.dumps({"product": a * b, "pid": os.getpid()})


def count_lines(module: str) -> str:
    """Count the lines of a Python standard library module, in another process."""
    command = [sys.executable, "-I", "-c", _COUNT_LINES, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603  (no shell)
    return done.stdout.strip() or f"Error: {done.stderr.strip().rpartition(chr(10))[2]}"


def tool(name: str, description: str | None, **properties: Any) -> dict[str, Any]:
    """Return a tool for a request, all of whose parameters are required."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


FUNCTIONS: dict[str, Callable[..., str]] = {"multiply": multiply, "count_lines": count_lines}
TOOLS = [
    tool("multiply", multiply.__doc__, a={"type": "integer"}, b={"type": "integer"}),
    tool("count_lines", count_lines.__doc__, module={"type": "string", "description": "its name, such as json"}),
]


class TracedModel:
    """A scripted text-only model that shows what it is sent and what it writes."""

    def __init__(self) -> None:
        from patchbay.testing.models import ContractModel

        self._model = ContractModel()
        self._shown = 0

    def __call__(self, body: dict[str, Any]) -> str:
        """Answer a request's body."""
        messages = body["messages"][self._shown :]
        texts = [each["content"] if isinstance(each["content"], str) else json.dumps(each["content"]) for each in messages]
        show(f"proxy → model: {'results as text' if self._shown else 'the tools as text, without `tools`'}", *texts)
        self._shown += len(messages)
        answer = self._model(body)
        show("model → proxy: the raw text", answer)
        return answer


def demo(
    model: Annotated[
        Literal["scripted", "small"],
        typer.Option(help="small: a real one, which is fetched once (93 MB), on llama.cpp; needs patchbay-tools\\[local]."),
    ] = "scripted",
) -> None:
    """Watch a text-only model call tools through the proxy.

    [bold]Examples[/bold]

      patchbay demo

      patchbay demo --model small
    """  # fmt: skip
    signal.signal(signal.SIGTERM, _exit)
    if model == "small":
        from patchbay.cli.demo_small import run

        problem, success = run(), "As expected: each call is right, and its result reached the answer."
    else:
        problem, success = _run_scripted(), "As expected: both calls ran, and every value reached the answer."
    show(f"Not as expected: {problem}" if problem else success)
    if problem:
        raise typer.Exit(1)


def _run_scripted() -> str:
    """Run the demo with a scripted model; return what was not as expected, "" if nothing."""
    import openai

    from patchbay.testing.upstream import ScriptedUpstream

    proxy = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream"]
    with (
        ScriptedUpstream(TracedModel(), tools="refuse") as upstream,
        listening([*proxy, upstream.url], name="patchbay proxy") as gateway,
        openai.OpenAI(base_url=gateway.url, api_key="unused", max_retries=0, timeout=30.0) as client,
    ):
        _ = client.chat.completions  # imported before anything is printed: Ctrl-C during pydantic's imports prints a traceback
        show(
            "A model that only writes text calls two tools",
            f"client  the openai Python package, process {os.getpid()}",
            f"proxy   {gateway.url}, process {gateway.pid}",
            f"model   {upstream.url}, a scripted model that refuses `tools`, as Ollama does",
        )
        try:
            return ask(client, QUESTION)
        except openai.OpenAIError as error:
            return f"the client got {type(error).__name__}: {error}\nThe proxy printed:\n{''.join(gateway.printed)}"


def ask(client: openai.OpenAI, question: str) -> str:
    """Run the tool loop, show its steps, and return what is missing in the answer ("" if nothing is)."""
    messages: list[Any] = [{"role": "user", "content": question}]
    show(f"client → proxy, with the tools {', '.join(FUNCTIONS)}", question)
    create: Any = client.chat.completions.create
    values: list[str] = []
    for _ in range(_MAX_ROUNDS):
        choice = create(model="scripted-model", messages=messages, tools=TOOLS).choices[0]
        calls = choice.message.tool_calls or []
        if not calls:
            show("proxy → client: the answer", choice.message.content)
            called = sum(message["role"] == "tool" for message in messages)
            missing = [value for value in values if value not in choice.message.content]
            return f"{called} calls, and {missing} is not in the answer" if missing or called != len(FUNCTIONS) else ""
        shown = [f"{call.function.name} {call.function.arguments}  ({call.id})" for call in calls]
        show(f"proxy → client: finish_reason {choice.finish_reason}", choice.message.content or "", *shown)
        messages.append(choice.message.model_dump(include={"role", "content", "tool_calls"}))
        for call in calls:
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            show(f"client: runs {call.function.name}", result)
            values += map(str, json.loads(result).values()) if result.startswith("{") else [result]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return f"no answer after {_MAX_ROUNDS} rounds"


def show(title: str, *texts: str) -> None:
    """Print a step: who sent it to whom, and its texts, shortened."""
    bold, dim, plain = styles(sys.stdout)
    print(f"\n{bold}{title}{plain}")
    for text in texts:
        lines = [piece for line in text.splitlines() for piece in textwrap.wrap(line, _WIDTH - 4) or [""]]
        if (hidden := len(lines) - _MAX_LINES) > 1:
            lines[_MAX_LINES - 4 : -4] = [f"[… {hidden} more lines …]"]
        for line in lines:
            print(f"  {dim}│{plain} {line}")
    sys.stdout.flush()


def _exit(number: int, _: FrameType | None) -> None:
    """Exit by an exception, so that the proxy is stopped."""
    raise SystemExit(128 + number)
