"""Public types of hooks: decisions, views, the hook protocols, scope, policy and timeouts.

A view's members are copied when first read, so a hook cannot change a turn by accident and pays only for what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from patchbay.errors import ConfigurationError
from patchbay.tools.output import ToolOutput, as_output
from patchbay.types import Message


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on without changes."""


@dataclass(frozen=True, slots=True)
class Modify:
    """Go on with ``changes``: the changed view, or a mapping of the members to change.

    ``meta`` and ``context`` cannot be changed.
    """

    changes: Any


@dataclass(frozen=True, slots=True)
class Respond:
    """For ``before_tool``: use this result; the tool does not run."""

    result: ToolOutput | str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DenyTool:
    """For ``before_tool``: do not run the tool; the model sees the reason."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """For ``before_tool`` and ``approve_tool``: wait for a person's decision; the person sees the reason.

    The call is denied if no person can be asked.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class AbortTurn:
    """End the turn; the history keeps what happened so far."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class HardAbort:
    """End the turn and restore the history from before it."""

    reason: str = ""


Decision: TypeAlias = Continue | Modify | Respond | DenyTool | Ask | AbortTurn | HardAbort


@dataclass(frozen=True, slots=True)
class Approval:
    """An approver's answer. ``by`` is who decided, for the record; ``by_person``: a person did, and no program.

    ``arguments`` replace those of the call: they are validated, the other approvers are asked again, and the model sees them.
    """

    approved: bool
    reason: str = ""
    by: str = ""
    arguments: Mapping[str, Any] | None = None
    by_person: bool = False


@dataclass(frozen=True, slots=True)
class Meta:
    """Position in a turn at which a hook is called. Rounds (``iteration``) count from 1; ``trace_path`` names the point."""

    agent_id: str = ""
    turn_id: str = ""
    parent_turn_id: str = ""
    session_key: str = ""
    iteration: int = 0
    trace_path: str = ""
    source: str = "runTurn"


class Source(Protocol):
    """The object behind a view. ``point`` is a trace path."""

    def member(self, name: str, point: str, /) -> Any:
        """Return a member; the view copies it. Raises KeyError."""


class View:
    """The members of one point. A hook may set them and answer ``Modify(view)``."""

    changeable: ClassVar[frozenset[str]] = frozenset()
    """The members that a hook may change; other changes are ignored."""

    def __init__(self, source: Source, point: str) -> None:
        self._source = source
        self._point = point

    def __getattr__(self, name: str) -> Any:
        # Called on the first access only: the copy is stored as an attribute.
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            value = self._source.member(name, self._point)
        except KeyError:
            raise AttributeError(name) from None
        value = self.__dict__[name] = copied(value)
        return value

    def changes(self) -> dict[str, Any]:
        """Return the members that were read or set, of those that may be changed."""
        return {name: value for name, value in self.__dict__.items() if name in self.changeable}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._point}>"


class LLMRequest(View):
    """``before_llm``: a request to a model. ``tools`` are OpenAI's, ``options`` the request's other parameters.

    ``graceful_terminal``: the turn is at its limit and this request is for a closing answer; changes of ``tools`` are ignored.
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
    """``after_llm``: a model's answer. ``tool_calls`` are OpenAI's, or ToolCalls; without any the turn ends."""

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
    """``before_tool`` and ``approve_tool``: a call that is about to run.

    For ``approve_tool`` only: ``facts`` are what the tool has found out about the call, which runs only if they still hold
    then; ``digest`` is that of tool, arguments and facts, which an approval is bound to; ``approvers`` are the names of the
    hooks that must all approve; ``asks`` are the hooks that want a person to decide, each with its reason. ``source`` is where
    the tool is from, "" for this program's own; ``endpoint`` is the address that its calls are sent to, "" for this process;
    ``annotations`` are the tool's own (``read_only``, ...), ``parameters`` its JSON Schema.
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
    """``after_tool``: a tool's result. ``duration`` is in seconds. Set ``result`` to change what the model sees."""

    changeable = frozenset({"result"})
    meta: Meta
    context: Mapping[str, Any]
    tool: str
    arguments: dict[str, Any]
    call_id: str
    result: ToolOutput
    duration: float

    def __init__(self, source: Source, point: str, value: Any) -> None:
        self._source = source  # not by super(): created for every call
        self._point = point
        self._value = value

    def __getattr__(self, name: str) -> Any:
        if name == "result":  # rendered on first access
            self.__dict__["result"] = output = as_output(self._value)
            return output
        return super().__getattr__(name)


@dataclass(frozen=True, slots=True)
class Event:
    """A runtime event. ``payload`` is JSON data; ``time`` is in seconds since 1970."""

    id: str
    kind: str
    time: float
    meta: Meta
    context: Mapping[str, Any]
    severity: str
    payload: Mapping[str, Any]
    attrs: Mapping[str, Any]


OUTPUT_MEMBERS: Final = (
    "for_llm", "for_user", "silent", "is_error", "is_async", "media", "artifact_tags", "response_handled",
)  # fmt: skip
"""The members of a tool's result."""

_UNCHANGING: Final = frozenset({str, int, float, bool, type(None)})


def copied(value: Any) -> Any:
    """Return JSON-like data in new containers; other values are shared. Data that is nested too deeply becomes "..."."""
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


@dataclass(frozen=True, slots=True)
class HookScope:
    """Identity and context of a turn. ``turn_id`` names it, ``parent_turn_id`` the turn that a sub-agent works for.

    ``context`` describes the caller in members ``inbound``, ``route`` and ``scope`` (mappings). ``model`` is the model's name
    where the request has none.
    """

    agent_id: str = ""
    turn_id: str = ""
    parent_turn_id: str = ""
    session_key: str = ""
    model: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)

    def meta(self, trace_path: str, iteration: int) -> Meta:
        """Return the Meta of a point in this turn."""
        return Meta(self.agent_id, self.turn_id, self.parent_turn_id, self.session_key, iteration, trace_path)


NO_SCOPE = HookScope()
"""The scope of turns without one."""


ToolInjection = Literal["additive", "off", "full"]
RespondApproval = Literal["foreign", "never", "always"]


@dataclass(frozen=True, slots=True)
class HookPolicy:
    """Permissions of hooks.

    ``tool_injection``: "additive" lets a hook offer tools of its own and change no others, "off" none, "full" any change.
    ``respond_approval``: whether approvers are asked before a hook answers a call: "foreign" for tools that are not its own,
    "always" for all, or "never"; None is "foreign" unless an approval policy needs "always" (``patchbay.approvals``).
    ``protected`` are names or patterns (``fs_*``) of tools that no hook may answer for. ``edit_system`` lets hooks change
    system messages. Raises ConfigurationError.
    """

    tool_injection: ToolInjection = "additive"
    respond_approval: RespondApproval | None = None
    protected: frozenset[str] = frozenset()
    edit_system: bool = False

    def __post_init__(self) -> None:
        for name, given, kind in (
            ("tool_injection", self.tool_injection, ToolInjection),
            ("respond_approval", self.respond_approval, RespondApproval),
        ):
            if given not in get_args(kind) and (given is not None or name == "tool_injection"):
                raise ConfigurationError(f"hooks.policy.{name} is {given!r}: use one of {', '.join(get_args(kind))}.")
        protected: Any = self.protected
        if isinstance(protected, str) or not all(isinstance(name, str) and name for name in protected):
            raise ConfigurationError(f"hooks.policy.protected must be a list of names, not {protected!r}.")
        object.__setattr__(self, "protected", frozenset(protected))

    def protects(self, tool: str) -> bool:
        """Return whether no hook may answer for this tool."""
        return any(fnmatchcase(tool, pattern) for pattern in self.protected)


@dataclass(frozen=True, slots=True)
class HookTimeouts:
    """Time limits in seconds: of an event, a decision, an approval, and a hook's own tool (None: ``interceptor``)."""

    observer: float = 0.5
    interceptor: float = 5.0
    approval: float = 60.0
    tool: float | None = None

    def __post_init__(self) -> None:
        for name in ("observer", "interceptor", "approval", "tool"):
            seconds = getattr(self, name)
            if seconds is None and name == "tool":
                continue
            number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not number or not math.isfinite(seconds) or seconds <= 0:
                raise ConfigurationError(f"A hook's {name} timeout must be a positive number of seconds, not {seconds!r}.")

    @property
    def own_tool(self) -> float:
        """The limit for the hook's own tools."""
        return self.interceptor if self.tool is None else self.tool


@runtime_checkable
class Observer(Protocol):
    """Receives runtime events."""

    async def on_runtime_event(self, event: Event, /) -> None:
        """Handle an event; nothing waits for it, and exceptions are logged."""


@runtime_checkable
class BeforeLLM(Protocol):
    """Runs before each request to a model."""

    async def before_llm(self, request: LLMRequest, /) -> Decision | None:
        """Let the request go, change it (``Modify``), or end the turn."""


@runtime_checkable
class AfterLLM(Protocol):
    """Runs on each complete answer of a model; a streamed answer's text is out by then."""

    async def after_llm(self, response: LLMResponse, /) -> Decision | None:
        """Let the answer stand, change it (``Modify``), or end the turn."""


@runtime_checkable
class BeforeTool(Protocol):
    """Runs before each call."""

    async def before_tool(self, call: ToolRequest, /) -> Decision | None:
        """Let the call go, change or answer it (``Respond``), refuse it (``DenyTool``), ``Ask`` a person, or end the turn."""


@runtime_checkable
class AfterTool(Protocol):
    """Runs on each successful result."""

    async def after_tool(self, result: ToolResultView, /) -> Decision | None:
        """Let the result stand, change it (``Modify``), or end the turn."""


@runtime_checkable
class Approver(Protocol):
    """Approves calls exactly as they are; all approvers must agree."""

    async def approve_tool(self, call: ToolRequest, /) -> Approval | Ask | bool | None:
        """Approve or deny, or have a person asked. None denies."""


METHODS: Final = ("before_llm", "after_llm", "before_tool", "after_tool", "approve_tool", "on_runtime_event")
"""The names of all hook methods."""

TRACE_PATHS: Final[Mapping[str, str]] = {
    "before_llm": "turn.llm.request",
    "after_llm": "turn.llm.response",
    "before_tool": "turn.tool.before",
    "approve_tool": "turn.tool.approve",
    "after_tool": "turn.tool.after",
}
"""``Meta.trace_path`` of each point."""


class NoHookError(TypeError):
    """The object is not a hook."""


def methods_of(hook: object) -> tuple[str, ...]:
    """Return the hook methods that ``hook`` has. Raises NoHookError if it has none or is a class."""
    if isinstance(hook, type):
        raise NoHookError(f"{hook.__name__} is a class, not a hook: give an instance of it, {hook.__name__}(...).")
    found = tuple(method for method in METHODS if callable(getattr(hook, method, None)))
    if not found:
        raise NoHookError(f"{type(hook).__name__} is not a hook: it has none of the methods {', '.join(METHODS)}.")
    return found
