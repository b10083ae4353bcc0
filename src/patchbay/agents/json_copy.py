"""Any values as JSON, for storage and for deep copies.

Bytes become base64, sets lists, dates ISO format, NaN null. Values that JSON cannot express are converted as tools' results are.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from patchbay.tools import render_result

_encoder = msgspec.json.Encoder()


def dumps(value: Any) -> bytes:
    """Return ``value`` as JSON."""
    try:
        body = _encoder.encode(value)
        msgspec.json.decode(body)
    except Exception:  # noqa: BLE001  (a value's own methods may raise anything)
        return _encoder.encode(_forced(value))
    return body


def json_copy(value: Any) -> Any:
    """Return a deep copy of ``value`` as JSON types."""
    try:
        return msgspec.json.decode(_encoder.encode(value))
    except Exception:  # noqa: BLE001  (as above)
        return _forced(value)


def _forced(value: Any) -> Any:
    text = render_result({"value": value})
    try:
        return json.loads(text)["value"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return text  # it cannot be converted: its text remains
