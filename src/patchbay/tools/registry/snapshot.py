"""The tools of one role at one moment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.tools.base import Tool
from patchbay.tools.registry.registration import Registration
from patchbay.types import ToolSpec


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a role has: nothing in it ever changes, so a turn that took one sees one list from its beginning to its end.

    ``registrations`` are all of the role's by name, in the order they came in (without exclusions: those are other roles'
    affair); ``hidden`` names those whose callback is thought to be gone. ``tools`` are the others, for an Executor
    (``Executor(snapshot.tools.values())``). ``revision`` grows with every change that this role sees.
    """

    role: str
    revision: int
    registrations: Mapping[str, Registration]
    tools: Mapping[str, Tool]
    hidden: frozenset[str] = field(default=frozenset())
    _all: Mapping[str, Tool] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, role: str, revision: int, entries: Iterable[tuple[Registration, Tool, bool]]) -> Snapshot:
        """Make one of registrations with their tools, and whether each is hidden."""
        rows = tuple((_without_exclusions(registration), tool, hidden) for registration, tool, hidden in entries)
        return cls(
            role,
            revision,
            MappingProxyType({registration.name: registration for registration, _, _ in rows}),
            MappingProxyType({registration.name: tool for registration, tool, hidden in rows if not hidden}),
            frozenset(registration.name for registration, _, hidden in rows if hidden),
            MappingProxyType({registration.name: tool for registration, tool, _ in rows}),
        )

    def state(self, name: str) -> str:
        """Return "active" or "hidden". Raises KeyError for a name that the role has no tool of."""
        return "hidden" if self.registrations[name].name in self.hidden else "active"

    def problem(self, name: str) -> str | None:
        """Return why no model can be told of a tool, hidden or not; None where one can, and for a name that there is none of."""
        tool = self._all.get(name)
        return tool.problem if tool is not None else None

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What a model is told of the tools, under the names they are registered by."""
        return tuple(tool.spec for tool in self.tools.values() if tool.offered)

    def specs_for(self, dialect: str) -> list[dict[str, Any]]:
        """Return the tools in the shape of a provider's wire (``patchbay.schema.dialects``), under their registered names.

        What the provider has no words for in a schema is left out of it, and so is a tool whose schema it cannot take at all.
        Raises ConfigurationError for a dialect that does not exist.
        """
        from patchbay.schema.dialects import DIALECTS
        from patchbay.schema.subsets import Inexpressible

        if (found := DIALECTS.get(dialect)) is None:
            raise ConfigurationError(f"There is no dialect {dialect!r}: use one of {', '.join(sorted(DIALECTS))}.")
        expressed = (found.express(spec) for spec in self.specs)
        return [found.shape(spec) for spec in expressed if not isinstance(spec, Inexpressible)]

    @cached_property
    def listing(self) -> tuple[Mapping[str, Any], ...]:
        """Each tool as JSON: what there is to know of it but its secret."""
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
                }
            )
            for each in self.registrations.values()
        )

    @cached_property
    def etag(self) -> str:
        """A digest of the listing: the same in every process where the list is the same. Letters and digits, no quotes."""
        text = json.dumps([self.role, [dict(each) for each in self.listing]], sort_keys=True, default=_plain)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _without_exclusions(registration: Registration) -> Registration:
    return replace(registration, excluded=frozenset()) if registration.excluded else registration


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
