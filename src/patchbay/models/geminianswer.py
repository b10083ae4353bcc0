"""Gemini's answers as chunks of chat completions. Reads google-genai's objects by their attributes; the SDK is not imported."""

from __future__ import annotations

import base64
import json
import re
import uuid
from typing import Any, Final

from patchbay.formats import parse
from patchbay.models.geminirequest import SIGNATURE

_FINISH: Final = {"STOP": "stop", "MAX_TOKENS": "length", "CONTINUATION": "length", "FINISH_REASON_UNSPECIFIED": "stop"}
UNREADABLE: Final = "unreadable"
"""The finish_reason of an answer that Gemini could not read, where it does not tell what it was."""
_UNREADABLE: Final = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"})
"""The model wrote something that Gemini could not read as a call; what it wrote is in the message, where there is one."""
_FAILED: Final = frozenset({"OTHER", "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE", "ESCALATION"})
_CALLED: Final = re.compile(r"([A-Za-z_]\w*)\s*\(")
_PREFIX: Final = re.compile(r"^Malformed function call:\s*", re.IGNORECASE)


class GeminiAnswer:
    """One answer, whole or in pieces: each is turned into a chunk. ``tools`` are those of the request, as OpenAI has them."""

    def __init__(self, model: str, tools: Any) -> None:
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex[:24]}", "object": "chat.completion.chunk", "created": 0, "model": model}
        self._tools = tools
        self._calls = 0
        self.failed = ""
        """Why there is no answer, once Gemini has given it up."""

    def chunk(self, piece: Any) -> dict[str, Any]:
        """The chunk for a ``GenerateContentResponse``."""
        chunk: dict[str, Any] = {**self._head, "choices": []}
        if (usage := _usage(piece.usage_metadata)) is not None:
            chunk["usage"] = usage
        candidate = (piece.candidates or [None])[0]
        if candidate is not None:
            delta = self._delta(candidate.content)
            finish = self._finish(candidate, delta)
            chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish}]
        elif (feedback := piece.prompt_feedback) is not None and feedback.block_reason is not None:
            said = feedback.block_reason_message or f"The prompt was blocked: {_word(feedback.block_reason)}."
            chunk["choices"] = [{"index": 0, "delta": {"refusal": said}, "finish_reason": "content_filter"}]
        return chunk

    def _delta(self, content: Any) -> dict[str, Any]:
        text: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        delta: dict[str, Any] = {}
        for part in (content.parts if content is not None else None) or ():
            extra = _extra(part.thought_signature)
            if part.function_call is not None:
                calls.append({**self._call(part.function_call), **extra})
                continue
            if part.text:
                (thoughts if part.thought else text).append(part.text)
            delta |= extra
        if thoughts:
            delta["reasoning_content"] = "".join(thoughts)
        if text:
            delta["content"] = "".join(text)
        if calls:
            delta["tool_calls"] = calls
        return delta

    def _call(self, call: Any) -> dict[str, Any]:
        return self._written(call.name or "", json.dumps(call.args or {}, ensure_ascii=False), call.id)

    def _written(self, name: str, arguments: str, call_id: str | None = None) -> dict[str, Any]:
        index = self._calls
        self._calls += 1
        # Older models give no ids; each call of a conversation needs one of its own.
        call_id = call_id or f"call_{uuid.uuid4().hex[:24]}"
        return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _finish(self, candidate: Any, delta: dict[str, Any]) -> str | None:
        if candidate.finish_reason is None:
            return None
        word = _word(candidate.finish_reason)
        if word in _UNREADABLE:
            message = candidate.finish_message
            if not message:
                return UNREADABLE
            self._unreadable(message, delta)
            return "stop"
        if word in _FAILED:
            self.failed = f"Gemini gave up its answer ({word})" + (
                f": {candidate.finish_message}" if candidate.finish_message else "."
            )
            return "error"
        return _FINISH.get(word, "content_filter")

    def _unreadable(self, message: str, delta: dict[str, Any]) -> None:
        """Give the calls that the message shows; one that cannot be read is given as it is written.

        So the model is told what was wrong with it, as with any call whose arguments do not fit, and may write it again.
        """
        written = _PREFIX.sub("", message).strip()
        calls: list[dict[str, Any]] = []
        if self._tools:
            found = parse(f"```tool_code\n{written}\n```", self._tools).tool_calls
            calls = [self._written(call.name, call.raw_arguments) for call in found]
            if not calls and (named := _CALLED.search(written.removeprefix("print(").replace("default_api.", ""))):
                calls = [self._written(named.group(1), written)]
        if calls:
            delta["tool_calls"] = [*delta.get("tool_calls", ()), *calls]
        elif written:
            delta["content"] = delta.get("content", "") + written


def _word(value: Any) -> str:
    """An enumeration's word; one that the SDK does not know yet comes as a text."""
    return str(getattr(value, "value", value)).upper()


def _extra(signature: Any) -> dict[str, Any]:
    if not signature:
        return {}
    text = base64.b64encode(signature).decode() if isinstance(signature, bytes) else str(signature)
    return {"extra_content": {"google": {SIGNATURE: text}}}


def _usage(counts: Any) -> dict[str, int] | None:
    if counts is None:
        return None
    prompt = (counts.prompt_token_count or 0) + (counts.tool_use_prompt_token_count or 0)
    completion = (counts.candidates_token_count or 0) + (counts.thoughts_token_count or 0)
    total = counts.total_token_count or prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
