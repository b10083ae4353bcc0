"""Gemini's generateContent: a request as a body of chat completions.

The same conversation always gives the same bytes. Left out, for want of a counterpart: hosted tools, safety settings, cached
content, ``thinkingConfig``, ``topK``, thought signatures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from patchbay.errors import InvalidRequestError
from patchbay.frontends.base import OmissionLog, checked, member, objects, read_body
from patchbay.types import Message

_omit = OmissionLog("Gemini")
_COPIED: Final = {
    "temperature": "temperature", "topP": "top_p", "maxOutputTokens": "max_tokens", "stopSequences": "stop", "seed": "seed",
    "presencePenalty": "presence_penalty", "frequencyPenalty": "frequency_penalty",
}  # fmt: skip
_UPPER: Final = re.compile("[A-Z]")
_MODES: Final = {"AUTO": "auto", "NONE": "none", "ANY": "required", "VALIDATED": "auto", "MODE_UNSPECIFIED": "auto"}


def decode_request(body: bytes, model: str, *, stream: bool) -> dict[str, Any]:
    """Decode a request to this model into a body of chat completions. Raises InvalidRequestError."""
    given = read_body(body)
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
            function["parameters"] = schema or {"type": "object", "properties": {}}
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
