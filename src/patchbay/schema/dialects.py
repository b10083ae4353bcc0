"""How each provider is told of a tool: the part of JSON Schema it takes, the names it allows, the shape on its wire.

What lives here: the table of dialects. What does not: the subsets themselves (``subsets``), the rules for names (``names``), and
the requests that carry the tools (``patchbay.models``). All is pure: the same tools give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from patchbay.schema.names import GEMINI_NAMES, OPENAI_NAMES, NameRule
from patchbay.schema.subsets import Inexpressible, gemini, openai, openai_strict
from patchbay.types import ToolSpec


def _nested(spec: ToolSpec) -> dict[str, Any]:
    return spec.to_openai()


def _flat(spec: ToolSpec) -> dict[str, Any]:
    return {"type": "function", **spec.to_openai()["function"]}


def _declaration(spec: ToolSpec) -> dict[str, Any]:
    made: dict[str, Any] = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {key: value for key, value in made.items() if value}


@dataclass(frozen=True)
class Dialect:
    """One provider's way of being told of tools.

    ``subset`` is a pure function from a schema to the one that is sent, or to the reason why there is none. ``shape`` makes the
    element of the provider's list from a spec. With ``strict`` the provider keeps the model to the schema.
    """

    name: str
    subset: Callable[[Mapping[str, Any]], Mapping[str, Any] | Inexpressible] = openai
    names: NameRule = OPENAI_NAMES
    shape: Callable[[ToolSpec], dict[str, Any]] = _nested
    strict: bool = False

    def express(self, spec: ToolSpec) -> ToolSpec | Inexpressible:
        """Return ``spec`` with the schema that is sent (its name unchanged), or why the tool cannot be told of."""
        parameters = self.subset(spec.parameters)
        if isinstance(parameters, Inexpressible):
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
