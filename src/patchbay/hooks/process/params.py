"""What a process is told at each point: the ``params`` of the public contract (spec/hooks.md, sections 3 and 4).

What lives here: views as members on the wire. ``Meta`` is in PascalCase, all else in snake_case; what is empty is left out
where the contract leaves it out. Beside the contract's members a call has ``call_id``, ``source``, ``endpoint``,
``annotations`` and, where it is to be approved, ``digest`` and ``facts``: hooks that do not know them pass them over. What does
not: lines (``wire``), replies (``answers``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from patchbay.hooks.process.messages import shown_messages, shown_tools
from patchbay.hooks.process.outputs import shown_output
from patchbay.hooks.views import LLMRequest, LLMResponse, Meta, ToolRequest, ToolResultView

_PASCAL = {
    "agent_id": "AgentID",
    "turn_id": "TurnID",
    "parent_turn_id": "ParentTurnID",
    "session_key": "SessionKey",
    "iteration": "Iteration",
    "trace_path": "TracePath",
    "source": "Source",
}


class WireMeta(msgspec.Struct, rename=_PASCAL):
    """``meta``, all seven members always."""

    agent_id: str
    turn_id: str
    parent_turn_id: str
    session_key: str
    iteration: int
    trace_path: str
    source: str


class _Params(msgspec.Struct, omit_defaults=True, kw_only=True):
    meta: WireMeta
    context: Mapping[str, Any] = {}
    channel: str = ""
    chat_id: str = ""


class _LLMRequest(_Params, omit_defaults=True, kw_only=True):
    model: str
    messages: list[Any] = []
    tools: list[Any] = []
    options: dict[str, Any] = {}
    graceful_terminal: bool = False


class _LLMResponse(_Params, omit_defaults=True, kw_only=True):
    model: str
    response: dict[str, Any]


class _ToolCall(_Params, omit_defaults=True, kw_only=True):
    tool: str
    arguments: dict[str, Any] = {}
    call_id: str = ""
    digest: str = ""
    facts: Mapping[str, Any] = {}
    source: str
    endpoint: str = ""
    annotations: Mapping[str, Any] = {}


class _ToolResult(_Params, omit_defaults=True, kw_only=True):
    tool: str
    arguments: dict[str, Any] = {}
    call_id: str = ""
    result: dict[str, Any]
    duration: int


@dataclass(frozen=True, slots=True)
class Around:
    """How ``meta`` and ``context`` are told. ``flat``: also ``channel`` and ``chat_id``, as hosts before 0.2.7 told them."""

    flat: bool = False

    def of(self, meta: Meta, context: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members that every point has."""
        told: dict[str, Any] = {
            "meta": WireMeta(
                meta.agent_id,
                meta.turn_id,
                meta.parent_turn_id,
                meta.session_key,
                meta.iteration,
                meta.trace_path,
                meta.source,
            )
        }
        if context:
            told["context"] = {name: value for name, value in context.items() if value}
            if self.flat and isinstance(inbound := context.get("inbound"), Mapping):
                told["channel"] = str(inbound.get("channel") or "")
                told["chat_id"] = str(inbound.get("chat_id") or "")
        return told


def llm_request(view: LLMRequest, around: Around) -> _LLMRequest:
    """Return the params of ``hook.before_llm``."""
    return _LLMRequest(
        **around.of(view.meta, view.context),
        model=view.model,
        messages=shown_messages(view.messages),
        tools=shown_tools(view.tools),
        options=view.options,
        graceful_terminal=view.graceful_terminal,
    )


def llm_response(view: LLMResponse, around: Around) -> _LLMResponse:
    """Return the params of ``hook.after_llm``."""
    response: dict[str, Any] = {
        "content": view.content,
        "finish_reason": view.finish_reason,
        "reasoning": view.reasoning,
        "reasoning_details": None,
    }
    if view.tool_calls:
        response["tool_calls"] = view.tool_calls
    if any(view.usage.values()):
        response["usage"] = dict(view.usage)
    return _LLMResponse(**around.of(view.meta, view.context), model=view.model, response=response)


def tool_call(view: ToolRequest, around: Around, *, digest: str = "", facts: Mapping[str, Any] | None = None) -> _ToolCall:
    """Return the params of ``hook.before_tool``; with ``digest`` and ``facts`` those of ``hook.approve_tool``."""
    return _ToolCall(
        **around.of(view.meta, view.context),
        tool=view.tool,
        arguments=view.arguments,
        call_id=view.call_id,
        digest=digest,
        facts=facts or {},
        source=view.source,
        endpoint=view.endpoint,
        annotations=view.annotations,
    )


def tool_result(view: ToolResultView, around: Around) -> _ToolResult:
    """Return the params of ``hook.after_tool``; the duration is in whole nanoseconds."""
    return _ToolResult(
        **around.of(view.meta, view.context),
        tool=view.tool,
        arguments=view.arguments,
        call_id=view.call_id,
        result=shown_output(view.result),
        duration=int(view.duration * 1e9),
    )
