"""Spans as messages of OTLP, in protobuf's wire format.

OpenTelemetry's own encoder takes about 60 µs for a span, a tenth of what a proxied request costs altogether; this one takes a
sixth of that, since what most spans have in common is encoded once.

Message definitions: https://github.com/open-telemetry/opentelemetry-proto/blob/v1.7.0/opentelemetry/proto/trace/v1/trace.proto
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import pack
from typing import Any, Final

from patchbay._trace import Trace

INTERNAL: Final = 1
SERVER: Final = 2
CLIENT: Final = 3
"""Kinds of spans."""

_FAILED: Final = b"\x7a\x02\x18\x02"  # status (15): code (3) ERROR (2)


_ONE_BYTE: Final = [bytes((number,)) for number in range(128)]


def _number(value: int) -> bytes:
    """Return a varint; negative numbers have ten bytes."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return b"%c%b%b" % (number << 3 | 2, _number(len(data)), data)


def _any_value(value: Any) -> bytes:
    if isinstance(value, str):
        return _field(1, value.encode("utf-8", "replace"))
    if isinstance(value, bool):
        return b"\x10" + _number(value)
    if isinstance(value, int):
        return b"\x18" + _number(value)
    if isinstance(value, float):
        return pack("<Bd", 0x21, value)
    return _field(5, b"".join([_field(1, _any_value(each)) for each in value]))


@lru_cache(maxsize=256)
def _encoded_key(key: str) -> bytes:
    return _field(1, key.encode())


def _key_value(key: str, value: Any) -> bytes:
    return _encoded_key(key) + _field(2, _any_value(value))


def _attributes(pairs: Iterable[tuple[str, Any]]) -> bytes:
    return b"".join([_field(9, _key_value(key, value)) for key, value in pairs if value not in (None, "", ())])


_cached_attributes = lru_cache(maxsize=1024)(_attributes)
Pairs = tuple[tuple[str, Any], ...]
"""Attributes: those with an empty value are left out."""


def encode_span(
    name: str, kind: int, trace: Trace, span_id: int, parent_id: int, began: float, ended: float, common: Pairs, own: Pairs,
    *, failed: bool
) -> bytes:  # fmt: skip
    """Return a span as a field of ScopeSpans. Times are in seconds since 1970.

    ``common`` are attributes that many spans have in common: short texts and small numbers, and no two that differ in type alone.
    """
    body = b"\x0a\x10%b\x12\x08%b%b%b%b0%c%b%b%b%b" % (
        trace.trace_id.to_bytes(16),
        span_id.to_bytes(8),
        _field(3, trace.state.encode()) if trace.state else b"",
        b"\x22\x08" + parent_id.to_bytes(8) if parent_id else b"",
        _field(5, name.encode("utf-8", "replace")),
        kind,
        pack("<BQBQ", 0x39, int(began * 1e9), 0x41, int(max(began, ended) * 1e9)),
        _cached_attributes(common),
        _attributes(own),
        _FAILED if failed else b"",
    )
    return _field(2, body)


class Envelope:
    """What is the same in all requests of a process: its resource, and the scope of its spans."""

    def __init__(self, resource: Mapping[str, Any], *, scope: str, version: str, schema_url: str) -> None:
        self._resource = _field(1, b"".join([_field(1, _key_value(key, value)) for key, value in resource.items()]))
        self._scope = _field(1, _field(1, scope.encode()) + _field(2, version.encode()))
        self._schema = _field(3, schema_url.encode())

    def encode(self, spans: Iterable[bytes]) -> bytes:
        """Return an ExportTraceServiceRequest with these spans (``encode_span``)."""
        scope_spans = b"".join((self._scope, *spans, self._schema))
        return _field(1, self._resource + _field(2, scope_spans))
