"""Gemini's generateContent as a front-end: ``POST /v1beta/models/MODEL:generateContent`` and its siblings.

The same conversation always gives the same bytes. Left out, for want of a counterpart: hosted tools, safety settings, cached
content, ``thinkingConfig``, ``topK``, thought signatures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final
from urllib.parse import unquote

from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.frontends.base import (
    KEEP_ALIVE,
    DecodedRequest,
    FrontendEncoder,
    OmissionLog,
    checked,
    member,
    object_schema,
    objects,
    read_body,
)
from patchbay.models.error_bodies import as_patchbay_error, error_text
from patchbay.models.parts import NO_HEAD, Answer, AnswerHead
from patchbay.models.wire import decode, encode, sse_event
from patchbay.types import Message, ToolCall

_omit = OmissionLog("Gemini")
_COPIED: Final = {
    "temperature": "temperature", "topP": "top_p", "maxOutputTokens": "max_tokens", "stopSequences": "stop", "seed": "seed",
    "presencePenalty": "presence_penalty", "frequencyPenalty": "frequency_penalty",
}  # fmt: skip
_UPPER: Final = re.compile("[A-Z]")
_MODES: Final = {"AUTO": "auto", "NONE": "none", "ANY": "required", "VALIDATED": "auto", "MODE_UNSPECIFIED": "auto"}


def decode_request(given: Mapping[str, Any], model: str, *, stream: bool) -> dict[str, Any]:
    """Decode a request to this model into a body of chat completions. Raises InvalidRequestError."""
    config = checked(_get(given, "generationConfig") or {}, dict, "generationConfig", "an object")
    if _get(config, "candidateCount") not in (None, 1):
        raise InvalidRequestError("'generationConfig.candidateCount' must be 1.", param="generationConfig.candidateCount")
    chat: dict[str, Any] = {"model": model}
    chat |= {ours: value for name, ours in _COPIED.items() if (value := _get(config, name)) is not None}
    decoder = _Contents()
    if (instruction := _get(given, "systemInstruction")) is not None:
        decoder.system(instruction)
    for index, content in enumerate(member(given, "contents", list, "", "an array of contents")):
        decoder.add(checked(content, dict, f"contents[{index}]", "an object"), f"contents[{index}]")
    chat["messages"] = decoder.messages
    if tools := _tools(given.get("tools")):
        chat["tools"] = tools
        if (choice := _tool_choice(_get(given, "toolConfig"))) is not None:
            chat["tool_choice"] = choice
    if (response_format := _response_format(config)) is not None:
        chat["response_format"] = response_format
    if stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def _get(holder: Mapping[str, Any], name: str) -> Any:
    """Return a member by its name in camel case or snake case: protocol buffers' JSON allows both."""
    value = holder.get(name)
    return holder.get(_snake(name)) if value is None else value


@cache
def _snake(name: str) -> str:
    return _UPPER.sub(lambda found: "_" + found[0].lower(), name)


class _Contents:
    """Converts contents to messages. Calls and results without ids get one: the nth call of a conversation is ``call_n``."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._calls = 0
        self._open: list[tuple[str, str]] = []
        """The calls without a result, by name and id."""

    def system(self, content: Any) -> None:
        """Add the system instruction."""
        parts = content.get("parts") if isinstance(content, Mapping) else [{"text": content}]
        texts = [part["text"] for part in objects(parts) if isinstance(part.get("text"), str)]
        if texts:
            self.messages.append({"role": "system", "content": "\n\n".join(texts)})

    def add(self, content: Mapping[str, Any], path: str) -> None:
        """Add a content. Raises InvalidRequestError."""
        parts = member(content, "parts", list, path, "an array of parts")
        for index, part in enumerate(parts):
            checked(part, dict, f"{path}.parts[{index}]", "an object")
        if content.get("role") == "model":
            self._model(parts, f"{path}.parts")
        else:
            self._user(parts, f"{path}.parts")

    def _model(self, parts: list[dict[str, Any]], path: str) -> None:
        texts: list[str] = []
        calls: list[dict[str, Any]] = []
        for index, part in enumerate(parts):
            if isinstance(call := _get(part, "functionCall"), Mapping):
                name = str(member(call, "name", str, f"{path}[{index}].functionCall", "a string"))
                call_id = str(call.get("id") or f"call_{self._calls}")
                self._calls += 1
                self._open.append((name, call_id))
                arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
                calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
            elif isinstance(part.get("text"), str):
                if part.get("thought") is not True:
                    texts.append(part["text"])
            else:
                _omit(f"a part of the model with {', '.join(part)}")
        message: Message = {"role": "assistant", "content": "".join(texts) or ("" if not calls else None)}
        if calls:
            message["tool_calls"] = calls
        self.messages.append(message)

    def _user(self, parts: list[dict[str, Any]], path: str) -> None:
        rest: list[dict[str, Any]] = []
        for index, part in enumerate(parts):
            where = f"{path}[{index}]"
            if isinstance(response := _get(part, "functionResponse"), Mapping):
                self._result(response, f"{where}.functionResponse")
                rest += [found for inner in objects(response.get("parts")) if (found := _part(inner)) is not None]
            elif (found := _part(part)) is not None:
                rest.append(found)
            else:
                _omit(f"a part of the user with {', '.join(part)}")
        if rest:
            only_text = all(part["type"] == "text" for part in rest)
            self.messages.append({"role": "user", "content": "\n\n".join(part["text"] for part in rest) if only_text else rest})

    def _result(self, response: Mapping[str, Any], path: str) -> None:
        name = member(response, "name", str, path, "a string")
        value = response.get("response")
        found = next((call for call in self._open if response.get("id") in (None, call[1]) and call[0] == name), None)
        if found is not None:
            self._open.remove(found)
        call_id = response.get("id") or (found[1] if found is not None else f"call_{self._calls}")
        only = next(iter(value)) if isinstance(value, Mapping) and len(value) == 1 else None
        # The SDKs wrap a value that is not an object in "result" or "output".
        inner = value[only] if isinstance(value, Mapping) and only in ("result", "output") else value
        content = inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})


def _part(part: Any) -> dict[str, Any] | None:
    """Convert a part of a user's content; None for an unknown kind."""
    if not isinstance(part, Mapping):
        return None
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if isinstance(data := _get(part, "inlineData"), Mapping):
        kind = str(_get(data, "mimeType"))
        url = f"data:{kind};base64,{data.get('data')}"
    elif isinstance(data := _get(part, "fileData"), Mapping):
        url, kind = str(_get(data, "fileUri")), str(_get(data, "mimeType") or "image/")
    else:
        return None
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    if kind.startswith("audio/") and _get(part, "inlineData") is not None:
        form = {"audio/mpeg": "mp3", "audio/mp3": "mp3"}.get(kind, "wav")
        return {"type": "input_audio", "input_audio": {"data": data.get("data"), "format": form}}
    return {"type": "file", "file": {"filename": str(_get(data, "displayName") or "file"), "file_data": url}}


def _tools(tools: Any) -> list[dict[str, Any]]:
    functions: list[dict[str, Any]] = []
    for index, tool in enumerate(checked(tools or [], list, "tools", "an array")):
        path = f"tools[{index}]"
        declarations = _get(checked(tool, dict, path, "an object"), "functionDeclarations")
        if declarations is None:
            _omit(f"the hosted tool {', '.join(tool)}")
            continue
        for at, declared in enumerate(checked(declarations, list, f"{path}.functionDeclarations", "an array")):
            where = f"{path}.functionDeclarations[{at}]"
            function = {"name": member(checked(declared, dict, where, "an object"), "name", str, where, "a string")}
            if isinstance(declared.get("description"), str):
                function["description"] = declared["description"]
            schema = _get(declared, "parametersJsonSchema") or _json_schema(declared.get("parameters"))
            function["parameters"] = object_schema(schema) if isinstance(schema, Mapping) else object_schema(None)
            functions.append({"type": "function", "function": function})
    return functions


def _json_schema(schema: Any) -> Any:
    """Convert Gemini's subset of OpenAPI to JSON Schema: types in lower case, ``nullable`` as a type."""
    if isinstance(schema, list):
        return [_json_schema(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    out: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "type" and isinstance(value, str):
            out["type"] = value.lower()
        elif name == "properties" and isinstance(value, Mapping):
            out["properties"] = {each: _json_schema(inner) for each, inner in value.items()}
        elif name in ("items", "anyOf"):
            out[name] = _json_schema(value)
        elif name not in ("nullable", "propertyOrdering"):
            out[name] = value
    if schema.get("nullable") is True and isinstance(out.get("type"), str):
        out["type"] = [out["type"], "null"]
    return out


def _tool_choice(config: Any) -> Any:
    calling = _get(config, "functionCallingConfig") if isinstance(config, Mapping) else None
    if not isinstance(calling, Mapping):
        return None
    mode = str(calling.get("mode") or "AUTO").upper()
    if mode not in _MODES:
        raise InvalidRequestError(f"'toolConfig.functionCallingConfig.mode' is {mode!r}.", param="toolConfig")
    names = _get(calling, "allowedFunctionNames")
    if not names or mode in ("NONE", "AUTO"):
        return _MODES[mode]
    names = checked(names, list, "toolConfig.functionCallingConfig.allowedFunctionNames", "an array of names")
    allowed = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": _MODES[mode], "tools": allowed}}


def _response_format(config: Mapping[str, Any]) -> dict[str, Any] | None:
    if _get(config, "responseMimeType") != "application/json":
        return None
    schema = _get(config, "responseJsonSchema") or _json_schema(_get(config, "responseSchema"))
    if not isinstance(schema, Mapping):
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


# answers

_FINISH: Final = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
_TEXT: Final = b'data: {"candidates":[{"content":{"role":"model","parts":[{"text":%s}]},"index":0}]'
_STATUSES: Final = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip


class GenerateContentEncoder(FrontendEncoder):
    """Writes the events of ``streamGenerateContent``, or the response of ``generateContent``.

    ``thoughts``: the client asked for them. A call is one part, written once its arguments are complete.
    """

    def __init__(self, model: str, *, thoughts: bool) -> None:
        self._model = model
        self._thoughts = thoughts
        self._head = NO_HEAD
        self._tail = b""
        """The end of each event with text, encoded once."""
        self._finish = "STOP"
        self._usage: Mapping[str, Any] = {}

    def begin(self, head: AnswerHead) -> None:
        """See AnswerEncoder."""
        self._head = head

    def text(self, text: str) -> bytes:
        """See FrontendEncoder."""
        if self._tail == b"":
            self._tail = b',"modelVersion":%s,"responseId":%s}\n\n' % (encode(self._model), encode(self._head.id or "patchbay"))
        return _TEXT % encode(text) + self._tail

    def reasoning(self, text: str) -> bytes:
        """See FrontendEncoder."""
        return self._event([{"text": text, "thought": True}]) if self._thoughts else b""

    def end_call(self, index: int, call: ToolCall) -> bytes:  # noqa: ARG002
        """See FrontendEncoder."""
        return self._event([_call_part(call)])

    def finish(self, choice: int, reason: str, **more: Any) -> bytes:  # noqa: ARG002
        """See AnswerEncoder."""
        self._finish = _FINISH.get(reason, "STOP")
        self._usage = more.get("usage") or {}
        return b""

    def usage(self, usage: Any) -> bytes:
        """See AnswerEncoder: it is written with the end."""
        self._usage = usage if isinstance(usage, Mapping) else {}
        return b""

    def end(self) -> bytes:
        """See AnswerEncoder."""
        return sse_event(encode(self._response([], self._finish)))

    def error(self, error: PatchbayError | str) -> bytes:
        """See AnswerEncoder."""
        return sse_event(error_body(error))

    def whole(self, answer: Answer) -> bytes:
        """See AnswerEncoder."""
        first = answer.first
        self._head, self._usage = answer.head, answer.usage or {}
        parts: list[dict[str, Any]] = []
        if self._thoughts and (reasoning := first.reasoning):
            parts.append({"text": reasoning, "thought": True})
        if text := first.text:
            parts.append({"text": text})
        parts += [_call_part(call) for call in first.calls]
        return encode(self._response(parts, _FINISH.get(first.finish or "", "STOP")))

    def _event(self, parts: list[dict[str, Any]]) -> bytes:
        return sse_event(encode(self._response(parts, None)))

    def _response(self, parts: list[dict[str, Any]], finish: str | None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        response: dict[str, Any] = {
            "candidates": [candidate],
            "modelVersion": self._model,
            "responseId": self._head.id or "patchbay",
        }
        if finish is not None:
            candidate["finishReason"] = finish
            response["usageMetadata"] = _usage(self._usage)
        return response


def error_body(error: PatchbayError | str) -> bytes:
    """Return Google's error body for an error."""
    error = as_patchbay_error(error)
    status = _STATUSES.get(error.status, "INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT")
    return encode({"error": {"code": error.status, "message": error_text(error), "status": status}})


def _call_part(call: ToolCall) -> dict[str, Any]:
    return {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}


def _usage(usage: Mapping[str, Any]) -> dict[str, int]:
    """Return usage in Gemini's fields; 0 if the upstream sent none."""
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    prompt, completion, total = (count if isinstance(count, int) else 0 for count in counts)
    return {"promptTokenCount": prompt, "candidatesTokenCount": completion, "totalTokenCount": total or prompt + completion}


PATH: Final = re.compile(r"/v1(?:beta|alpha)?/models/(?P<model>.+):(?P<method>generateContent|streamGenerateContent|countTokens)")

MODELS_PATH: Final = re.compile(r"/v1(?:beta|alpha)/models(?:/(?P<model>.+))?")
_METHODS: Final = {"supportedGenerationMethods": ["generateContent", "countTokens"]}


class GenerateContent:
    """See Frontend."""

    name, protocol = "Gemini", "gemini"
    heartbeat = KEEP_ALIVE

    def decode(self, body: bytes, path: str) -> DecodedRequest:
        """See Frontend."""
        model, method = _target(path)
        if method == "countTokens":
            try:
                value = decode(body)
            except (ValueError, RecursionError):
                value = None
            inner = value.get("generateContentRequest") if isinstance(value, dict) else None
            body = body if inner is None else encode(inner)
        given = read_body(body)
        chat = decode_request(given, model, stream=method == "streamGenerateContent")
        thinking = _get(_get(given, "generationConfig") or {}, "thinkingConfig")
        asked = isinstance(thinking, Mapping) and _get(thinking, "includeThoughts") is True
        return DecodedRequest(chat, GenerateContentEncoder(model, thoughts=asked))

    def encode_count(self, tokens: int) -> bytes:
        """See Frontend."""
        return encode({"totalTokens": tokens})

    def encode_models(self, models: Sequence[Mapping[str, Any]]) -> bytes:
        """Encode an OpenAI-compatible server's list of models in Gemini's form."""
        return encode({"models": [_model(each) for each in models]})

    def encode_model(self, model: Mapping[str, Any]) -> bytes:
        """Encode one of these models."""
        return encode(_model(model))

    def error_body(self, error: PatchbayError) -> bytes:
        """See Frontend."""
        return error_body(error)


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": f"models/{model['id']}", "displayName": model["id"], **_METHODS}


def _target(path: str) -> tuple[str, str]:
    """Return the model and the method of a path."""
    found = PATH.fullmatch(path)
    if found is None:
        raise InvalidRequestError("The path must be /v1beta/models/MODEL:generateContent.")
    return unquote(found["model"]), found["method"]
