"""Scripted servers for ``tools`` beside ``response_format``: what each does with the two, and with a model that looks up the weather.

The model says something before its call, and answers in prose unless a schema is enforced or, where nothing enforces one, it is
asked for JSON and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from patchbay.testing import Answer, Message
from patchbay.testing.script import error

Kind = Literal["takes", "refuses", "apart", "enforces", "ignores"]
"""Native servers: "takes" both, "apart" refuses both at once. Text-only: "refuses" tools, "enforces" schemas (and ignores tools), "ignores" both."""

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": SCHEMA}}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_degrees",
        "description": "The temperature in a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
BLOCK = '```tool_call\n{"name": "get_degrees", "arguments": {"city": "Rome"}}\n```'
NATIVE = {"id": "call_1", "type": "function", "function": {"name": "get_degrees", "arguments": '{"city":"Rome"}'}}
QUESTION = {"role": "user", "content": "How warm is Rome?"}
RESULT = "21.0 degrees"


class WeatherModel:
    """A script. ``stubborn``: the model answers in prose whatever it is asked, unless a grammar keeps it from that."""

    def __init__(self, kind: Kind, *, stubborn: bool = False) -> None:
        self._kind = kind
        self._stubborn = stubborn

    def __call__(self, body: Mapping[str, Any]) -> Answer:
        """Answer as this kind of server does."""
        kind, formatted = self._kind, bool(body.get("response_format"))
        if kind == "refuses" and body.get("tools"):
            return error(400, "this model does not support tools")
        if kind == "apart" and body.get("tools") and formatted:
            return error(400, "json mode cannot be combined with tool/function calling")
        prompt = "\n".join(str(message.get("content")) for message in body["messages"])
        degrees = 21 if RESULT in prompt else 0
        native = kind in ("takes", "apart")
        may_call = (bool(body.get("tools")) if native else "labelled tool_call" in prompt) and not degrees
        enforced = formatted and kind != "ignores"
        if may_call and native:
            return Message({"content": "Let me use tools.", "tool_calls": [NATIVE]}, finish_reason="tool_calls")
        answer = json.dumps({"city": "Rome", "degrees": degrees})
        if enforced:
            return answer
        if may_call:
            return f"Let me use tools.\n{BLOCK}"
        if not self._stubborn and "as JSON, with nothing before" in prompt:
            return f"```json\n{answer}\n```"
        return f"It is {degrees} degrees in Rome."
