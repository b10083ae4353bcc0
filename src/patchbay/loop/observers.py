"""Events of a turn for observers."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from patchbay.errors import HookAbortError
from patchbay.loop.events import FinalEvent, LoopEvent, UserOutputEvent
from patchbay.models.chat_model import ChatRequest, ModelReply
from patchbay.types import NO_USAGE, Message, Usage

if TYPE_CHECKING:
    from patchbay.hooks import TurnHooks


_SUMMARY = 200
"""The most characters of an error in the event of the turn's end."""


class ObservedTurn:
    """Emits the start of a turn when it is created, and its end by ``end``.

    ``message`` is the user's, if known, and ``media`` the number of its files.
    """

    def __init__(self, hooks: TurnHooks, message: str, media: int = 0) -> None:
        self.message = message
        self._hooks = hooks
        self._began = time.perf_counter()
        scope = hooks.scope
        if scope.parent_turn_id:  # a sub-agent works for another turn
            spawned = {"AgentID": scope.agent_id, "Label": scope.turn_id, "ParentTurnID": scope.parent_turn_id}
            hooks.emit("agent.subturn.spawn", "subturn.spawn", 0, spawned)
        hooks.emit("agent.turn.start", "turn.start", 0, {"UserMessage": message, "MediaCount": media})

    def failed(self, stage: str, message: str) -> str:
        """Emit the error that ended the turn, and return the turn's status."""
        payload = {"Stage": stage, "Message": message}
        self._hooks.emit("agent.error", "turn.error", self._hooks.iteration, payload, severity="error")
        return "error"

    def aborted(self, why: HookAbortError) -> str:
        """Return the status of a turn that a hook has ended; emit an error unless the abort is hard."""
        if why.hard:
            return "aborted"
        return self.failed(why.point, str(why))

    def end(
        self,
        status: str,
        iterations: int = 0,
        content: str = "",
        executions: Sequence[Any] | None = None,
        usage: Usage = NO_USAGE,
    ) -> None:
        """Emit the end of the turn. ``executions`` are those of ``summary_of``, None if unknown."""
        hooks = self._hooks
        payload = {
            "Status": status,
            "Workspace": "",
            "Iterations": iterations,
            "Duration": round((time.perf_counter() - self._began) * 1e9),
            "FinalContentLen": len(content),
            "UserMessage": self.message,
            "FinalContent": content,
            "ActiveSkills": None,
            "AttemptedSkills": None,
            "FinalSuccessfulPath": None,
            "SkillContextSnapshots": None,
            "ToolKinds": None,
            "ToolExecutions": executions,
        }
        severity = {"error": "error", "aborted": "warn"}.get(status, "info")
        hooks.emit("agent.turn.end", "turn.end", iterations, payload, severity=severity, attrs=_usage(usage))
        if hooks.scope.parent_turn_id:
            hooks.emit("agent.subturn.end", "subturn.end", 0, {"AgentID": hooks.scope.agent_id, "Status": status})


async def observed_turn(
    hooks: TurnHooks, events: AsyncGenerator[LoopEvent, None], messages: Sequence[Message]
) -> AsyncGenerator[LoopEvent, None]:
    """Yield ``events``, and emit the turn's start, end and errors."""
    observed = ObservedTurn(hooks, *_last_user_message(messages))
    final: FinalEvent | None = None
    status = "aborted"  # if the consumer stops before the end
    try:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, FinalEvent):
                    final, status = event, "completed"  # before it is yielded: the consumer need not come back for more
                yield event
    except Exception as error:
        status = observed.failed("llm", str(error) or type(error).__name__)
        raise
    finally:
        if final is None:
            observed.end(status)
        else:
            status = observed.aborted(final.aborted) if final.aborted is not None else status
            executions = [summary_of(each) for each in final.tool_executions]
            observed.end(status, final.iterations, final.content or "", executions, final.usage)


def emit_request(hooks: TurnHooks, request: ChatRequest, iteration: int) -> None:
    """Emit the event of a request to the model."""
    parameters = request.parameters
    model, most = parameters.get("model"), parameters.get("max_tokens", parameters.get("max_completion_tokens"))
    temperature = parameters.get("temperature")
    about = {
        "Model": model if isinstance(model, str) else hooks.scope.model,
        "MaxTokens": most if isinstance(most, int) else 0,
        "Temperature": temperature if isinstance(temperature, int | float) else 0,
    }
    emit_request_counts(hooks, iteration, messages=len(request.messages), tools=len(request.tools), **about)


def emit_request_counts(hooks: TurnHooks, iteration: int, *, messages: int, tools: int, **about: Any) -> None:
    """Emit the event of a request with these numbers of messages and tools."""
    payload = {"Model": hooks.scope.model, "MessagesCount": messages, "ToolsCount": tools, "MaxTokens": 0, "Temperature": 0}
    hooks.emit("agent.llm.request", "turn.llm.request", iteration, payload | about)


def emit_response(hooks: TurnHooks, end: ModelReply, iteration: int) -> None:
    """Emit the event of a model's answer."""
    reply = end.reply
    calls = len(reply.tool_calls) + len(reply.incomplete)
    chars, has_reasoning = len(reply.content or ""), bool(reply.reasoning)
    emit_response_counts(hooks, iteration, chars=chars, calls=calls, reasoning=has_reasoning, usage=end.usage)


def emit_response_counts(
    hooks: TurnHooks, iteration: int, *, chars: int, calls: int, reasoning: bool = False, usage: Usage = NO_USAGE
) -> None:
    """Emit the event of an answer with these numbers of characters and calls."""
    payload = {"ContentLen": chars, "ToolCalls": calls, "HasReasoning": reasoning}
    hooks.emit("agent.llm.response", "turn.llm.response", iteration, payload, attrs=_usage(usage))


def _usage(usage: Usage) -> Mapping[str, Any]:
    """Return the attributes for an event with this usage; none where it is unknown."""
    counts = usage.counts()
    return {"usage": counts} if counts is not None else {}


def emit_output(hooks: TurnHooks, output: UserOutputEvent, iteration: int) -> None:
    """Emit a tool's output for the user: the text and the files themselves, for delivery."""
    payload = {"Tool": output.tool_call.name, "Text": output.text, "Media": list(output.media), "Handled": output.handled}
    hooks.emit("agent.user_output", "turn.tool.after", iteration, payload, attrs={"call_id": output.tool_call.id})


def summary_of(execution: Any) -> dict[str, Any]:
    """Return the summary of a call in the event of its turn's end."""
    about: dict[str, Any] = {"name": execution.call.name, "success": not execution.is_error}
    if execution.is_error:
        about["error_summary"] = execution.content[:_SUMMARY]
    return about


def _last_user_message(messages: Sequence[Message]) -> tuple[str, int]:
    """Return the text of the user's last message, and the number of its images and files."""
    for message in reversed(messages):
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, str):
            return content, 0
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list | tuple) else []
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        return "".join(texts), len(parts) - len(texts)
    return "", 0
