"""Roles of messages that a server takes: what its errors say about them, and messages in the roles that are left."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from patchbay.formats.render.writer import ReservedText
from patchbay.models.providers import developer_as_system
from patchbay.transcript import text_of
from patchbay.types import Message

INSTRUCTION_ROLES: Final = ("system", "developer")
_ODD_ROLE: Final = r"\b(?:un[a-z]+|invalid)\W+(?:message )?role\b"
_NO_DEVELOPER: Final = re.compile(
    rf"['\"`]developer['\"`]|\bdeveloper (?:role|message|instruction|prompt)|\broles?\b[^\n]{{0,80}}\bdeveloper\b|{_ODD_ROLE}",
    re.IGNORECASE,
)
_NO_SYSTEM: Final = re.compile(
    r"\bsystem['\"`]?[ _-](?:role|message|instruction|prompt)|\broles?\b[^\n]{0,80}\bsystem\b"
    rf"|only ['\"`]?user['\"`]? (?:and|or) ['\"`]?assistant['\"`]? roles|{_ODD_ROLE}"
    r"|developer instruction is not enabled",  # Gemini
    re.IGNORECASE,
)
_ROLE_STATUSES: Final = frozenset({400, 422, 500})
_MOST_READ: Final = 4096
_TAG: Final = "system_instruction"
_MARKS: Final = ReservedText((f"<{_TAG}",))


class Roles(IntEnum):
    """Roles of messages that a server accepts; each level accepts fewer than the one before it."""

    ALL = 0
    NO_DEVELOPER = 1
    """"developer" is sent as "system"."""
    SYSTEM_FIRST = 2
    """One system message, in front; later instructions are marked text of the user."""
    NO_SYSTEM = 3
    """All instructions are marked text of the user."""


ROLES_IN_WORDS: Final = {
    Roles.ALL: "all are sent",
    Roles.NO_DEVELOPER: "developer is sent as system",
    Roles.SYSTEM_FIRST: "one system message is sent, in front",
    Roles.NO_SYSTEM: "instructions are sent as marked text of the user",
}


def fewer_roles(status: int, text: str, messages: Sequence[Message], roles: Roles) -> Roles | None:
    """Return the roles to try after an upstream's error about them; None for any other error."""
    if status not in _ROLE_STATUSES:
        return None
    text = text[:_MOST_READ]
    used = [message.get("role") for message in messages]
    if roles < Roles.NO_DEVELOPER and "developer" in used and _NO_DEVELOPER.search(text):
        return Roles.NO_DEVELOPER
    if roles is Roles.NO_SYSTEM or not _NO_SYSTEM.search(text):
        return None
    if roles < Roles.SYSTEM_FIRST and any(role in INSTRUCTION_ROLES for role in used[1:]):
        return Roles.SYSTEM_FIRST
    return Roles.NO_SYSTEM if any(role in INSTRUCTION_ROLES for role in used) else None


def with_roles(messages: Sequence[Message], roles: Roles) -> list[Message]:
    """Convert messages to the roles that the server takes.

    Instructions as text of the user are put between tags that no other user message, and no tool result in one, can write.
    """
    if roles is Roles.NO_DEVELOPER:
        return developer_as_system(messages)
    at = [index for index, message in enumerate(messages) if message.get("role") in INSTRUCTION_ROLES]
    if roles is Roles.ALL or not at:
        return list(messages)
    leading = leading_instructions(messages)
    kept = leading if roles is Roles.SYSTEM_FIRST else 0
    view: list[Message] = []
    if kept:
        content = messages[0].get("content") if kept == 1 else _joined(messages[:kept])
        view.append({**messages[0], "role": "system", "content": content})
    rest = list(messages[kept:])
    if len(at) > kept:
        rest = [_as_marked_text(message) if message.get("role") in INSTRUCTION_ROLES else _escaped(message) for message in rest]
        if leading > kept and leading < len(rest) and rest[leading].get("role") == "user":
            # Merge into the user's first message: templates without a system role mostly require alternating roles.
            first = rest[leading]
            rest = [{**first, "content": _prepend(_joined(rest[:leading]), first.get("content"))}, *rest[leading + 1 :]]
    return [*view, *rest]


def leading_instructions(messages: Sequence[Message]) -> int:
    """Return the number of leading messages that are instructions."""
    for index, message in enumerate(messages):
        if message.get("role") not in INSTRUCTION_ROLES:
            return index
    return len(messages)


def _joined(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(text_of(message.get("content")) for message in messages)


def _prepend(text: str, content: Any) -> Any:
    if isinstance(content, list):
        return [{"type": "text", "text": text}, *content]
    return f"{text}\n\n{text_of(content)}"


def _as_marked_text(message: Message) -> Message:
    return {"role": "user", "content": f"<{_TAG}>\n{_MARKS.escape(text_of(message.get('content')))}\n</{_TAG}>"}


def _escaped(message: Message) -> Message:
    content = message.get("content")
    if message.get("role") != "user":
        return message
    if isinstance(content, str):
        return {**message, "content": _MARKS.escape(content)}
    if not isinstance(content, list):
        return message
    parts = [
        {**part, "text": _MARKS.escape(part["text"])} if isinstance(part, dict) and isinstance(part.get("text"), str) else part
        for part in content
    ]
    return {**message, "content": parts}
