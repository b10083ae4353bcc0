"""One tool as somebody registered it: plain data, here or in another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from patchbay.errors import ConfigurationError
from patchbay.tools.base import Tool, checked_schema, checked_timeout
from patchbay.types import EMPTY_PARAMETERS

MAX_TIMEOUT: Final = 300.0
"""The longest that a callback may be waited for, in seconds."""

DEFAULT_TIMEOUT: Final = 30.0

_TYPES: Final = (
    ("description", str, False),
    ("parameters", Mapping, False),
    ("source", str, False),
    ("role", str, True),
    ("callback_url", str, True),
    ("metadata", Mapping, False),
    ("secret", str, True),
)
"""Which field is of which type, and whether it may be None instead."""

_PORTS: Final = {"http": 80, "https": 443}
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Key(NamedTuple):
    """What there is one registration of: a name for a role, or (None) for all roles."""

    role: str | None
    name: str


@dataclass(frozen=True)
class Registration:
    """A tool, the role it is for, and its source.

    It has either a ``callback_url``, where another process answers its calls, or a ``tool``, which lives in this one.
    ``role`` is None for all roles, those to come included; ``""`` is taken as None. ``source`` is whatever its owner calls
    itself. ``timeout_seconds`` is the limit of one call: at most 300 for a callback, None (no limit) only for a ``tool``.
    ``secret`` is known to its owner and to us. ``metadata`` is the owner's own; ``metadata["annotations"]`` is what the tool says
    of itself.

    ``excluded`` are roles that a registration for all roles does not reach any more, and ``place`` is where it stands in lists;
    both are the registry's to set. Nothing in it may be changed. Raises ConfigurationError for what no call could ever work with.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: EMPTY_PARAMETERS)
    source: str = "external"
    role: str | None = None
    timeout_seconds: float | None = DEFAULT_TIMEOUT
    callback_url: str | None = None
    tool: Tool | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    excluded: frozenset[str] = frozenset()
    secret: str | None = field(default=None, repr=False)
    place: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigurationError(f"A tool's name must be a non-empty string, not {self.name!r}.")
        for field_, kind, optional in _TYPES:
            if not isinstance(value := getattr(self, field_), kind) and not (optional and value is None):
                raise ConfigurationError(f"{field_} of tool {self.name!r} must be a {kind.__name__.lower()}, not {value!r}.")
        if (self.callback_url is None) == (self.tool is None):
            raise ConfigurationError(f"Tool {self.name!r} needs either callback_url or tool.")
        if self.tool is not None and self.tool.name != self.name:
            raise ConfigurationError(f"Tool {self.tool.name!r} cannot be registered as {self.name!r}.")
        limit = checked_timeout(self.timeout_seconds, f"timeout_seconds of tool {self.name!r}")
        if self.tool is None and (limit is None or limit > MAX_TIMEOUT):
            raise ConfigurationError(f"timeout_seconds of tool {self.name!r} must be at most {MAX_TIMEOUT:g}, not {limit!r}.")
        object.__setattr__(self, "role", self.role or None)

    @classmethod
    def of(cls, tool: Tool, *, source: str | None = None, role: str | None = None) -> Registration:
        """Register ``tool``, which lives in this process. Without ``source`` it is that of the tool's metadata, or ``""``."""
        metadata: Mapping[str, Any] = getattr(tool, "metadata", None) or {}
        return cls(
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters,
            source=source if source is not None else str(metadata.get("source", "")),
            role=role,
            timeout_seconds=tool.timeout,
            tool=tool,
            metadata=metadata,
        )

    def check(self) -> None:
        """Raise ConfigurationError for a schema that is no JSON: no list that it is in could be shown."""
        checked_schema(self.parameters, f"tool {self.name!r}")

    @property
    def key(self) -> Key:
        """What there is only one of."""
        return Key(self.role, self.name)

    @property
    def order(self) -> tuple[int, str, str]:
        """What to sort by: the place, and where processes that share a store have given one place twice, the name."""
        return self.place or 0, self.name, self.role or ""

    @property
    def annotations(self) -> Mapping[str, Any]:
        """What the tool says of itself; policies go by it, as far as they believe its source."""
        if self.tool is not None:
            return self.tool.annotations
        said = self.metadata.get("annotations")
        return said if isinstance(said, Mapping) else _NOTHING

    @property
    def is_remote(self) -> bool:
        """Whether another process answers its calls."""
        return self.tool is None

    @cached_property
    def origin(self) -> str | None:
        """The callback's ``scheme://host:port``; None for a tool of this process, and for a URL that cannot be read."""
        if self.callback_url is None:
            return None
        try:
            parts = urlsplit(self.callback_url)
            port = parts.port or _PORTS.get(parts.scheme)
        except ValueError:
            return None
        host = parts.hostname or ""
        return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def reaches(self, role: str) -> bool:
        """Whether the role has it."""
        return self.role == role if self.role is not None else role not in self.excluded
