"""What a tool says of itself (``read_only``, ``destructive``, ...): its names, and what of it may come from another process.

What lives here: the shape. What does not: who is believed (``patchbay.approvals.policy``). No model is shown any of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from patchbay.errors import ConfigurationError

MOST: Final = 32
"""How many things a tool of another process may say of itself."""

NAME: Final = r"^[A-Za-z0-9_.\-]{1,64}$"
"""What such a thing may be called."""

_NAME: Final = re.compile(NAME)
_HINTS: Final = {
    "readOnlyHint": "read_only",
    "destructiveHint": "destructive",
    "idempotentHint": "idempotent",
    "openWorldHint": "open_world",
}
"""What MCP calls the same."""


def by_our_names(annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return annotations by our names, also where they have MCP's."""
    return {_HINTS.get(name, name): value for name, value in annotations.items()}


def checked_annotations(annotations: Any) -> dict[str, bool]:
    """Return what a tool of another process says of itself, by our names. Raises ConfigurationError, which says why.

    It is an object of booleans: at most ``MOST``, under names that fit ``NAME``, none of them told twice.
    """
    if not isinstance(annotations, Mapping):
        raise ConfigurationError(f"annotations must be an object of booleans, not {type(annotations).__name__}")
    if len(annotations) > MOST:
        raise ConfigurationError(f"annotations must be no more than {MOST}, not {len(annotations)}")
    for name, value in annotations.items():
        if not isinstance(name, str) or _NAME.match(name) is None or name.endswith("\n"):
            raise ConfigurationError("an annotation's name must be 1 to 64 of A-Z, a-z, 0-9, '_', '.', '-'")
        if not isinstance(value, bool):
            raise ConfigurationError(f"the annotation {name!r} must be true or false, not {type(value).__name__}")
    told = by_our_names(annotations)
    if len(told) != len(annotations):
        raise ConfigurationError("annotations say the same thing twice, by our name and by MCP's")
    return told
