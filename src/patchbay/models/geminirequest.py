"""A chat-completions request as Gemini's ``generateContent`` takes it. Pure: dicts in, dicts out, the SDK is not needed for it.

What is asked is told in the snake_case fields of google-genai's types, so that its client takes it as it is. The way back is
``geminianswer``.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from patchbay.errors import InvalidRequestError
from patchbay.transcript import text_of
from patchbay.types import Message

SIGNATURE: Final = "thought_signature"

_SAME: Final = ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty")
_OWN: Final = frozenset(
    {
        "safety_settings", "thinking_config", "cached_content", "labels", "media_resolution", "response_modalities",
        "response_mime_type", "response_schema", "response_json_schema", "max_output_tokens", "stop_sequences",
        "speech_config", "image_config", "service_tier", "http_options",
    }
)  # fmt: skip
"""Gemini's own parameters, which may be given by their names."""
_MEANINGLESS: Final = frozenset(
    {
        "model", "messages", "tools", "tool_choice", "stream", "stream_options", "parallel_tool_calls", "user", "metadata",
        "store", "max_tokens", "max_completion_tokens", "stop", "n", "response_format", "reasoning_effort", "extra_body",
        "logprobs", "top_logprobs",
    }
)  # fmt: skip
"""OpenAI's parameters that are read below, or that say nothing here."""
_BUDGETS: Final = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24576}
"""Tokens of thought for a ``reasoning_effort``, for the models that count them; newer ones know levels."""
_COUNTS_THOUGHT: Final = re.compile(r"(?:^|/)gemini-(?:1|2)\b")
_DEMANDS_SIGNATURES: Final = re.compile(r"(?:^|/)gemini-(?!1\b|2\b|1\.|2\.)")
_FOREIGN_SIGNATURE: Final = b"skip_thought_signature_validator"
"""What stands for the signature of a call that another model made, or that was made up: Google's documented word for it."""
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)


def gemini_request(body: Mapping[str, Any], *, system_role: bool = True) -> dict[str, Any]:
    """The arguments ``model``, ``contents`` and ``config`` of ``generate_content`` for a chat-completions body.

    ``system_role``: the model takes a system instruction; where not, it is put before what the user says first. Raises
    InvalidRequestError for what Gemini has no words for.
    """
    model = str(body.get("model") or "")
    instructions = [text_of(m.get("content")) for m in body["messages"] if m.get("role") in ("system", "developer")]
    instruction = "\n\n".join(text for text in instructions if text)
    contents = _contents(body["messages"], signed=_DEMANDS_SIGNATURES.search(model) is not None)
    config = _config(body, model)
    if instruction and system_role and contents:
        config["system_instruction"] = instruction
    elif instruction:
        contents = _before(contents, instruction)
    return {"model": model, "contents": contents, "config": config}


# the conversation


def _contents(messages: Sequence[Message], *, signed: bool) -> list[dict[str, Any]]:
    names: dict[Any, str] = {}
    contents: list[dict[str, Any]] = []
    for message in messages:
        role = message.get("role")
        if role in ("system", "developer"):
            continue
        if role == "assistant":
            parts = _said(message, signed=signed)
            for call in message.get("tool_calls") or ():
                names[call.get("id")] = call["function"]["name"]
            _append(contents, "model", parts)
        elif role == "tool":
            part = _response(message, names)
            # All results of a round stand in one content, and nothing else does.
            if contents and _is_results(contents[-1]):
                contents[-1]["parts"].append(part)
            else:
                contents.append({"role": "user", "parts": [part]})
        else:
            _append(contents, "user", list(_parts(message.get("content"))))
    return contents


def _append(contents: list[dict[str, Any]], role: str, parts: list[dict[str, Any]]) -> None:
    """Add a turn; one without parts is refused, and says nothing."""
    if parts:
        contents.append({"role": role, "parts": parts})


def _is_results(content: Mapping[str, Any]) -> bool:
    return "function_response" in content["parts"][0]


def _before(contents: list[dict[str, Any]], instruction: str) -> list[dict[str, Any]]:
    part = {"text": instruction}
    if contents and contents[0]["role"] == "user" and not _is_results(contents[0]):
        return [{"role": "user", "parts": [part, *contents[0]["parts"]]}, *contents[1:]]
    return [{"role": "user", "parts": [part]}, *contents]


def _said(message: Message, *, signed: bool) -> list[dict[str, Any]]:
    """What the model said: its text, then its calls, each with the signature it came with."""
    parts = list(_parts(message.get("content")))
    signature = _signature(message)
    if signature is not None:
        # It may have come in a part with no text at all; where it came there is no telling, and it belongs behind the text.
        parts = [*parts[:-1], {**parts[-1], SIGNATURE: signature}] if parts else [{"text": "", SIGNATURE: signature}]
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    if signed and calls and not any(SIGNATURE in call for call in calls):
        calls[0][SIGNATURE] = _FOREIGN_SIGNATURE
    return parts + calls


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (ValueError, RecursionError):
        arguments = {}
    written: dict[str, Any] = {"name": function["name"], "args": arguments if isinstance(arguments, dict) else {}}
    if call.get("id"):
        written["id"] = call["id"]
    signature = _signature(call)
    return {"function_call": written} if signature is None else {"function_call": written, SIGNATURE: signature}


def _signature(holder: Mapping[str, Any]) -> bytes | None:
    extra = holder.get("extra_content")
    google = extra.get("google") if isinstance(extra, Mapping) else None
    signature = google.get(SIGNATURE) if isinstance(google, Mapping) else None
    if not isinstance(signature, str):
        return None
    try:
        return base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        return signature.encode()


def _response(message: Message, names: Mapping[Any, str]) -> dict[str, Any]:
    call_id = message.get("tool_call_id")
    text = text_of(message.get("content"))
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        value = text
    response: dict[str, Any] = {
        "name": names.get(call_id) or message.get("name") or "unknown",
        "response": value if isinstance(value, dict) else {"result": value},
    }
    if call_id:
        response["id"] = call_id
    return {"function_response": response}


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are Python's: no server reads them


def _parts(content: Any) -> Iterator[dict[str, Any]]:
    """A content's parts. Raises InvalidRequestError for a kind that is not known here."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for part in content or ():
        kind = part.get("type")
        if kind in ("text", "refusal"):
            if text := part.get("text") or part.get("refusal"):
                yield {"text": text}
        elif kind == "image_url":
            url = part["image_url"]
            yield _media(url["url"] if isinstance(url, Mapping) else url, "image/jpeg")
        elif kind == "input_audio":
            audio = part["input_audio"]
            yield {"inline_data": {"data": _bytes(audio["data"]), "mime_type": f"audio/{audio.get('format', 'wav')}"}}
        elif kind == "file" and isinstance(part["file"].get("file_data"), str):
            yield _media(part["file"]["file_data"], "application/pdf")
        else:
            raise InvalidRequestError(f"A message's part of the type {kind!r} cannot be told to Gemini.", param="messages")


def _media(url: str, kind: str) -> dict[str, Any]:
    match = _DATA_URL.match(url)
    if match is None:
        return {"file_data": {"file_uri": url}}
    return {"inline_data": {"data": _bytes(url[match.end() :]), "mime_type": match.group(1) or kind}}


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        raise InvalidRequestError("A message's data is not base64.", param="messages") from None


# the parameters


def _config(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    if body.get("n") not in (None, 1):
        raise InvalidRequestError("'n' must be 1 for Gemini.", param="n")
    extra = body.get("extra_body")
    given = {**body, **extra} if isinstance(extra, Mapping) else dict(body)
    unknown = sorted(given.keys() - _OWN - _MEANINGLESS - set(_SAME))
    if unknown:
        raise InvalidRequestError(f"Gemini has no parameter {unknown[0]!r}.", param=unknown[0])
    config: dict[str, Any] = {name: given[name] for name in (*_SAME, *_OWN) if given.get(name) is not None}
    limit = given.get("max_completion_tokens") or given.get("max_tokens")
    if limit is not None:
        config.setdefault("max_output_tokens", limit)
    if (stop := given.get("stop")) is not None:
        config.setdefault("stop_sequences", [stop] if isinstance(stop, str) else list(stop))
    if (effort := given.get("reasoning_effort")) is not None:
        config.setdefault("thinking_config", _thinking(str(effort), model))
    if given.get("logprobs"):
        config |= {"response_logprobs": True, "logprobs": given.get("top_logprobs")}
    config |= _response_format(given.get("response_format"))
    if body.get("tools"):
        config["tools"] = [{"function_declarations": [_declaration(tool["function"]) for tool in body["tools"]]}]
        config["tool_config"] = {"function_calling_config": _calling(body.get("tool_choice"))}
    # The SDK would run Python functions by itself; running tools is the executor's.
    config["automatic_function_calling"] = {"disable": True}
    return config


def _thinking(effort: str, model: str) -> dict[str, Any]:
    if _COUNTS_THOUGHT.search(model):
        if effort == "none":
            return {"thinking_budget": 0}  # thoughts may be asked for only where there are any
        return {"thinking_budget": _BUDGETS.get(effort, -1), "include_thoughts": True}
    return {"thinking_level": "minimal" if effort == "none" else effort, "include_thoughts": True}


def _response_format(wanted: Any) -> dict[str, Any]:
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind == "json_object":
        return {"response_mime_type": "application/json"}
    if kind == "json_schema":
        return {"response_mime_type": "application/json", "response_json_schema": wanted["json_schema"]["schema"]}
    return {}


def _declaration(function: Mapping[str, Any]) -> dict[str, Any]:
    declaration = {"name": function["name"], "description": function.get("description") or function["name"]}
    parameters = function.get("parameters") or {}
    # An object without properties is refused as a schema; no schema says the same.
    return {**declaration, "parameters": parameters} if parameters.get("properties") else declaration


def _calling(choice: Any) -> dict[str, Any]:
    if isinstance(choice, Mapping):
        allowed = choice.get("allowed_tools")
        if not isinstance(allowed, Mapping):
            return {"mode": "ANY", "allowed_function_names": [choice["function"]["name"]]}
        names = [tool["function"]["name"] for tool in allowed["tools"]]
        # Names may only be given with a mode that holds the model to them; "VALIDATED" leaves it the choice to answer.
        return {"mode": "ANY" if allowed.get("mode") == "required" else "VALIDATED", "allowed_function_names": names}
    return {"mode": {"none": "NONE", "required": "ANY"}.get(str(choice), "AUTO")}
