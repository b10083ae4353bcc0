"""What became of one wish to change the registry, as data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from patchbay.tools.registry.registration import Key

Action = Literal["register", "unregister", "clear", "hide", "show", "add_role", "remove_role", "restore"]

EVERY_ROLE = "*"
"""How a registration for all roles is spoken of where no role stands for it."""


class Failure(NamedTuple):
    """A role for which it could not be done, and why. ``code`` is stable, ``error`` is for people."""

    role: str
    error: str
    code: str


class Refusal(NamedTuple):
    """A role whose tool was left alone, because it is somebody else's (``owned_by``, a source)."""

    role: str
    owned_by: str


@dataclass(frozen=True)
class Change:
    """What was done, and what was not.

    ``affected_roles`` are the roles that it was done for: all that were meant where a tool was registered (also if it was there
    just so), those that lost one where tools were removed, those that see another list where tools were hidden or shown, or a
    role came or went. ``failed_roles`` and ``refused_roles`` (where tools were to be removed) say where not, and why.
    ``removed`` is how many tools went, each counted for every role that had it.

    ``revision`` is the registry's, after it. ``keys`` are the registrations that are not what they were, for whoever stores
    them; what they are now, the registry knows.
    """

    action: Action
    affected_roles: tuple[str, ...] = ()
    failed_roles: tuple[Failure, ...] = ()
    refused_roles: tuple[Refusal, ...] = ()
    removed: int = 0
    revision: int = 0
    keys: tuple[Key, ...] = ()
    changed: bool = False
    """Whether anything is not as it was, in what a role sees or in what is stored."""

    @property
    def ok(self) -> bool:
        """Whether it was done for any role, or, for what was to be removed, nothing stood in the way."""
        if self.action == "register":
            return bool(self.affected_roles)
        return not self.failed_roles or self.removed > 0


@dataclass
class Changing:
    """A change under way. ``roles`` are those that see another list than before, ``affected`` those it was done for."""

    affected: tuple[str, ...] = ()
    roles: dict[str, None] = field(default_factory=dict)
    keys: dict[Key, None] = field(default_factory=dict)
    failed: list[Failure] = field(default_factory=list)
    refused: dict[Refusal, None] = field(default_factory=dict)
    removed: int = 0

    def done(self, action: Action, roles: Collection[str], revision: int) -> Change:
        """Return it as data; ``roles`` are all that there are, in their order."""
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
