"""Parser of replies of hook processes.

Types are strict, member names are case-insensitive, null is the same as absent. An absent member changes nothing (policy P5),
and a hook that sends back what it was sent has changed nothing. Unknown members are noted (policy P6), and so are the flat forms
of ``after_llm`` and ``after_tool``, which are accepted where they are unambiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.hooks.process.protocol import decode_messages, decode_tools, output_members
from patchbay.hooks.registered import ends_without_calls
from patchbay.hooks.types import AbortTurn, Approval, Ask, Continue, DenyTool, HardAbort, LLMRequest, Modify, Respond
from patchbay.schema import SchemaValidator
from patchbay.schema.validation import pydantic_error_messages
from patchbay.types import ToolSpec


class InvalidReplyError(ValueError):
    """A reply has a value of a wrong type, an action that its point does not have, or a response without a result."""


Findings: TypeAlias = dict[str, str]
"""Oddities of a reply that is valid otherwise, by what they are about."""


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


# The shapes of replies. Members typed ``Any`` are what the host has sent; they may come back, and are not read.


class _Object(BaseModel):
    """An object in a reply."""

    model_config = ConfigDict(extra="allow", strict=True)
    keeps_unknown: ClassVar[bool] = False
    """Whether unknown members are part of the object."""

    @model_validator(mode="before")
    @classmethod
    def _fold_names(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        known = _names(cls)
        return {name if (name := given.lower()) in known else given: item for given, item in value.items() if item is not None}

    def read(self, path: str, findings: Findings) -> dict[str, Any]:
        """Return the members that were sent, by their names on the wire, and note unknown ones."""
        sent, extra = self.model_fields_set, self.model_extra or {}
        fields = type(self).model_fields
        members = {
            field.alias or name: _plain(getattr(self, name), f"{path}{field.alias or name}", findings)
            for name, field in fields.items()
            if name in sent
        }
        if self.keeps_unknown:
            return members | extra
        for name in extra:
            findings.setdefault(f"{path}{name}", f"the member {path + name!r:.99} is not known there; it is passed over")
        return members


@cache
def _names(kind: type[_Object]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


def _plain(value: Any, path: str, findings: Findings) -> Any:
    if isinstance(value, _Object):
        return value.read(f"{path}.", findings)
    if isinstance(value, list) and value and isinstance(value[0], _Object):
        return [item.read(f"{path}[{place}].", findings) for place, item in enumerate(value)]
    return value


class _Function(_Object):
    keeps_unknown = True
    name: str = ""
    description: str = ""
    parameters: dict[str, Any] = {}
    arguments: str | dict[str, Any] = ""


class _Tool(_Object):
    """A tool, or a call of one."""

    keeps_unknown = True
    id: str = ""
    type: str = ""
    function: _Function | None = None


class _Message(_Object):
    keeps_unknown = True
    role: str = ""
    content: str | list[Any] = ""
    media: list[str] = []
    parts: list[Any] = []
    tool_calls: list[_Tool] = []
    tool_call_id: str = ""
    reasoning_content: str = ""


class _Result(_Object):
    for_llm: str = ""
    for_user: str = ""
    silent: bool = False
    is_error: bool = False
    is_async: bool = Field(default=False, alias="async")
    media: list[str] = []
    artifact_tags: list[str] = []
    response_handled: bool = False


class _Response(_Object):
    content: str = ""
    finish_reason: str = ""
    reasoning: str = ""
    reasoning_content: str = ""
    tool_calls: list[_Tool] = []
    reasoning_details: Any = None
    usage: Any = None


class _Params(_Object):
    """The params of a request with changes."""

    meta: Any = None
    context: Any = None
    channel: Any = None
    chat_id: Any = None


class _RequestParams(_Params):
    model: str = ""
    messages: list[_Message] = []
    tools: list[_Tool] = []
    options: dict[str, Any] = {}
    graceful_terminal: Any = None


class _ResponseParams(_Params):
    response: _Response | None = None
    model: Any = None


class _CallParams(_Params):
    tool: str = ""
    arguments: dict[str, Any] = {}
    hook_result: _Result | None = None
    call_id: Any = None
    digest: Any = None
    facts: Any = None
    source: Any = None
    endpoint: Any = None
    annotations: Any = None


class _ResultParams(_Params):
    tool: Any = None
    arguments: Any = None
    result: _Result | None = None
    duration: Any = None
    call_id: Any = None


class _Reply(_Object):
    action: str = ""
    reason: str = ""


class _BeforeLLM(_Reply):
    request: _RequestParams | None = None


class _AfterLLM(_Reply):
    response: _ResponseParams | None = None


class _BeforeTool(_Reply):
    call: _CallParams | None = None
    result: _Result | None = None


class _AfterTool(_Reply):
    result: _ResultParams | None = None


class _ApproveTool(_Reply):
    approved: bool = False


_REPLIES: Final[Mapping[str, type[_Reply]]] = {
    "before_llm": _BeforeLLM,
    "after_llm": _AfterLLM,
    "before_tool": _BeforeTool,
    "after_tool": _AfterTool,
    "approve_tool": _ApproveTool,
}
_FLAT: Final[Mapping[str, tuple[str, type[_Object]]]] = {"after_llm": ("response", _Response), "after_tool": ("result", _Result)}
"""Points whose payload is often sent without its enclosing object: the common name, and the payload's shape."""

MAX_REASON: Final = 2000
"""Characters of a reason that are kept: the model sees it."""

_ACTIONS: Final[Mapping[str, Any]] = {
    "continue": Continue,
    "modify": Continue,
    "abort_turn": AbortTurn,
    "hard_abort": HardAbort,
}
_CALL_ACTIONS: Final[Mapping[str, Any]] = {**_ACTIONS, "respond": Respond, "deny_tool": DenyTool, "ask": Ask}
_WHOLE: Final = frozenset({"max_tokens", "max_completion_tokens", "seed", "n", "top_k", "top_logprobs"})
"""Integer options: some languages have only one number type and send 100.0 for 100."""


def parse_reply(point: str, result: Any, findings: Findings, *, sent: Any = None) -> dict[str, Any]:
    """Return a reply's members in the form of its point. Raises InvalidReplyError.

    ``sent`` has the same shape: members equal to it are accepted without being read.
    """
    if result is None:
        return {}
    if (flat := _FLAT.get(point)) is not None:
        result = _wrapped(result, *flat, findings)
    if sent is not None and isinstance(result, dict) and isinstance(request := result.get("request"), dict):
        result = {**result, "request": {name: item for name, item in request.items() if item != sent.get(name)}}
    try:
        return _REPLIES[point].model_validate(result).read("", findings)
    except ValidationError as error:
        raise InvalidReplyError(pydantic_error_messages(error, result)[0]) from None


def read_decision(point: str, result: Any, findings: Findings, params: Mapping[str, Any], view: Any) -> Any:
    """Return the decision in the reply to ``params``, which are those of ``view``. Raises InvalidReplyError."""
    answer = parse_reply(point, result, findings, sent=params if point == "before_llm" else None)
    reason = answer.get("reason", "")[:MAX_REASON]
    action = answer.get("action", "")
    if point == "approve_tool":  # an empty answer denies
        if action not in ("", "ask"):
            findings["action"] = f"the action {action!r:.80} is not known there; it is passed over"
        return Ask(reason) if action == "ask" else Approval(answer.get("approved", False), reason)
    known = _CALL_ACTIONS if point == "before_tool" else _ACTIONS
    decision = known.get(action or "continue")
    if decision is None:
        raise InvalidReplyError(f"the action {action!r:.80} is not known there ({', '.join(known)})")
    if decision is Respond:
        return _respond(answer, findings)
    if decision is not Continue:
        return decision(reason)
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


def _respond(answer: Mapping[str, Any], findings: Findings) -> Respond:
    """Return the result that replaces the tool's. Raises InvalidReplyError if the reply has none for the model."""
    result = answer.get("result", (answer.get("call") or {}).get("hook_result"))
    # With a misspelled for_llm it would be an empty result.
    if result is None or ("for_llm" not in result and findings):
        raise InvalidReplyError(
            f"it responds without a result for the model{''.join(f'; {words}' for words in findings.values())}"
        )
    return Respond(output_members(result))


_EMPTY: Final[Mapping[type, Any]] = {str: "", bool: False, list: []}


def _options(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return options: unchanged values as they were, whole numbers as integers."""
    return {
        name: before[name] if name in before and before[name] == value else _number(name, value) for name, value in now.items()
    }


def _number(name: str, value: Any) -> Any:
    return int(value) if name in _WHOLE and isinstance(value, float) and value.is_integer() else value


def _wrapped(result: Any, name: str, inner: type[_Object], findings: Findings) -> Any:
    """Return a flat reply in its nested form."""
    payload = result.get(name) if isinstance(result, dict) else None
    if not isinstance(payload, dict):
        return result
    members: Sequence[str] = [member.lower() for member in payload]
    if name in members or _names(inner).isdisjoint(members):
        return result
    findings[f"flat {name}"] = f"its {name!r} is not in an object of its own: {name}.{name} is meant, and taken"
    return {**result, name: {name: payload}}
