"""OpenAI Responses: a request as a body of chat completions.

The same conversation always gives the same bytes. Left out, for want of a counterpart: tools that OpenAI runs and their items,
``include``, ``truncation`` ...
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Final

from patchbay.cache import SizedCache
from patchbay.errors import InvalidRequestError
from patchbay.frontends.base import (
    MCP_ADVICE,
    Conversation,
    OmissionLog,
    allowed_functions,
    call_of,
    chat_body,
    checked,
    chosen_function,
    each_object,
    function_of,
    joined,
    member,
    refuse,
    text_part,
)
from patchbay.frontends.client_tools import OPENAI
from patchbay.models.request import read_json
from patchbay.models.wire import Raw, encode, objects
from patchbay.types import PLAIN_TEXT, TEXT_WITH_GRAMMAR, Message

_omit = OmissionLog("OpenAI Responses")
_COPIED: Final = (
    "model",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "user",
    "service_tier",
    "frequency_penalty",
    "presence_penalty",
)
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


class ItemNotFoundError(InvalidRequestError):
    """A request refers to an item that is not stored."""

    code = "item_not_found"
    status = 404

    def __init__(self, item_id: Any) -> None:
        super().__init__(f"Item with id {item_id!r:.100} not found.", param="input")


@dataclass(frozen=True)
class CallForm:
    """How a kind of calls is written: the item's type and the prefix of its id, and the member with the arguments.

    The item for a result has the suffix "_output". ``fixed`` are members that every call has, ``defaults`` those of its
    arguments.
    """

    item: str
    prefix: str
    member: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


CALL_FORMS: Final = {
    "function": CallForm("function_call", "fc", "arguments"),
    "custom": CallForm("custom_tool_call", "ctc", "input"),
    _SEARCH: CallForm("tool_search_call", "tsc", "arguments", {"execution": "client"}),
    "local_shell": CallForm("local_shell_call", "lsh", "action", defaults={"type": "exec", "env": {}}),
    "shell": CallForm("shell_call", "sh", "action", defaults={"timeout_ms": None, "max_output_length": None}),
    "apply_patch": CallForm("apply_patch_call", "apc", "operation"),
}
"""By the type of the tool."""
_KINDS: Final = {form.item: kind for kind, form in CALL_FORMS.items()}
_RESULTS: Final = frozenset(f"{item}_output" for item in _KINDS) - {"tool_search_call_output"}


@dataclass(frozen=True)
class ToolRoute:
    """Maps calls of a function to the client's items: of this kind, with ``name`` in ``namespace`` (None: in none)."""

    kind: str
    name: str
    namespace: str | None = None

    @property
    def form(self) -> CallForm:
        """How its calls are written."""
        return CALL_FORMS[self.kind]


@dataclass
class ResponsesRequest:
    """A decoded request.

    ``given`` is the client's, with its tools as the response repeats them; ``items`` is its input, ``routes`` has the tools by
    the names of their functions. ``hosted``: see DecodedRequest.
    """

    given: dict[str, Any]
    items: list[dict[str, Any]]
    body: dict[str, Any]
    routes: Mapping[str, ToolRoute]
    hosted: str


def decode(given: dict[str, Any], items: list[dict[str, Any]]) -> ResponsesRequest:
    """Decode a request with these items as its input. Raises InvalidRequestError."""
    listed = _read_tools(given["tools"]) if "tools" in given else _NO_TOOLS
    tools = _Tools(listed.functions, listed.routes)
    conversation = _Conversation(tools)
    if isinstance(instructions := given.get("instructions"), str) and instructions:
        conversation.add("system", instructions)
    for index, item in enumerate(items):
        conversation.add_item(item, f"input[{index}]")
    functions: Any = listed.encoded if tools.functions is listed.functions else list(tools.functions.values())
    text, reasoning = given.get("text"), given.get("reasoning")
    text, reasoning = text if isinstance(text, dict) else {}, reasoning if isinstance(reasoning, dict) else {}
    chat = chat_body(
        {name: given[name] for name in _COPIED if given.get(name) is not None} | {"messages": conversation.finish()},
        stream=given.get("stream"),
        max_tokens=checked(given.get("max_output_tokens"), (int, NoneType), "max_output_tokens", "a whole number"),
        tools=functions if tools.functions else None,
        tool_choice=tools.choice(given.get("tool_choice")),
        response_format=_response_format(text.get("format")),
        reasoning_effort=reasoning.get("effort"),
        verbosity=text.get("verbosity"),
        patchbay=given.get("patchbay"),
    )
    hosted, choice = listed.hosted, given.get("tool_choice")
    if hosted and tools.functions and not (isinstance(choice, dict) and _is_web_search(choice)):
        _omit(f"the hosted tool {hosted!r}")
        hosted = ""
    return ResponsesRequest({**given, "tools": listed.echoed}, items, chat, tools.routes, hosted)


def read_items(given: Any) -> list[dict[str, Any]]:
    """Return the input as items. Raises InvalidRequestError."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return [item for _, item in each_object([] if given is None else given, "input", "a string or an array of items")]


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


def _response_format(wanted: Any) -> dict[str, Any] | None:
    if not isinstance(wanted, Mapping) or wanted.get("type") not in ("json_object", "json_schema"):
        return None
    if wanted["type"] == "json_object":
        return {"type": "json_object"}
    schema = {name: wanted[name] for name in ("name", "description", "schema", "strict") if wanted.get(name) is not None}
    return {"type": "json_schema", "json_schema": schema}


@dataclass(frozen=True)
class _ListedTools:
    """A request's tools as functions, and as JSON for the upstream and for the response, which repeats them.

    ``hosted`` is OpenAI's web search among them.
    """

    functions: dict[str, dict[str, Any]]
    routes: dict[str, ToolRoute]
    encoded: Raw
    echoed: Raw
    hosted: str = ""


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
        hosted = next((tool["type"] for tool in given if _is_web_search(tool)), "")
        encoded = Raw(encode([*tools.functions.values()])), Raw(encode(echoed))
        listed = _ListedTools(tools.functions, tools.routes, *encoded, hosted)
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

    def add(self, tools: list[Any], path: str, namespace: str | None = None) -> None:
        """Add a list of tools. Raises InvalidRequestError."""
        for where, tool in each_object(tools, path):
            kind = str(tool.get("type"))
            refuse({kind: True}, {"mcp": MCP_ADVICE})
            if kind == "namespace":
                name = member(tool, "name", str, where, "a string")
                self.add(member(tool, "tools", list, where, "an array"), f"{where}.tools", name)
            elif kind == "function":
                if tool.get("defer_loading") is True and namespace is None:
                    continue  # (until a search finds it)
                self._add_function(kind, tool, where, namespace, tool.get("parameters") or {})
            elif kind == "custom":
                self._add_function(kind, tool, where, namespace, _custom_parameters(tool.get("format")))
            elif kind == _SEARCH and tool.get("execution") == "client":
                self._add_function(kind, tool, where, None, tool.get("parameters") or _SEARCH_PARAMETERS)
            elif kind in OPENAI and _is_local(tool.get("environment")):
                self._add_function(kind, {**tool, **OPENAI[kind]}, where, None, OPENAI[kind]["parameters"])
            elif not _is_web_search(tool):
                _omit(f"the hosted tool {kind!r}")

    def _add_function(self, kind: str, tool: Mapping[str, Any], path: str, namespace: str | None, parameters: Any) -> None:
        name = member(tool, "name", str, path, "a string") if kind in ("function", "custom") else kind
        flat = name if namespace is None else f"{namespace}__{name}"
        self.functions[flat] = function_of(tool, flat, checked(parameters, dict, f"{path}.parameters", "an object"))
        self.routes[flat] = ToolRoute(kind, name, namespace)

    def flat_name(self, item: Mapping[str, Any], path: str) -> str:
        """Return the function's name of a call."""
        name = str(member(item, "name", str, path, "a string"))
        namespace = item.get("namespace")
        return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name

    def choice(self, choice: Any) -> Any:
        """Convert a ``tool_choice``. Raises InvalidRequestError."""
        if choice is None or choice in ("auto", "none", "required"):
            return choice
        choice = checked(choice, dict, "tool_choice", "a string or an object")
        if choice.get("type") != "allowed_tools":
            return chosen_function(self._chosen(choice, "tool_choice"))
        tools = [each for each in each_object(choice.get("tools"), "tool_choice.tools") if each[1].get("type") in CALL_FORMS]
        return allowed_functions(choice.get("mode", "auto"), [self._chosen(tool, where) for where, tool in tools])

    def _chosen(self, choice: Mapping[str, Any], path: str) -> str:
        kind = str(choice.get("type"))
        if kind not in CALL_FORMS and not _is_web_search(choice):
            raise InvalidRequestError(f"'{path}' names {kind!r}, which runs on its vendor's servers only.", param=path)
        return self.flat_name(choice, path) if kind in ("function", "custom") else kind


def _is_web_search(tool: Mapping[str, Any]) -> bool:
    """Whether a tool, or the one that a ``tool_choice`` names, is OpenAI's web search."""
    return str(tool.get("type")).startswith("web_search")


def _is_local(environment: Any) -> bool:
    """Whether a shell is the client's: it may also be in a container of OpenAI's."""
    return not isinstance(environment, Mapping) or environment.get("type") == "local"


_SEARCH_PARAMETERS: Final = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What the tool should do."}},
    "required": ["query"],
}


def _custom_parameters(form: Any) -> dict[str, Any]:
    """Return the parameters of a custom tool's function: one plain text, with its grammar in the description."""
    described = "The tool's input, as plain text."
    if isinstance(form, Mapping) and form.get("type") == "grammar":
        described = TEXT_WITH_GRAMMAR.format(form.get("syntax", ""), form.get("definition", ""))
    text = {"type": "string", "contentMediaType": PLAIN_TEXT, "description": described}
    return {"type": "object", "properties": {_INPUT: text}, "required": [_INPUT]}


class _Conversation(Conversation):
    """Converts items to messages: the text, reasoning and calls of one answer become one message."""

    def __init__(self, tools: _Tools) -> None:
        super().__init__()
        self._tools = tools
        self._answer: Message | None = None
        """The assistant's message that further items are added to."""
        self._reasoning: list[str] = []

    def add_item(self, item: Mapping[str, Any], path: str) -> None:
        """Add an item. Raises InvalidRequestError."""
        kind = item.get("type", "message")
        if kind == "message":
            self._add_message(item, path)
        elif kind == "reasoning":
            self._reasoning += _texts(item.get("content")) or _texts(item.get("summary"))
        elif (tool := _KINDS.get(str(kind))) is not None:
            self._add_call(item, path, tool)
        elif kind == "tool_search_output":
            found = checked(item.get("tools") or [], list, f"{path}.tools", "an array")
            names = self._tools.add_found(found, f"{path}.tools")
            self._add_result(item, path, "These tools can be called from now on: " + (", ".join(names) or "none"))
        elif str(kind) in _RESULTS:
            self._add_result(item, path, item.get("output", item.get("status")))
        elif kind == "compaction":
            if (summary := read_summary(item.get("encrypted_content"))) is None:
                raise InvalidRequestError(f"'{path}.encrypted_content' is of another server: it cannot be read.", param=path)
            self._end_answer()
            self.add("user", f"{_SUMMARY}{summary}")
        elif kind == "item_reference":
            raise ItemNotFoundError(item.get("id"))
        else:
            _omit(f"an item of the type {kind!r}")

    def _add_message(self, item: Mapping[str, Any], path: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise InvalidRequestError(f"'{path}.role' must be one of {', '.join(_ROLES)}.", param=f"{path}.role")
        parts = _parts(item.get("content"), f"{path}.content")
        if role == "assistant":
            answer = self._open_answer(after_calls=False)
            text = "".join(part.get("text", "") for part in parts)
            answer["content"] = f"{answer['content']}{text}" if answer["content"] else text
            return
        self._end_answer()
        if role == "user" and parts:
            self.user(parts)
        else:
            self.add(role, joined(parts))

    def _add_call(self, item: Mapping[str, Any], path: str, kind: str) -> None:
        name = self._tools.flat_name(item, path) if kind in ("function", "custom") else kind
        given = item.get(CALL_FORMS[kind].member)
        if kind in ("function", "custom"):
            checked(given, str, f"{path}.{CALL_FORMS[kind].member}", "a string")
        arguments = {_INPUT: given} if kind == "custom" else given or {}
        answer = self._open_answer(after_calls=True)
        answer.setdefault("tool_calls", []).append(call_of(_call_id(item, path), name, arguments))

    def _add_result(self, item: Mapping[str, Any], path: str, output: Any) -> None:
        self._end_answer()
        parts = _parts("" if output is None else output, f"{path}.output")
        self.result(_call_id(item, path), parts, failed=item.get("status") == "failed")

    def _open_answer(self, *, after_calls: bool) -> Message:
        """Return the assistant's open message; text after calls begins another one."""
        if self._answer is None or (not after_calls and "tool_calls" in self._answer):
            self.add("assistant", None)
            self._answer = self.messages[-1]
            if self._reasoning:
                self._answer["reasoning_content"] = "\n\n".join(self._reasoning)
                self._reasoning = []
        return self._answer

    def _end_answer(self) -> None:
        self._answer = None
        self._reasoning = []


def _call_id(item: Mapping[str, Any], path: str) -> str:
    """Return the id of an item's call; results of a local shell may have it as their own id."""
    if item.get("type") == "local_shell_call_output" and item.get("call_id") is None:
        return str(member(item, "id", str, path, "a string"))
    return str(member(item, "call_id", str, path, "a string"))


def _texts(parts: Any) -> list[str]:
    found = (part.get("text") for part in objects(parts))
    return [text for text in found if isinstance(text, str) and text]


def _parts(content: Any, path: str) -> list[dict[str, Any]]:
    """Convert a content. Raises InvalidRequestError."""
    if isinstance(content, str):
        return [text_part(content)]
    parts: list[dict[str, Any]] = []
    for where, part in each_object(content, path, "a string or an array of parts"):
        kind = part.get("type")
        if kind in ("input_image", "input_file") and part.get("file_id"):
            raise InvalidRequestError(f"'{where}.file_id': files are not kept here; send a URL or the data.", param=where)
        if kind in ("input_text", "output_text", "text"):
            parts.append(text_part(member(part, "text", str, where, "a string")))
        elif kind == "refusal":
            parts.append(text_part(str(part.get("refusal") or "")))
        elif kind == "input_image" and isinstance(part.get("image_url"), str):
            url = {"url": part["image_url"], **({"detail": part["detail"]} if part.get("detail") else {})}
            parts.append({"type": "image_url", "image_url": url})
        elif kind == "input_file" and isinstance(data := part.get("file_data") or part.get("file_url"), str):
            parts.append({"type": "file", "file": {"filename": part.get("filename") or "file", "file_data": data}})
        elif kind == "input_audio":
            parts.append({"type": "input_audio", "input_audio": part.get("input_audio")})
        elif "stdout" in part or "stderr" in part:
            parts.append(text_part(json.dumps(part, ensure_ascii=False)))
        else:
            _omit(f"a part of the type {kind!r}")
    return parts
