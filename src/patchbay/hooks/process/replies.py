"""Parser of replies of hook processes.

Types are strict, member names are case-insensitive, null is the same as absent. An absent member changes nothing (policy P5),
and a hook that sends back what it was sent has changed nothing. Unknown members, misplaced ones and unknown actions are
collected as findings (policy P6). The flat forms of ``after_llm`` and ``after_tool`` are accepted where they are unambiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from patchbay._config import json_kind
from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.hooks.process.protocol import decode_messages, decode_tools, output_members
from patchbay.hooks.registered import ends_without_calls
from patchbay.hooks.types import AbortTurn, Approval, Ask, Continue, DenyTool, HardAbort, LLMRequest, Modify, Respond
from patchbay.schema import SchemaValidator
from patchbay.types import ToolSpec


class WrongTypeError(ValueError):
    """A value has the wrong type for its place."""


@dataclass(slots=True)
class Findings:
    """Oddities of a reply, by what they are about.

    ``lost`` are those with an intended effect that is lost; ``meant`` maps unknown members to the known ones that they resemble.
    """

    found: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    meant: dict[str, str] = field(default_factory=dict)

    def note(self, about: str, words: str, *, is_lost: bool = False) -> None:
        """Add a finding."""
        self.found.setdefault(about, words)
        if is_lost:
            self.lost.add(about)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.found.items())


class Shape(Protocol):
    """Reads a value."""

    def read(self, value: Any, path: str, findings: Findings, /) -> Any:
        """Return the value as this shape has it. Raises WrongTypeError."""


@dataclass(frozen=True, slots=True)
class Plain:
    """A value of certain JSON types, unchanged."""

    kinds: tuple[type, ...]
    expected: str

    def read(self, value: Any, path: str, findings: Findings, /) -> Any:
        """Return the value itself."""
        del findings
        if type(value) not in self.kinds:
            raise wrong(path, self.expected, value)
        return value


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of items of one shape."""

    item: Shape

    def read(self, value: Any, path: str, findings: Findings, /) -> list[Any]:
        """Return the list of the items as read."""
        if type(value) is not list:
            raise wrong(path, "a list", value)
        return [self.item.read(item, f"{path}[{index}]", findings) for index, item in enumerate(value)]


@dataclass(frozen=True)
class Members:
    """An object. ``ignored`` members are known but not read; ``keeps`` preserves unknown ones instead of reporting them."""

    known: Mapping[str, Shape]
    ignored: frozenset[str] = frozenset()
    keeps: bool = False

    def read(self, value: Any, path: str, findings: Findings, /) -> dict[str, Any]:
        """Return the known members under their proper names."""
        if type(value) is not dict:
            raise wrong(path, "an object", value)
        read: dict[str, Any] = {}
        for given, item in value.items():
            name = given if given in self.known else given.lower()
            shape = self.known.get(name)
            if shape is not None:
                if item is not None:
                    read[name] = shape.read(item, f"{path}.{name}" if path else name, findings)
            elif self.keeps:
                read[given] = item
            elif name not in self.ignored:
                about = f"{path}.{given}" if path else given
                findings.note(about, "")
                if (near := next((each for each in self.known if _letters(each) == _letters(given)), None)) is not None:
                    findings.meant[about] = f"{path}.{near}" if path else near
        return read


def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


TEXT: Final = Plain((str,), "a string")
FLAG: Final = Plain((bool,), "true or false")
NUMBER: Final = Plain((int, float), "a number")
OBJECT: Final = Plain((dict,), "an object")
TEXTS: Final = ListOf(TEXT)


def wrong(path: str, wanted: str, value: Any) -> WrongTypeError:
    """Return the error for a value of the wrong type."""
    return WrongTypeError(f"{path or 'the result'} must be {wanted}, not {json_kind(value)}")


def parse_tools(tools: Any) -> tuple[tuple[ToolSpec, ...], tuple[str, ...]]:
    """Return the usable tools of a list, the first of each name, and the problems of the others."""
    offered: dict[str, ToolSpec] = {}
    problems = []
    for tool in tools if isinstance(tools, list) else [] if tools is None else [tools]:
        try:
            spec = parse_tool(tool)
        except (InvalidRequestError, ConfigurationError) as error:
            problems.append(str(error))
        else:
            offered.setdefault(spec.name, spec)
    return tuple(offered.values()), tuple(problems)


def parse_tool(tool: Any) -> ToolSpec:
    """Return one tool. Raises InvalidRequestError, and ConfigurationError for an unusable schema."""
    spec = ToolSpec.from_openai(tool)
    SchemaValidator(spec.name, spec.parameters).check()
    return spec


MAX_REASON: Final = 2000
"""Characters of a reason that are kept: the model sees it."""

_COMMON: Final = frozenset({"meta", "context", "channel", "chat_id"})
_CALL: Final = _COMMON | {"call_id", "digest", "facts", "source", "endpoint", "annotations"}

_FUNCTION: Final = Members({"name": TEXT, "description": TEXT, "parameters": OBJECT}, keeps=True)
_TOOL: Final = Members({"type": TEXT, "function": _FUNCTION}, keeps=True)
_TOOL_CALL: Final = Members(
    {"id": TEXT, "type": TEXT, "function": Members({"name": TEXT, "arguments": Plain((str, dict), "a string")}, keeps=True)},
    keeps=True,
)
_MESSAGE: Final = Members(
    {
        "role": TEXT,
        "content": Plain((str, list), "a string"),
        "media": TEXTS,
        "parts": Plain((list,), "a list"),
        "tool_calls": ListOf(_TOOL_CALL),
        "tool_call_id": TEXT,
        "reasoning_content": TEXT,
    },
    keeps=True,
)
RESULT: Final = Members(
    {
        "for_llm": TEXT,
        "for_user": TEXT,
        "silent": FLAG,
        "is_error": FLAG,
        "async": FLAG,
        "media": TEXTS,
        "artifact_tags": TEXTS,
        "response_handled": FLAG,
    }
)
_RESPONSE: Final = Members(
    {"content": TEXT, "finish_reason": TEXT, "reasoning": TEXT, "reasoning_content": TEXT, "tool_calls": ListOf(_TOOL_CALL)},
    frozenset({"reasoning_details", "usage"}),
)
_HEAD: Final[Mapping[str, Shape]] = {"action": TEXT, "reason": TEXT}
_REPLIES: Final[Mapping[str, Members]] = {
    "before_llm": Members(
        {
            **_HEAD,
            "request": Members(
                {"model": TEXT, "messages": ListOf(_MESSAGE), "tools": ListOf(_TOOL), "options": OBJECT},
                _COMMON | {"graceful_terminal"},
            ),
        }
    ),
    "after_llm": Members({**_HEAD, "response": Members({"response": _RESPONSE}, _COMMON | {"model"})}),
    "before_tool": Members(
        {**_HEAD, "call": Members({"tool": TEXT, "arguments": OBJECT, "hook_result": RESULT}, _CALL), "result": RESULT}
    ),
    "after_tool": Members(
        {**_HEAD, "result": Members({"tool": TEXT, "result": RESULT, "duration": NUMBER}, _CALL | {"arguments"})}
    ),
    "approve_tool": Members({"approved": FLAG, "reason": TEXT, "action": TEXT}),
}
_FLAT: Final[Mapping[str, tuple[str, Members]]] = {"after_llm": ("response", _RESPONSE), "after_tool": ("result", RESULT)}
"""Points whose payload is often sent without its enclosing object: the common name, and the payload's shape."""

_LIKELY_MEANT: Final[Mapping[str, Mapping[str, str]]] = {
    "before_llm": {
        "decision": "action", "model": "request.model", "messages": "request.messages", "tools": "request.tools",
        "options": "request.options", "request.temperature": "request.options.temperature",
        "request.max_tokens": "request.options.max_tokens",
    },
    "after_llm": {
        "decision": "action", "content": "response.response.content", "tool_calls": "response.response.tool_calls",
        "response.content": "response.response.content",
    },
    "before_tool": {
        "decision": "action", "args": "call.arguments", "arguments": "call.arguments", "tool": "call.tool",
        "tool_name": "call.tool", "call.args": "call.arguments", "call.tool_name": "call.tool", "call.name": "call.tool",
        "for_llm": "result.for_llm", "output": "result.for_llm", "content": "result.for_llm", "result.content": "result.for_llm",
        "result.output": "result.for_llm", "result.text": "result.for_llm", "approved": "action",
    },
    "after_tool": {
        "decision": "action", "for_llm": "result.result.for_llm", "output": "result.result.for_llm",
        "content": "result.result.for_llm", "result.result.content": "result.result.for_llm",
        "result.content": "result.result.for_llm", "result.result.output": "result.result.for_llm",
    },
    "approve_tool": {
        "action": "approved", "decision": "approved", "approve": "approved", "allow": "approved", "allowed": "approved",
        "message": "reason",
    },
}  # fmt: skip
"""By point: the members that are likely meant by common mistakes."""

_GO_ON: Final = {"continue": Continue, "modify": Continue}
_ABORT: Final = {"abort_turn": AbortTurn, "hard_abort": HardAbort}
_ACTIONS: Final[Mapping[str, Any]] = {**_GO_ON, **_ABORT}
_CALL_ACTIONS: Final[Mapping[str, Any]] = {**_GO_ON, "respond": Respond, "deny_tool": DenyTool, "ask": Ask, **_ABORT}
_WHOLE: Final = frozenset({"max_tokens", "max_completion_tokens", "seed", "n", "top_k", "top_logprobs"})
"""Integer options: some languages have only one number type and send 100.0 for 100."""


def parse_reply(point: str, result: Any, findings: Findings, *, sent: Any = None) -> dict[str, Any]:
    """Return a reply's members in the form of its point. Raises WrongTypeError.

    ``sent`` has the same shape: members equal to it are accepted without being read.
    """
    if result is None:
        return {}
    shape = _REPLIES[point]
    if (flat := _FLAT.get(point)) is not None:
        result = _wrapped(result, *flat, findings)
    if sent is not None and isinstance(result, dict) and isinstance(request := result.get("request"), dict):
        result = {**result, "request": {name: item for name, item in request.items() if item != sent.get(name)}}
    read = shape.read(result, "", findings)
    if point == "approve_tool" and read.get("action", "ask") != "ask":  # the only action of this point
        findings.note("action", "")
    for about in [about for about, words in findings if not words]:
        meant = findings.meant.get(about) or _LIKELY_MEANT[point].get(about.lower())
        hint = f": {meant!r} is meant" if meant else ""
        findings.found[about] = f"the member {about!r} is not known there{hint}; it is passed over"
        if meant:
            findings.meant[about] = meant
            findings.lost.add(about)
    return read


def read_decision(point: str, result: Any, findings: Findings, params: Mapping[str, Any], view: Any) -> Any:
    """Return the decision in the reply to ``params``, which are those of ``view``. Raises WrongTypeError."""
    answer = parse_reply(point, result, findings, sent=params if point == "before_llm" else None)
    reason = answer.get("reason", "")[:MAX_REASON]
    if point == "approve_tool":  # an empty answer denies
        return Ask(reason) if answer.get("action") == "ask" else Approval(answer.get("approved", False), reason)
    action = answer.get("action", "")
    decision = _decision(action, reason, _CALL_ACTIONS if point == "before_tool" else _ACTIONS, findings)
    if decision is Respond:
        return _respond(answer, findings)
    if decision is not Continue:
        return decision
    changes = _CHANGES[point](answer, params, view)
    return Modify(changes) if changes else None


def _request_changes(answer: Mapping[str, Any], params: Mapping[str, Any], view: LLMRequest) -> dict[str, Any]:
    now = answer.get("request") or {}
    changes: dict[str, Any] = {}
    if "messages" in now:
        changes["messages"] = decode_messages(now["messages"], params["messages"], view.messages)
    if "tools" in now:
        changes["tools"] = decode_tools(now["tools"], params["tools"], view.tools)
    if "model" in now and now["model"] not in ("", view.model):
        changes["model"] = now["model"]
    if "options" in now and now["options"] != view.options:
        changes["options"] = _options(now["options"], view.options)
    return changes


def _response_changes(answer: Mapping[str, Any], params: Mapping[str, Any], _view: Any) -> dict[str, Any]:
    now = (answer.get("response") or {}).get("response") or {}
    if "reasoning_content" in now:
        now = {"reasoning": now["reasoning_content"], **now}
    changed = {name: now[name] for name in ("content", "finish_reason", "reasoning", "tool_calls") if name in now}
    if ends_without_calls(changed):
        changed["tool_calls"] = []
    return {name: value for name, value in changed.items() if value != params["response"].get(name, [])}


def _call_changes(answer: Mapping[str, Any], params: Mapping[str, Any], _view: Any) -> dict[str, Any]:
    call = answer.get("call") or {}
    return {name: call[name] for name in ("tool", "arguments") if call.get(name, "") not in ("", params[name])}


def _result_changes(answer: Mapping[str, Any], params: Mapping[str, Any], _view: Any) -> dict[str, Any]:
    now = (answer.get("result") or {}).get("result") or {}
    before = params["result"]
    changed = {name: value for name, value in now.items() if value != before.get(name, _EMPTY.get(type(value)))}
    return {"result": output_members(changed)} if changed else {}


_CHANGES: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any], Any], dict[str, Any]]]] = {
    "before_llm": _request_changes,
    "after_llm": _response_changes,
    "before_tool": _call_changes,
    "after_tool": _result_changes,
}


def _respond(answer: Mapping[str, Any], findings: Findings) -> Respond | None:
    """Return the result that replaces the tool's, None if the answer has none for the model."""
    result = answer.get("result", (answer.get("call") or {}).get("hook_result"))
    # With a misspelled for_llm it would be an empty result.
    is_lost = any(meant.endswith("for_llm") for meant in findings.meant.values())
    if result is not None and ("for_llm" in result or not is_lost):
        return Respond(output_members(result))
    findings.note("respond", "it responds without a 'result' for the model, so the call is not answered", is_lost=True)
    return None


_EMPTY: Final[Mapping[type, Any]] = {str: "", bool: False, list: []}


def _decision(action: str, reason: str, known: Mapping[str, Any], findings: Findings) -> Any:
    """Return a decision with its reason, the class of one that has more to it, or None for an unknown action."""
    kind = known.get(action or "continue")
    if kind is None:
        words = f"the action {action!r:.80} is not known there ({', '.join(known)}): the reply is passed over"
        findings.note(f"action {action}", words, is_lost=True)
    return kind if kind in (None, Continue, Respond) else kind(reason)


def _options(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return options: unchanged values as they were, whole numbers as integers."""
    return {
        name: before[name] if name in before and before[name] == value else _number(name, value) for name, value in now.items()
    }


def _number(name: str, value: Any) -> Any:
    return int(value) if name in _WHOLE and isinstance(value, float) and value.is_integer() else value


def _wrapped(result: Any, name: str, inner: Members, findings: Findings) -> Any:
    """Return a flat reply in its nested form."""
    payload = result.get(name) if isinstance(result, dict) else None
    if not isinstance(payload, dict):
        return result
    members: Sequence[str] = [member.lower() for member in payload]
    if name in members or not any(member in inner.known for member in members):
        return result
    findings.note(f"flat {name}", f"its {name!r} is not in an object of its own: {name}.{name} is meant, and taken")
    return {**result, name: {name: payload}}
