"""A model that plays a script: the fake for the ``ChatModel`` seam. It says that it is one in every error."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self, TypeAlias

from patchbay.models.chat import ChatRequest, ModelEvent, ModelReply, ReasoningDelta, TextDelta
from patchbay.types import Reply, ToolCall

Answer: TypeAlias = str | ToolCall | Sequence[ToolCall] | Reply | ModelReply | BaseException
"""A text, one or several calls, a Reply, a ModelReply (with finish_reason and usage), or an exception to raise."""

Step: TypeAlias = Answer | Callable[[ChatRequest], Any]
"""An answer, or a function (sync or async) that looks at the request and returns one."""


_SHOWN = 80


class ScriptedModel:
    """Answers request number n with step number n, and complains when it is asked once too often.

        model = ScriptedModel([ToolCall("1", "get_weather", '{"city": "Rome"}'), "It is sunny."])
        result = await ToolRunner(model, tools=[get_weather]).run("How is Rome?")
        model.assert_consumed()

    ``assert_consumed`` also tells again what may have been swallowed on the way, for an agent makes an event of every failure of
    its model: that it was asked once too often, and the AssertionError of a step that is a function. As a context manager it
    does all that by itself when the block ends without an error:

        with ScriptedModel(["It is sunny."]) as model:
            await ToolRunner(model).run("How is Rome?")

    ``requests`` are the ChatRequests it was asked. Text comes in two pieces when a stream is asked for.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = list(steps)
        self.requests: list[ChatRequest] = []
        self._complaint: AssertionError | None = None

    async def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:
        """Play the next step."""
        self.requests.append(request)
        try:
            step = await self._step(request)
        except AssertionError as complaint:
            self._complaint = self._complaint or complaint
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
        """Raise AssertionError if steps were left over, or something was wrong with those that were played."""
        if self._complaint is not None:
            raise self._complaint
        left = len(self._steps) - len(self.requests)
        if left > 0:
            unused = ", ".join(
                f"{number}: {_shown(self._steps[number - 1])}" for number in range(len(self.requests) + 1, len(self._steps) + 1)
            )
            raise AssertionError(f"{left} of the {len(self._steps)} steps of the ScriptedModel were not asked for ({unused}).")


def _steps(steps: Sequence[Any]) -> str:
    return f"{len(steps)} step{'' if len(steps) == 1 else 's'}"


def _shown(step: Any) -> str:
    text = repr(step)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


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
        raise TypeError(f"A step of a ScriptedModel gave {type(answer).__name__}, which is no answer.")
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
