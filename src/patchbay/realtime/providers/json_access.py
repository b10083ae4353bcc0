"""Total functions that read members of decoded JSON; values of another type count as missing."""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any

from patchbay.tools import well_formed


def text(holder: dict[str, Any], name: str) -> str:
    """Return a string without lone surrogates, "" if missing."""
    value = holder.get(name)
    return well_formed(value) if isinstance(value, str) else ""


def member(holder: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object, an empty one if missing."""
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def elements(holder: dict[str, Any], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a list with their indexes."""
    value = holder.get(name)
    return ((number, one) for number, one in enumerate(value if isinstance(value, list) else ()) if isinstance(one, dict))


def index(holder: dict[str, Any], name: str) -> int | None:
    """Return a non-negative integer, None if missing."""
    value = holder.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def arguments(holder: dict[str, Any], name: str) -> str | None:
    """Return a call's arguments as JSON text, also if sent as an object; None if missing."""
    value = holder.get(name)
    if isinstance(value, dict):
        try:
            return well_formed(json.dumps(value, ensure_ascii=False))
        except RecursionError:
            return None
    return text(holder, name) or None


def audio(holder: dict[str, Any], name: str) -> bytes:
    """Decode base64, also the URL-safe alphabet; b"" if invalid."""
    value = holder.get(name)
    if not isinstance(value, str):
        return b""
    if "-" in value or "_" in value:  # the alphabet for URLs
        value = value.replace("-", "+").replace("_", "/")
    try:
        return binascii.a2b_base64(value + "=" * (-len(value) % 4))
    except ValueError:  # binascii.Error is one; so is what is raised for a text beyond ASCII
        return b""


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``theirs`` over ``ours``, recursively for objects."""
    both = dict(ours)
    for name, value in theirs.items():
        mine = both.get(name)
        both[name] = merged(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return both
