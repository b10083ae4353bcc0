"""The data types of the core: spec, call, result, reply, usage. Standard library only, no I/O.

Messages are OpenAI chat-completions dicts (``Message``), as on the wire, and other formats are converted at the edges.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from patchbay.errors import InvalidRequestError

Message = dict[str, Any]
"""One OpenAI chat-completions message."""

EMPTY_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}

DEFAULT_CALL_TAG: Final = "tool_call"
DEFAULT_RESULT_TAG: Final = "tool_result"
"""The labels of the contract's fenced blocks."""

PLAIN_TEXT: Final = "text/plain"
"""The ``contentMediaType`` in the schema of a parameter for plain text."""
TEXT_WITH_GRAMMAR: Final = "The tool's input, as plain text in this {} grammar:\n{}"
"""The description of a plain text with the syntax and the definition of its grammar; see ``ToolSpec.text_grammar``."""
_TEXT_GRAMMAR: Final = re.compile(TEXT_WITH_GRAMMAR.format(r"(\w+)", "(.+)"), re.DOTALL)

_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
"""The formats of OpenAI's ``input_audio``, by media type."""


@dataclass(frozen=True)
class ToolSpec:
    """The description of a tool for a model. ``parameters`` is a JSON Schema of type object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: EMPTY_PARAMETERS)
    strict: bool | None = None

    @classmethod
    def from_openai(cls, tool: Any, *, param: str = "tools") -> ToolSpec:
        """Read one element of OpenAI's ``tools``; raises InvalidRequestError naming the field (``param``) that is wrong."""
        if not isinstance(tool, Mapping):
            raise InvalidRequestError(f"'{param}' must be an object.", param=param)
        kind = tool.get("type", "function")
        if kind != "function":
            raise InvalidRequestError(
                f"'{param}.type' is {kind!r}: only 'function' tools can be offered to a text model.", param=f"{param}.type"
            )
        function = tool.get("function")
        if not isinstance(function, Mapping):
            raise InvalidRequestError(f"'{param}.function' must be an object.", param=f"{param}.function")
        name = function.get("name")
        if not isinstance(name, str) or not name.strip():
            raise InvalidRequestError(f"'{param}.function.name' must be a non-empty string.", param=f"{param}.function.name")
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise InvalidRequestError(
                f"'{param}.function.parameters' must be a JSON Schema object.", param=f"{param}.function.parameters"
            )
        description = function.get("description")
        if description is not None and not isinstance(description, str):
            raise InvalidRequestError(f"'{param}.function.description' must be a string.", param=f"{param}.function.description")
        strict = function.get("strict")
        return cls(
            name=name,
            description=description or "",
            parameters=parameters or EMPTY_PARAMETERS,
            strict=strict if isinstance(strict, bool) else None,
        )

    @property
    def text_parameter(self) -> str | None:
        """The only parameter of a tool that takes plain text: its schema has ``"contentMediaType": "text/plain"``.

        A model that writes its calls as text may write such an argument without JSON's escapes.
        """
        properties = self.parameters.get("properties")
        if not isinstance(properties, Mapping) or len(properties) != 1:
            return None
        ((name, schema),) = properties.items()
        is_text = isinstance(schema, Mapping) and schema.get("type") == "string" and schema.get("contentMediaType") == PLAIN_TEXT
        return name if is_text else None

    @property
    def text_grammar(self) -> tuple[str, str] | None:
        """The syntax and the definition of the grammar that the plain text has, if its description ends with one.

        It stands where models read it, so that native tools need no member of their own for it.
        """
        name = self.text_parameter
        described = self.parameters["properties"][name].get("description") if name is not None else None
        found = _TEXT_GRAMMAR.fullmatch(described) if isinstance(described, str) else None
        return None if found is None else (found[1], found[2])

    def to_openai(self) -> dict[str, Any]:
        """Return the element of OpenAI's ``tools`` for this spec."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        function["parameters"] = self.parameters
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


def read_specs(tools: Any, *, param: str = "tools") -> tuple[ToolSpec, ...]:
    """Read OpenAI's ``tools`` (a list of dicts, or of ToolSpec); raises InvalidRequestError."""
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidRequestError(f"'{param}' must be an array.", param=param)
    return tuple(
        tool if isinstance(tool, ToolSpec) else ToolSpec.from_openai(tool, param=f"{param}[{index}]")
        for index, tool in enumerate(tools)
    )


@dataclass(frozen=True)
class ToolCall:
    """One request of a model to run a tool.

    ``raw_arguments`` is JSON text as the model wrote it, with digits and the order of keys; ``arguments`` is its value, ``{}``
    where it is not a JSON object (``ToolValidator`` reports that). ``extra`` has other fields of the call that the server needs
    again with it, by their names on the wire (``extra_content``: Gemini's signature of a thought).
    """

    id: str
    name: str
    raw_arguments: str = "{}"
    extra: Mapping[str, Any] | None = field(default=None, hash=False)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments as a dict."""
        try:
            value = json.loads(self.raw_arguments)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def to_openai(self) -> dict[str, Any]:
        """Return the element of OpenAI's ``message.tool_calls`` for this call."""
        function = {"name": self.name, "arguments": self.raw_arguments}
        return {**(self.extra or {}), "id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class IncompleteCall:
    """A call that was cut off at the end of the text. ``raw`` is the text from its first marker on; it must not be run."""

    id: str
    name: str
    raw_arguments: str
    raw: str

    def to_openai(self) -> dict[str, Any]:
        """Return it as OpenAI does: with the arguments so far (and finish_reason "length")."""
        return ToolCall(self.id, self.name, self.raw_arguments).to_openai()


@dataclass(frozen=True)
class Attachment:
    """An image or a file that a tool returns: its content, and its media type, such as "image/png"."""

    data: bytes = field(repr=False)
    media_type: str
    name: str | None = None

    @property
    def kind(self) -> str:
        """The kind of content that a model must accept for it: "image", "audio", or "file" for all others."""
        kind = self.media_type.partition("/")[0]
        is_image = kind == "image" and self.media_type != "image/svg+xml"  # which no model takes as one
        return kind if is_image or self.media_type in _AUDIO else "file"

    def to_openai(self) -> dict[str, Any]:
        """Return it as a part of a user's message."""
        encoded = base64.b64encode(self.data).decode()
        if self.kind == "audio":
            return {"type": "input_audio", "input_audio": {"data": encoded, "format": _AUDIO[self.media_type]}}
        url = f"data:{self.media_type};base64,{encoded}"
        if self.kind == "image":
            return {"type": "image_url", "image_url": {"url": url}}
        return {"type": "file", "file": {"filename": self.name or "file", "file_data": url}}

    def __str__(self) -> str:
        return f"{self.name or self.kind} ({self.media_type}, {len(self.data)} bytes)"


@dataclass(frozen=True)
class Illustrated:
    """A tool's result with attachments; ``output`` is any JSON value."""

    output: Any
    attachments: tuple[Attachment, ...]


@dataclass(frozen=True)
class ToolResult:
    """The result of a call.

    ``content`` is its text for the model; ``code`` that of the error, if there is one. ``attachments`` are sent to the model in a
    user's message after the results (``patchbay.loop``).
    """

    call_id: str
    name: str
    content: str
    is_error: bool = False
    code: str | None = None
    attachments: tuple[Attachment, ...] = ()

    def to_message(self) -> Message:
        """Return the OpenAI ``role: tool`` message."""
        return {"role": "tool", "tool_call_id": self.call_id, "content": self.content}


@dataclass(frozen=True)
class Repair:
    """A place that was read leniently. ``position`` is in characters from the start of the text."""

    kind: str
    position: int


@dataclass(frozen=True)
class Reply:
    """A model's response, read from its text. ``content`` and ``reasoning`` are None where there is none.

    ``extra`` has the fields of the message that the server needs again in the same turn, by their names on the wire
    (``reasoning_content``, ``extra_content``); a history must keep them unchanged.
    """

    content: str | None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    incomplete: tuple[IncompleteCall, ...] = ()
    repairs: tuple[Repair, ...] = ()
    extra: Mapping[str, Any] | None = field(default=None, hash=False)

    def to_message(self) -> Message:
        """Return the OpenAI ``role: assistant`` message, without calls that were cut off."""
        message: Message = {**(self.extra or {}), "role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [call.to_openai() for call in self.tool_calls]
        return message


@dataclass(frozen=True)
class Usage:
    """Tokens, as OpenAI counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        # Often called: the usage of every response is added up, and many servers send none.
        if other is NO_USAGE or not other.is_known:
            return self
        if self is NO_USAGE or not self.is_known:
            return other
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
        )

    @property
    def is_known(self) -> bool:
        """Whether anything was counted."""
        return bool(self.total_tokens or self.prompt_tokens or self.completion_tokens)

    def counts(self) -> dict[str, int] | None:
        """Return the counts by their names on the wire; None where the server sent none."""
        if self is NO_USAGE or not self.is_known:
            return None
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
        }

    @classmethod
    def from_openai(cls, usage: Any) -> Usage:
        """Read OpenAI's ``usage``; anything that is not a count is 0."""
        if not isinstance(usage, Mapping):
            return cls()
        counts = [usage.get(key) for key in ("prompt_tokens", "completion_tokens", "total_tokens")]
        return cls(*[count if isinstance(count, int) else 0 for count in counts])


NO_USAGE: Final = Usage()
"""The usage of a response whose server sent none."""
