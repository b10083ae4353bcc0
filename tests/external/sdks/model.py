"""A model for the tests of SDKs: it calls the tool that a question is about, and fills schemas with words of the question."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from patchbay.testing.models import read_contract
from patchbay.testing.script import Message

_QUOTED = re.compile(r"'([^'\n]+)'")
_RESULT = re.compile(r"^```tool_result[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Model:
    """A script for ScriptedUpstream. "text": reads the tools from its prompt and writes calls as text; "native": has tool calls."""

    def __init__(self, kind: Literal["text", "native"]) -> None:
        self._kind = kind

    def __call__(self, body: Mapping[str, Any]) -> str | Message:
        """Answer a chat request."""
        messages = body["messages"]
        said = [(message["role"], text_of(message.get("content"))) for message in messages]
        last_reply = max((index for index, (role, _) in enumerate(said) if role == "assistant"), default=-1)
        news = "\n".join(text for role, text in said[last_reply + 1 :] if role in ("user", "tool"))
        if self._kind == "text":
            contract = read_contract("\n".join(text for role, text in said if role == "system"))
            tools = contract.tools if contract else {}
            results = _RESULT.findall(news)
        else:
            tools = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in body.get("tools", ())}
            results = [text for role, text in said[last_reply + 1 :] if role == "tool"]
        if results:
            return f"The tools say: {'; '.join(result.strip() for result in results)}"
        if not tools:
            return _typed(body.get("response_format") or {}, news) or f"You said: {news}"
        name = chosen(list(tools), news, body.get("tool_choice"))
        arguments = json.dumps(filled(tools[name], news), ensure_ascii=False)
        if self._kind == "text":
            return f'```tool_call\n{{"name": "{name}", "arguments": {arguments}}}\n```'
        call = {"id": f"call_{len(messages)}", "type": "function", "function": {"name": name, "arguments": arguments}}
        return Message({"tool_calls": [call]}, finish_reason="tool_calls")


def chosen(names: list[str], question: str, choice: Any) -> str:
    """The tool that is demanded, else the one that the question names, else the first."""
    if isinstance(choice, dict):
        return str(choice["function"]["name"])
    named = [name for name in names if any(len(word) > 3 and word in question.lower() for word in name.lower().split("_"))]
    exact = [name for name in named if re.search(rf"\b{name}\b", question)]
    return (exact or named or names)[0]


def filled(schema: Mapping[str, Any], question: str) -> Any:
    """A value for a schema: numbers and quoted words of the question, in their order."""
    numbers = iter(re.findall(r"-?\d+", question))
    words = iter(_QUOTED.findall(question))

    def value(part: Mapping[str, Any]) -> Any:
        if "$ref" in part:
            return value(schema["$defs"][part["$ref"].rpartition("/")[2]])
        if "anyOf" in part:
            return value(part["anyOf"][0])
        if "enum" in part:
            return part["enum"][0]
        match part.get("type", "object"):
            case "object":
                return {name: value(each) for name, each in part.get("properties", {}).items()}
            case "array":
                return [value(part.get("items", {}))]
            case "integer" | "number":
                return int(next(numbers, 3))
            case "boolean":
                return True
            case _:
                return next(words, "cats")

    return value(schema)


def _typed(response_format: Mapping[str, Any], question: str) -> str:
    """The JSON that is asked for; empty where none is."""
    if response_format.get("type") == "json_schema":
        return json.dumps(filled(response_format["json_schema"]["schema"], question))
    if response_format.get("type") == "json_object":
        return json.dumps(dict.fromkeys(_QUOTED.findall(question), "cats"))
    return ""


def text_of(content: Any) -> str:
    """The text of a message."""
    return content if isinstance(content, str) else "\n".join(_texts(content or ()))


def _texts(parts: Any) -> Iterator[str]:
    return (part["text"] for part in parts if part.get("type") == "text")
