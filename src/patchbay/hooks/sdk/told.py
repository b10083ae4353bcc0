"""What the host tells, as the views that every hook is given; and what a handler decides, as the host is told.

What lives here: the public contract (spec/hooks.md, sections 3 to 5) from a hook's side. Members that a host leaves out have
their empty values. What does not: the host's side of the same (``patchbay.hooks.process``).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from patchbay.hooks.decisions import AbortTurn, Approval, Ask, Continue, DenyTool, HardAbort, Modify, Respond
from patchbay.hooks.process.outputs import output_members, shown_output
from patchbay.hooks.results import MEMBERS
from patchbay.hooks.views import Event, LLMRequest, LLMResponse, Meta, ToolRequest, ToolResultView, View
from patchbay.tools.output import ToolOutput, changed_output

_META: Final = ("AgentID", "TurnID", "ParentTurnID", "SessionKey", "Iteration", "TracePath", "Source")
_EMPTY: Final[Mapping[str, Any]] = {
    "context": {}, "model": "", "messages": [], "tools": [], "options": {}, "graceful_terminal": False,
    "content": "", "reasoning": "", "tool_calls": [], "finish_reason": "", "usage": {},
    "tool": "", "arguments": {}, "call_id": "", "digest": "", "facts": {}, "approvers": [], "asks": [], "source": "",
    "endpoint": "", "annotations": {}, "parameters": {},
}  # fmt: skip


_WHY: Final = "a person would have to decide, and this host cannot ask one"
_NO_PERSON: Final[Mapping[str, Any]] = {"before_tool": DenyTool(_WHY), "approve_tool": Approval(approved=False, reason=_WHY)}


class Told:
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
        return LLMRequest(Told(params), point)
    if point == "after_llm":
        return LLMResponse(Told(params, "response"), point)
    if point == "after_tool":
        return ToolResultView(Told(params), point, _output(params))
    return ToolRequest(Told(params), point)


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

    A host that ``merges`` is told what is to be another; any other takes what it is told in place of all that it has asked about.
    One that ``asks`` can have a person decide; any other is told to refuse the call.
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
    if unknown := [name for name in given if name not in MEMBERS] if isinstance(given, Mapping) else []:
        raise TypeError(f"{', '.join(map(str, unknown))} means nothing in a tool's result: there are {', '.join(MEMBERS)}")
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
