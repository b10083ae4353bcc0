"""``patchbay demo``: a model that only writes text calls two tools, through the proxy.

The scripted model and the proxy are real processes; the client is the loop that every user of the ``openai`` package writes.
What the model was sent and wrote is read from the model server's own log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchbay.cli.children import listening
from patchbay.cli.terminal import styles

if TYPE_CHECKING:
    from types import FrameType

    import openai

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


def _tool(function: Callable[..., str], **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    about = {"name": function.__name__, "description": function.__doc__, "parameters": parameters}
    return {"type": "function", "function": about}


FUNCTIONS: dict[str, Callable[..., str]] = {"multiply": multiply, "count_lines": count_lines}
TOOLS = [
    _tool(multiply, a={"type": "integer"}, b={"type": "integer"}),
    _tool(count_lines, module={"type": "string", "description": "its name, such as json"}),
]


@dataclass(frozen=True)
class Step:
    """An event of a conversation, with its data complete."""

    conversation: int
    kind: str
    data: dict[str, Any]


@dataclass
class Response:
    """A response of the proxy; a streamed one is assembled from its deltas."""

    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    text_pieces: list[str] = field(default_factory=list)
    argument_pieces: list[list[str]] = field(default_factory=list)


class ModelLog:
    """The log file of the model server: requests and responses."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0

    def new_entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries since the last call."""
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        new, self._count = lines[self._count :], len(lines)
        yield from map(json.loads, new)


@dataclass(frozen=True)
class Conversation:
    """A question, and the calls that the model is expected to make."""

    number: int
    streamed: bool
    question: str
    expected: tuple[tuple[str, dict[str, Any]], ...]

    def run(self, client: openai.OpenAI, log: ModelLog, emit: Callable[[Step], None]) -> list[str]:
        """Run the tool loop, emit each step, and return what differs from the expectation."""

        def step(kind: str, **data: Any) -> None:
            emit(Step(self.number, kind, data))

        messages: list[dict[str, Any]] = [{"role": "user", "content": self.question}]
        step("question", streamed=self.streamed, messages=list(messages), tools=TOOLS)
        executed: list[tuple[str, dict[str, Any]]] = []
        values: list[str] = []
        shown = 0
        for _ in range(_MAX_ROUNDS):
            response = _create(client, messages, streamed=self.streamed)
            for entry in log.new_entries():
                sent = entry["request"]
                if entry["status"] != 200:
                    step("refused", status=entry["status"], text=entry["answer"])
                    continue
                step("framed" if shown else "contract", messages=sent["messages"][shown:], keys=sorted(sent))
                shown = len(sent["messages"])
                step("written", text=entry["answer"])
            if not response.calls:
                step("answer", text=response.content, pieces=len(response.text_pieces))
                return self._problems(executed, values, response)
            step("calls", **vars(response))
            messages.append({"role": "assistant", "content": response.content or None, "tool_calls": response.calls})
            for call in response.calls:
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                result = FUNCTIONS[name](**arguments)
                executed.append((name, arguments))
                values += map(str, json.loads(result).values()) if result.startswith("{") else [result]
                step("result", name=name, arguments=arguments, result=result)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return [f"conversation {self.number} had no answer after {_MAX_ROUNDS} rounds"]

    def _problems(self, executed: list[tuple[str, dict[str, Any]]], values: list[str], response: Response) -> list[str]:
        where = f"conversation {self.number}"
        problems = [f"{where}: {value!r} of a result is not in the answer" for value in values if value not in response.content]
        if executed != list(self.expected):
            problems.append(f"{where}: the calls were {executed}, not {list(self.expected)}")
        if response.finish_reason != "stop":
            problems.append(f"{where}: the answer's finish_reason is {response.finish_reason!r}")
        return problems


CONVERSATIONS = (
    Conversation(
        number=1,
        streamed=False,
        question="Please multiply 12345678901234567890 by 3, and count the lines of the module `argparse`.",
        expected=(("multiply", {"a": 12345678901234567890, "b": 3}), ("count_lines", {"module": "argparse"})),
    ),
    Conversation(
        number=2,
        streamed=True,
        question="Now count the lines of `json` and of `textwrap`.",
        expected=(("count_lines", {"module": "json"}), ("count_lines", {"module": "textwrap"})),
    ),
)


def _create(client: openai.OpenAI, messages: list[dict[str, Any]], *, streamed: bool) -> Response:
    create: Any = client.chat.completions.create
    completion = create(model="scripted-model", messages=messages, tools=TOOLS, stream=streamed)
    if not streamed:
        choice = completion.choices[0]
        calls = [call.model_dump(exclude_none=True) for call in choice.message.tool_calls or ()]
        return Response(choice.message.content or "", calls, choice.finish_reason)
    response = Response()
    for chunk in completion:
        for choice in chunk.choices:
            response.finish_reason = choice.finish_reason or response.finish_reason
            if choice.delta.content:
                response.text_pieces.append(choice.delta.content)
            for delta in choice.delta.tool_calls or ():
                if delta.id:
                    function = {"name": delta.function.name, "arguments": ""}
                    response.calls.append({"id": delta.id, "type": "function", "function": function})
                    response.argument_pieces.append([])
                if delta.function.arguments:
                    response.argument_pieces[delta.index].append(delta.function.arguments)
    response.content = "".join(response.text_pieces)
    for call, pieces in zip(response.calls, response.argument_pieces, strict=True):
        call["function"]["arguments"] = "".join(pieces)
    return response


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print each step as one line of JSON.")] = False,
) -> None:
    """Watch a text-only model call two tools through the proxy."""
    signal.signal(signal.SIGTERM, _exit)
    emit = _print_json if as_json else _print_step
    with tempfile.TemporaryDirectory(prefix="patchbay-demo-") as folder:
        problems = _run(Path(folder, "log.jsonl"), emit)
    emit(Step(0, "closing", {"problems": problems}))
    if problems:
        raise typer.Exit(1)


def _run(path: Path, emit: Callable[[Step], None]) -> list[str]:
    import openai

    model = [sys.executable, "-m", "patchbay.testing.upstream", "--tools", "refuse", "--until-stdin-closes"]
    proxy = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream"]
    with (
        listening([*model, "--record", str(path)], name="the scripted model") as upstream,
        listening([*proxy, upstream.url], name="patchbay proxy") as gateway,
        openai.OpenAI(base_url=gateway.url, api_key="unused", max_retries=0, timeout=30.0) as client,
    ):
        _ = client.chat.completions  # imported before anything is printed: Ctrl-C during pydantic's imports prints a traceback
        parties = {"model_url": upstream.url, "model_pid": upstream.pid, "proxy_url": gateway.url, "proxy_pid": gateway.pid}
        emit(Step(0, "opening", parties))
        log = ModelLog(path)
        try:
            return [problem for each in CONVERSATIONS for problem in each.run(client, log, emit)]
        except openai.OpenAIError as error:
            return [f"the client got {type(error).__name__}: {error}\nThe proxy printed:\n{''.join(gateway.printed)}"]


def _print_json(step: Step) -> None:
    print(json.dumps(asdict(step)), flush=True)


def _print_step(step: Step) -> None:
    """Print a step for people: who sent it to whom, and its text, shortened."""
    bold, dim, plain = styles(sys.stdout)
    title, *texts = _page(step)
    print(f"\n{bold}{title}{plain}")
    for text in texts:
        lines = [piece for line in text.splitlines() for piece in textwrap.wrap(line, _WIDTH - 4) or [""]]
        if (hidden := len(lines) - _MAX_LINES) > 1:
            lines[_MAX_LINES - 4 : -4] = [f"[… {hidden} more lines …]"]
        for line in lines:
            print(f"  {dim}│{plain} {line}")
    sys.stdout.flush()


def _page(step: Step) -> list[str]:
    """Return the title of a step and its texts."""
    data = step.data
    if step.kind == "opening":
        model = f"model   {data['model_url']} (scripted model), process {data['model_pid']}; refuses `tools` as Ollama does"
        proxy = f"proxy   {data['proxy_url']}, process {data['proxy_pid']}"
        return [
            "A model that only writes text calls two tools",
            "client  the openai Python package, in this process",
            proxy,
            model,
        ]
    if step.kind == "question":
        how = "streamed" if data["streamed"] else "not streamed"
        names = ", ".join(tool["function"]["name"] for tool in data["tools"])
        return [f"{step.conversation}. client → proxy, {how}, tools {names}", data["messages"][0]["content"]]
    if step.kind == "refused":
        return ["proxy → model → proxy: refused with `tools`", f"{data['status']}: {data['text']}"]
    if step.kind in ("contract", "framed"):
        what = "the contract in the prompt" if step.kind == "contract" else "results as text"
        texts = (each["content"] for each in data["messages"])
        return [f"proxy → model: {what}", *(text if isinstance(text, str) else json.dumps(text) for text in texts)]
    if step.kind == "written":
        return ["model → proxy: the raw text", data["text"]]
    if step.kind == "calls":
        calls = [f"{call['function']['name']} {call['function']['arguments']}  ({call['id']})" for call in data["calls"]]
        deltas = [f"arguments in {len(pieces)} deltas" for pieces in data["argument_pieces"]]
        return [f"proxy → client: finish_reason {data['finish_reason']}", data["content"], *calls, *deltas]
    if step.kind == "result":
        return [f"client: runs {data['name']}", f"{json.dumps(data['arguments'])}\n{data['result']}"]
    if step.kind == "answer":
        return [f"proxy → client: the answer{', streamed' if data['pieces'] else ''}", data["text"]]
    problems = [f"Not as expected: {problem}" for problem in data["problems"]]
    return problems or ["All as expected: every call ran once, every value reached the answer."]


def _exit(number: int, _: FrameType | None) -> None:
    """Exit by an exception, so that the child processes are stopped."""
    raise SystemExit(128 + number)
