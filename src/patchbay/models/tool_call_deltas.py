"""Streamed tool calls: which deltas belong to one call.

OpenAI gives each call an ``index`` and an id, and the name in its first delta only. Some servers give all calls one index, one id
or none, and some repeat the name in every delta.
"""

from __future__ import annotations

import json
from collections.abc import Sequence


def begins_new_call(known_id: str, known_name: str, pieces: Sequence[str], *, id_: str, name: str, arguments: str) -> bool:
    """Whether a piece that came at the place of a call begins another one; ``pieces`` are the arguments of that one so far."""
    if not name or not known_name:
        return False
    if (id_ and known_id and id_ != known_id) or name != known_name:
        return True
    # What would stand behind a whole object can only be the next one.
    return bool(arguments.strip()) and _is_object("".join(pieces))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
