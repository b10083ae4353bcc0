"""The interface of a provider's wire protocol: pure functions between session operations and JSON frames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.server_events import ServerEvent
from patchbay.schema.dialects import Dialect as ToolDialect

Frame: TypeAlias = Mapping[str, Any]
"""A message on the wire, as JSON."""

WireTool: TypeAlias = Mapping[str, Any]
"""A tool in the provider's shape."""


def tool_name(tool: Mapping[str, Any]) -> str:
    """Return the tool's name in either wire shape, or ""."""
    function = tool.get("function")
    name = (function if isinstance(function, Mapping) else tool).get("name")
    return name if isinstance(name, str) else ""


def tool_names(tools: Any) -> frozenset[str] | None:
    """Return the names in a list of wire tools; None if it is not a list."""
    if not isinstance(tools, list | tuple):
        return None
    return frozenset(name for tool in tools if isinstance(tool, Mapping) and (name := tool_name(tool)))


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call on the wire. ``name`` is the tool's wire name."""

    call_id: str
    name: str
    output: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the conversation to replay. There is no system role: tool results are user lines."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class ConnectionSetup:
    """What a connection starts with: the tools and the history."""

    tools: Sequence[WireTool]
    lines: Sequence[Line] = ()


class Dialect(ABC):
    """The wire protocol of one connection, both ways; stateful, so made anew for each connection."""

    provider: ClassVar[str]
    other_names: ClassVar[tuple[str, ...]] = ()
    """Aliases of ``provider`` in settings and model prefixes."""

    hosts: ClassVar[tuple[str, ...]] = ()
    """The provider's own servers: they identify a URL, and only they receive the environment's key.

    An entry that begins with a dot matches all hosts with that suffix.
    """

    tools: ClassVar[ToolDialect]
    """How tools are encoded: JSON Schema subset, name rule, shape."""

    default_url: ClassVar[str]
    key_variables: ClassVar[tuple[str, ...]]
    input_rate: ClassVar[int]
    """Samples per second of input audio: 16-bit PCM, mono."""

    updates_tools: ClassVar[bool] = True
    """True if tools can change while a session is open; else another connection is opened."""

    continues_unprompted: ClassVar[bool] = False
    """True if the model continues after tool results without a request."""

    def __init__(self, settings: RealtimeSettings) -> None:
        self.settings = settings

    @property
    def model(self) -> str:
        """The model's name without the provider prefix."""
        name = self.settings.model.strip()
        prefix, slash, rest = name.partition("/")
        return rest if slash and prefix.lower() in (self.provider, *self.other_names) else name

    @abstractmethod
    def url(self) -> str:
        """Return the WebSocket URL, without a key."""

    @abstractmethod
    def headers(self, api_key: str) -> dict[str, str]:
        """Return the headers of the opening request."""

    @abstractmethod
    def setup_frames(self, opening: ConnectionSetup) -> list[Frame]:
        """Return the frames to send at once; ``opening.lines`` is the history so far."""

    @abstractmethod
    def configure_frames(self, opening: ConnectionSetup) -> list[Frame]:
        """Return one frame, to be confirmed, for a server that has sent ``SessionOpened`` and is not configured yet."""

    @abstractmethod
    def history_frames(self, opening: ConnectionSetup) -> list[Frame]:
        """Return frames that replay ``opening.lines`` without requesting an answer."""

    @abstractmethod
    def tools_frames(self, tools: Sequence[WireTool]) -> list[Frame]:
        """Return one frame, to be confirmed, that replaces the session's tools."""

    @abstractmethod
    def text_frames(self, line: Line, *, answer: bool) -> list[Frame]:
        """Return frames that send a line. ``answer``: it ends the user's turn (where the protocol ties the two)."""

    @abstractmethod
    def audio_frames(self, audio: bytes) -> list[Frame]:
        """Return frames that send a chunk of the user's audio."""

    @abstractmethod
    def audio_end_frames(self) -> list[Frame]:
        """Return frames that end the user's audio if the server does not detect that."""

    @abstractmethod
    def result_frames(self, results: Sequence[CallResult]) -> list[Frame]:
        """Return frames with the results of one response's calls, in call order."""

    @abstractmethod
    def response_frames(self) -> list[Frame]:
        """Return frames that request a response; none if the model responds by itself."""

    @abstractmethod
    def cancel_frames(self, response_id: str) -> list[Frame]:
        """Return frames that cancel the response; none if the protocol cannot."""

    @abstractmethod
    def read(self, frame: Any) -> list[ServerEvent]:
        """Return the events of a server's frame, none if it is unknown. Never raises."""
