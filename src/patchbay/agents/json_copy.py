"""Values as JSON, whatever they are: for storage, and for copies that share nothing.

What has JSON is written as it is: bytes as base64, sets as lists, dates in ISO format, NaN as null. The rest is
converted as tools' results are.
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
    except Exception:  # noqa: BLE001  (what has no JSON fails as it likes)
        return _encoder.encode(_forced(value))
    return body


def json_copy(value: Any) -> Any:
    """Return ``value`` in JSON's own types, with no part of it shared."""
    try:
        return msgspec.json.decode(_encoder.encode(value))
    except Exception:  # noqa: BLE001  (as above)
        return _forced(value)


def _forced(value: Any) -> Any:
    text = render_result({"value": value})
    try:
        return json.loads(text)["value"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return text  # it refused even that: then its text is all there is
