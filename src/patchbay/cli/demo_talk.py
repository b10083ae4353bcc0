"""One conversation of ``patchbay demo``: the loop that every user of an OpenAI client writes, with each step told.

What lives here: asking, streamed or not, running the called tools, sending the results back, and checking that
all went as it should. What does not: printing (``demo_page``) and processes (``children``). Nothing in it
knows of the proxy: what the model was sent and wrote is read from the model server's own record.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from patchbay.cli.demo_tools import FUNCTIONS, TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import openai

_MAX_ROUNDS = 4


@dataclass(frozen=True)
class Step:
    """One thing that a side sent or did. ``kind`` says which, ``data`` is all of it, unshortened."""

    conversation: int
    kind: str
    data: dict[str, Any]


@dataclass
class Answer:
    """What came back from one request, put together as OpenAI's documentation says to."""

    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    text_pieces: list[str] = field(default_factory=list)
    argument_pieces: list[list[str]] = field(default_factory=list)


class Record:
    """The file in which the model server writes what it was sent and what it wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield the exchanges since the last time."""
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        fresh, self._read = lines[self._read :], len(lines)
        for line in fresh:
            yield json.loads(line)


@dataclass(frozen=True)
class Talk:
    """A conversation to be had: its number, the question, the calls that it must lead to."""

    number: int
    streamed: bool
    question: str
    expected: tuple[tuple[str, dict[str, Any]], ...]

    def run(self, client: openai.OpenAI, record: Record, tell: Callable[[Step], None]) -> list[str]:
        """Have it, tell each step, and return what was not as expected (nothing, when all is well)."""

        def step(kind: str, **data: Any) -> None:
            tell(Step(self.number, kind, data))

        messages: list[dict[str, Any]] = [{"role": "user", "content": self.question}]
        step("question", streamed=self.streamed, messages=list(messages), tools=TOOLS)
        executed: list[tuple[str, dict[str, Any]]] = []
        values: list[str] = []
        shown = 0
        for _ in range(_MAX_ROUNDS):
            answer = ask(client, messages, streamed=self.streamed)
            for exchange in record.news():
                sent = exchange["request"]
                if exchange["status"] != 200:
                    step("refused", status=exchange["status"], text=exchange["answer"])
                    continue
                step(
                    "contract" if shown == 0 else "framed",
                    messages=sent["messages"][shown:],
                    keys=sorted(sent),
                )
                shown = len(sent["messages"])
                step("written", text=exchange["answer"])
            if not answer.calls:
                step("answer", text=answer.content, pieces=len(answer.text_pieces))
                return self._problems(executed, values, answer)
            step("calls", **vars(answer))
            messages.append({"role": "assistant", "content": answer.content or None, "tool_calls": answer.calls})
            for call in answer.calls:
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                result = FUNCTIONS[name](**arguments)
                executed.append((name, arguments))
                values += _values(result)
                step("result", name=name, arguments=arguments, result=result)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return [f"conversation {self.number} had no answer after {_MAX_ROUNDS} rounds"]

    def _problems(self, executed: list[tuple[str, dict[str, Any]]], values: list[str], answer: Answer) -> list[str]:
        where = f"conversation {self.number}"
        lost = [value for value in values if value not in answer.content]
        problems = [f"{where}: {value!r} of a result is not in the answer" for value in lost]
        if executed != list(self.expected):
            problems.append(f"{where}: the calls were {executed}, not {list(self.expected)}")
        if answer.finish_reason != "stop":
            problems.append(f"{where}: the answer's finish_reason is {answer.finish_reason!r}")
        return problems


def _values(result: str) -> list[str]:
    """Take out what the answer has to name: every value of a result that is an object, or else its text."""
    try:
        return [str(value) for value in json.loads(result).values()]
    except ValueError:
        return [result]


def ask(client: openai.OpenAI, messages: list[dict[str, Any]], *, streamed: bool) -> Answer:
    """Send one request with the tools; a streamed answer is put together from its deltas."""
    create: Any = client.chat.completions.create
    completion = create(model="scripted-model", messages=messages, tools=TOOLS, stream=streamed)
    if streamed:
        return _assemble(completion)
    choice = completion.choices[0]
    calls = [call.model_dump(exclude_none=True) for call in choice.message.tool_calls or ()]
    return Answer(choice.message.content or "", calls, choice.finish_reason)


def _assemble(stream: Any) -> Answer:
    answer = Answer()
    for chunk in stream:
        for choice in chunk.choices:
            answer.finish_reason = choice.finish_reason or answer.finish_reason
            if choice.delta.content:
                answer.text_pieces.append(choice.delta.content)
            for delta in choice.delta.tool_calls or ():
                if delta.id:
                    function = {"name": delta.function.name, "arguments": ""}
                    answer.calls.append({"id": delta.id, "type": "function", "function": function})
                    answer.argument_pieces.append([])
                if delta.function.arguments:
                    answer.argument_pieces[delta.index].append(delta.function.arguments)
    answer.content = "".join(answer.text_pieces)
    for call, pieces in zip(answer.calls, answer.argument_pieces, strict=True):
        call["function"]["arguments"] = "".join(pieces)
    return answer
