"""Names of tools as a provider allows them: reversible aliases, the same on every day.

What lives here: the rules for names, and the aliases of a set of tools. What does not: where on the wire they stand
(``patchbay.models``). A tool keeps its own name everywhere else.

An alias is made from the name alone and not from its neighbours, so a tool that comes or goes changes no other one's alias, and
what a provider has cached of the list stays good.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_DIGEST: Final = 8
_OTHERS: Final = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class NameRule:
    """What a provider takes for a function's name: ``pattern`` has to match all of it, and it has at most ``longest`` characters.

    Every rule takes letters, digits, ``_`` and ``-``, and a letter at the front.
    """

    pattern: str
    longest: int = 64

    def allows(self, name: str) -> bool:
        """Whether ``name`` can be sent as it is."""
        return len(name) <= self.longest and re.fullmatch(self.pattern, name) is not None

    def alias(self, name: str, *, attempt: int = 0) -> str:
        """Return a name that is allowed: what can be kept of ``name``, and a digest of all of it."""
        seed = name if not attempt else f"{name}\n{attempt}"
        digest = hashlib.sha256(seed.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
        kept = _OTHERS.sub("_", name).strip("_-")
        if not kept[:1].isalpha():
            kept = f"tool_{kept}".rstrip("_")
        return f"{kept[: self.longest - _DIGEST - 1]}_{digest}"


OPENAI_NAMES: Final = NameRule(r"[A-Za-z0-9_-]+")
GEMINI_NAMES: Final = NameRule(r"[A-Za-z_][A-Za-z0-9_.-]*")


class Aliases:
    """The names of a set of tools on one provider's wire, and the way back.

    No alias is the name of another tool of the set, and no two tools have one alias. ``fixed`` are names that somebody else
    answers for: they are sent as they are.
    """

    def __init__(self, names: Iterable[str], rule: NameRule, *, fixed: Iterable[str] = ()) -> None:
        self._rule = rule
        self._fixed = frozenset(fixed)
        own = list(dict.fromkeys(name for name in names if name not in self._fixed))
        taken = {*own, *self._fixed}
        wire: dict[str, str] = {}
        for name in own:
            if rule.allows(name):
                continue
            attempt = 0
            while (alias := rule.alias(name, attempt=attempt)) in taken:
                attempt += 1
            taken.add(alias)
            wire[name] = alias
        self.changed: Mapping[str, str] = MappingProxyType(wire)
        """The aliases by name, of the tools that need one."""
        self._wire = {**{name: name for name in self._fixed}, **{name: wire.get(name, name) for name in own}}
        self._back = {alias: name for name, alias in wire.items()}

    def wire(self, name: str) -> str:
        """Return what ``name`` is on the wire; also for one that is no tool (any more), as it may stand in a conversation."""
        if (found := self._wire.get(name)) is not None:
            return found
        return name if self._rule.allows(name) else self._rule.alias(name)

    def own(self, name: str) -> str:
        """Return the tool's own name for one from the wire; what is no alias is returned as it is."""
        return self._back.get(name, name)
