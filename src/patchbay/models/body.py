"""The body of a chat request, without its tools: checked, and decoded as far as it is looked at.

The fields are kept as the bytes they came in. What is made of the body, and what its tools are, stands in ``request``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from patchbay.errors import InvalidRequestError
from patchbay.models.wire import Raw, decode, encode
from patchbay.types import Message


class ChatBody:
    """One body of ``POST /chat/completions``. Raises InvalidRequestError for what no upstream could serve.

    ``legacy``: it has ``functions`` in the place of ``tools``.
    """

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.fields = _read_fields(body)
        self.model: str = _field(self.fields, "model", str, "a string")
        self.stream = bool(_field(self.fields, "stream", bool, "a boolean", optional=True))
        count = _field(self.fields, "n", int, "a whole number", optional=True)
        self.count: int = 1 if count is None else count
        if self.count < 1:
            raise InvalidRequestError("'n' must be at least 1.", param="n")
        self._messages: list[Message] | None = None
        self._check_messages()
        self.legacy = not _is_set(self.fields.get("tools")) and _is_set(self.fields.get("functions"))

    def value(self, name: str) -> Any:
        """The value of a field, None where it is not there. Raises InvalidRequestError."""
        raw = self.fields.get(name)
        return None if raw is None else _guarded(bytes(raw))

    @property
    def tools(self) -> Raw | None:
        """The tools or functions, None where there are none."""
        raw = self.fields.get("functions" if self.legacy else "tools")
        return raw if _is_set(raw) else None

    def _check_messages(self) -> None:
        raw = self.fields.get("messages")
        if raw is None or bytes(raw[:1] if isinstance(raw, bytes) else bytes(raw)[:1]) != b"[":
            raise InvalidRequestError("'messages' must be an array of messages.", param="messages")

    @property
    def include_usage(self) -> bool:
        """Whether the client asked for usage in its stream."""
        wanted = self.value("stream_options")
        return isinstance(wanted, Mapping) and bool(wanted.get("include_usage"))

    @property
    def messages(self) -> list[Message]:
        """The messages, decoded once. Raises InvalidRequestError."""
        if self._messages is None:
            messages = _guarded(bytes(self.fields["messages"]))
            _check(messages)
            self._messages = messages
        return self._messages

    def check_messages(self) -> None:
        """Raise InvalidRequestError for messages that no upstream could serve; they are decoded only where some are odd."""
        if self._messages is None and not _is_well_formed(bytes(self.fields["messages"])):
            self.messages  # noqa: B018  (says what is wrong)


class _Message(msgspec.Struct):
    """What every message has to be."""

    role: str
    tool_calls: list[Raw] | None = None


_well_formed = msgspec.json.Decoder(list[_Message])


def _is_well_formed(messages: bytes) -> bool:
    """Whether messages are sure to be as they should: quick, and strict."""
    try:
        _well_formed.decode(messages)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def _check(messages: list[Any]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequestError(f"'messages[{index}]' must be an object.", param=f"messages[{index}]")
        if not isinstance(message.get("tool_calls") or [], list):
            raise InvalidRequestError(f"'messages[{index}].tool_calls' must be an array.", param=f"messages[{index}].tool_calls")
        if not isinstance(message.get("role"), str):
            raise InvalidRequestError(f"'messages[{index}].role' must be a string.", param=f"messages[{index}].role")


def has_foreign_kind(tools: Any) -> bool:
    """Say whether a list of tools holds one that is no function."""
    return isinstance(tools, list) and any(
        isinstance(tool, Mapping) and isinstance(tool.get("type"), str) and tool["type"] != "function" for tool in tools
    )


_fields = msgspec.json.Decoder(dict[str, Raw])


def _read_fields(body: bytes) -> dict[str, Raw]:
    try:
        fields = _fields.decode(body)
    except msgspec.ValidationError:
        raise InvalidRequestError("The request body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = _guarded(body)  # lone surrogates, or not JSON at all
        if not isinstance(value, dict):
            raise InvalidRequestError("The request body must be a JSON object.") from None
        fields = {name: Raw(encode(field)) for name, field in value.items()}
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply.") from None
    return fields


def _guarded(data: bytes) -> Any:
    try:
        return decode(data)
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply.") from None
    except ValueError as error:
        raise InvalidRequestError(f"The request body is not valid JSON: {error}") from None


def _is_set(raw: Raw | None) -> bool:
    return raw is not None and bytes(raw) not in (b"null", b"[]")


def _field(fields: dict[str, Raw], name: str, kind: type, words: str, *, optional: bool = False) -> Any:
    raw = fields.get(name)
    if raw is None and not optional:
        raise InvalidRequestError(f"'{name}' is missing: it must be {words}.", param=name)
    value = None if raw is None else _guarded(bytes(raw))
    if value is None and optional:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)) or value == "":
        raise InvalidRequestError(f"'{name}' must be {words}.", param=name)
    return value
