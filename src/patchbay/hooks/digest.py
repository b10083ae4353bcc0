"""What an approval is bound to: a tool and its arguments, as one short text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from patchbay.hooks.asked import as_plain

_SIMPLE: Final = frozenset({str, int, bool, type(None)})
_WRITE_SIMPLE: Final = msgspec.json.Encoder(order="sorted").encode
_WRITE: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
_WRITE_ANY: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def digest_of(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return ``sha256:`` and 64 hexadecimal digits; the same for the same call, however its arguments are ordered."""
    written = _quickly(arguments)
    if written is None:
        try:
            text = _WRITE(arguments)
        except (TypeError, ValueError, RecursionError):
            text = _WRITE_ANY(as_plain(arguments))  # values that annotations made of what the model wrote
        written = text.encode("ascii")
    bound = b"%b\n%b" % (tool.encode("utf-8", "surrogatepass"), written)
    return f"sha256:{hashlib.sha256(bound).hexdigest()}"


def _quickly(arguments: Mapping[str, Any]) -> bytes | None:
    """Return the same text as below, in a quarter of the time, for what nearly all calls have; None for all else."""
    for value in arguments.values():
        if type(value) not in _SIMPLE:
            return None
    try:
        written = _WRITE_SIMPLE(arguments)
    except (TypeError, ValueError, OverflowError):  # half surrogate pairs, numbers without end, keys that are no texts
        return None
    return written if written.isascii() else None
