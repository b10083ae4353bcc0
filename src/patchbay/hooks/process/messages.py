"""A conversation as hooks are shown it, and back: messages whose ``content`` is always a text.

What a message holds beside text (images, files) goes along in ``media``, as URLs, and in ``parts``, as it is. A message that
comes back as it went out is the same message as before, whatever stood in it; only one that was changed is put together anew.

Tools likewise: a definition that comes back as it went out is the one that the host has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from patchbay.types import Message

_BY_URL = ("http://", "https://", "data:")


def shown_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages in the wire's words."""
    return [_shown(message) for message in messages]


def messages_back(now: Sequence[dict[str, Any]], shown: Sequence[dict[str, Any]], originals: Sequence[Message]) -> list[Message]:
    """Return the messages that a hook sent back, in the host's words."""
    known = {_key(message): original for message, original in zip(shown, originals, strict=True)}
    return [original if (original := known.get(_key(message))) is not None else _built(message) for message in now]


def shown_tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Return tool definitions in the wire's words: name, description and parameters, all three."""
    return [_definition(tool) for tool in tools]


def tools_back(now: Sequence[dict[str, Any]], shown: Sequence[dict[str, Any]], originals: Sequence[Any]) -> list[Any]:
    """Return the tools that a hook sent back, each that it left alone as the host has it."""
    known = {_key(tool): original for tool, original in zip(shown, originals, strict=True)}
    return [known.get(_key(tool), tool) for tool in now]


def _shown(message: Message) -> dict[str, Any]:
    content = message.get("content")
    shown: dict[str, Any] = {"role": message.get("role", ""), "content": content if isinstance(content, str) else ""}
    shown |= {
        name: value
        for name, value in message.items()
        if name not in ("role", "content") and value is not None and value not in ("", [], {})
    }
    if isinstance(content, list):
        texts = [part for part in content if _is_text(part)]
        others = [part for part in content if not _is_text(part)]
        shown["content"] = "\n".join(part["text"] for part in texts)
        if others:
            shown["media"] = [*shown.get("media", []), *_urls(others)]
            shown["parts"] = others
            if not shown["media"]:
                del shown["media"]
    return shown


def _built(message: dict[str, Any]) -> Message:
    """Make a message of one that a hook has written."""
    built: Message = {name: value for name, value in message.items() if name not in ("parts", "media") and value is not None}
    content = built.setdefault("content", "")
    parts = message.get("parts") or []
    media = [ref for ref in message.get("media") or [] if ref not in _urls(parts)]
    parts = [*parts, *({"type": "image_url", "image_url": {"url": ref}} for ref in media if ref.startswith(_BY_URL))]
    if refs := [ref for ref in media if not ref.startswith(_BY_URL)]:
        built["media"] = refs
    if parts and isinstance(content, str):
        built["content"] = [*([{"type": "text", "text": content}] if content else []), *parts]
    elif not content and built.get("tool_calls"):
        built["content"] = None
    return built


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _urls(parts: Sequence[Any]) -> list[str]:
    images = [part.get("image_url") for part in parts if isinstance(part, Mapping)]
    urls = [image.get("url") for image in images if isinstance(image, Mapping)]
    return [url for url in urls if isinstance(url, str)]


def _definition(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        return dict(tool)
    return {
        "type": "function",
        "function": {
            "name": function.get("name"),
            "description": function.get("description") or "",
            "parameters": function.get("parameters") or {},
        },
    }


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
