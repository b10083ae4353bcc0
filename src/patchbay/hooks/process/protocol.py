"""The hook protocol as both sides use it: params to views, decisions to results, events, messages and tool outputs on the wire.

The contract is spec/hooks.md, sections 3 to 5 and 9. The SDK imports this module in every hook's process, so it imports no
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

_AGENT: Final = (
    "turn.start", "turn.end", "llm.request", "llm.delta", "llm.response", "llm.retry", "context.compress", "session.summarize",
    "tool.exec_start", "tool.exec_end", "tool.exec_skipped", "steering.injected", "follow_up.queued", "interrupt.received",
    "subturn.spawn", "subturn.end", "subturn.result_delivered", "subturn.orphan", "error",
)  # fmt: skip
_OTHERS: Final = (
    "agent.user_output", "agent.approval.requested", "agent.approval.decided",  # ours: the seed's host has no such events
    "channel.lifecycle.initialized", "channel.lifecycle.started", "channel.lifecycle.start_failed", "channel.lifecycle.stopped",
    "channel.webhook.registered", "channel.webhook.unregistered", "channel.message.outbound_queued",
    "channel.message.outbound_sent", "channel.message.outbound_failed", "channel.rate_limited", "bus.publish.failed",
    "bus.close.started", "bus.close.drained", "bus.close.completed", "gateway.start", "gateway.ready", "gateway.shutdown",
    "gateway.reload.started", "gateway.reload.completed", "gateway.reload.failed", "mcp.server.connecting",
    "mcp.server.connected", "mcp.server.failed", "mcp.tool.discovered", "mcp.tool.call.start", "mcp.tool.call.end",
)  # fmt: skip

KINDS: Final = frozenset({*(f"agent.{name}" for name in _AGENT), *_OTHERS})
"""All kinds that may be named. Not all of them happen here: a configuration made for another host may name them."""

ALIASES: Final = {name.replace(".", "_"): f"agent.{name}" for name in _AGENT}
"""The short names: ``turn_start`` is ``agent.turn.start``."""

ALL: Final = frozenset({"*", "all", ""})
"""Any of these among the names means all kinds."""


def observed(names: Sequence[str], where: str) -> frozenset[str] | None:
    """Return the kinds that are meant, None for all of them. Raises ConfigurationError for a name that is none.

    What stands behind a name that means all is not looked at, as in the seed's host.
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


def shown_output(output: ToolOutput) -> dict[str, Any]:
    """Return a tool's output in the wire's words."""
    shown: dict[str, Any] = {
        "for_llm": output.for_llm,
        "silent": output.silent,
        "is_error": output.is_error,
        "async": output.is_async,
    }
    if output.for_user:
        shown["for_user"] = output.for_user
    if output.media:
        shown["media"] = list(output.media)
    if output.artifact_tags:
        shown["artifact_tags"] = list(output.artifact_tags)
    if output.response_handled:
        shown["response_handled"] = True
    return shown


def output_members(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an output as ToolOutput names them."""
    return {"is_async" if name == "async" else name: value for name, value in told.items()}


_BY_URL = ("http://", "https://", "data:")


def shown_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages in the wire's words."""
    return [_shown(message) for message in messages]


def messages_back(now: Sequence[dict[str, Any]], shown: Sequence[dict[str, Any]], originals: Sequence[Message]) -> list[Message]:
    """Return the messages that a hook sent back, in the host's words."""
    known = {_key(message): original for message, original in zip(shown, originals, strict=True)}
    return [original if (original := known.get(_key(message))) is not None else _built(message) for message in now]


def shown_tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Return tool definitions in the wire's words: name, description and parameters, all three."""
    return [_definition(tool) for tool in tools]


def tools_back(now: Sequence[dict[str, Any]], shown: Sequence[dict[str, Any]], originals: Sequence[Any]) -> list[Any]:
    """Return the tools that a hook sent back, each that it left alone as the host has it."""
    known = {_key(tool): original for tool, original in zip(shown, originals, strict=True)}
    return [known.get(_key(tool), tool) for tool in now]


def _shown(message: Message) -> dict[str, Any]:
    content = message.get("content")
    shown: dict[str, Any] = {"role": message.get("role", ""), "content": content if isinstance(content, str) else ""}
    shown |= {
        name: value
        for name, value in message.items()
        if name not in ("role", "content") and value is not None and value not in ("", [], {})
    }
    if isinstance(content, list):
        texts = [part for part in content if _is_text(part)]
        others = [part for part in content if not _is_text(part)]
        shown["content"] = "\n".join(part["text"] for part in texts)
        if others:
            shown["media"] = [*shown.get("media", []), *_urls(others)]
            shown["parts"] = others
            if not shown["media"]:
                del shown["media"]
    return shown


def _built(message: dict[str, Any]) -> Message:
    """Make a message of one that a hook has written."""
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


def enveloped(event: Event) -> dict[str, Any]:
    """Return an event in the wire's words; ``scope`` and ``correlation`` are there also where they are empty."""
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
    told: dict[str, Any] = {
        "id": event.id,
        "kind": event.kind,
        "time": rfc3339(event.time),
        "source": _filled(source),
        "scope": _filled(scope),
        "correlation": _filled(correlation),
        "severity": event.severity,
        "payload": event.payload,
        "attrs": _filled(attrs),
    }
    return {name: value for name, value in told.items() if value or name in ("scope", "correlation")}


def rfc3339(seconds: float) -> str:
    """Write a time since 1970, in nanoseconds as far as it has them."""
    whole = int(seconds)
    moment = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{int((seconds - whole) * 1e9):09d}Z"


def _filled(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value not in (None, "", 0)}


_META: Final = ("AgentID", "TurnID", "ParentTurnID", "SessionKey", "Iteration", "TracePath", "Source")
_EMPTY: Final[Mapping[str, Any]] = {
    "context": {}, "model": "", "messages": [], "tools": [], "options": {}, "graceful_terminal": False,
    "content": "", "reasoning": "", "tool_calls": [], "finish_reason": "", "usage": {},
    "tool": "", "arguments": {}, "call_id": "", "digest": "", "facts": {}, "approvers": [], "asks": [], "source": "",
    "endpoint": "", "annotations": {}, "parameters": {},
}  # fmt: skip


_WHY: Final = "a person would have to decide, and this host cannot ask one"
_NO_PERSON: Final[Mapping[str, Any]] = {"before_tool": DenyTool(_WHY), "approve_tool": Approval(approved=False, reason=_WHY)}


class ParamsView:
    """The ``params`` of a request, as what a view is of."""

    def __init__(self, params: Mapping[str, Any], inner: str = "") -> None:
        self._params = params
        self._members = {**params, **(params.get(inner) or {})} if inner else params

    def member(self, name: str, _point: str) -> Any:
        """Return a member. Raises KeyError."""
        if name == "meta":
            return _meta(self._params.get("meta"))
        if name == "duration":  # in nanoseconds there, in seconds here
            return (self._params.get(name) or 0) / 1e9
        value = self._members.get(name)
        return _EMPTY[name] if value is None else value


def view_of(point: str, params: Mapping[str, Any]) -> View:
    """Return what the handlers of a point are given."""
    if point == "before_llm":
        return LLMRequest(ParamsView(params), point)
    if point == "after_llm":
        return LLMResponse(ParamsView(params, "response"), point)
    if point == "after_tool":
        return ToolResultView(ParamsView(params), point, _output(params))
    return ToolRequest(ParamsView(params), point)


def event_of(params: Mapping[str, Any]) -> Event:
    """Return an event; also one of hosts that call the members ``Kind``, ``Time``, ``Meta``, ``Context``, ``Payload``."""
    told = {name.lower(): value for name, value in params.items()}
    scope, correlation = told.get("scope") or {}, told.get("correlation") or {}
    attrs = told.get("attrs") or {}
    meta = _meta(told.get("meta")) if told.get("meta") else Meta(
        agent_id=str(scope.get("agent_id") or ""),
        turn_id=str(scope.get("turn_id") or ""),
        parent_turn_id=str(correlation.get("parent_turn_id") or ""),
        session_key=str(scope.get("session_key") or ""),
        iteration=attrs.get("iteration") or 0,
        trace_path=str(correlation.get("trace_id") or ""),
        source=str(attrs.get("agent_source") or ""),
    )  # fmt: skip
    return Event(
        id=str(told.get("id") or ""),
        kind=str(told.get("kind") or ""),
        time=_seconds(told.get("time")),
        meta=meta,
        context=told.get("context") or {"inbound": scope},
        severity=str(told.get("severity") or "info"),
        payload=told.get("payload") or {},
        attrs=attrs,
    )


def reply_of(
    point: str, decision: Any, view: Any, params: Mapping[str, Any], *, merges: bool, asks: bool = True
) -> dict[str, Any]:
    """Return the result that says ``decision``. Raises TypeError for what a handler of this point cannot decide.

    A host that ``merges`` is told what is to be another; any other takes what it is told in place of all that it has asked
    about. One that ``asks`` can have a person decide; any other is told to refuse the call.
    """
    if isinstance(decision, type):
        raise TypeError(f"{point} cannot be answered with the class {decision.__name__}: give one, {decision.__name__}(...)")
    if isinstance(decision, Ask) and point in _NO_PERSON:
        if not asks:  # such a host would carry out the call
            return reply_of(point, _NO_PERSON[point], view, params, merges=merges)
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
        return {"action": "respond", "result": shown_output(_given(ToolOutput(), decision.result))}
    if isinstance(decision, Modify):
        changes = _changes(point, decision, view, params)
        return {"action": "modify", **_payload(point, changes, params, merges=merges)} if changes else {}
    raise TypeError(f"{point} cannot be answered with {decision!r:.200}")


def _changes(point: str, decision: Modify, view: View, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are to be others than they are."""
    changes = decision.changes
    if isinstance(changes, View):
        changes = changes.changes()
    elif not isinstance(changes, Mapping):
        raise TypeError(f"Modify takes the view or a mapping of members, not {type(changes).__name__}")
    unknown = [name for name in changes if name not in view.changeable]
    if unknown:
        raise TypeError(f"{', '.join(sorted(unknown))} cannot be changed here: {', '.join(sorted(view.changeable))} can")
    before = view_of(point, params)
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
    output = _given(_output(params), changes["result"])
    return {"result": {**around, "result": shown_output(output)}}


def _given(before: ToolOutput, given: Any) -> ToolOutput:
    """Return ``before`` with what a handler has given for it. Raises TypeError for what is no result, or has members of none."""
    if unknown := [name for name in given if name not in OUTPUT_MEMBERS] if isinstance(given, Mapping) else []:
        raise TypeError(f"{', '.join(map(str, unknown))} means nothing in a tool's result: there are {', '.join(OUTPUT_MEMBERS)}")
    return changed_output(before, given)


def _output(params: Mapping[str, Any]) -> ToolOutput:
    return changed_output(ToolOutput(), output_members(params.get("result") or {}))


def _with_reason(action: str, reason: str) -> dict[str, Any]:
    return {"action": action, "reason": reason} if reason else {"action": action}


def _meta(told: Any) -> Meta:
    told = told if isinstance(told, Mapping) else {}
    values = [told.get(name) for name in _META]
    texts = [str(value or "") for value in values]
    iteration = values[4] if isinstance(values[4], int) else 0
    return Meta(texts[0], texts[1], texts[2], texts[3], iteration, texts[5], texts[6])


def _seconds(time: Any) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError):
        return 0.0
