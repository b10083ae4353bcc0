"""The hook protocol as both sides use it: params to views, decisions to results, events, messages and tool outputs on the wire.

The contract is that of docs/guides/hook-processes.md. The SDK imports this module in every hook's process, so it imports no
third-party package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from patchbay.errors import ConfigurationError
from patchbay.hooks.types import (
    OUTPUT_MEMBERS,
    AbortTurn,
    Approval,
    Ask,
    Continue,
    DenyTool,
    Event,
    HardAbort,
    LLMRequest,
    LLMResponse,
    Meta,
    Modify,
    Respond,
    ToolRequest,
    ToolResultView,
    View,
)
from patchbay.tools.output import ToolOutput, changed_output
from patchbay.types import Message

VERSION: Final = 1

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
SERVER_ERROR: Final = -32000

META_NAMES: Final[Mapping[str, str]] = {
    "agent_id": "AgentID",
    "turn_id": "TurnID",
    "parent_turn_id": "ParentTurnID",
    "session_key": "SessionKey",
    "iteration": "Iteration",
    "trace_path": "TracePath",
    "source": "Source",
}
"""The members of ``meta`` on the wire: PascalCase, unlike all else."""

MODES: Final = ("observe", "llm", "tool", "approve")
"""Groups of methods that a hook can be registered for, in the order of ``hook.hello``."""

METHODS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "observe": ("on_runtime_event",),
    "llm": ("before_llm", "after_llm"),
    "tool": ("before_tool", "after_tool"),
    "approve": ("approve_tool",),
}
"""The methods of each mode."""

POINTS: Final = tuple(method for mode in MODES[1:] for method in METHODS_OF[mode])
"""The methods that are requests."""

_AGENT: Final = (
    "turn.start", "turn.end", "llm.request", "llm.delta", "llm.response", "llm.retry", "context.compress", "session.summarize",
    "tool.exec_start", "tool.exec_end", "tool.exec_skipped", "steering.injected", "follow_up.queued", "interrupt.received",
    "subturn.spawn", "subturn.end", "subturn.result_delivered", "subturn.orphan", "error",
)  # fmt: skip
_OTHERS: Final = (
    "agent.user_output", "agent.approval.requested", "agent.approval.decided",  # not in PicoClaw
    "channel.lifecycle.initialized", "channel.lifecycle.started", "channel.lifecycle.start_failed", "channel.lifecycle.stopped",
    "channel.webhook.registered", "channel.webhook.unregistered", "channel.message.outbound_queued",
    "channel.message.outbound_sent", "channel.message.outbound_failed", "channel.rate_limited", "bus.publish.failed",
    "bus.close.started", "bus.close.drained", "bus.close.completed", "gateway.start", "gateway.ready", "gateway.shutdown",
    "gateway.reload.started", "gateway.reload.completed", "gateway.reload.failed", "mcp.server.connecting",
    "mcp.server.connected", "mcp.server.failed", "mcp.tool.discovered", "mcp.tool.call.start", "mcp.tool.call.end",
)  # fmt: skip

KINDS: Final = frozenset({*(f"agent.{name}" for name in _AGENT), *_OTHERS})
"""All known kinds, including those of other hosts, which their configurations may name."""

ALIASES: Final = {name.replace(".", "_"): f"agent.{name}" for name in _AGENT}
"""Short names in configurations: ``turn_start`` is ``agent.turn.start``."""

ALL: Final = frozenset({"*", "all", ""})
"""Names that mean all kinds."""


def parse_kinds(names: Sequence[str], where: str) -> frozenset[str] | None:
    """Return the kinds of events to observe, None for all. Raises ConfigurationError for an unknown name.

    Names after one that means all are not checked, as in PicoClaw's host.
    """
    kinds = set()
    for name in names:
        if name in ALL:
            return None
        kind = ALIASES.get(name, name)
        if kind not in KINDS:
            raise ConfigurationError(f'{where} names the event "{name}", which there is not: "*" is all of them.')
        kinds.add(kind)
    return frozenset(kinds)


def encode_output(output: ToolOutput) -> dict[str, Any]:
    """Return a tool's output on the wire: ``is_async`` is named ``async``, empty members are left out."""
    sent: dict[str, Any] = {
        "for_llm": output.for_llm,
        "silent": output.silent,
        "is_error": output.is_error,
        "async": output.is_async,
    }
    if output.for_user:
        sent["for_user"] = output.for_user
    if output.media:
        sent["media"] = list(output.media)
    if output.artifact_tags:
        sent["artifact_tags"] = list(output.artifact_tags)
    if output.response_handled:
        sent["response_handled"] = True
    return sent


def output_members(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an output as ToolOutput names them."""
    return {"is_async" if name == "async" else name: value for name, value in members.items()}


_BY_URL = ("http://", "https://", "data:")


def encode_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages on the wire: ``content`` is always a string.

    Parts that are not text go into ``media`` as URLs, and into ``parts`` unchanged.
    """
    return [_encode_message(message) for message in messages]


def decode_messages(now: Sequence[dict[str, Any]], sent: Sequence[dict[str, Any]], originals: Sequence[Message]) -> list[Message]:
    """Return a hook's messages: unchanged ones are the originals, only changed ones are rebuilt."""
    known = {_key(message): original for message, original in zip(sent, originals, strict=True)}
    return [original if (original := known.get(_key(message))) is not None else _decode_message(message) for message in now]


def encode_tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Return tool definitions on the wire: always with name, description and parameters."""
    return [_definition(tool) for tool in tools]


def decode_tools(now: Sequence[dict[str, Any]], sent: Sequence[dict[str, Any]], originals: Sequence[Any]) -> list[Any]:
    """Return a hook's tools: unchanged ones are the originals."""
    known = {_key(tool): original for tool, original in zip(sent, originals, strict=True)}
    return [known.get(_key(tool), tool) for tool in now]


def _encode_message(message: Message) -> dict[str, Any]:
    content = message.get("content")
    sent: dict[str, Any] = {"role": message.get("role", ""), "content": content if isinstance(content, str) else ""}
    sent |= {
        name: value
        for name, value in message.items()
        if name not in ("role", "content") and value is not None and value not in ("", [], {})
    }
    if isinstance(content, list):
        texts = [part for part in content if _is_text(part)]
        others = [part for part in content if not _is_text(part)]
        sent["content"] = "\n".join(part["text"] for part in texts)
        if others:
            sent["media"] = [*sent.get("media", []), *_urls(others)]
            sent["parts"] = others
            if not sent["media"]:
                del sent["media"]
    return sent


def _decode_message(message: dict[str, Any]) -> Message:
    """Build a message that a hook wrote."""
    built: Message = {name: value for name, value in message.items() if name not in ("parts", "media") and value is not None}
    content = built.setdefault("content", "")
    parts = message.get("parts") or []
    media = [ref for ref in message.get("media") or [] if ref not in _urls(parts)]
    parts = [*parts, *({"type": "image_url", "image_url": {"url": ref}} for ref in media if ref.startswith(_BY_URL))]
    if refs := [ref for ref in media if not ref.startswith(_BY_URL)]:
        built["media"] = refs
    if parts and isinstance(content, str):
        built["content"] = [*([{"type": "text", "text": content}] if content else []), *parts]
    elif not content and built.get("tool_calls"):
        built["content"] = None
    return built


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _urls(parts: Sequence[Any]) -> list[str]:
    images = [part.get("image_url") for part in parts if isinstance(part, Mapping)]
    urls = [image.get("url") for image in images if isinstance(image, Mapping)]
    return [url for url in urls if isinstance(url, str)]


def _definition(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        return dict(tool)
    return {
        "type": "function",
        "function": {
            "name": function.get("name"),
            "description": function.get("description") or "",
            "parameters": function.get("parameters") or {},
        },
    }


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


_INBOUND: Final = (
    "channel", "account", "chat_id", "topic_id", "space_id", "space_type", "chat_type", "sender_id", "message_id",
)  # fmt: skip


def encode_event(event: Event) -> dict[str, Any]:
    """Return the ``params`` of ``hook.runtime_event`` (section 9.1); ``scope`` and ``correlation`` are always present."""
    meta = event.meta
    inbound = event.context.get("inbound")
    inbound = inbound if isinstance(inbound, Mapping) else {}
    source = {"component": event.kind.partition(".")[0], "name": meta.agent_id}
    scope: dict[str, Any] = {"agent_id": meta.agent_id, "session_key": meta.session_key, "turn_id": meta.turn_id}
    scope |= {name: inbound.get(name) for name in _INBOUND}
    correlation = {
        "trace_id": meta.trace_path,
        "parent_turn_id": meta.parent_turn_id,
        "reply_to_id": inbound.get("reply_to_message_id"),
    }
    attrs = {"agent_source": meta.source, "iteration": meta.iteration, **event.attrs}
    members: dict[str, Any] = {
        "id": event.id,
        "kind": event.kind,
        "time": rfc3339(event.time),
        "source": _without_empty(source),
        "scope": _without_empty(scope),
        "correlation": _without_empty(correlation),
        "severity": event.severity,
        "payload": event.payload,
        "attrs": _without_empty(attrs),
    }
    return {name: value for name, value in members.items() if value or name in ("scope", "correlation")}


def rfc3339(seconds: float) -> str:
    """Return a time in seconds since 1970 in RFC 3339, with nanoseconds."""
    whole = int(seconds)
    moment = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{int((seconds - whole) * 1e9):09d}Z"


def _without_empty(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value not in (None, "", 0)}


_EMPTY: Final[Mapping[str, Any]] = {
    "context": {}, "model": "", "messages": [], "tools": [], "options": {}, "graceful_terminal": False,
    "content": "", "reasoning": "", "tool_calls": [], "finish_reason": "", "usage": {},
    "tool": "", "arguments": {}, "call_id": "", "digest": "", "facts": {}, "approvers": [], "asks": [], "source": "",
    "endpoint": "", "annotations": {}, "parameters": {},
}  # fmt: skip


_WHY: Final = "a person would have to decide, and this host cannot ask one"
_IF_NO_PERSON: Final[Mapping[str, Any]] = {"before_tool": DenyTool(_WHY), "approve_tool": Approval(approved=False, reason=_WHY)}


class ParamsView:
    """The ``params`` of a request as the source of a view. Absent members have their empty values."""

    def __init__(self, params: Mapping[str, Any], inner: str = "") -> None:
        self._params = params
        self._members = {**params, **(params.get(inner) or {})} if inner else params

    def member(self, name: str, _point: str) -> Any:
        """Return a member. Raises KeyError."""
        if name == "meta":
            return _meta(self._params.get("meta"))
        if name == "duration":  # nanoseconds on the wire, seconds in views
            return (self._params.get(name) or 0) / 1e9
        value = self._members.get(name)
        return _EMPTY[name] if value is None else value


def decode_params(point: str, params: Mapping[str, Any]) -> View:
    """Return the view of a point."""
    if point == "before_llm":
        return LLMRequest(ParamsView(params), point)
    if point == "after_llm":
        return LLMResponse(ParamsView(params, "response"), point)
    if point == "after_tool":
        return ToolResultView(ParamsView(params), point, _output(params))
    return ToolRequest(ParamsView(params), point)


def decode_event(params: Mapping[str, Any]) -> Event:
    """Return an event; also accepts the names ``Kind``, ``Time``, ``Meta``, ``Context``, ``Payload`` of older hosts."""
    members = {name.lower(): value for name, value in params.items()}
    scope, correlation = members.get("scope") or {}, members.get("correlation") or {}
    attrs = members.get("attrs") or {}
    meta = _meta(members.get("meta")) if members.get("meta") else Meta(
        agent_id=str(scope.get("agent_id") or ""),
        turn_id=str(scope.get("turn_id") or ""),
        parent_turn_id=str(correlation.get("parent_turn_id") or ""),
        session_key=str(scope.get("session_key") or ""),
        iteration=attrs.get("iteration") or 0,
        trace_path=str(correlation.get("trace_id") or ""),
        source=str(attrs.get("agent_source") or ""),
    )  # fmt: skip
    return Event(
        id=str(members.get("id") or ""),
        kind=str(members.get("kind") or ""),
        time=_seconds(members.get("time")),
        meta=meta,
        context=members.get("context") or {"inbound": scope},
        severity=str(members.get("severity") or "info"),
        payload=members.get("payload") or {},
        attrs=attrs,
    )


def encode_decision(
    point: str, decision: Any, view: Any, params: Mapping[str, Any], *, merges: bool, asks: bool = True
) -> dict[str, Any]:
    """Return the result that states ``decision``. Raises TypeError for a decision that the point does not have.

    A host that ``merges`` gets the changed members; any other gets everything that it sent, with the changes. A host that
    ``asks`` can have a person decide; for any other the call is refused.
    """
    if isinstance(decision, type):
        raise TypeError(f"{point} cannot be answered with the class {decision.__name__}: give one, {decision.__name__}(...)")
    if isinstance(decision, Ask) and point in _IF_NO_PERSON:
        if not asks:  # such a host would run the call
            return encode_decision(point, _IF_NO_PERSON[point], view, params, merges=merges)
        return {**({"approved": False} if point == "approve_tool" else {}), **_with_reason("ask", decision.reason)}
    if point == "approve_tool":
        approved = decision if isinstance(decision, Approval) else Approval(decision is True)
        return {"approved": approved.approved is True, **({"reason": approved.reason} if approved.reason else {})}
    if decision is None or isinstance(decision, Continue):
        return {}
    if isinstance(decision, AbortTurn | HardAbort):
        return _with_reason("abort_turn" if isinstance(decision, AbortTurn) else "hard_abort", decision.reason)
    if point == "before_tool" and isinstance(decision, DenyTool):
        return _with_reason("deny_tool", decision.reason)
    if point == "before_tool" and isinstance(decision, Respond):
        return {"action": "respond", "result": encode_output(_changed_output(ToolOutput(), decision.result))}
    if isinstance(decision, Modify):
        changes = _changes(point, decision, view, params)
        return {"action": "modify", **_payload(point, changes, params, merges=merges)} if changes else {}
    raise TypeError(f"{point} cannot be answered with {decision!r:.200}")


def _changes(point: str, decision: Modify, view: View, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that differ from what the host sent."""
    changes = decision.changes
    if isinstance(changes, View):
        changes = changes.changes()
    elif not isinstance(changes, Mapping):
        raise TypeError(f"Modify takes the view or a mapping of members, not {type(changes).__name__}")
    unknown = [name for name in changes if name not in view.changeable]
    if unknown:
        raise TypeError(f"{', '.join(sorted(unknown))} cannot be changed here: {', '.join(sorted(view.changeable))} can")
    before = decode_params(point, params)
    return {name: value for name, value in changes.items() if value != getattr(before, name)}


def _payload(point: str, changes: dict[str, Any], params: Mapping[str, Any], *, merges: bool) -> dict[str, Any]:
    around = {} if merges else dict(params)
    if point == "before_llm":
        return {"request": {**around, **changes}}
    if point == "before_tool":
        return {"call": {**around, **changes}}
    if point == "after_llm":
        before = {} if merges else params.get("response") or {}
        return {"response": {**around, "response": {**before, **changes}}}
    output = _changed_output(_output(params), changes["result"])
    return {"result": {**around, "result": encode_output(output)}}


def _changed_output(before: ToolOutput, given: Any) -> ToolOutput:
    """Return ``before`` with a handler's changes. Raises TypeError for unknown members and wrong types."""
    if unknown := [name for name in given if name not in OUTPUT_MEMBERS] if isinstance(given, Mapping) else []:
        raise TypeError(f"{', '.join(map(str, unknown))} means nothing in a tool's result: there are {', '.join(OUTPUT_MEMBERS)}")
    return changed_output(before, given)


def _output(params: Mapping[str, Any]) -> ToolOutput:
    return changed_output(ToolOutput(), output_members(params.get("result") or {}))


def _with_reason(action: str, reason: str) -> dict[str, Any]:
    return {"action": action, "reason": reason} if reason else {"action": action}


def _meta(members: Any) -> Meta:
    members = members if isinstance(members, Mapping) else {}
    meta: dict[str, Any] = {name: str(members.get(wire_name) or "") for name, wire_name in META_NAMES.items()}
    iteration = members.get("Iteration")
    return Meta(**meta | {"iteration": iteration if isinstance(iteration, int) else 0})


def _seconds(time: Any) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError):
        return 0.0
