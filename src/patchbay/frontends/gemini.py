"""Gemini's generateContent as a front-end: ``POST /v1beta/models/MODEL:generateContent`` and its siblings.

The same conversation always gives the same bytes. Left out, for want of a counterpart: tools that Google runs, safety settings,
``topK``, thought signatures.
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
    MCP_ADVICE,
    Conversation,
    DecodedRequest,
    FrontendEncoder,
    OmissionLog,
    allowed_functions,
    call_of,
    chat_body,
    checked,
    each_object,
    effort_of,
    function_of,
    json_format,
    member,
    read_object,
    refuse,
    text_part,
    tokens_of,
)
from patchbay.models.error_bodies import as_patchbay_error, error_text
from patchbay.models.parts import AnswerChoice
from patchbay.models.upstream_errors import context_tokens, status_of
from patchbay.models.wire import decode, encode, objects, sse_event
from patchbay.types import ToolCall

_omit = OmissionLog("Gemini")
_COPIED: Final = {
    "temperature": "temperature", "topP": "top_p", "maxOutputTokens": "max_tokens", "stopSequences": "stop", "seed": "seed",
    "presencePenalty": "presence_penalty", "frequencyPenalty": "frequency_penalty",
}  # fmt: skip
_UPPER: Final = re.compile("[A-Z]")
_MODES: Final = {"AUTO": "auto", "NONE": "none", "ANY": "required", "VALIDATED": "auto", "MODE_UNSPECIFIED": "auto"}
_STORED: Final = re.compile(r"gs:|files/|https://generativelanguage\.googleapis\.com/")
"""The beginning of the name of a file that Google has, and only Google can read."""
_LEVELS: Final = ("minimal", "low", "medium", "high")
_WEB: Final = ("googleSearch", "googleSearchRetrieval", "urlContext")
_COUNTS: Final = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
"""Members of a schema that protocol buffers' JSON writes as text."""
_SCHEMA_NAMES: Final = {_UPPER.sub(r"_\g<0>", name).lower(): name for name in (*_COUNTS, "anyOf", "propertyOrdering")}
"""By their names in snake case."""


def decode_request(given: Mapping[str, Any], model: str, *, stream: bool) -> tuple[dict[str, Any], str]:
    """Decode a request to this model; return a body of chat completions, and the hosted web tool that it is for.

    Raises InvalidRequestError.
    """
    refuse({"cachedContent": _get(given, "cachedContent")}, {"cachedContent": "nothing is cached here; send the contents."})
    config = checked(_get(given, "generationConfig") or {}, dict, "generationConfig", "an object")
    if _get(config, "candidateCount") not in (None, 1):
        raise InvalidRequestError("'generationConfig.candidateCount' must be 1.", param="generationConfig.candidateCount")
    contents = _Contents()
    if (instruction := _get(given, "systemInstruction")) is not None:
        contents.system(instruction)
    for path, content in each_object(given.get("contents"), "contents", "an array of contents"):
        contents.add_content(content, path)
    tools, hosted = _tools(given.get("tools"))
    thinking = _thinking(config)
    level = str(_get(thinking, "thinkingLevel")).lower()
    copied = {ours: value for name, ours in _COPIED.items() if (value := _get(config, name)) is not None}
    chat = chat_body(
        {"model": model, **copied, "messages": contents.finish()},
        stream=stream,
        tools=tools,
        tool_choice=_tool_choice(_get(given, "toolConfig")),
        response_format=_response_format(config),
        reasoning_effort=level if level in _LEVELS else effort_of(_get(thinking, "thinkingBudget")),
        patchbay=given.get("patchbay"),
    )
    return chat, hosted


def _get(holder: Mapping[str, Any], name: str) -> Any:
    """Return a member by its name in camel case or snake case: protocol buffers' JSON allows both."""
    value = holder.get(name)
    return holder.get(_snake(name)) if value is None else value


@cache
def _snake(name: str) -> str:
    return _UPPER.sub(lambda found: "_" + found[0].lower(), name)


def _thinking(config: Mapping[str, Any]) -> Mapping[str, Any]:
    thinking = _get(config, "thinkingConfig")
    return thinking if isinstance(thinking, Mapping) else {}


class _Contents(Conversation):
    """Converts contents to messages. Calls and results without ids get one: the nth call of a conversation is ``call_n``."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0
        self._open: list[tuple[str, str]] = []
        """The calls without a result, by name and id."""

    def system(self, content: Any) -> None:
        """Add the system instruction."""
        parts = content.get("parts") if isinstance(content, Mapping) else [{"text": content}]
        texts = [part["text"] for part in objects(parts) if isinstance(part.get("text"), str)]
        if texts:
            self.add("system", "\n\n".join(texts))

    def add_content(self, content: Mapping[str, Any], path: str) -> None:
        """Add a content. Raises InvalidRequestError."""
        texts: list[str] = []
        calls: list[dict[str, Any]] = []
        shown: list[dict[str, Any]] = []
        is_model = content.get("role") == "model"
        for where, part in each_object(content.get("parts"), f"{path}.parts", "an array of parts"):
            if is_model and isinstance(call := _get(part, "functionCall"), Mapping):
                name = str(member(call, "name", str, f"{where}.functionCall", "a string"))
                call_id = str(call.get("id") or f"call_{self._calls}")
                self._calls += 1
                self._open.append((name, call_id))
                calls.append(call_of(call_id, name, json.dumps(call.get("args") or {}, ensure_ascii=False)))
            elif is_model and isinstance(part.get("text"), str):
                texts += [] if part.get("thought") is True else [part["text"]]
            elif not is_model and isinstance(response := _get(part, "functionResponse"), Mapping):
                self._add_result(response, f"{where}.functionResponse")
            elif not is_model and (found := _part(part)) is not None:
                shown.append(found)
            else:
                _omit(f"a part of the {'model' if is_model else 'user'} with {', '.join(part)}")
        if is_model:
            self.assistant(texts, calls)
        else:
            self.user(shown)

    def _add_result(self, response: Mapping[str, Any], path: str) -> None:
        name = member(response, "name", str, path, "a string")
        value = response.get("response")
        found = next((call for call in self._open if response.get("id") in (None, call[1]) and call[0] == name), None)
        if found is not None:
            self._open.remove(found)
        call_id = response.get("id") or (found[1] if found is not None else f"call_{self._calls}")
        only = next(iter(value)) if isinstance(value, Mapping) and len(value) == 1 else None
        # The SDKs wrap a value that is not an object in "result" or "output".
        inner = value[only] if isinstance(value, Mapping) and only in ("result", "output") else value
        text = inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
        shown = filter(None, map(_part, objects(response.get("parts"))))
        self.result(call_id, [text_part(text), *shown])


def _part(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert a part of a user's content; None for an unknown kind."""
    if isinstance(part.get("text"), str):
        return text_part(part["text"])
    if isinstance(data := _get(part, "inlineData"), Mapping):
        kind = str(_get(data, "mimeType"))
        url = f"data:{kind};base64,{data.get('data')}"
    elif isinstance(data := _get(part, "fileData"), Mapping):
        url, kind = str(_get(data, "fileUri")), str(_get(data, "mimeType") or "image/")
        if _STORED.match(url):
            raise InvalidRequestError(f"'fileUri' is {url[:200]!r}, and files are not kept here: send the data.", param="fileUri")
    else:
        return None
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    if kind.startswith("audio/") and _get(part, "inlineData") is not None:
        form = {"audio/mpeg": "mp3", "audio/mp3": "mp3"}.get(kind, "wav")
        return {"type": "input_audio", "input_audio": {"data": data.get("data"), "format": form}}
    return {"type": "file", "file": {"filename": str(_get(data, "displayName") or "file"), "file_data": url}}


def _tools(tools: Any) -> tuple[list[dict[str, Any]], str]:
    """Return the functions, and a hosted web tool if there are none."""
    functions: list[dict[str, Any]] = []
    hosted = ""
    for path, tool in each_object(tools or [], "tools"):
        declarations = _get(tool, "functionDeclarations")
        if declarations is None:
            refuse({"mcpServers": _get(tool, "mcpServers")}, {"mcpServers": MCP_ADVICE})
            if web := next((name for name in _WEB if _get(tool, name) is not None), ""):
                hosted = web
            else:
                _omit(f"the hosted tool {', '.join(tool)}")
        for where, declared in each_object(declarations or [], f"{path}.functionDeclarations"):
            schema = _get(declared, "parametersJsonSchema") or _json_schema(declared.get("parameters"))
            name = member(declared, "name", str, where, "a string")
            functions.append(function_of(declared, name, schema if isinstance(schema, Mapping) else None))
    for name in _WEB if functions and hosted else ():
        if any(_get(tool, name) is not None for tool in tools):
            _omit(f"the hosted tool {name}")
    return functions, "" if functions else hosted


def _json_schema(schema: Any) -> Any:
    """Convert Gemini's subset of OpenAPI to JSON Schema: types in lower case, numbers as such, ``nullable`` as a type."""
    if isinstance(schema, list):
        return [_json_schema(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    out: dict[str, Any] = {}
    for given, value in schema.items():
        name = _SCHEMA_NAMES.get(str(given), str(given))
        if name == "type" and isinstance(value, str):
            out["type"] = value.lower()
        elif name == "properties" and isinstance(value, Mapping):
            out["properties"] = {each: _json_schema(inner) for each, inner in value.items()}
        elif name in ("items", "anyOf"):
            out[name] = _json_schema(value)
        elif name in _COUNTS:
            out[name] = int(value) if isinstance(value, str) and value.isdecimal() else value
        elif name not in ("nullable", "propertyOrdering"):
            out[name] = value
    if schema.get("nullable") is True:
        if isinstance(out.get("type"), str):
            out["type"] = [out["type"], "null"]
        if isinstance(out.get("anyOf"), list):
            out["anyOf"] = [*out["anyOf"], {"type": "null"}]
        if isinstance(out.get("enum"), list):
            out["enum"] = [*out["enum"], None]
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
    return allowed_functions(_MODES[mode], names)


def _response_format(config: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = _get(config, "responseMimeType")
    schema = _get(config, "responseJsonSchema") or _json_schema(_get(config, "responseSchema"))
    if kind not in (None, "text/plain", "application/json"):
        path = "generationConfig.responseMimeType"
        raise InvalidRequestError(f"'{path}' must be 'text/plain' or 'application/json', not {kind!r}.", param=path)
    if isinstance(schema, Mapping) and kind != "text/plain":
        return json_format(schema)
    return {"type": "json_object"} if kind == "application/json" else None


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
        super().__init__()
        self._model = model
        self._thoughts = thoughts
        self._tail = b""
        """The end of each event with text, encoded once."""

    def text(self, text: str) -> bytes:
        if self._tail == b"":
            self._tail = b',"modelVersion":%s,"responseId":%s}\n\n' % (encode(self._model), encode(self._head.id or "patchbay"))
        return _TEXT % encode(text) + self._tail

    def reasoning(self, text: str) -> bytes:
        return sse_event(encode(self._response([{"text": text, "thought": True}]))) if self._thoughts else b""

    def end_call(self, index: int, call: ToolCall) -> bytes:  # noqa: ARG002
        return sse_event(encode(self._response([_call_part(call)])))

    def end_answer(self) -> bytes:
        return sse_event(encode(self._last([])))

    def error(self, error: PatchbayError | str) -> bytes:
        # Older SDKs (gemini-cli's) see an error only if it is no event; the newest know both forms.
        return encode_error(error)[1]

    def document(self, choice: AnswerChoice) -> dict[str, Any]:
        parts: list[dict[str, Any]] = []
        if self._thoughts and (reasoning := choice.reasoning):
            parts.append({"text": reasoning, "thought": True})
        if text := choice.text:
            parts.append({"text": text})
        return self._last([*parts, *map(_call_part, choice.calls)])

    def _response(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        return {"candidates": [candidate], "modelVersion": self._model, "responseId": self._head.id or "patchbay"}

    def _last(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the last response of a stream, or the only one."""
        response, tokens = self._response(parts), tokens_of(self._usage)
        response["candidates"][0]["finishReason"] = _FINISH.get(self._finish, "STOP")
        counts = {"promptTokenCount": tokens.prompt, "candidatesTokenCount": tokens.completion, "totalTokenCount": tokens.total}
        return {**response, "usageMetadata": counts}


def encode_error(error: PatchbayError | str) -> tuple[int, bytes]:
    """Return Google's status and body for an error."""
    error = as_patchbay_error(error)
    code, message = status_of(error), error_text(error)
    if (tokens := context_tokens(error)) is not None:
        prompt, _, limit = tokens
        exceeds = "exceeds the maximum number of tokens allowed"
        is_known = prompt is not None and limit is not None and prompt > limit
        message = (
            f"The input token count ({prompt}) {exceeds} ({limit})."
            if is_known
            else f"The input token count {exceeds}: {message}"
        )
    status = _STATUSES.get(code, "INTERNAL" if code >= 500 else "INVALID_ARGUMENT")
    return code, encode({"error": {"code": code, "message": message, "status": status}})


def _call_part(call: ToolCall) -> dict[str, Any]:
    return {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}


PATH: Final = re.compile(r"/v1(?:beta|alpha)?/models/(?P<model>.+):(?P<method>generateContent|streamGenerateContent|countTokens)")

MODELS_PATH: Final = re.compile(r"/v1(?:beta|alpha)/models(?:/(?P<model>.+))?")
_METHODS: Final = {"supportedGenerationMethods": ["generateContent", "countTokens"]}


class GenerateContent:
    """Gemini's generateContent and countTokens."""

    name, protocol = "Gemini", "gemini"
    heartbeat = b"\n\n"
    """White space: its SDKs fail on comments."""
    encode_error = staticmethod(encode_error)

    def decode(self, body: bytes, path: str) -> DecodedRequest:
        model, method = _target(path)
        if method == "countTokens":
            try:
                value = decode(body)
            except (ValueError, RecursionError):
                value = None
            inner = value.get("generateContentRequest") if isinstance(value, dict) else None
            body = body if inner is None else encode(inner)
        given = read_object(body)
        chat, hosted = decode_request(given, model, stream=method == "streamGenerateContent")
        asked = _get(_thinking(_get(given, "generationConfig") or {}), "includeThoughts") is True
        return DecodedRequest(chat, GenerateContentEncoder(model, thoughts=asked), hosted=hosted)

    def encode_count(self, tokens: int) -> bytes:
        return encode({"totalTokens": tokens})

    def encode_models(self, models: Sequence[Mapping[str, Any]]) -> bytes:
        """Encode an OpenAI-compatible server's list of models in Gemini's form."""
        return encode({"models": [_model(each) for each in models]})

    def encode_model(self, model: Mapping[str, Any]) -> bytes:
        """Encode one of these models."""
        return encode(_model(model))


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": f"models/{model['id']}", "displayName": model["id"], **_METHODS}


def _target(path: str) -> tuple[str, str]:
    """Return the model and the method of a path."""
    found = PATH.fullmatch(path)
    if found is None:
        raise InvalidRequestError("The path must be /v1beta/models/MODEL:generateContent.")
    return unquote(found["model"]), found["method"]
