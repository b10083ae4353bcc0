"""OpenAI Responses: a request as a body of chat completions.

The same conversation always gives the same bytes. Left out, for want of a counterpart: hosted tools and their items,
``include``, ``reasoning``, ``truncation``, ``service_tier`` ...
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from patchbay.cache import SizedCache
from patchbay.errors import InvalidRequestError
from patchbay.frontends.base import OmissionLog, checked, drop_old_reasoning, member, object_schema, objects
from patchbay.models.request import read_json
from patchbay.models.wire import Raw, encode
from patchbay.types import PLAIN_TEXT, Message

_omit = OmissionLog("OpenAI Responses")
_COPIED: Final = ("model", "temperature", "top_p", "parallel_tool_calls", "user")
_ROLES: Final = ("user", "assistant", "system", "developer")
_SEARCH: Final = "tool_search"
_INPUT: Final = "input"
"""The parameter of a custom tool's function: its free text."""

SUMMARIZE: Final = (
    "Write a summary of this conversation so far, from which it can be gone on with: what was asked for, what was found out and "
    "done (with names, paths and numbers as they are), and what is still to do. Write the summary only."
)
_SUMMARY: Final = "A summary of the conversation before this point:\n\n"
_OWN_SUMMARY: Final = "patchbay1:"
"""Prefix of a compaction item's content: items of other servers cannot be read."""

ToolKind = Literal["function", "custom", "tool_search"]


@dataclass(frozen=True)
class ToolRoute:
    """Maps calls of a function to the client's items: of this kind, with ``name`` in ``namespace`` (None: in none)."""

    kind: ToolKind
    name: str
    namespace: str | None = None


@dataclass
class ResponsesRequest:
    """A decoded request.

    ``given`` is the client's, with its tools as the response repeats them; ``items`` is its input, ``routes`` has the tools by
    the names of their functions.
    """

    given: dict[str, Any]
    items: list[dict[str, Any]]
    body: dict[str, Any]
    routes: Mapping[str, ToolRoute] = field(default_factory=dict)


def decode(given: dict[str, Any], items: list[dict[str, Any]]) -> ResponsesRequest:
    """Decode a request with these items as its input. Raises InvalidRequestError."""
    listed = _read_tools(given["tools"]) if "tools" in given else _NO_TOOLS
    tools = _Tools(listed.functions, listed.routes)
    conversation = _Conversation(tools)
    if isinstance(instructions := given.get("instructions"), str) and instructions:
        conversation.messages.append({"role": "system", "content": instructions})
    for index, item in enumerate(items):
        conversation.add(item, f"input[{index}]")
    chat: dict[str, Any] = {name: given[name] for name in _COPIED if given.get(name) is not None}
    chat["messages"] = conversation.finish()
    if (limit := given.get("max_output_tokens")) is not None:
        chat["max_tokens"] = checked(limit, int, "max_output_tokens", "a whole number")
    if tools.functions:
        chat["tools"] = listed.encoded if tools.functions is listed.functions else list(tools.functions.values())
        if (choice := tools.choice(given.get("tool_choice"))) is not None:
            chat["tool_choice"] = choice
    if (response_format := _response_format(given.get("text"))) is not None:
        chat["response_format"] = response_format
    if given.get("stream"):
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return ResponsesRequest({**given, "tools": listed.echoed}, items, chat, tools.routes)


def read_items(given: Any) -> list[dict[str, Any]]:
    """Return the input as items. Raises InvalidRequestError."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    items: list[dict[str, Any]] = checked([] if given is None else given, list, "input", "a string or an array of items")
    for index, item in enumerate(items):
        checked(item, dict, f"input[{index}]", "an object")
    return items


def encode_summary(summary: str) -> str:
    """Encode the content of a compaction item; it is not encrypted, since the client knows the conversation."""
    return _OWN_SUMMARY + base64.b64encode(summary.encode("utf-8", "surrogatepass")).decode()


def read_summary(content: Any) -> str | None:
    """Decode the content of a compaction item; None for another server's."""
    if not isinstance(content, str) or not content.startswith(_OWN_SUMMARY):
        return None
    try:
        return base64.b64decode(content[len(_OWN_SUMMARY) :], validate=True).decode("utf-8", "surrogatepass")
    except ValueError:
        return None


def _response_format(text: Any) -> dict[str, Any] | None:
    wanted = text.get("format") if isinstance(text, Mapping) else None
    if not isinstance(wanted, Mapping) or wanted.get("type") not in ("json_object", "json_schema"):
        return None
    if wanted["type"] == "json_object":
        return {"type": "json_object"}
    schema = {name: wanted[name] for name in ("name", "description", "schema", "strict") if wanted.get(name) is not None}
    return {"type": "json_schema", "json_schema": schema}


@dataclass(frozen=True)
class _ListedTools:
    """A request's tools as functions, and as JSON for the upstream and for the response, which repeats them."""

    functions: dict[str, dict[str, Any]]
    routes: dict[str, ToolRoute]
    encoded: Raw
    echoed: Raw


_NO_TOOLS: Final = _ListedTools({}, {}, Raw(b"[]"), Raw(b"[]"))
_FUNCTION: Final = {"description": None, "parameters": None, "strict": None}
"""The members of a function that a response has even if the request did not."""
_listed: SizedCache[bytes, _ListedTools] = SizedCache(most=64, most_bytes=16 * 1024 * 1024)
"""The tools of recent requests, by their bytes: each request of a conversation repeats them."""


def _read_tools(raw: Raw) -> _ListedTools:
    """Read the member ``tools``; the same bytes are read once. Raises InvalidRequestError."""
    key = bytes(raw)
    if (listed := _listed.get(key)) is None:
        given = checked(read_json(key) or [], list, "tools", "an array")
        tools = _Tools({}, {})
        tools.add(given, "tools")
        echoed = [{**_FUNCTION, **tool} if tool.get("type") == "function" else tool for tool in given]
        listed = _ListedTools(tools.functions, tools.routes, Raw(encode([*tools.functions.values()])), Raw(encode(echoed)))
        _listed.put(key, listed, 4 * len(key))
    return listed


class _Tools:
    """The request's tools as functions, by name."""

    def __init__(self, functions: dict[str, dict[str, Any]], routes: dict[str, ToolRoute]) -> None:
        self.functions = functions
        self.routes = routes

    def add_found(self, tools: Iterable[Any], path: str) -> list[str]:
        """Add tools that a search has found, and return the names of those that are new. Raises InvalidRequestError."""
        before = self.functions
        self.functions, self.routes = {**before}, {**self.routes}  # (the originals are cached)
        self.add([{**tool, "defer_loading": False} if isinstance(tool, dict) else tool for tool in tools], path)
        return [name for name in self.functions if name not in before]

    def add(self, tools: Iterable[Any], path: str, namespace: str | None = None) -> None:
        """Add a list of tools. Raises InvalidRequestError."""
        for index, tool in enumerate(tools):
            where = f"{path}[{index}]"
            kind = checked(tool, dict, where, "an object").get("type")
            if kind == "namespace":
                name = member(tool, "name", str, where, "a string")
                self.add(member(tool, "tools", list, where, "an array"), f"{where}.tools", name)
            elif kind == "function":
                if tool.get("defer_loading") is True and namespace is None:
                    continue  # (until a search finds it)
                self._add_function("function", tool, where, namespace, tool.get("parameters") or {})
            elif kind == "custom":
                self._add_function("custom", tool, where, namespace, _custom_parameters(tool.get("format")))
            elif kind == _SEARCH and tool.get("execution") == "client":
                search = {**tool, "name": _SEARCH}
                self._add_function(_SEARCH, search, where, None, tool.get("parameters") or _SEARCH_PARAMETERS)
            else:
                _omit(f"the hosted tool {kind!r}")

    def _add_function(self, kind: ToolKind, tool: Mapping[str, Any], path: str, namespace: str | None, parameters: Any) -> None:
        name = member(tool, "name", str, path, "a string")
        flat = name if namespace is None else f"{namespace}__{name}"
        schema = object_schema(checked(parameters, dict, f"{path}.parameters", "an object"))
        function: dict[str, Any] = {"name": flat, "parameters": schema}
        if isinstance(tool.get("description"), str):
            function["description"] = tool["description"]
        if kind == "function" and isinstance(tool.get("strict"), bool):
            function["strict"] = tool["strict"]
        self.functions[flat] = {"type": "function", "function": function}
        self.routes[flat] = ToolRoute(kind, name, namespace)

    def flat_name(self, item: Mapping[str, Any], path: str) -> str:
        """Return the function's name of a call."""
        name = str(member(item, "name", str, path, "a string"))
        namespace = item.get("namespace")
        return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name

    def choice(self, choice: Any) -> Any:
        """Convert a ``tool_choice``; None if it is not about these functions. Raises InvalidRequestError."""
        if choice is None or choice in ("auto", "none", "required"):
            return choice
        choice = checked(choice, dict, "tool_choice", "a string or an object")
        kind = choice.get("type")
        if kind in ("function", "custom"):
            return {"type": "function", "function": {"name": self.flat_name(choice, "tool_choice")}}
        if kind == "allowed_tools":
            given = member(choice, "tools", list, "tool_choice", "an array")
            names = [
                self.flat_name(tool, "tool_choice.tools") for tool in objects(given) if tool.get("type") in ("function", "custom")
            ]
            allowed = [{"type": "function", "function": {"name": name}} for name in names]
            return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": allowed}}
        _omit(f"the tool_choice {kind!r}")
        return None


_SEARCH_PARAMETERS: Final = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What the tool should do."}},
    "required": ["query"],
}


def _custom_parameters(form: Any) -> dict[str, Any]:
    """Return the parameters of a custom tool's function: one plain text, with its grammar in the description."""
    described = "The tool's input, as plain text."
    if isinstance(form, Mapping) and form.get("type") == "grammar":
        described = f"The tool's input, as plain text in this {form.get('syntax', '')} grammar:\n{form.get('definition', '')}"
    text = {"type": "string", "contentMediaType": PLAIN_TEXT, "description": described}
    return {"type": "object", "properties": {_INPUT: text}, "required": [_INPUT]}


class _Conversation:
    """Converts items to messages: the text, reasoning and calls of one answer become one message."""

    def __init__(self, tools: _Tools) -> None:
        self.messages: list[Message] = []
        self._tools = tools
        self._answer: Message | None = None
        """The assistant's message that further items are added to."""
        self._reasoning: list[str] = []

    def add(self, item: Mapping[str, Any], path: str) -> None:
        """Add an item. Raises InvalidRequestError."""
        kind = item.get("type", "message")
        if kind == "message":
            self._add_message(item, path)
        elif kind == "function_call":
            self._add_call(item, path, member(item, "arguments", str, path, "a string"))
        elif kind == "custom_tool_call":
            text = member(item, "input", str, path, "a string")
            self._add_call(item, path, json.dumps({_INPUT: text}, ensure_ascii=False))
        elif kind == "tool_search_call":
            arguments = item.get("arguments")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
            self._add_call({**item, "name": _SEARCH}, path, text)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._add_output(item, path, item.get("output"))
        elif kind == "tool_search_output":
            found = checked(item.get("tools") or [], list, f"{path}.tools", "an array")
            names = self._tools.add_found(found, f"{path}.tools")
            self._add_output(item, path, "These tools can be called from now on: " + (", ".join(names) or "none"))
        elif kind == "compaction":
            self._end_answer()
            if (summary := read_summary(item.get("encrypted_content"))) is None:
                raise InvalidRequestError(f"'{path}.encrypted_content' is of another server: it cannot be read.", param=path)
            self.messages.append({"role": "user", "content": f"{_SUMMARY}{summary}"})
        elif kind == "reasoning":
            self._reasoning += _texts(item.get("content")) or _texts(item.get("summary"))
        else:
            _omit(f"an item of the type {kind!r}")

    def _add_message(self, item: Mapping[str, Any], path: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise InvalidRequestError(f"'{path}.role' must be one of {', '.join(_ROLES)}.", param=f"{path}.role")
        content = _content(item.get("content"), f"{path}.content")
        if role != "assistant":
            self._end_answer()
            self.messages.append({"role": role, "content": content})
            return
        answer = self._open_answer(after_calls=False)
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        answer["content"] = f"{answer['content']}{text}" if answer["content"] else text

    def _add_call(self, item: Mapping[str, Any], path: str, arguments: str) -> None:
        answer = self._open_answer(after_calls=True)
        function = {"name": self._tools.flat_name(item, path), "arguments": arguments}
        call = {"id": member(item, "call_id", str, path, "a string"), "type": "function", "function": function}
        answer.setdefault("tool_calls", []).append(call)

    def _add_output(self, item: Mapping[str, Any], path: str, output: Any) -> None:
        self._end_answer()
        content = _content(output, f"{path}.output") if output is not None else ""
        call_id = member(item, "call_id", str, path, "a string")
        if isinstance(content, str):
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
            return
        # A tool message has only text: other parts follow in a message of the user.
        text = "\n\n".join(part["text"] for part in content if part["type"] == "text")
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text or "See the next message."})
        rest = [part for part in content if part["type"] != "text"]
        self.messages.append({"role": "user", "content": [{"type": "text", "text": "What the tool returned:"}, *rest]})

    def _open_answer(self, *, after_calls: bool) -> Message:
        """Return the assistant's open message; text after calls begins another one."""
        if self._answer is None or (not after_calls and "tool_calls" in self._answer):
            self._answer = {"role": "assistant", "content": None}
            if self._reasoning:
                self._answer["reasoning_content"] = "\n\n".join(self._reasoning)
                self._reasoning = []
            self.messages.append(self._answer)
        return self._answer

    def _end_answer(self) -> None:
        self._answer = None
        self._reasoning = []

    def finish(self) -> list[Message]:
        """Return the messages, results after their calls, reasoning in the running turn only."""
        return drop_old_reasoning(_results_first(self.messages))


def _results_first(messages: Sequence[Message]) -> list[Message]:
    """Move the messages with tools' other parts after the last result of their round."""
    out: list[Message] = []
    shown: list[Message] = []
    for index, message in enumerate(messages):
        is_shown = message["role"] == "user" and index > 0 and messages[index - 1]["role"] == "tool"
        if is_shown and index + 1 < len(messages) and messages[index + 1]["role"] == "tool":
            shown.append(message)
            continue
        if shown and message["role"] != "tool":
            out += shown
            shown = []
        out.append(message)
    return out + shown


def _texts(parts: Any) -> list[str]:
    found = (part.get("text") for part in objects(parts))
    return [text for text in found if isinstance(text, str) and text]


def _content(content: Any, path: str) -> Any:
    """Convert a content: a text, or parts if some are not text. Raises InvalidRequestError."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for index, part in enumerate(checked(content, list, path, "a string or an array of parts")):
        where = f"{path}[{index}]"
        kind = checked(part, dict, where, "an object").get("type")
        if kind in ("input_text", "output_text", "text"):
            parts.append({"type": "text", "text": member(part, "text", str, where, "a string")})
        elif kind == "refusal":
            parts.append({"type": "text", "text": str(part.get("refusal") or "")})
        elif kind == "input_image" and isinstance(part.get("image_url"), str):
            url = {"url": part["image_url"], **({"detail": part["detail"]} if part.get("detail") else {})}
            parts.append({"type": "image_url", "image_url": url})
        elif kind == "input_file" and isinstance(data := part.get("file_data") or part.get("file_url"), str):
            parts.append({"type": "file", "file": {"filename": part.get("filename") or "file", "file_data": data}})
        elif kind == "input_audio":
            parts.append({"type": "input_audio", "input_audio": part.get("input_audio")})
        else:
            _omit(f"a part of the type {kind!r}")
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts
