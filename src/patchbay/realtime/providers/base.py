"""What a provider's file has to say: how a session is opened, told things, and understood. No I/O.

What lives here: the interface. What does not: the providers (``dialects``), and when what is sent (``talk``, ``wire``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.server_events import ServerEvent
from patchbay.schema.dialects import Dialect as ToolDialect

Frame: TypeAlias = Mapping[str, Any]
"""A message as it goes over the wire, as JSON text."""

WireTool: TypeAlias = Mapping[str, Any]
"""A tool in the provider's shape, under its name there."""


def tool_name(tool: Mapping[str, Any]) -> str:
    """Return a tool's name on the wire, whichever shape it has there; "" where it has none."""
    function = tool.get("function")
    name = (function if isinstance(function, Mapping) else tool).get("name")
    return name if isinstance(name, str) else ""


def tool_names(tools: Any) -> frozenset[str] | None:
    """Return the names on the wire of the tools in a list, also of a server's; None where it is no list."""
    if not isinstance(tools, list | tuple):
        return None
    return frozenset(name for tool in tools if isinstance(tool, Mapping) and (name := tool_name(tool)))


@dataclass(frozen=True, slots=True)
class CallResult:
    """The one result of a call, as the model is told of it. ``name`` is the tool's on the wire, ``output`` a text."""

    call_id: str
    name: str
    output: str


@dataclass(frozen=True, slots=True)
class Line:
    """What somebody said, for a connection that has not heard it. There is no system here: what tools return is a user's line."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class ConnectionSetup:
    """What a connection begins with. ``resume`` is the handle of an earlier one; then there are no ``lines``."""

    tools: Sequence[WireTool]
    lines: Sequence[Line] = ()
    resume: str = ""


class Dialect(ABC):
    """One connection's language, both ways; made anew for each connection, since it remembers what was said on it."""

    provider: ClassVar[str]
    other_names: ClassVar[tuple[str, ...]] = ()
    """What may stand in the place of ``provider``, in the settings and before the slash of a model's name."""

    hosts: ClassVar[tuple[str, ...]] = ()
    """The provider's own servers: by these an URL tells whose it is, and these are told the key of the environment.

    One that begins with a dot means all servers whose names end so.
    """

    tools: ClassVar[ToolDialect]
    """How tools are told: subset of JSON Schema, names, shape."""

    default_url: ClassVar[str]
    key_variables: ClassVar[tuple[str, ...]]
    input_rate: ClassVar[int]
    """Samples a second of the audio that the provider takes: 16-bit PCM, one channel."""

    updates_tools: ClassVar[bool] = True
    """Whether tools can be changed while a session is open. Where not, the session opens another connection."""

    goes_on_by_itself: ClassVar[bool] = False
    """Whether the model goes on when it has been given the results, without being asked to."""

    def __init__(self, settings: RealtimeSettings) -> None:
        self.settings = settings

    @property
    def model(self) -> str:
        """The model's name as the provider knows it: what names the provider is no part of it."""
        name = self.settings.model.strip()
        prefix, slash, rest = name.partition("/")
        return rest if slash and prefix.lower() in (self.provider, *self.other_names) else name

    @abstractmethod
    def url(self) -> str:
        """Return where the WebSocket is opened. No key is in it."""

    @abstractmethod
    def headers(self, api_key: str) -> dict[str, str]:
        """Return what it is opened with."""

    @abstractmethod
    def greeting(self, opening: ConnectionSetup) -> list[Frame]:
        """Return what is sent as soon as the connection is there. The lines of ``opening`` are those that are known by then."""

    @abstractmethod
    def configuring(self, opening: ConnectionSetup) -> list[Frame]:
        """Return what is sent when the server has said ``Opened`` and is not configured yet: one frame that it confirms."""

    @abstractmethod
    def recalling(self, opening: ConnectionSetup) -> list[Frame]:
        """Return what tells a configured connection of ``opening.lines``, without having it answered."""

    @abstractmethod
    def changing_tools(self, tools: Sequence[WireTool]) -> list[Frame]:
        """Return what puts ``tools`` in the place of those that the session has; one frame that the server confirms."""

    @abstractmethod
    def speaking(self, line: Line, *, answer: bool) -> list[Frame]:
        """Return what says a line. ``answer``: a user's turn is over with it (where the wire ties the two together)."""

    @abstractmethod
    def sounding(self, audio: bytes) -> list[Frame]:
        """Return what sends a piece of the user's audio."""

    @abstractmethod
    def ending_audio(self) -> list[Frame]:
        """Return what says that the user has ended, where the server does not listen for it itself."""

    @abstractmethod
    def answering(self, results: Sequence[CallResult]) -> list[Frame]:
        """Return what tells the results of calls of one response, in the order of the calls."""

    @abstractmethod
    def responding(self) -> list[Frame]:
        """Return what asks the model to answer; nothing where it does by itself."""

    @abstractmethod
    def cancelling(self, response_id: str) -> list[Frame]:
        """Return what ends the response that is under way; nothing where there is no such thing."""

    @abstractmethod
    def read(self, frame: Any) -> list[ServerEvent]:
        """Return what a frame of the server says, nothing for one that says nothing to us. Raises nothing, whatever it is."""
