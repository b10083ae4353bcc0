"""The contents and events of a session, with the members and names of the agents' contract.

Structs and not pydantic models: a turn creates some twenty of them, and external data comes through ``from_json``.
"""

from __future__ import annotations

import os
import time
from typing import Any, Self

import msgspec

from patchbay.errors import InvalidRequestError


def new_id() -> str:
    """Return a unique id: 32 hexadecimal digits."""
    return os.urandom(16).hex()


class _Data(msgspec.Struct, omit_defaults=True):
    """Serialisable data; members with their default value are left out."""

    def to_json(self) -> str:
        """Return this as JSON. Raises TypeError for a value that JSON cannot express (a session's log converts such values)."""
        return msgspec.json.encode(self).decode()

    def to_dict(self) -> dict[str, Any]:
        """Return this as JSON types: dicts, lists, strings, numbers."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    def model_dump(self, *, mode: str = "json", exclude_none: bool = False) -> dict[str, Any]:  # noqa: ARG002  (pydantic's)
        """Return ``to_dict()``, under pydantic's name; with ``exclude_none`` without members that are None."""
        whole = self.to_dict()
        return _without_none(whole) if exclude_none else whole

    def model_dump_json(self, *, exclude_none: bool = False) -> str:
        """Return ``model_dump()`` as JSON text."""
        return msgspec.json.encode(self.model_dump(exclude_none=exclude_none)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse the output of ``to_json``, ignoring unknown members. Raises InvalidRequestError for anything else."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidRequestError(f"Invalid {cls.__name__}: {error}") from error

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Convert the result of ``to_dict``. Raises InvalidRequestError for anything else."""
        try:
            return msgspec.convert(value, type=cls)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidRequestError(f"Invalid {cls.__name__}: {error}") from error


def _without_none(value: dict[str, Any]) -> dict[str, Any]:
    return {key: _without_none(item) if isinstance(item, dict) else item for key, item in value.items() if item is not None}


class FunctionCall(_Data):
    """A model's request to run the tool ``name``; its response has the same ``id``.

    ``written`` is the arguments' text as the model wrote it, if that differs from the JSON of ``args``.
    """

    name: str
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    id: str = msgspec.field(default_factory=new_id)
    written: str | None = None


class FunctionResponse(_Data):
    """The result of the call with this ``id``, always a dict: ``{"result": …}``, ``{"error": …}``, or the tool's own.

    ``shown`` is the text that the model got, if it does not follow from ``response``.
    """

    name: str
    response: dict[str, Any] = msgspec.field(default_factory=dict)
    id: str = ""
    shown: str | None = None


class Blob(_Data):
    """An image or a file: its bytes, and its media type, such as "image/png"."""

    mime_type: str
    data: bytes
    display_name: str | None = None


class Part(_Data):
    """One piece of a content: text, a call, a response, or an image or file (``inline_data``).

    ``thought`` marks text that is the model's reasoning. ``extra_content`` is opaque data that a provider wants back with this
    part (such as a signature of a thought).
    """

    text: str | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    thought: bool = False
    extra_content: dict[str, Any] | None = None
    inline_data: Blob | None = None


class Content(_Data):
    """A message of one side. ``role`` is "user" or "model"; the results of tools have the user's role.

    ``extra_content`` is opaque data that a provider wants back with the whole message.
    """

    role: str = "model"
    parts: list[Part] = msgspec.field(default_factory=list)
    extra_content: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The joined texts of the parts, without the model's thoughts."""
        return "".join([part.text for part in self.parts if part.text and not part.thought])


class EventActions(_Data):
    """The effects of an event besides its content.

    ``state_delta`` changes the session's state; None deletes a key. ``artifact_delta`` and ``skip_summarization`` are part of the
    contract and stored unchanged. ``rewind_before_invocation_id`` names a run whose events up to here are hidden from models; its
    changes of the state stay.
    """

    state_delta: dict[str, Any] = msgspec.field(default_factory=dict)
    artifact_delta: dict[str, int] = msgspec.field(default_factory=dict)
    transfer_to_agent: str | None = None
    escalate: bool | None = None
    skip_summarization: bool | None = None
    rewind_before_invocation_id: str | None = None


class ToolProgress(_Data):
    """Progress of the call ``id`` of the tool ``name``. ``fraction`` is from 0 to 1."""

    name: str
    id: str
    message: str | None = None
    fraction: float | None = None
    data: Any = None


class UserOutput(_Data):
    """Output for the user, of the call ``id`` of the tool ``name``. ``media`` are refs of files.

    ``handled``: this is the answer to the user.
    """

    name: str
    id: str
    text: str = ""
    media: list[str] = msgspec.field(default_factory=list)
    handled: bool = False


class Event(_Data, kw_only=True):
    """One entry of a session's log, or (``partial``) a fragment of the next one, which is not recorded.

    ``author`` is "user" or an agent's name, ``timestamp`` seconds since the epoch; the log's order does not depend on it.
    ``branch`` is the path through parallel agents, joined by dots. ``error_code`` and ``error_message`` say why a run ended
    without an answer. In a reply, ``usage`` counts tokens (``prompt_tokens``, ``completion_tokens``, ``total_tokens``) and
    ``finish_reason`` is the server's. ``progress`` is only in partial events. ``output`` is for the user; models do not get it.
    """

    id: str = msgspec.field(default_factory=new_id)
    author: str = ""
    invocation_id: str = ""
    timestamp: float = msgspec.field(default_factory=time.time)
    branch: str | None = None
    content: Content | None = None
    partial: bool = False
    actions: EventActions = msgspec.field(default_factory=EventActions)
    error_code: str | None = None
    error_message: str | None = None
    usage: dict[str, int] | None = None
    finish_reason: str | None = None
    progress: ToolProgress | None = None
    output: UserOutput | None = None

    def get_function_calls(self) -> list[FunctionCall]:
        """Return the calls of this event, in order."""
        parts = self.content.parts if self.content is not None else ()
        return [part.function_call for part in parts if part.function_call is not None]

    def get_function_responses(self) -> list[FunctionResponse]:
        """Return the responses of this event, in order."""
        parts = self.content.parts if self.content is not None else ()
        return [part.function_response for part in parts if part.function_response is not None]

    def is_final_response(self) -> bool:
        """Whether this is an answer: not partial, not an error, with content, and without calls or responses."""
        if self.partial or self.error_code is not None or self.content is None or not self.content.parts:
            return False
        return not (self.get_function_calls() or self.get_function_responses())
