"""A registered hook, the chains of hooks for each point, and how a hook's answer or failure is interpreted.

Whatever a hook answers is checked and copied: nothing that it keeps a reference to becomes part of the turn.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

from patchbay.errors import HookAbortError, HookFailedError, ToolDeniedError
from patchbay.hooks.calls import PendingCall
from patchbay.hooks.deadlines import HookThreads, HookTimeoutError, HookWarnings
from patchbay.hooks.types import (
    OUTPUT_MEMBERS,
    AbortTurn,
    Approval,
    Ask,
    Continue,
    DenyTool,
    HardAbort,
    HookPolicy,
    HookTimeouts,
    Modify,
    Respond,
    ToolResultView,
    View,
)
from patchbay.tools.output import ToolOutput, changed_output
from patchbay.tools.results import well_formed
from patchbay.types import ToolCall

IN_PROCESS = 0
PROCESS = 1
"""The groups in the order in which they run: code of this program, then other processes."""

DENIED: Final = "Tool execution denied by hook"


@dataclass(frozen=True, slots=True)
class RegisteredHook:
    """A hook with its order (group, priority, name), timeouts and limits.

    ``methods`` are its methods, each returning a coroutine.

    ``tools`` are patterns of tool names: the hook only sees calls of these (none: all), and always those of its own tools.
    ``native`` marks a program's own callback: it receives the objects themselves, and an exception in it fails the call. With
    ``fail_closed`` a failing interceptor denies; without, it is skipped.
    """

    name: str
    hook: object
    priority: int
    group: int
    timeouts: HookTimeouts
    methods: Mapping[str, Callable[..., Any]]
    native: bool = False
    fail_closed: bool = False
    tools: tuple[str, ...] = ()
    threads: HookThreads = field(default_factory=lambda: HookThreads(""), compare=False, repr=False)
    warnings: HookWarnings = field(default_factory=HookWarnings, compare=False, repr=False)

    def warn(self, message: str, *args: Any, kind: str = "") -> None:
        """Log a rate-limited warning about this hook (see ``HookWarnings.warn``)."""
        self.warnings.warn(f"The hook %r {message}", self.name, *args, kind=kind)

    def ignores(self, tool: str) -> bool:
        """Return whether calls of this tool are not shown to the hook."""
        return bool(self.tools) and not any(fnmatchcase(tool, pattern) for pattern in self.tools)


Link: TypeAlias = tuple[RegisteredHook, Callable[..., Any]]
"""A hook and its method for one point."""


class Chains:
    """Immutable snapshot of a manager: for each point the hooks in order, as one turn uses them."""

    __slots__ = (
        "after_llm", "after_tool", "approve_tool", "before_llm", "before_tool", "mounted", "of_tools", "on_runtime_event",
        "policy",
    )  # fmt: skip

    def __init__(self, mounted: Sequence[RegisteredHook] = (), policy: HookPolicy | None = None) -> None:
        self.mounted = tuple(sorted(mounted, key=lambda hook: (hook.group, hook.priority, hook.name)))
        self.policy = policy if policy is not None else HookPolicy()
        self.before_llm = self._links("before_llm")
        self.after_llm = self._links("after_llm")
        self.before_tool = self._links("before_tool")
        self.after_tool = self._links("after_tool")
        self.approve_tool = self._links("approve_tool")
        self.on_runtime_event = self._links("on_runtime_event")
        self.of_tools = bool(self.before_tool or self.after_tool or self.approve_tool)

    def _links(self, method: str) -> tuple[Link, ...]:
        return tuple((hook, hook.methods[method]) for hook in self.mounted if method in hook.methods)

    def with_natives(self, natives: Sequence[RegisteredHook]) -> Chains:
        """Return these hooks together with a program's own callbacks."""
        return Chains((*self.mounted, *natives), self.policy) if natives else self


NO_CHAINS = Chains()
"""The chains of a manager without hooks."""


def native(name: str, **methods: Callable[..., Any]) -> RegisteredHook:
    """Return a program's own callbacks, by point, as a registered hook."""
    return RegisteredHook(name, methods, 0, IN_PROCESS, HookTimeouts(), methods, native=True)


def check_abort(hook: RegisteredHook, point: str, decision: Any) -> None:
    """Raise HookAbortError for a decision that ends the turn."""
    if isinstance(decision, AbortTurn | HardAbort):
        raise HookAbortError(as_text(decision.reason), hook=hook.name, point=point, hard=isinstance(decision, HardAbort))


def as_text(value: Any) -> str:
    """Return a string that a hook gave, "" in place of anything else."""
    return value if isinstance(value, str) else ""


MAX_REASON_CHARS: Final = 500
"""Maximum characters of a reason in a HookRecord."""
_OUTCOMES: Final[Mapping[type, str]] = {
    Modify: "changed", Respond: "answered", DenyTool: "denied", Ask: "asked a person", AbortTurn: "ended the turn",
    HardAbort: "ended the turn", HookTimeoutError: "timed out", asyncio.CancelledError: "cancelled",
}  # fmt: skip
_FOR_CALLS: Final = (Respond, DenyTool, Ask)


def outcome_of(hook: RegisteredHook, point: str, answer: Any) -> tuple[str, str]:
    """Return what a hook answered, in words ("" for "go on"), and why. ``answer`` may be the exception that it raised."""
    is_failure = isinstance(answer, BaseException)
    if point == "approve_tool" and not is_failure and not isinstance(answer, Ask):
        given = answer if isinstance(answer, Approval) else Approval(answer is True)
        word = "denied" if given.approved is not True else "approved" if given.arguments is None else "edited"
        return word, as_text(given.reason)[:MAX_REASON_CHARS]
    if answer is None or isinstance(answer, Continue) or (hook.native and not is_failure):
        return "", ""
    word = next((word for kind, word in _OUTCOMES.items() if isinstance(answer, kind)), "")
    if not word or (isinstance(answer, _FOR_CALLS) and point not in ("before_tool", "approve_tool")):
        return "failed", type(answer).__name__
    return word, as_text(getattr(answer, "reason", ""))[:MAX_REASON_CHARS]


# Changes that a hook asks for

KEEP: Final = object()
"""Marks an option whose value is not JSON: the request keeps its own value, if any."""

_KINDS: Final[Mapping[str, type]] = {
    "model": str, "messages": list, "tools": list, "options": dict, "tool": str, "arguments": dict,
    "content": str, "reasoning": str, "tool_calls": list, "finish_reason": str,
}  # fmt: skip
_CALL: Final = '{"id": "...", "type": "function", "function": {"name": "...", "arguments": "{...}"}}'
_WITH_CALLS: Final = ("tool_calls", "function_call")
_NEVER_EMPTY: Final = frozenset({"model", "tool"})
_OUTPUT_KEYS: Final = frozenset({"for_llm", "for_user", "silent", "is_error", "media", "artifact_tags", "response_handled"})


class InvalidDecisionError(TypeError):
    """A member of a hook's answer has the wrong type; the whole answer is discarded."""


def changes_of(hook: RegisteredHook, decision: Modify, kind: type[View]) -> dict[str, Any]:
    """Return the members of a view that a hook changes, as copies. Raises InvalidDecisionError.

    An empty name of a model or tool is no change.
    """
    changes: Any = decision.changes
    if isinstance(changes, View):
        changes = changes.changes()
    elif kind is ToolResultView and (isinstance(changes, ToolOutput | str) or _is_flat_output(changes)):
        changes = {"result": changes}
    elif not isinstance(changes, Mapping):
        raise InvalidDecisionError(f"Modify({type(changes).__name__}): a view or a mapping was expected")
    else:
        _check_members(hook, changes, kind)
    return {
        name: value if name == "result" else _checked(name, value)
        for name, value in changes.items()
        if name in kind.changeable and value is not None and (value != "" or name not in _NEVER_EMPTY)
    }


def ends_without_calls(changes: Mapping[str, Any]) -> bool:
    """Return whether a changed response leaves out its calls and names a ``finish_reason`` of an answer without calls."""
    return "tool_calls" not in changes and changes.get("finish_reason", "tool_calls") not in _WITH_CALLS


def copy_json(value: Any) -> Any:
    """Return a deep copy of JSON data, lone surrogates replaced. Raises InvalidDecisionError."""
    return _copy(value, ensure_ascii=False)


def copy_json_exactly(value: Any) -> Any:
    """Return a deep copy of JSON data. Raises InvalidDecisionError."""
    return _copy(value, ensure_ascii=True)


def _copy(value: Any, *, ensure_ascii: bool) -> Any:
    try:
        return json.loads(well_formed(json.dumps(value, ensure_ascii=ensure_ascii, allow_nan=False, default=_as_dict)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidDecisionError(f"it is not JSON: {error}") from error


def _checked(name: str, value: Any) -> Any:
    kind = _KINDS[name]
    if kind is str:
        if not isinstance(value, str):
            raise InvalidDecisionError(f"{name} must be a string, not {type(value).__name__}")
        return well_formed(value)
    if kind is dict:
        if not isinstance(value, Mapping):
            raise InvalidDecisionError(f"{name} must be an object, not {type(value).__name__}")
        if name == "options":  # a program may pass on what is not JSON, such as a client's own objects
            return {str(option): _copy_or_keep(item) for option, item in value.items()}
    elif name == "tool_calls":
        return _calls(value)
    elif not isinstance(value, list | tuple) or not all(isinstance(item, Mapping) for item in value):
        raise InvalidDecisionError(f"{name} must be a list of objects")
    return copy_json(value)


def _calls(value: Any) -> list[dict[str, Any]]:
    """Return calls in OpenAI's form; an id may be missing, and arguments may be an object."""
    if not isinstance(value, list | tuple):
        raise InvalidDecisionError(f"tool_calls must be a list of calls, each as {_CALL}, not {type(value).__name__}")
    calls = [call.to_openai() if isinstance(call, ToolCall) else call for call in value]
    for call in calls:
        if not _is_call(call):
            raise InvalidDecisionError(f"tool_calls must be a list of calls, each as {_CALL}, not {call!r:.99}")
    copies: list[dict[str, Any]] = copy_json(calls)
    return copies


def _is_call(value: Any) -> bool:
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return False
    call_id, arguments = value.get("id"), function.get("arguments")
    return (call_id is None or isinstance(call_id, str)) and (arguments is None or isinstance(arguments, str | Mapping))


def _copy_or_keep(value: Any) -> Any:
    try:
        return copy_json(value)
    except InvalidDecisionError:
        return KEEP


def _as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__}")


def _is_flat_output(changes: Any) -> bool:
    """Return whether the members of a result are given directly instead of inside ``result``."""
    return isinstance(changes, Mapping) and "result" not in changes and not _OUTPUT_KEYS.isdisjoint(changes)


def _check_members(hook: RegisteredHook, changes: Mapping[str, Any], kind: type[View]) -> None:
    for name in changes:
        if name not in kind.__annotations__:
            expected = ", ".join(sorted(kind.changeable))
            hook.warn("answered with %.99r, which means nothing there: expected are %s", name, expected, kind=str(name)[:99])
            if hook.fail_closed:  # ignoring the member would let through what the hook meant to change
                raise InvalidDecisionError(f"{name!r:.99} means nothing there")


# Results that a hook gives


class InvalidOutputError(TypeError):
    """A hook's answer is not a tool result."""


def output_of(hook: RegisteredHook, before: ToolOutput, given: Any) -> ToolOutput:
    """Return ``before`` with a hook's changes. Unknown members are ignored with a warning.

    Raises InvalidOutputError for members of a wrong type, and where nothing is left for the model.
    """
    if isinstance(given, type):
        raise InvalidOutputError(f"a tool's result must be an object or a string, not the class {given.__name__}")
    unknown = [name for name in given if name not in OUTPUT_MEMBERS] if isinstance(given, Mapping) else []
    for name in unknown:
        members = ", ".join(OUTPUT_MEMBERS)
        hook.warn("gave a result with %.99r, which means nothing there: there are %s", name, members, kind=str(name)[:99])
    if unknown and "for_llm" not in given:
        raise InvalidOutputError(f"a tool's result without for_llm, with {', '.join(map(repr, unknown)):.99} in its place")
    try:
        return changed_output(before, given)
    except TypeError as error:
        raise InvalidOutputError(str(error)) from None


def respond_with(hook: RegisteredHook, decision: Any) -> ToolOutput:
    """Return the result in a ``Respond``. Raises InvalidOutputError."""
    if not isinstance(decision, Respond):
        raise InvalidOutputError("the call was not answered")
    return output_of(hook, ToolOutput(), decision.result)


# Failures of interceptors: logged, and a denial where the hook fails closed. Each raises what ``_fail_closed`` raises.


def on_failure(hook: RegisteredHook, point: str, error: BaseException, call: PendingCall | None) -> None:
    """Handle an exception that a hook raised."""
    warn_of_failure(hook, point, error)
    _fail_closed(hook, point, "timed out" if isinstance(error, HookTimeoutError) else "failed", call)


def warn_of_failure(hook: RegisteredHook, point: str, error: BaseException) -> None:
    """Log an exception that a hook raised."""
    kind = type(error).__name__
    hook.warn("failed at %s: %s: %s", point, kind, error, kind=f"{point} {kind}")


def on_wrong_answer(
    hook: RegisteredHook, point: str, problem: object, call: PendingCall | None, *, is_response: bool = False
) -> None:
    """Handle an answer that cannot be used; with ``is_response`` one given in the tool's place."""
    outcome = "it counts as a denial" if hook.fail_closed else "the tool is run" if is_response else "it is ignored"
    what = f"a call of {call.tool.name!r}" if call is not None and is_response else point
    hook.warn("answered %s wrongly: %s: %s", what, problem, outcome, kind=what)
    _fail_closed(hook, point, "failed", call)


def unknown_answer(answer: Any) -> str:
    """Return why something is not a decision of a point."""
    if isinstance(answer, type):
        return f"the class {answer.__name__}, not an instance ({answer.__name__}(...))"
    return f"{answer!r:.99} is not known there"


def _fail_closed(hook: RegisteredHook, point: str, failure: str, call: PendingCall | None) -> None:
    """Raise ToolDeniedError, HookFailedError or HookAbortError, by the point, if the hook fails closed."""
    if not hook.fail_closed:
        return
    reason = f'hook "{hook.name}" {failure}'
    if call is None:
        raise HookAbortError(reason, hook=hook.name, point=point, hard=False)
    if point == "before_tool":
        call.log.add(hook.name, point, "denied", reason)
        raise ToolDeniedError(DENIED, reason, tool_name=call.tool.name, by=hook.name)
    call.log.add(hook.name, point, "withheld the result", reason)
    raise HookFailedError(f"the result is withheld: {reason}.", tool_name=call.tool.name)
