"""Brief instructions for very small models: a line for each tool, and a request for each with the call that it needs.

A model of a hundred million parameters does not follow rules. It goes on as the conversation before it did: so each tool's
description stands there as a request, and its call, with dots for texts, as the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patchbay.types import Message, ToolCall, ToolSpec


def brief_instructions(specs: Sequence[ToolSpec], *, form: str, needed: bool) -> str:
    """Return the tools as signatures, and the form of a call. ``needed``: each answer is a call."""
    lines = "\n".join(f"- {_signature(spec)}" for spec in specs)
    demand = "Answer with one call of the right tool"
    demand += "." if needed else ", or in plain text if none helps."
    return f"You can call these tools:\n\n{lines}\n\n{demand}\n{form}"


_CHATS = (
    ("Hello!", "Hello! How can I help you?"),
    ("What is the capital of France?", "The capital of France is Paris."),
    ("Thank you.", "You are welcome."),
)


def brief_examples(specs: Sequence[ToolSpec], write: Callable[[ToolCall], str], *, needed: bool) -> list[Message]:
    """Return a request and its call for each tool; ``write`` renders a ToolCall.

    Unless a call is ``needed``, answers without one come first; behind the calls, they would keep the model from calling.
    """
    messages: list[Message] = []
    for question, answer in () if needed else _CHATS:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    for spec in specs:
        properties, required = _properties(spec)
        arguments = {name: _stand_in(schema) for name, schema in properties.items() if name in required}
        call = ToolCall("call_0", spec.name, json.dumps(arguments))
        messages += [
            {"role": "user", "content": (spec.description or spec.name.replace("_", " ")).rstrip(".")},
            {"role": "assistant", "content": write(call)},
        ]
    return messages


def _properties(spec: ToolSpec) -> tuple[Mapping[str, Any], Sequence[str]]:
    properties, required = spec.parameters.get("properties"), spec.parameters.get("required")
    return properties if isinstance(properties, Mapping) else {}, required if isinstance(required, Sequence) else ()


def _signature(spec: ToolSpec) -> str:
    properties, required = _properties(spec)
    parameters = ", ".join(f"{name}{'' if name in required else '?'}: {_type(schema)}" for name, schema in properties.items())
    return f"{spec.name}({parameters})" + (f": {spec.description}" if spec.description else "")


def _type(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(schema.get("enum"), list):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    kind = schema.get("type", "any")
    return kind if isinstance(kind, str) else " | ".join(map(str, kind))


def _stand_in(schema: Any) -> Any:
    """Return a value that shows where one belongs."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return {"boolean": True, "integer": 0, "number": 0, "array": [], "object": {}}.get(
        kind if isinstance(kind, str) else "", "..."
    )
