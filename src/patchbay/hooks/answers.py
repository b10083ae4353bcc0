"""What a hook's answer changes: read, checked and copied, so that nothing it keeps a hold of is part of the turn.

What lives here: which members there are at each point, and of what kind they must be. What does not: what a hook may change
(``turn``, ``injection``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from patchbay.hooks.decisions import Modify
from patchbay.hooks.views import ToolResultView, View
from patchbay.tools.output import ToolOutput
from patchbay.tools.results import well_formed
from patchbay.types import ToolCall

if TYPE_CHECKING:
    from patchbay.hooks.chains import Mounted

KEPT: Final = object()
"""Stands for the value of an option that is no JSON: it stays what it was, if it was there."""

_KINDS: Final[Mapping[str, type]] = {
    "model": str, "messages": list, "tools": list, "options": dict, "tool": str, "arguments": dict,
    "content": str, "reasoning": str, "tool_calls": list, "finish_reason": str,
}  # fmt: skip
_CALL: Final = '{"id": "...", "type": "function", "function": {"name": "...", "arguments": "{...}"}}'
_WITH_CALLS: Final = ("tool_calls", "function_call")
_NEVER_EMPTY: Final = frozenset({"model", "tool"})
_OF_OUTPUT: Final = frozenset({"for_llm", "for_user", "silent", "is_error", "media", "artifact_tags", "response_handled"})


class WrongAnswerError(TypeError):
    """A hook's answer has a member of another type than it must have; none of it is used."""


def changes_of(each: Mounted, decision: Modify, kind: type[View]) -> dict[str, Any]:
    """Return the members of a view that a hook wants to be others, as values of our own. Raises WrongAnswerError.

    What is not among them stays as it is. A model or tool without a name is no change.
    """
    changes: Any = decision.changes
    if isinstance(changes, View):
        changes = changes.changes()
    elif kind is ToolResultView and (isinstance(changes, ToolOutput | str) or _is_flat_output(changes)):
        changes = {"result": changes}
    elif not isinstance(changes, Mapping):
        raise WrongAnswerError(f"Modify({type(changes).__name__}): a view or a mapping was expected")
    else:
        _complain_of_others(each, changes, kind)
    return {
        name: value if name == "result" else _checked(name, value)
        for name, value in changes.items()
        if name in kind.changeable and value is not None and (value != "" or name not in _NEVER_EMPTY)
    }


def ends_without_calls(changes: Mapping[str, Any]) -> bool:
    """Return whether changes of a response leave out its calls, and name a ``finish_reason`` of an answer without any."""
    return "tool_calls" not in changes and changes.get("finish_reason", "tool_calls") not in _WITH_CALLS


def own(value: Any) -> Any:
    """Return a copy of JSON data that nobody else has, with no half surrogate pairs. Raises WrongAnswerError."""
    try:
        return json.loads(well_formed(json.dumps(value, ensure_ascii=False, allow_nan=False, default=_as_dict)))
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongAnswerError(f"it is no JSON: {error}") from error


def _checked(name: str, value: Any) -> Any:
    kind = _KINDS[name]
    if kind is str:
        if not isinstance(value, str):
            raise WrongAnswerError(f"{name} must be a text, not {type(value).__name__}")
        return well_formed(value)
    if kind is dict:
        if not isinstance(value, Mapping):
            raise WrongAnswerError(f"{name} must be an object, not {type(value).__name__}")
        if name == "options":  # programs pass on what is no JSON, such as a client's own objects
            return {str(option): _own_or_kept(given) for option, given in value.items()}
    elif name == "tool_calls":
        return _calls(value)
    elif not isinstance(value, list | tuple) or not all(isinstance(item, Mapping) for item in value):
        raise WrongAnswerError(f"{name} must be a list of objects")
    return own(value)


def _calls(value: Any) -> list[dict[str, Any]]:
    """Return calls as OpenAI writes them. An id may be missing, and arguments be an object."""
    if not isinstance(value, list | tuple):
        raise WrongAnswerError(f"tool_calls must be a list of calls, each as {_CALL}, not {type(value).__name__}")
    calls = [call.to_openai() if isinstance(call, ToolCall) else call for call in value]
    for call in calls:
        if not _is_call(call):
            raise WrongAnswerError(f"tool_calls must be a list of calls, each as {_CALL}, and {call!r:.99} is none")
    copies: list[dict[str, Any]] = own(calls)
    return copies


def _is_call(value: Any) -> bool:
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return False
    call_id, arguments = value.get("id"), function.get("arguments")
    return (call_id is None or isinstance(call_id, str)) and (arguments is None or isinstance(arguments, str | Mapping))


def _own_or_kept(value: Any) -> Any:
    try:
        return own(value)
    except WrongAnswerError:
        return KEPT


def _as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__}")


def _is_flat_output(changes: Any) -> bool:
    """Whether these are the result's own members, where the result was to be one member."""
    return isinstance(changes, Mapping) and "result" not in changes and not _OF_OUTPUT.isdisjoint(changes)


def _complain_of_others(each: Mounted, changes: Mapping[str, Any], kind: type[View]) -> None:
    for name in changes:
        if name not in kind.__annotations__:
            expected = ", ".join(sorted(kind.changeable))
            each.complain("answered with %.99r, which means nothing there: expected are %s", name, expected, kind=str(name)[:99])
            if each.fail_closed:  # it was to be another call, request or result, and would not be
                raise WrongAnswerError(f"{name!r:.99} means nothing there")
