"""What each provider accepts: the subset of JSON Schema, function names, and the shape of a tool."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from patchbay.schema.arguments import excerpt
from patchbay.schema.subsets import Unsupported, gemini, openai, openai_strict
from patchbay.types import ToolSpec

_DIGEST: Final = 8
_OTHERS: Final = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class NameRule:
    """A provider's rule for function names: a full match of ``pattern``, and at most ``longest`` characters.

    Every rule allows letters, digits, ``_`` and ``-``, with a letter first.
    """

    pattern: str
    longest: int = 64

    def allows(self, name: str) -> bool:
        """Whether ``name`` can be sent as it is."""
        return len(name) <= self.longest and re.fullmatch(self.pattern, name) is not None

    def alias(self, name: str, *, attempt: int = 0) -> str:
        """Return an allowed name: the allowed characters of ``name`` and a digest of the whole."""
        seed = name if not attempt else f"{name}\n{attempt}"
        digest = hashlib.sha256(seed.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
        kept = _OTHERS.sub("_", name).strip("_-")
        if not kept[:1].isalpha():
            kept = f"tool_{kept}".rstrip("_")
        return f"{kept[: self.longest - _DIGEST - 1]}_{digest}"


OPENAI_NAMES: Final = NameRule(r"[A-Za-z0-9_-]+")
GEMINI_NAMES: Final = NameRule(r"[A-Za-z_][A-Za-z0-9_.-]*")


class Aliases:
    """A two-way mapping between the names of a set of tools and the names that a provider is sent.

    Aliases are unique, and never the name of another tool of the set. ``fixed`` are names of other owners: they are sent
    unchanged.
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
        """Aliases by tool name, for the tools that need one."""
        self._wire = {**{name: name for name in self._fixed}, **{name: wire.get(name, name) for name in own}}
        self._back = {alias: name for name, alias in wire.items()}

    def wire(self, name: str) -> str:
        """Return the name to send for ``name``; also for a former tool, which a conversation may still contain."""
        if (found := self._wire.get(name)) is not None:
            return found
        return name if self._rule.allows(name) else self._rule.alias(name)

    def own(self, name: str) -> str:
        """Return the tool's own name for a received one; unknown names are returned unchanged."""
        return self._back.get(name, name)


def _nested(spec: ToolSpec) -> dict[str, Any]:
    return spec.to_openai()


def _flat(spec: ToolSpec) -> dict[str, Any]:
    return {"type": "function", **spec.to_openai()["function"]}


def _declaration(spec: ToolSpec) -> dict[str, Any]:
    made: dict[str, Any] = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {key: value for key, value in made.items() if value}


@dataclass(frozen=True)
class Dialect:
    """How tools are encoded for one provider.

    ``subset`` is a pure function from a schema to the one that is sent, or to the reason why it is unsupported. ``shape`` encodes
    a spec as an element of the provider's list of tools. With ``strict`` the provider enforces the schema.
    """

    name: str
    subset: Callable[[Mapping[str, Any]], Mapping[str, Any] | Unsupported] = openai
    names: NameRule = OPENAI_NAMES
    shape: Callable[[ToolSpec], dict[str, Any]] = _nested
    strict: bool = False

    def express(self, spec: ToolSpec) -> ToolSpec | Unsupported:
        """Return ``spec`` with the schema to send (its name unchanged), or why the tool cannot be sent."""
        parameters = self.subset(spec.parameters)
        if isinstance(parameters, Unsupported):
            return parameters
        return replace(spec, parameters=parameters, strict=True if self.strict else None)


_ALL: Final = (
    Dialect("openai"),
    Dialect("openai_chat"),
    Dialect("openai_strict", subset=openai_strict, strict=True),
    Dialect("openai_realtime", shape=_flat),
    Dialect("qwen"),
    Dialect("qwen_realtime"),
    Dialect("glm"),
    Dialect("glm_realtime", shape=_flat),
    Dialect("stepfun"),
    Dialect("stepfun_realtime"),
    Dialect("gemini", subset=gemini, names=GEMINI_NAMES, shape=_declaration),
    Dialect("gemini_live", subset=gemini, names=GEMINI_NAMES, shape=_declaration),
)
DIALECTS: Final[Mapping[str, Dialect]] = {dialect.name: dialect for dialect in _ALL}
"""Every dialect by its name."""


def unsupported_reason(schema: Mapping[str, Any]) -> str | None:
    """Return why no provider accepts ``schema`` as the parameters of a tool, None if one may.

    OpenAI's subset is the largest, and must be valid JSON Schema: otherwise OpenAI rejects the whole request.
    """
    import jsonschema_rs

    sent = openai(schema)
    if isinstance(sent, Unsupported):
        return sent.reason
    try:
        jsonschema_rs.meta.validate(dict(sent))
    except jsonschema_rs.ValidationError as error:
        place = "".join(f"/{part}" for part in error.instance_path) or "(root)"
        return f"its schema is no JSON Schema: {excerpt(f'{place}: {error.message}')}"
    except Exception as error:  # noqa: BLE001  (third-party schema and third-party reader)
        return f"its schema cannot be read: {excerpt(str(error).partition(chr(10))[0])}"
    return None
