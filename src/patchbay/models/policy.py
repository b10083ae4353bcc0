"""Checks of an answer (``tool_choice``, ``response_format``, the tools' schemas), and the prompts of retries.

A server that enforces a schema by a grammar keeps its model from writing calls. So while calls are possible the schema is stated
in the prompt; it is enforced where the answer alone is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from patchbay.errors import InvalidRequestError
from patchbay.formats.contract import allowed_names
from patchbay.models.wire import decode, encode
from patchbay.types import Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from patchbay.schema.validation import SchemaValidator


class ChoiceOutcome(msgspec.Struct, frozen=True):
    """The outcome of one choice of an answer.

    ``invalid``: calls whose arguments are no JSON object. ``native``: there are native calls. ``breaks_policy``: a call
    is not allowed. ``cut``: it ended inside a call. ``at_limit``: it ended at the limit of tokens. ``visible``: some of it was
    sent to the client. ``prose``: it has text beside calls. ``text``: the model's text. ``answer``: the content to check against
    ``response_format``, None without one or once some of it was sent.
    """

    calls: Sequence[ToolCall]
    invalid: Sequence[ToolCall]
    native: bool
    breaks_policy: bool
    cut: bool
    at_limit: bool
    visible: bool
    prose: bool
    text: str
    answer: str | None = None

    @property
    def called(self) -> bool:
        """Whether there is a call, complete and valid or not."""
        return bool(self.calls or self.invalid) or self.cut


class Policy(msgspec.Struct, frozen=True):
    """The calls allowed.

    ``needed``: at least one. ``forbidden``: none. ``names``: of these tools (None: any). ``single``: at most one.
    """

    needed: bool = False
    forbidden: bool = False
    names: frozenset[str] | None = None
    single: bool = False

    @property
    def free(self) -> bool:
        """Whether there is no restriction."""
        return not (self.needed or self.forbidden or self.single or self.names is not None)

    def admits(self, name: str) -> bool:
        """Whether a call of this tool is allowed."""
        return not self.forbidden and (self.names is None or name in self.names)

    def complaint(self) -> str:
        """Return the prompt to a model whose answer broke the policy."""
        if self.forbidden:
            return "You wrote a tool call, but no tool may be called now. Answer again, in plain text and without any call."
        names = ", ".join(json.dumps(name, ensure_ascii=False) for name in sorted(self.names or ()))
        if self.needed and self.names is not None:
            which = f"the tool {names}" if len(self.names) == 1 else f"one of these tools: {names}"
            return f"You did not call {which}. Write the call now, and nothing else."
        if self.needed:
            return "You did not call a tool. Call at least one of the tools now; write the call and nothing else."
        return f"You called a tool that may not be called now. Allowed now: {names}. Answer again, or call one of these."

    def error_message(self, rounds: int) -> str:
        """Return the error message for a client whose model broke the policy."""
        asked = f" (asked {rounds + 1} times)" if rounds else ""
        if self.forbidden:
            return f"The model called a tool although tool_choice is 'none'{asked}."
        if not self.needed:
            return f"The model called a tool that tool_choice does not allow{asked}."
        if self.names is not None:
            return f"The model did not call {' or '.join(map(repr, sorted(self.names)))} as tool_choice demands{asked}."
        return f"The model did not call a tool although tool_choice demands it{asked}."


def demands_call(tool_choice: Any) -> bool:
    """Whether a ``tool_choice`` cannot be met without a call."""
    if not isinstance(tool_choice, Mapping):
        return bool(tool_choice == "required")
    allowed = tool_choice.get("allowed_tools")
    return tool_choice.get("type") == "function" or (isinstance(allowed, Mapping) and allowed.get("mode") == "required")


def read_policy(tool_choice: Any, parallel: Any, names: frozenset[str]) -> Policy:
    """Read ``tool_choice`` and ``parallel_tool_calls``; ``names`` are the offered tools. Raises InvalidRequestError."""
    if parallel is not None and not isinstance(parallel, bool):
        raise InvalidRequestError("'parallel_tool_calls' must be a boolean.", param="parallel_tool_calls")
    single = parallel is False
    if tool_choice is None or tool_choice == "auto":
        return Policy(single=single)
    if tool_choice == "none":
        return Policy(forbidden=True)
    if tool_choice == "required":
        return Policy(needed=True, single=single)
    if isinstance(tool_choice, Mapping):
        if tool_choice.get("type") == "allowed_tools":
            return _allowed(tool_choice.get("allowed_tools"), names, single=single)
        if tool_choice.get("type") == "function":
            function = tool_choice.get("function")
            name = function.get("name") if isinstance(function, Mapping) else None
            return Policy(needed=True, names=_offered([name], names), single=True)
    raise InvalidRequestError(
        "'tool_choice' must be 'auto', 'none', 'required', a named function or 'allowed_tools'.", param="tool_choice"
    )


def _allowed(allowed: Any, names: frozenset[str], *, single: bool) -> Policy:
    if not isinstance(allowed, Mapping) or allowed.get("mode") not in ("auto", "required"):
        raise InvalidRequestError(
            "'tool_choice.allowed_tools' must have a 'mode' ('auto' or 'required') and 'tools'.",
            param="tool_choice.allowed_tools",
        )
    chosen = _offered(allowed_names(allowed), names)
    return Policy(needed=allowed["mode"] == "required", names=chosen, single=single)


def _offered(chosen: list[Any], names: frozenset[str]) -> frozenset[str]:
    for name in chosen:
        if not isinstance(name, str) or name not in names:
            raise InvalidRequestError(f"'tool_choice' names {name!r}, which is not among 'tools'.", param="tool_choice")
    if not chosen:
        raise InvalidRequestError("'tool_choice' allows no tool: use 'none'.", param="tool_choice")
    return frozenset(chosen)


_NO_JSON: Final = "it is not JSON"
_MOST_REMEMBERED: Final = 64 * 1024
_FENCED: Final = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)


class AnswerFormat:
    """A ``response_format`` that asks for JSON; ``schema`` is None if any object is allowed."""

    def __init__(self, schema: Mapping[str, Any] | None, written: str) -> None:
        self.schema = schema
        self._what = f"one JSON value that fits this JSON Schema: {written}" if schema is not None else "one JSON object"

    @property
    def instruction(self) -> str:
        """The text in the prompt while tools may be called."""
        return (
            "# Form of the answer\n\nWhen you need no tool any more and answer, your whole answer must be JSON, without any text "
            f"around it and without a code fence. It must be {self._what}\n\nThis concerns your answer alone: call tools as "
            "before, whenever you need them."
        )

    def demand(self, complaint: str = "") -> str:
        """Return the prompt that asks for the answer alone."""
        begin = f"Your answer does not fit: {complaint}. Give it again" if complaint else "Give your answer now"
        return f"{begin} as JSON, with nothing before and nothing behind it. It must be {self._what}"

    def read(self, text: str, *, check_schema: bool = True, alone: bool = False) -> tuple[str | None, str]:
        """Return the JSON text of an answer that fits, or None and the complaint. A code fence around it is removed.

        ``alone``: the answer alone was asked for, so text around its JSON is removed too.
        """
        text = text.strip()
        if fenced := _FENCED.fullmatch(text):
            text = fenced[1].strip()
        answer, complaint = self._check(text, check_schema=check_schema)
        if complaint != _NO_JSON or not alone:
            return answer, complaint
        for inner in _embedded(text):
            answer, inner_complaint = self._check(inner, check_schema=check_schema)
            if answer is not None:
                return answer, ""
            if inner_complaint != _NO_JSON:
                complaint = inner_complaint
        return None, complaint

    def _check(self, text: str, *, check_schema: bool) -> tuple[str | None, str]:
        try:
            value = msgspec.json.decode(text)  # strict: a client's parser takes no NaN
        except (ValueError, RecursionError):
            return None, _NO_JSON if text else "it is empty"
        if self.schema is None:
            return (text, "") if isinstance(value, dict) else (None, "it is not a JSON object")
        complaints = self._validator.error_messages(value) if check_schema else ()
        return (None, "; ".join(complaints)) if complaints else (text, "")

    @cached_property
    def _validator(self) -> SchemaValidator:
        from patchbay.schema.validation import SchemaValidator  # heavy, and needed only where an answer is checked

        return SchemaValidator("response_format", self.schema or {})


def _embedded(text: str) -> Iterator[str]:
    """Yield the possible object and array in a text: from the first opening bracket to the last closing one."""
    for opening, closing in ("{}", "[]"):
        begin, end = text.find(opening), text.rfind(closing)
        if 0 <= begin < end:
            yield text[begin : end + 1]


def read_answer_format(raw: bytes) -> AnswerFormat | None:
    """Read a ``response_format``; small ones are cached. None unless it asks for JSON; the upstream reports an invalid one."""
    return _remembered(raw) if len(raw) <= _MOST_REMEMBERED else _read(raw)


def _read(raw: bytes) -> AnswerFormat | None:
    value = decode(raw)
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "json_object":
        return AnswerFormat(None, "")
    given = value.get("json_schema") if kind == "json_schema" else None
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict):
        return None
    return AnswerFormat(schema, encode(schema).decode())


_remembered = lru_cache(maxsize=64)(_read)


def schema_error_messages(specs: Sequence[ToolSpec], calls: Sequence[ToolCall]) -> list[str]:
    """Return a sentence for each call whose arguments do not fit their schema."""
    if not specs or not calls:
        return []
    from patchbay.schema import ToolValidator  # the validators are heavy, and needed only where calls are repaired

    validator = ToolValidator(specs)
    complaints = []
    for call in calls:
        result = validator.validate(call.name, call.raw_arguments)
        if not result.valid:
            complaints.append(f"The arguments of your call of {call.name!r} do not fit its schema: {'; '.join(result.errors)}.")
    return complaints


def ask_for_tool_choice(outcome: ChoiceOutcome, complaint: str) -> list[Message]:
    """Return the messages to send after an answer that broke ``tool_choice``."""
    return [{"role": "assistant", "content": outcome.text}, {"role": "user", "content": complaint}]


def ask_for_arguments(outcome: ChoiceOutcome) -> list[Message]:
    """Return the messages to send after calls whose arguments are no JSON object."""
    written = outcome.text
    if outcome.native:
        written = "\n".join(f"{call.name} {call.raw_arguments}" for call in outcome.invalid)
    names = ", ".join(json.dumps(call.name, ensure_ascii=False) for call in outcome.invalid if call.name) or "a tool"
    complaint = (
        f"The arguments of your call of {names} are not a JSON object, so nothing was run. Write all calls of this answer again, "
        "each with one JSON object as its arguments."
    )
    return [{"role": "assistant", "content": written}, {"role": "user", "content": complaint}]


def describe_invalid(call: ToolCall, asked: int) -> str:
    """Return the error message for a client whose model wrote an invalid call, after it was asked again ``asked`` times."""
    again = f" (asked {asked + 1} times)" if asked else ""
    return f"The model called {call.name!r} with arguments that are no JSON object{again}: {call.raw_arguments[:200]}"


def ask_for_answer(outcome: ChoiceOutcome, demand: str) -> list[Message]:
    """Return the messages to send after an answer that does not fit ``response_format``."""
    given = [{"role": "assistant", "content": outcome.answer}] if outcome.answer else []
    return [*given, {"role": "user", "content": demand}]


def ask_for_repair(outcome: ChoiceOutcome, complaints: Sequence[str]) -> list[Message]:
    """Return the messages to send after calls with invalid arguments: results for native calls, else text."""
    complaint = " ".join(complaints)
    if outcome.native:
        calls = [call.to_openai() for call in outcome.calls]
        return [
            {"role": "assistant", "content": outcome.text or None, "tool_calls": calls},
            *({"role": "tool", "tool_call_id": call.id, "content": f"Not run. {complaint}"} for call in outcome.calls),
        ]
    complaint += " None of your calls was run. Write all of them again, with the arguments fixed."
    return ask_for_tool_choice(outcome, complaint)


def sum_usage(usages: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Add up all numbers in the usage of several responses, details included; other values are the last one's. None if empty."""
    total: dict[str, Any] = {}
    for usage in usages:
        _add_usage(total, usage)
    return total or None


def _add_usage(total: dict[str, Any], usage: Mapping[str, Any]) -> None:
    for key, value in usage.items():
        if isinstance(value, Mapping):
            before = total.get(key)
            total[key] = dict(before) if isinstance(before, Mapping) else {}
            _add_usage(total[key], value)
        elif _is_number(value) and _is_number(total.get(key)):
            total[key] += value
        elif value is not None or key not in total:
            total[key] = value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
