"""What hooks are shown at each point: copies, so that nothing a hook does to them reaches the turn unless it says so.

A member is copied when it is first looked at: a hook that does not care for the messages does not pay for a copy of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Protocol

from patchbay.tools.output import ToolOutput, as_output
from patchbay.types import Message


@dataclass(frozen=True, slots=True)
class Meta:
    """Where in a turn a hook is asked. Rounds (``iteration``) count from 1; ``trace_path`` names the point."""

    agent_id: str = ""
    turn_id: str = ""
    parent_turn_id: str = ""
    session_key: str = ""
    iteration: int = 0
    trace_path: str = ""
    source: str = "runTurn"

    def at(self, trace_path: str, iteration: int) -> Meta:
        """The same turn at another point."""
        return replace(self, trace_path=trace_path, iteration=iteration)


class Source(Protocol):
    """What a view is of. ``point`` is where in the turn it is looked at: a trace path."""

    def member(self, name: str, point: str, /) -> Any:
        """Return a member as it is; the view makes the copy. Raises KeyError for one that does not exist."""


class View:
    """The members of one point. They may be set; what a hook sets is used if it answers ``Modify(view)``."""

    changeable: ClassVar[frozenset[str]] = frozenset()
    """The members that a hook may change; of all others changes are passed over."""

    def __init__(self, source: Source, point: str) -> None:
        self._source = source
        self._point = point

    def __getattr__(self, name: str) -> Any:
        # Only for what was not looked at before: from then on it is an attribute like any other.
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            value = self._source.member(name, self._point)
        except KeyError:
            raise AttributeError(name) from None
        value = self.__dict__[name] = copied(value)
        return value

    def changes(self) -> dict[str, Any]:
        """Return the members that were looked at or set, of those that may be changed."""
        return {name: value for name, value in self.__dict__.items() if name in self.changeable}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._point}>"


class LLMRequest(View):
    """``before_llm``: what a model is about to be asked. ``tools`` are OpenAI's, ``options`` the request's other parameters.

    ``graceful_terminal``: the turn is at its limit and this request is for a closing answer; a change of ``tools`` has no effect.
    """

    changeable = frozenset({"model", "messages", "tools", "options"})
    meta: Meta
    context: Mapping[str, Any]
    model: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    options: dict[str, Any]
    graceful_terminal: bool


class LLMResponse(View):
    """``after_llm``: what a model answered. ``tool_calls`` are OpenAI's, or ToolCalls; a turn whose answer has none is over."""

    changeable = frozenset({"content", "reasoning", "tool_calls", "finish_reason"})
    meta: Meta
    context: Mapping[str, Any]
    model: str
    content: str
    reasoning: str
    tool_calls: list[dict[str, Any]]
    finish_reason: str
    usage: Mapping[str, int]


class ToolRequest(View):
    """``before_tool`` and ``approve_tool``: a call that is about to be carried out.

    ``call_id`` is the call's. For ``approve_tool`` only: ``facts`` are what its tool has found out about the call, which runs
    only if they are still so then; ``digest`` is that of tool, arguments and facts: an approval is for nothing else;
    ``approvers`` are the hooks that must all approve it, by their names; ``asks`` are those that want a person to decide, each
    with its reason.
    ``source`` is where the tool is from, "" for this program's own; ``endpoint`` the address that its calls are sent to, "" for
    this process; ``annotations`` what it says of itself (``read_only``, ...), ``parameters`` the JSON Schema of its arguments.
    """

    changeable = frozenset({"tool", "arguments"})
    meta: Meta
    context: Mapping[str, Any]
    tool: str
    arguments: dict[str, Any]
    call_id: str
    digest: str
    approvers: list[str]
    asks: list[list[str]]
    facts: dict[str, Any]
    source: str
    endpoint: str
    annotations: Mapping[str, Any]
    parameters: Mapping[str, Any]


class ToolResultView(View):
    """``after_tool``: what a tool came to. ``duration`` is in seconds. Setting ``result`` changes what the model is shown."""

    changeable = frozenset({"result"})
    meta: Meta
    context: Mapping[str, Any]
    tool: str
    arguments: dict[str, Any]
    call_id: str
    result: ToolOutput
    duration: float

    def __init__(self, source: Source, point: str, value: Any) -> None:
        self._source = source  # not by super(): this is made for every call
        self._point = point
        self._value = value

    def __getattr__(self, name: str) -> Any:
        if name == "result":  # written out when it is looked at
            self.__dict__["result"] = output = as_output(self._value)
            return output
        return super().__getattr__(name)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, for observers. ``payload`` is data that JSON knows; ``time`` is in seconds since 1970."""

    id: str
    kind: str
    time: float
    meta: Meta
    context: Mapping[str, Any]
    severity: str
    payload: Mapping[str, Any]
    attrs: Mapping[str, Any]


_UNCHANGING: Final = frozenset({str, int, float, bool, type(None)})


def copied(value: Any) -> Any:
    """Return JSON-like data with containers of its own; all else is immutable here, or nobody's but the host's.

    What is nested too deeply to be copied is not shown: "...".
    """
    try:
        return _copied(value)
    except RecursionError:
        return "..."


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is dict or isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if kind is list or isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    return value
