"""Tools that a hook adds to a request: ownership, what a hook may change, and how their calls are answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from patchbay.errors import (
    ConfigurationError,
    HookAbortError,
    HookFailedError,
    InvalidRequestError,
    PatchbayError,
    ToolDeniedError,
    ToolError,
)
from patchbay.hooks.calls import PendingCall
from patchbay.hooks.deadlines import HookBrokenError, HookTimeoutError, call_within
from patchbay.hooks.registered import (
    DENIED,
    InvalidDecisionError,
    InvalidOutputError,
    RegisteredHook,
    as_text,
    check_abort,
    copy_json,
    respond_with,
)
from patchbay.hooks.types import TRACE_PATHS, Ask, DenyTool, HookPolicy, HookScope, ToolRequest
from patchbay.schema import SchemaValidator
from patchbay.tools import Tool, ToolContext, Validation
from patchbay.tools.output import ToolOutput
from patchbay.tools.results import describe
from patchbay.types import ToolCall, ToolSpec


@dataclass(frozen=True, slots=True)
class Injection:
    """A tool that a hook adds: its spec, and the hook that answers its calls."""

    owner: RegisteredHook
    spec: ToolSpec


def merge_tools(
    owner: RegisteredHook,
    policy: HookPolicy,
    before: Sequence[Any],
    after: Sequence[Any],
    *,
    owner_of: Callable[[str], str | None],
) -> tuple[list[Any], tuple[Injection, ...]]:
    """Return the tools to offer after a hook changed the list, and those that are its own and new or changed.

    With "additive", existing tools stay as and where they were, and new names follow in order. A name that exists already, even
    if hidden from the model, stays with its owner (``owner_of``: None for an unknown name). A hook may change all of its own
    tools but their names. "full" takes the list as it is; what is new in it belongs to the hook. Protected names belong to no
    hook.
    """
    if policy.tool_injection == "off":
        if not _all_same(after, before):
            owner.warn("changed the tools, which hooks.policy.tool_injection forbids")
        return list(before), ()
    can_answer = "before_tool" in owner.methods
    known = {tool_name(tool): tool for tool in before}
    found: dict[str, Injection] = {}
    kept: list[Any] = []
    others = [name for name in known if owner_of(name) != owner.name]
    edited = [name for tool in after if (name := tool_name(tool)) in others] != others
    for tool in after:
        name = tool_name(tool)
        whose = owner_of(name)
        if name in known and (whose != owner.name or _same(tool, known[name])):
            edited = edited or not _same(tool, known[name])
            kept.append(tool)
        elif name in found:
            owner.warn("offers two tools of the name %r: the first stays", name, kind=name)
        elif not can_answer:
            owner.warn("offers the tool %r and has no before_tool to answer its calls", name, kind=name)
        elif whose is not None and whose != owner.name:
            owner.warn("offers a tool of the name %r, which another one has", name, kind=name)
        elif policy.protects(name):
            owner.warn("offers a tool of the protected name %r: it is left out", name, kind=name)
        else:
            try:
                spec = ToolSpec.from_openai(tool)
                SchemaValidator(name, spec.parameters).check()
                found[name] = Injection(owner, spec)
            except (InvalidRequestError, ConfigurationError) as error:
                owner.warn("offers an invalid tool: %s", error, kind=name)
            else:
                kept.append(tool)
    if policy.tool_injection == "full":
        return kept, tuple(found.values())
    if edited:
        owner.warn("changed tools that are not its own: they stay as they were")
    stay = [found[name].spec.to_openai() if (name := tool_name(tool)) in found else tool for tool in before]
    new = [each.spec.to_openai() for name, each in found.items() if name not in known]
    return [*stay, *new], tuple(found.values())


def keeps_protected(policy: HookPolicy, before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Return whether calls of protected tools in ``after`` are the model's own, by id and name; some may be missing."""
    if not policy.protected:
        return True
    calls, written = (
        [(call.get("id"), name) for call in each if policy.protects(name := tool_name(call))] for each in (before, after)
    )
    return all(written.count(call) <= calls.count(call) for call in written)


def keeps_system(before: Sequence[Any], after: Sequence[Any] | None) -> bool:
    """Return whether the system messages are unchanged and in place. None is no change."""
    return after is None or _all_same(_system(before), _system(after))


def _system(messages: Sequence[Any]) -> list[Any]:
    return [
        [place, message.get("content")]
        for place, message in enumerate(messages)
        if isinstance(message, Mapping) and message.get("role") in ("system", "developer")
    ]


def _same(tool: Any, known: Any) -> bool:
    """Return whether two definitions mean the same tool, such as without a description and with an empty one."""
    try:
        return _all_same(tool, known) or ToolSpec.from_openai(tool) == ToolSpec.from_openai(copy_json(known))
    except (InvalidRequestError, InvalidDecisionError):
        return False


def _all_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal as JSON, which has no tuples."""
    try:
        return bool(one == other) or copy_json(one) == copy_json(other)
    except InvalidDecisionError:
        return False


def tool_name(tool: Any) -> str:
    """Return the name in a tool's definition, or in a call; "" if there is none."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


class InjectedTool(Tool):
    """The tool of an Injection in one turn. ``owner`` is the hook's name, ``source`` is ``hook:`` and that name."""

    def __init__(self, injection: Injection, scope: HookScope) -> None:
        spec = injection.spec
        super().__init__(spec.name, spec.description, parameters=spec.parameters, strict=spec.strict is True)
        self.owner = injection.owner.name
        self.source = f"hook:{self.owner}"
        self._injection = injection
        self._scope = scope

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Ask the hook. Raises HookFailedError if it does not answer, never an error of an unknown tool."""
        try:
            return await _call_own_tool(self._injection.owner, _OwnCall(self._scope, self, arguments, context))
        except (ToolError, HookAbortError):
            raise
        except HookTimeoutError as error:
            limit = f"{error.limit * 1000:g} ms"
            words = f"plugin tool timed out after {limit}"
            why = f"no answer within {limit} (its tool_timeout_ms, or that of all interceptors)"
        except (PatchbayError, HookBrokenError, InvalidOutputError) as error:
            why = str(error)
            words = f"the tool failed: {why}"
        except Exception as error:  # noqa: BLE001  (a hook may raise anything)
            why = describe(error)
            words = f"the tool failed: {why}"
        self._injection.owner.warn("has not answered a call of its tool %r: %s", self.name, why, kind=self.name)
        raise HookFailedError(words, tool_name=self.name)

    def validate(self, raw_arguments: str, validation: Validation | None) -> dict[str, Any]:
        """Check against the schema, even where other tools are not checked: hooks may rely on it."""
        return super().validate(raw_arguments, validation if validation is not None else Validation())


class _OwnCall(PendingCall):
    """A call of a hook's own tool, as the hook sees it."""

    __slots__ = ("_scope",)

    context: ToolContext

    def __init__(self, scope: HookScope, tool: Tool, arguments: dict[str, Any], context: ToolContext) -> None:
        self._scope = scope
        self.call = ToolCall(context.call_id, tool.name, context.raw_arguments)
        self.tool = tool
        self.arguments = arguments
        self.context = context
        self.decision_log = None
        self._json_arguments = None

    @property
    def scope(self) -> HookScope:
        return self._scope

    @property
    def iteration(self) -> int:
        return self.context.iteration


async def _call_own_tool(owner: RegisteredHook, call: PendingCall) -> ToolOutput:
    """Return a hook's result for a tool of its own.

    Raises HookTimeoutError, InvalidOutputError, ToolDeniedError, and what the hook raises.
    """
    view = ToolRequest(call, TRACE_PATHS["before_tool"])
    decision = await call_within(owner.timeouts.own_tool, owner.methods["before_tool"], view)
    check_abort(owner, "before_tool", decision)
    if isinstance(decision, Ask):
        reason = "its hook wants a person to decide, which works for other tools only: use an approval rule for its own"
        raise ToolDeniedError(DENIED, reason, tool_name=call.tool.name, by=owner.name)
    if isinstance(decision, DenyTool):
        raise ToolDeniedError(DENIED, as_text(decision.reason), tool_name=call.tool.name, by=owner.name)
    return respond_with(owner, decision)
