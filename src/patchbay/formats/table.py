"""The one table of formats: a row for each way of writing calls. A further format is one file and one row here.

A format reads what its own markers open (``regions``), or what stands in fences (``blocks``), or both. Prose, fences that are
code and reasoning are no format: they are there whatever the model writes its calls in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from patchbay.errors import ConfigurationError
from patchbay.formats.fenced import BlockReader
from patchbay.formats.fencemarks import FenceMarks
from patchbay.formats.parts import Parts
from patchbay.formats.scanner import Region


def _no_regions(_parts: Parts) -> Mapping[str, Region]:
    return {}


@dataclass(frozen=True)
class Format:
    """One way of writing calls. ``families``: who uses it. ``auto``: it is found without being named."""

    name: str
    families: tuple[str, ...]
    auto: bool
    regions: Callable[[Parts], Mapping[str, Region]] = _no_regions
    blocks: Callable[[Parts, FenceMarks], BlockReader] | None = None


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (Format("fenced", families=("any model that follows instructions: the contract",), auto=True, blocks=BlockReader),)
}


@lru_cache(maxsize=64)
def choose(name: str) -> tuple[Format, ...]:
    """The formats to look for: one by its name, or for "auto" all that can be found in a text. Raises ConfigurationError."""
    if name == "auto":
        return tuple(row for row in FORMATS.values() if row.auto)
    if name not in FORMATS:
        raise ConfigurationError(f"Unknown format {name!r}. Known formats: auto, {', '.join(FORMATS)}.")
    return (FORMATS[name],)
