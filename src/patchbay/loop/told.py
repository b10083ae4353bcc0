"""A turn as observers are told of it. Only where there are any."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from patchbay.errors import HookAbortError
from patchbay.loop.events import FinalEvent, LoopEvent, UserOutputEvent
from patchbay.models.chat import ChatRequest, ModelReply
from patchbay.types import Message

if TYPE_CHECKING:
    from patchbay.hooks import TurnHooks

_SUMMARY = 200
"""How much of an error is told with the turn's end."""


async def observed_turn(
    hooks: TurnHooks, events: AsyncGenerator[LoopEvent, None], messages: Sequence[Message]
) -> AsyncGenerator[LoopEvent, None]:
    """Yield ``events``, and tell of the turn's beginning, its end and what went wrong."""
    began = time.perf_counter()
    said, media = _asked_by_user(messages)
    scope = hooks.scope
    if scope.parent_turn_id:  # a sub-agent works for another turn
        spawned = {"AgentID": scope.agent_id, "Label": scope.turn_id, "ParentTurnID": scope.parent_turn_id}
        hooks.tell("agent.subturn.spawn", "subturn.spawn", 0, spawned)
    hooks.tell("agent.turn.start", "turn.start", 0, {"UserMessage": said, "MediaCount": media})
    end: FinalEvent | None = None
    status = "aborted"  # where it is left before its end
    try:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, FinalEvent):
                    end, status = event, _status(event.aborted)  # before it is told: nobody need come back for more
                yield event
    except Exception as error:
        status = "error"
        _tell_error(hooks, "llm", str(error) or type(error).__name__)
        raise
    finally:
        if end is not None and end.aborted is not None and not end.aborted.hard:
            _tell_error(hooks, end.aborted.point, str(end.aborted))
        _tell_end(hooks, status, end, said, time.perf_counter() - began)
        if scope.parent_turn_id:
            hooks.tell("agent.subturn.end", "subturn.end", 0, {"AgentID": scope.agent_id, "Status": status})


def tell_request(hooks: TurnHooks, request: ChatRequest, iteration: int) -> None:
    """Say that a model is about to be asked."""
    parameters = request.parameters
    model, most = parameters.get("model"), parameters.get("max_tokens", parameters.get("max_completion_tokens"))
    temperature = parameters.get("temperature")
    payload = {
        "Model": model if isinstance(model, str) else hooks.scope.model,
        "MessagesCount": len(request.messages),
        "ToolsCount": len(request.tools),
        "MaxTokens": most if isinstance(most, int) else 0,
        "Temperature": temperature if isinstance(temperature, int | float) else 0,
    }
    hooks.tell("agent.llm.request", "turn.llm.request", iteration, payload)


def tell_response(hooks: TurnHooks, end: ModelReply, iteration: int) -> None:
    """Say that a model has answered."""
    reply = end.reply
    payload = {
        "ContentLen": len(reply.content or ""),
        "ToolCalls": len(reply.tool_calls) + len(reply.incomplete),
        "HasReasoning": bool(reply.reasoning),
    }
    hooks.tell("agent.llm.response", "turn.llm.response", iteration, payload)


def tell_output(hooks: TurnHooks, shown: UserOutputEvent, iteration: int) -> None:
    """Say what a tool has for the user: the words and the files themselves, for whoever brings them there."""
    payload = {"Tool": shown.tool_call.name, "Text": shown.text, "Media": list(shown.media), "Handled": shown.handled}
    hooks.tell("agent.user_output", "turn.tool.after", iteration, payload, attrs={"call_id": shown.tool_call.id})


def _tell_error(hooks: TurnHooks, stage: str, message: str) -> None:
    hooks.tell("agent.error", "turn.error", 0, {"Stage": stage, "Message": message}, severity="error")


def _tell_end(hooks: TurnHooks, status: str, end: FinalEvent | None, said: str, seconds: float) -> None:
    content = (end.content or "") if end is not None else ""
    payload = {
        "Status": status,
        "Workspace": "",
        "Iterations": end.iterations if end is not None else 0,
        "Duration": round(seconds * 1e9),
        "FinalContentLen": len(content),
        "UserMessage": said,
        "FinalContent": content,
        "ActiveSkills": None,
        "AttemptedSkills": None,
        "FinalSuccessfulPath": None,
        "SkillContextSnapshots": None,
        "ToolKinds": None,
        "ToolExecutions": [_execution(each) for each in end.tool_executions] if end is not None else None,
    }
    severity = {"error": "error", "aborted": "warn"}.get(status, "info")
    hooks.tell("agent.turn.end", "turn.end", end.iterations if end is not None else 0, payload, severity=severity)


def _execution(execution: Any) -> dict[str, Any]:
    about: dict[str, Any] = {"name": execution.call.name, "success": not execution.is_error}
    if execution.is_error:
        about["error_summary"] = execution.content[:_SUMMARY]
    return about


def _status(aborted: HookAbortError | None) -> str:
    if aborted is None:
        return "completed"
    return "aborted" if aborted.hard else "error"


def _asked_by_user(messages: Sequence[Message]) -> tuple[str, int]:
    """Return the text of the user's last message, and how many images and files go with it."""
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
