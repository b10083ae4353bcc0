"""Spans as messages of OTLP, in protobuf's wire format.

OpenTelemetry's own encoder takes about 60 µs for a span, a tenth of what a proxied request costs altogether; this one takes a
tenth of that, since what most spans have in common is encoded once.

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


@lru_cache(maxsize=4096)
def _number(value: int) -> bytes:
    """Return a varint; negative numbers have ten bytes."""
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
        data = value.encode("utf-8", "replace")
        return b"\x0a%b%b" % (_number(len(data)), data)
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


def attributes(pairs: Iterable[tuple[str, Any]], number: int = 9) -> bytes:
    """Return attributes as fields of this number, by default a span's; those with an empty value are left out."""
    tag, fields = number << 3 | 2, []
    for key, value in pairs:
        if value is not None and value != "" and value != ():
            encoded = _any_value(value)
            encoded = b"%b\x12%b%b" % (_encoded_key(key), _number(len(encoded)), encoded)
            fields.append(b"%c%b%b" % (tag, _number(len(encoded)), encoded))
    return b"".join(fields)


def span_shape(name: str, kind: int, pairs: Iterable[tuple[str, Any]], *, failed: bool) -> bytes:
    """Return what many spans have in common, as fields of each."""
    return b"%b\x30%c%b%b" % (_field(5, name.encode("utf-8", "replace")), kind, attributes(pairs), _FAILED if failed else b"")


def encode_span(
    shape: bytes, trace: Trace, span_id: int, parent_id: int, began: float, ended: float, own: bytes
) -> bytes:
    """Return a span as a field of ScopeSpans. ``own`` are its ``attributes`` beside those of its shape. Times are in seconds since 1970."""
    body = b"\x0a\x10%b\x12\x08%b%b%b%b%b%b" % (
        trace.trace_id.to_bytes(16),
        span_id.to_bytes(8),
        _field(3, trace.state.encode()) if trace.state else b"",
        b"\x22\x08" + parent_id.to_bytes(8) if parent_id else b"",
        shape,
        pack("<BQBQ", 0x39, int(began * 1e9), 0x41, int(max(began, ended) * 1e9)),
        own,
    )
    return b"\x12%b%b" % (_number(len(body)), body)


class Envelope:
    """What is the same in all requests of a process: its resource, and the scope of its spans."""

    def __init__(self, resource: Mapping[str, Any], *, scope: str, version: str, schema_url: str) -> None:
        self._resource = _field(1, attributes(resource.items(), 1))
        self._scope = _field(1, _field(1, scope.encode()) + _field(2, version.encode()))
        self._schema = _field(3, schema_url.encode())

    def encode(self, spans: Iterable[bytes]) -> bytes:
        """Return an ExportTraceServiceRequest with these spans (``encode_span``)."""
        scope_spans = b"".join((self._scope, *spans, self._schema))
        return _field(1, self._resource + _field(2, scope_spans))
