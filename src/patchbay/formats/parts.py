"""What the readers of one text share: the source, the emitter, and which names are calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from patchbay.formats.emitter import Emitter
from patchbay.formats.source import Source
from patchbay.types import ToolSpec, read_specs

UnknownTools = Literal["text", "keep"]


@dataclass(frozen=True)
class ToolRules:
    """``is_tool``: a name is a call where the text says it is one. ``is_offered``: it is one also where the text does not say so.

    ``schema_keys(name)``: the parameters that a tool's schema names, None where the tool is not known.
    """

    is_tool: Callable[[str], bool]
    is_offered: Callable[[str], bool]
    schema_keys: Callable[[str], frozenset[str] | None]


@dataclass(frozen=True)
class Parts:
    """What a format's reader is made from. ``tag`` is the contract's label, ``lenient`` lets blocks without it hold calls."""

    source: Source
    emitter: Emitter
    rules: ToolRules
    tag: str
    lenient: bool


def make_rules(tools: Iterable[Any] | ToolRules | None, unknown_tools: UnknownTools) -> ToolRules:
    """The rules for these tools (None: any name is a call), or those that were made before. Raises InvalidRequestError."""
    if isinstance(tools, ToolRules):
        return tools
    if tools is None:
        return ToolRules(_always, _always, _nothing)
    specs: dict[str, ToolSpec] = {spec.name: spec for spec in read_specs(list(tools))}

    def keys(name: str) -> frozenset[str] | None:
        if name not in specs:
            return None
        properties = specs[name].parameters.get("properties")
        return frozenset(properties) if isinstance(properties, dict) else frozenset()

    return ToolRules(_always if unknown_tools == "keep" else specs.__contains__, specs.__contains__, keys)


def _always(_name: str) -> bool:
    return True


def _nothing(_name: str) -> None:
    return None
