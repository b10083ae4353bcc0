"""Whole answers: decoded, validated, and their choices rewritten for the client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from patchbay.errors import UpstreamError
from patchbay.models.error_bodies import error_message, excerpt
from patchbay.models.policy import Outcome, Policy
from patchbay.models.wire import decode
from patchbay.transcript import text_of
from patchbay.types import Reply, ToolCall


def read_completion(body: bytes) -> dict[str, Any]:
    """Decode a chat completion; raises UpstreamError for anything else, with the upstream's message."""
    try:
        completion = decode(body)
    except (ValueError, RecursionError):
        raise UpstreamError(f"The upstream's answer is not JSON: {excerpt(body)}", body=excerpt(body)) from None
    if not isinstance(completion, dict) or (completion.get("error") and not completion.get("choices")):
        raise UpstreamError(f"The upstream failed: {error_message(body)}", body=excerpt(body))
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices or not all(map(_has_message, choices)):
        raise UpstreamError(f"The upstream's answer has no choices: {excerpt(body)}", body=excerpt(body))
    return completion


def _has_message(choice: Any) -> bool:
    return isinstance(choice, dict) and isinstance(choice.get("message"), dict)


def read_choice(choice: dict[str, Any], reply: Reply, policy: Policy) -> tuple[Outcome, dict[str, Any]]:
    """Return the outcome of a choice, and the choice for the client: the same object if nothing has to change.

    ``reply`` is the parsed content of the message.
    """
    message = choice["message"]
    content = message.get("content")
    native = native_calls(message)
    every = [*native, *reply.tool_calls]
    calls = every if policy.free else [call for call in every if policy.admits(call.name)]
    begun = [call for call in reply.incomplete if call.name]
    cut = [call for call in begun if policy.admits(call.name)]
    broken = len(calls) < len(every) or len(cut) < len(begun)
    if policy.single:
        calls = calls[:1]
    whole = policy.single and bool(calls)  # (what follows the only call allowed does not matter)
    if whole:
        cut = []
    outcome = Outcome(
        calls=calls,
        native=bool(native),
        broken=broken,
        cut=bool(reply.incomplete) and not whole,
        visible=False,
        prose=reply.content is not None,
        text=content if isinstance(content, str) else "",
    )
    lifted = isinstance(content, str) and content != (reply.content or "")
    given = choice.get("finish_reason")
    finish = finish_reason(given, calls=bool(calls), native=bool(native), cut=outcome.cut)
    if not lifted and len(calls) == len(native) and _has_openai_form(message.get("tool_calls")):
        return outcome, choice if finish == given or not calls else {**choice, "finish_reason": finish}
    changed = {key: value for key, value in message.items() if key != "tool_calls"}
    if lifted:
        changed["content"] = reply.content
    if reply.reasoning:
        own = message.get("reasoning_content")
        changed["reasoning_content"] = f"{own}\n\n{reply.reasoning}" if isinstance(own, str) and own else reply.reasoning
    written = [call.to_openai() for call in calls] + [call.to_openai() for call in cut]
    if written:
        changed["tool_calls"] = written
    return outcome, {**choice, "message": changed, "finish_reason": finish}


def without_prose(outcome: Outcome, choice: dict[str, Any]) -> tuple[Outcome, dict[str, Any]]:
    """Adapt a result of ``read_choice`` to a request for JSON: drop content beside calls, else set the outcome's ``answer``."""
    message = choice["message"]
    if outcome.called:
        return outcome, {**choice, "message": {**message, "content": None}} if message.get("content") else choice
    if is_final(choice.get("finish_reason"), message.get("refusal")):
        return outcome, choice
    return msgspec.structs.replace(outcome, answer=text_of(message.get("content"))), choice


def is_final(finish: Any, refusal: Any) -> bool:
    """Whether an answer was cut off, filtered or refused, so that asking again would not help."""
    return bool(refusal) or finish in ("length", "content_filter")


def _has_openai_form(tool_calls: Any) -> bool:
    """Whether native calls have OpenAI's form: some servers send no ids, or arguments as objects."""
    return all(
        isinstance(call, Mapping)
        and isinstance(call.get("id"), str)
        and isinstance(call.get("function"), Mapping)
        and isinstance(call["function"].get("arguments"), str)
        for call in (tool_calls if isinstance(tool_calls, list) else ())
    )


def finish_reason(given: Any, *, calls: bool, native: bool, cut: bool) -> Any:
    """Return the client's finish reason: the upstream's, unless the answer is a call or was cut off inside one."""
    if given == "content_filter":
        return given
    if cut:
        return "length"
    if calls:
        if given == "length" and native:
            return given  # only the upstream knows whether its own call is whole
        return "tool_calls"
    return "stop" if given in (None, "tool_calls") else given


def native_calls(message: Mapping[str, Any]) -> list[ToolCall]:
    """Return the native calls of a whole message."""
    calls = []
    given = message.get("tool_calls")
    for position, call in enumerate(given if isinstance(given, list) else ()):
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            arguments = function.get("arguments")
            raw = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
            extra = {"extra_content": call["extra_content"]} if call.get("extra_content") is not None else None
            calls.append(ToolCall(str(call.get("id") or f"call_{position}"), function["name"], raw, extra))
    return calls
