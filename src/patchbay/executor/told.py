"""Calls as they are told: to observers, and to whoever keeps a record of them. Only where there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patchbay.executor.execution import ToolExecution
from patchbay.executor.settle import NAME_SHOWN

if TYPE_CHECKING:
    from patchbay.executor.flight import Flight
    from patchbay.hooks import DecisionLog, TurnHooks

_POINT = "turn.tool.after"


def tell_begun(hooks: TurnHooks, flight: Flight) -> None:
    """Say that a call's tool is about to run."""
    attrs = {"call_id": flight.call.id}
    if flight.tool.owner:
        attrs["responded_by"] = flight.tool.owner
    _exec_start(hooks, flight.iteration, flight.tool.name, flight.json_arguments, attrs)


def tell_settled(hooks: TurnHooks, iteration: int, execution: ToolExecution, flight: Flight | None) -> None:
    """Say what became of a call, and have it recorded. ``flight`` is its way, None where it never was on one."""
    if hooks.observed:
        _tell_end(hooks, iteration, execution, flight)
    if hooks.recorders:
        call, tool = execution.call, flight.tool if flight is not None else None
        arguments = execution.arguments
        if arguments is None:
            arguments = flight.json_arguments if flight is not None else call.arguments
        hooks.record(
            iteration,
            call.id,
            tool.name if tool is not None else call.name[:NAME_SHOWN],
            tool.source or "" if tool is not None else "",
            arguments,
            flight.decision_log if flight is not None else None,
            execution.result.code if execution.error is not None else "",
            len(execution.result.content),
            execution.seconds,
        )


def _exec_start(hooks: TurnHooks, iteration: int, tool: str, arguments: Any, attrs: dict[str, Any]) -> None:
    from patchbay.hooks.types import copied

    payload = {"Tool": tool, "Arguments": copied(arguments)}
    hooks.emit("agent.tool.exec_start", "turn.tool.before", iteration, payload, attrs=attrs)


def _tell_end(hooks: TurnHooks, iteration: int, execution: ToolExecution, flight: Flight | None) -> None:
    trail = flight.decision_log if flight is not None else None
    begun: dict[str, Any] = {"call_id": execution.call.id}
    if trail is not None and trail.responded_by:
        begun["responded_by"] = trail.responded_by
    attrs = {**begun, "decisions": _decisions(trail)} if trail is not None and trail.decisions else begun
    tool = flight.tool.name if flight is not None else execution.call.name[:NAME_SHOWN]
    if execution.arguments is None:  # its tool did not run
        if execution.is_error:
            why = {"Tool": tool, "Reason": str(execution.error)}
            hooks.emit("agent.tool.exec_skipped", _POINT, iteration, why, severity="warn", attrs=attrs)
            return
        # Somebody answered in its place: told as the call that the model made.
        tool = execution.call.name[:NAME_SHOWN]
        _exec_start(hooks, iteration, tool, execution.call.arguments, begun)
    output = execution.output
    payload: dict[str, Any] = {
        "Tool": tool,
        "Duration": round(execution.seconds * 1e9),
        "ForLLMLen": len(execution.content),
        "ForUserLen": len(output.for_user) if output is not None else 0,
        "IsError": execution.is_error,
        "Async": output.is_async if output is not None else False,
    }
    severity = "warn" if execution.is_error else "info"
    hooks.emit("agent.tool.exec_end", _POINT, iteration, payload, severity=severity, attrs=attrs)


def _decisions(trail: DecisionLog) -> list[dict[str, str]]:
    return [{"by": by, "point": point, "decision": decision} for by, point, decision in trail.decisions]
