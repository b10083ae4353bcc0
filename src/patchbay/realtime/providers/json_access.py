"""Members of frames as the types that they should have; what is of another type counts as not there.

What lives here: small total functions, with which the dialects read what a server sends, whatever it is. What does not: what the
members mean.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any


def text(holder: dict[str, Any], name: str) -> str:
    """A text that can be written anywhere: halves of a character that lost each other are replaced. "" where there is none."""
    value = holder.get(name)
    return _mended(value) if isinstance(value, str) else ""


def _mended(value: str) -> str:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def member(holder: dict[str, Any], name: str) -> dict[str, Any]:
    """An object, an empty one where there is none."""
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def elements(holder: dict[str, Any], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects in a list, each with its place. One by one: there may be a great many."""
    value = holder.get(name)
    return ((place, one) for place, one in enumerate(value if isinstance(value, list) else ()) if isinstance(one, dict))


def place(holder: dict[str, Any], name: str) -> int | None:
    """A number that counts, from 0."""
    value = holder.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def usage(holder: dict[str, Any], name: str) -> Mapping[str, Any] | None:
    """What a server counted, in its own words."""
    return member(holder, name) or None


def arguments(holder: dict[str, Any], name: str) -> str | None:
    """All arguments of a call as JSON text, also where they come as an object; None where there are none."""
    value = holder.get(name)
    if isinstance(value, dict):
        try:
            return _mended(json.dumps(value, ensure_ascii=False))
        except RecursionError:
            return None
    return text(holder, name) or None


def audio(holder: dict[str, Any], name: str) -> bytes:
    """The bytes of a text in base64, none where it is no such thing."""
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
    """``ours`` with the members of ``theirs``, which count; objects on both sides are merged in their turn."""
    both = dict(ours)
    for name, value in theirs.items():
        mine = both.get(name)
        both[name] = merged(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return both
