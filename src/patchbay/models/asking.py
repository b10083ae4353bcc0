"""Asking a model again: what is said to it, and how the tokens of the answers that nobody saw are added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchbay.models.completion import Outcome
from patchbay.types import Message, ToolCall, ToolSpec


def schema_error_messages(specs: Sequence[ToolSpec], calls: Sequence[ToolCall]) -> list[str]:
    """One sentence for each call whose arguments do not fit their schema."""
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


def ask_for_choice(outcome: Outcome, complaint: str) -> list[Message]:
    """The messages after an answer that broke ``tool_choice``."""
    return [{"role": "assistant", "content": outcome.text}, {"role": "user", "content": complaint}]


def ask_for_answer(outcome: Outcome, demand: str) -> list[Message]:
    """The messages after an answer that is not what ``response_format`` asks for."""
    given = [{"role": "assistant", "content": outcome.answer}] if outcome.answer else []
    return [*given, {"role": "user", "content": demand}]


def ask_for_repair(outcome: Outcome, complaints: Sequence[str]) -> list[Message]:
    """The messages after calls that did not fit. The model's own calls are answered as such; those in text, in text."""
    complaint = " ".join(complaints)
    if outcome.native:
        calls = [call.to_openai() for call in outcome.calls]
        return [
            {"role": "assistant", "content": outcome.text or None, "tool_calls": calls},
            *({"role": "tool", "tool_call_id": call.id, "content": f"Not run. {complaint}"} for call in outcome.calls),
        ]
    complaint += " None of your calls was run. Write all of them again, with the arguments fixed."
    return ask_for_choice(outcome, complaint)


def add_usage(usage: Any, spent: Sequence[Mapping[str, Any]]) -> Any:
    """``usage`` with the tokens of earlier attempts added; None where none of them told any."""
    if not spent:
        return usage
    total: dict[str, Any] = dict(usage) if isinstance(usage, Mapping) else {}
    for earlier in spent:
        if not total:
            total = dict(earlier)
            continue
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            if isinstance(earlier.get(key), int) and isinstance(total.get(key), int):
                total[key] += earlier[key]
    return total or None
