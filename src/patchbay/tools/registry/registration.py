"""A registered tool, changes of the registry, and its immutable snapshots."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from patchbay.errors import ConfigurationError
from patchbay.tools.tool import Tool, checked_schema, checked_timeout
from patchbay.types import EMPTY_PARAMETERS, ToolSpec

MAX_TIMEOUT: Final = 300.0
"""The longest timeout of a callback, in seconds."""

DEFAULT_TIMEOUT: Final = 30.0

_TYPES: Final = (
    ("description", str, False),
    ("parameters", Mapping, False),
    ("source", str, False),
    ("role", str, True),
    ("callback_url", str, True),
    ("metadata", Mapping, False),
    ("secret", str, True),
    ("instance", str, False),
)
"""The fields' types, and whether they may be None."""

_PORTS: Final = {"http": 80, "https": 443}
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Key(NamedTuple):
    """The key of a registration: a name, for a role or (None) for all roles, and the instance of a replica, else ""."""

    role: str | None
    name: str
    instance: str = ""


@dataclass(frozen=True)
class Registration:
    """A tool, the role it is for, and its source.

    It has either a ``callback_url``, where another process answers its calls, or a ``tool`` of this process. ``role`` is None
    (or ``""``) for all roles, future ones included. ``source`` is the name of its owner. ``timeout_seconds`` is the limit of one
    call: at most 300 for a callback, None (no limit) only for a ``tool``. ``secret`` is known to its owner and the registry.
    ``metadata`` is the owner's own; its ``annotations``, ``title`` and ``output_schema`` are the tool's.

    Registrations of one name, role and source with different ``instance`` are replicas: one tool with several callbacks.
    ``machine`` is where a callback at a loopback address is ("": the machine does not matter), and one that ``is_local`` belongs
    to this server alone and is not stored.

    ``excluded`` are roles that a registration for all roles no longer reaches, and ``place`` is its position in lists; the
    registry sets both. Immutable. Raises ConfigurationError for values with which no call could work.
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
    instance: str = ""
    machine: str = ""
    is_local: bool = False
    place: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigurationError(f"A tool's name must be a non-empty string, not {self.name!r}.")
        for field_, kind, optional in _TYPES:
            if not isinstance(value := getattr(self, field_), kind) and not (optional and value is None):
                raise ConfigurationError(f"{field_} of tool {self.name!r} must be a {kind.__name__.lower()}, not {value!r}.")
        if (self.callback_url is None) == (self.tool is None):
            raise ConfigurationError(f"Tool {self.name!r} needs either callback_url or tool.")
        if self.tool is not None and self.instance:
            raise ConfigurationError(f"Tool {self.name!r} of this process cannot have an instance: replicas have a callback_url.")
        if self.tool is not None and self.tool.name != self.name:
            raise ConfigurationError(f"Tool {self.tool.name!r} cannot be registered as {self.name!r}.")
        limit = checked_timeout(self.timeout_seconds, f"timeout_seconds of tool {self.name!r}")
        if self.tool is None and (limit is None or limit > MAX_TIMEOUT):
            raise ConfigurationError(f"timeout_seconds of tool {self.name!r} must be at most {MAX_TIMEOUT:g}, not {limit!r}.")
        object.__setattr__(self, "role", self.role or None)

    @classmethod
    def of(cls, tool: Tool, *, source: str | None = None, role: str | None = None) -> Registration:
        """Return a registration of a tool of this process. ``source`` defaults to that of the tool's metadata, or ``""``."""
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
        """Raise ConfigurationError for a schema that is not JSON: no list with it could be sent."""
        checked_schema(self.parameters, f"tool {self.name!r}")

    @property
    def key(self) -> Key:
        """The key, which is unique."""
        return Key(self.role, self.name, self.instance)

    @property
    def order(self) -> tuple[int, str, str]:
        """The sort key: the place, then the name, since processes that share a store may have used a place twice."""
        return self.place or 0, self.name, self.role or ""

    @property
    def declaration(self) -> tuple[Any, ...]:
        """What all replicas of a tool have in common."""
        return self.source, self.description, self.parameters, self.timeout_seconds, self.metadata

    @property
    def annotations(self) -> Mapping[str, Any]:
        """The tool's annotations, for policies that trust its source."""
        if self.tool is not None:
            return self.tool.annotations
        annotations = self.metadata.get("annotations")
        return annotations if isinstance(annotations, Mapping) else _NOTHING

    @property
    def is_remote(self) -> bool:
        """Whether another process answers its calls."""
        return self.tool is None

    @property
    def is_stored(self) -> bool:
        """Whether a store keeps it."""
        return self.tool is None and not self.is_local

    def is_replica_of(self, other: Registration) -> bool:
        """Whether both are instances of one tool."""
        is_other = bool(self.instance and other.instance) and self.instance != other.instance
        return is_other and (self.name, self.role) == (other.name, other.role)

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
        """Whether it is for this role."""
        return self.role == role if self.role is not None else role not in self.excluded


Action = Literal["register", "unregister", "clear", "hide", "show", "add_role", "remove_role", "restore", "apply_stored"]

EVERY_ROLE = "*"
"""The name of "all roles" in failures."""


class Failure(NamedTuple):
    """A role for which a change failed, and why. ``code`` is stable, ``error`` is for people."""

    role: str
    error: str
    code: str


class Refusal(NamedTuple):
    """A role whose tool was not removed, because another source owns it (``owned_by``)."""

    role: str
    owned_by: str


@dataclass(frozen=True)
class Change:
    """The result of a change of the registry.

    ``affected_roles`` are: for a registration, all its roles (even if nothing changed); for a removal, those that lost a tool;
    else those whose list changed. ``failed_roles`` and ``refused_roles`` (of removals) say where the change was not made, and
    why. ``removed`` counts removed tools, each for every role that had it. ``revision`` is the registry's after the change.
    ``keys`` are the changed registrations, for stores, which read them from the registry.
    """

    action: Action
    affected_roles: tuple[str, ...] = ()
    failed_roles: tuple[Failure, ...] = ()
    refused_roles: tuple[Refusal, ...] = ()
    removed: int = 0
    revision: int = 0
    keys: tuple[Key, ...] = ()
    changed: bool = False
    """Whether anything changed, in a role's list or in the stored registrations."""

    @property
    def ok(self) -> bool:
        """Whether a registration was made for any role, or a removal did not fail."""
        if self.action == "register":
            return bool(self.affected_roles)
        return not self.failed_roles or self.removed > 0


@dataclass
class Changing:
    """A change in progress. ``roles`` are those whose list changes, ``affected`` those that the change is made for."""

    affected: tuple[str, ...] = ()
    roles: dict[str, None] = field(default_factory=dict)
    keys: dict[Key, None] = field(default_factory=dict)
    failed: list[Failure] = field(default_factory=list)
    refused: dict[Refusal, None] = field(default_factory=dict)
    removed: int = 0

    def done(self, action: Action, roles: Collection[str], revision: int) -> Change:
        """Return the finished change; ``roles`` are all roles in order."""
        there = [role for role in roles if role in self.roles]
        gone = [role for role in self.roles if role not in roles]
        return Change(
            action,
            affected_roles=self.affected or (*there, *gone),
            failed_roles=tuple(self.failed),
            refused_roles=tuple(self.refused),
            removed=self.removed,
            revision=revision,
            keys=tuple(self.keys),
            changed=bool(self.roles or self.keys),
        )


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A role's tools, immutable, so that a turn has one list from its beginning to its end.

    ``registrations`` are all of the role's by name, in order (without the exclusions of other roles); ``hidden`` names those
    whose callback seems unreachable. ``tools`` are the others, for an Executor (``Executor(snapshot.tools.values())``).
    ``replicas`` are the instances of a tool that has some, each with whether it is hidden; the first stands in ``registrations``.
    ``revision`` grows with every change of this role's list.
    """

    role: str
    revision: int
    registrations: Mapping[str, Registration]
    tools: Mapping[str, Tool]
    hidden: frozenset[str] = field(default=frozenset())
    replicas: Mapping[str, Sequence[tuple[Registration, bool]]] = field(default_factory=dict)
    _all: Mapping[str, Tool] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        role: str,
        revision: int,
        entries: Iterable[tuple[Registration, Tool, bool]],
        replicas: Mapping[str, Sequence[tuple[Registration, bool]]] = _NOTHING,
    ) -> Snapshot:
        """Return a snapshot of registrations, each with its tool and whether it is hidden."""
        rows = tuple((_without_exclusions(registration), tool, hidden) for registration, tool, hidden in entries)
        return cls(
            role,
            revision,
            MappingProxyType({registration.name: registration for registration, _, _ in rows}),
            MappingProxyType({registration.name: tool for registration, tool, hidden in rows if not hidden}),
            frozenset(registration.name for registration, _, hidden in rows if hidden),
            replicas,
            MappingProxyType({registration.name: tool for registration, tool, _ in rows}),
        )

    def state(self, name: str) -> str:
        """Return "active" or "hidden". Raises KeyError for an unknown name."""
        return "hidden" if self.registrations[name].name in self.hidden else "active"

    def problem(self, name: str) -> str | None:
        """Return why no model can get a tool, hidden or not; None if models can, and for an unknown name."""
        tool = self._all.get(name)
        return tool.problem if tool is not None else None

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The specs of the tools for a model, by their registered names."""
        return tuple(tool.spec for tool in self.tools.values() if tool.offered)

    def specs_for(self, dialect: str) -> list[dict[str, Any]]:
        """Return the tools in a provider's wire format (``patchbay.schema.dialects``), by their registered names.

        Parts of a schema that the provider does not support are left out, and so is a tool whose schema it cannot take at all.
        Raises ConfigurationError for an unknown dialect.
        """
        from patchbay.schema.dialects import DIALECTS
        from patchbay.schema.subsets import Unsupported

        if (found := DIALECTS.get(dialect)) is None:
            raise ConfigurationError(f"There is no dialect {dialect!r}: use one of {', '.join(sorted(DIALECTS))}.")
        expressed = (found.express(spec) for spec in self.specs)
        return [found.shape(spec) for spec in expressed if not isinstance(spec, Unsupported)]

    @cached_property
    def listing(self) -> tuple[Mapping[str, Any], ...]:
        """Each tool as JSON, without its secret."""
        return tuple(
            MappingProxyType(
                {
                    "name": each.name,
                    "description": each.description,
                    "source": each.source,
                    "callback_url": each.callback_url,
                    "is_remote": each.is_remote,
                    "parameters": each.parameters,
                    "timeout_seconds": each.timeout_seconds,
                    "annotations": dict(each.annotations),
                    "role": each.role,
                    "state": self.state(each.name),
                    "problem": self.problem(each.name),
                    **self._instances(each.name),
                }
            )
            for each in self.registrations.values()
        )

    def _instances(self, name: str) -> dict[str, Any]:
        if (replicas := self.replicas.get(name)) is None:
            return {}
        states = ((each, "hidden" if hidden else "active") for each, hidden in replicas)
        fields = ({"instance": each.instance, "callback_url": each.callback_url, "state": state} for each, state in states)
        return {"instances": [*fields]}

    @cached_property
    def etag(self) -> str:
        """A digest of the listing, the same in every process for the same list. Letters and digits, no quotes."""
        text = json.dumps([self.role, [dict(each) for each in self.listing]], sort_keys=True, default=_plain)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _without_exclusions(registration: Registration) -> Registration:
    return replace(registration, excluded=frozenset()) if registration.excluded else registration


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
