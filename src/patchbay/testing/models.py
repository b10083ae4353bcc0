"""Fake models: ScriptedModel for the agent loop, and ContractModel, which follows the fenced contract."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from patchbay.models.chat_model import ChatRequest, ModelEvent, ModelReply, ReasoningDelta, TextDelta
from patchbay.types import Reply, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Answer: TypeAlias = str | ToolCall | Sequence[ToolCall] | Reply | ModelReply | BaseException
"""A text, one or several calls, a Reply, a ModelReply (with finish_reason and usage), or an exception to raise."""

Step: TypeAlias = Answer | Callable[[ChatRequest], Any]
"""An answer, or a function (sync or async) that looks at the request and returns one."""


_MAX_REPR = 80


class ScriptedModel:
    """Answers request number n with step number n; a request beyond the script raises AssertionError.

        model = ScriptedModel([ToolCall("1", "get_weather", '{"city": "Rome"}'), "It is sunny."])
        result = await ToolRunner(model, tools=[get_weather]).run("How is Rome?")
        model.assert_consumed()

    ``assert_consumed`` also raises what an agent may have turned into an event: a request beyond the script, and the
    AssertionError of a step that is a function. As a context manager it is called when the block ends without an error:

        with ScriptedModel(["It is sunny."]) as model:
            await ToolRunner(model).run("How is Rome?")

    ``requests`` are the ChatRequests that it received. In a stream, text comes in two pieces.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = list(steps)
        self.requests: list[ChatRequest] = []
        self._failure: AssertionError | None = None

    async def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:
        """Play the next step."""
        self.requests.append(request)
        try:
            step = await self._step(request)
        except AssertionError as failure:
            self._failure = self._failure or failure
            raise
        if isinstance(step, BaseException):
            raise step
        end = _model_reply(step)
        if request.stream:
            for delta in _deltas(end.reply):
                yield delta
        yield end

    async def _step(self, request: ChatRequest) -> Any:
        if len(self.requests) > len(self._steps):
            raise AssertionError(
                f"The ScriptedModel was asked {len(self.requests)} times, but its script has {_steps(self._steps)}."
            )
        step: Any = self._steps[len(self.requests) - 1]
        if callable(step) and not isinstance(step, BaseException):
            step = step(request)
            if inspect.isawaitable(step):
                step = await step
        return step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.assert_consumed()

    def assert_consumed(self) -> None:
        """Raise AssertionError if steps are unused, or if a request or a step has failed an assertion."""
        if self._failure is not None:
            raise self._failure
        left = len(self._steps) - len(self.requests)
        if left > 0:
            unused = ", ".join(
                f"{number}: {_shorten(self._steps[number - 1])}" for number in range(len(self.requests) + 1, len(self._steps) + 1)
            )
            raise AssertionError(f"{left} of the {len(self._steps)} steps of the ScriptedModel were not asked for ({unused}).")


def _steps(steps: Sequence[Any]) -> str:
    return f"{len(steps)} step{'' if len(steps) == 1 else 's'}"


def _shorten(step: Any) -> str:
    text = repr(step)
    return text if len(text) <= _MAX_REPR else f"{text[:_MAX_REPR]}..."


def _model_reply(answer: Any) -> ModelReply:
    if isinstance(answer, ModelReply):
        return answer
    if isinstance(answer, str):
        answer = Reply(answer)
    elif isinstance(answer, ToolCall):
        answer = Reply(None, tool_calls=(answer,))
    elif isinstance(answer, Sequence) and all(isinstance(call, ToolCall) for call in answer):
        answer = Reply(None, tool_calls=tuple(answer))
    if not isinstance(answer, Reply):
        raise TypeError(f"A step of a ScriptedModel gave {type(answer).__name__}, which is not an answer.")
    if answer.incomplete:
        return ModelReply(answer, "length")
    return ModelReply(answer, "tool_calls" if answer.tool_calls else "stop")


def _deltas(reply: Reply) -> list[ModelEvent]:
    deltas: list[ModelEvent] = [ReasoningDelta(piece) for piece in _halves(reply.reasoning)]
    deltas += [TextDelta(piece) for piece in _halves(reply.content)]
    return deltas


def _halves(text: str | None) -> list[str]:
    if not text:
        return []
    middle = (len(text) + 1) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


SIGNATURE = "(scripted model)"
"""The beginning of every answer of a ContractModel."""

_FENCE = re.compile(
    r"^(?P<ticks>`{3,}|~{3,})[ \t]*(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=ticks)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_LABEL = re.compile(r"\blabelled (\S+)")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)")
_QUOTED = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|(?<!\w)'([^'\n]+)'(?!\w)")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z]\w+")


@dataclass(frozen=True)
class Contract:
    """The contract as stated in a prompt: labels of the fences, and tools with their schemas."""

    call_tag: str
    result_tag: str
    tools: Mapping[str, Mapping[str, Any]]


class ContractModel:
    """A script for ScriptedUpstream: answers like a small model that follows its system prompt.

    With a contract in the prompt it calls every tool that the last user message asks for by a word of its
    name, with the numbers and the quoted or capitalised words of that message as arguments. With results in
    the conversation it answers with their values.
    """

    def __call__(self, body: Mapping[str, Any]) -> str:
        """Write the completion for the body of a chat request."""
        messages = [(message.get("role"), _text(message.get("content"))) for message in body.get("messages", [])]
        contract = read_contract("\n\n".join(text for role, text in messages if role in ("system", "developer")))
        last_reply = max((index for index, (role, _) in enumerate(messages) if role == "assistant"), default=-1)
        unanswered = "\n\n".join(text for role, text in messages[last_reply + 1 :] if role == "user")
        if contract is None:
            return f"{SIGNATURE} I know only the fenced format, and my prompt names no tools in it. I was told: {unanswered}"
        results = list(_read_results(unanswered, contract.result_tag))
        if results:
            return f"{SIGNATURE} The tools say: {'; '.join(results)}."
        calls = choose_calls(contract.tools, unanswered)
        if not calls:
            return f"{SIGNATURE} No tool of mine fits this."
        names = " and ".join(dict.fromkeys(name for name, _ in calls))
        blocks = (_block(contract.call_tag, name, arguments) for name, arguments in calls)
        return "\n\n".join([f"{SIGNATURE} I use {names} for this.", *blocks])


def read_contract(prompt: str) -> Contract | None:
    """Find the contract in a prompt: the labels in its sentences, the tools in their list.

    None if the prompt has no labels, or no tools.
    """
    labels = _LABEL.findall(prompt)
    listed = (_read_json(line) for fence in _FENCE.finditer(prompt) for line in fence["body"].splitlines())
    tools = {tool["name"]: tool["parameters"] for tool in listed if isinstance(tool, dict) and "parameters" in tool}
    return Contract(labels[0], labels[1], tools) if len(labels) > 1 and tools else None


def choose_calls(tools: Mapping[str, Mapping[str, Any]], question: str) -> list[tuple[str, dict[str, Any]]]:
    """Choose the calls that ``question`` asks for: (name, arguments) in the order of the tools."""
    numbers = [json.loads(number) for number in _NUMBER.findall(question)]
    quoted = [next(filter(None, groups)) for groups in _QUOTED.findall(question)]
    words = quoted or _NAME.findall(question)
    calls = []
    for name, schema in tools.items():
        properties = schema.get("properties", {})
        required = schema.get("required", list(properties))
        if not _mentions(name, question):
            continue
        # A tool with one argument is called once for each value.
        while True:
            arguments = _fill(required, properties, numbers, words)
            if arguments is None:
                break
            calls.append((name, arguments))
            if len(required) != 1:
                break
    return calls


def _mentions(name: str, question: str) -> bool:
    """True if the question contains the first six letters of a word of the tool's name ("multiplied")."""
    stems = [word[:6].lower() for word in re.split(r"[^A-Za-z]+", name) if len(word) > 3]
    return any(stem in question.lower() for stem in stems)


def _fill(required: Sequence[str], properties: Mapping[str, Any], numbers: list[Any], words: list[str]) -> dict[str, Any] | None:
    """Take a value for each required property from the front of the lists; return None if one is missing."""
    left = {"number": iter(numbers), "integer": iter(numbers), "string": iter(words)}
    left["integer"] = left["number"]
    arguments = {}
    for name in required:
        kind = properties.get(name, {}).get("type")
        value = next(left[kind], None) if isinstance(kind, str) and kind in left else None
        if value is None:
            return None
        arguments[name] = value
    for value in arguments.values():
        (words if isinstance(value, str) else numbers).remove(value)
    return arguments or None


def _read_results(text: str, tag: str) -> Iterator[str]:
    for fence in _FENCE.finditer(text):
        if fence["info"].split(" ")[0].strip() == tag:
            yield _in_words(fence["body"].strip())


def _in_words(result: str) -> str:
    value = _read_json(result)
    if not isinstance(value, dict):
        return result
    return ", ".join(f"{key} {item if isinstance(item, str) else json.dumps(item)}" for key, item in value.items())


def _block(tag: str, name: str, arguments: Mapping[str, Any]) -> str:
    return f"```{tag}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n```"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
