"""JSON-RPC 2.0 over lines, without I/O: bounded line reader, requests as bytes, lines as replies.

The format is public (docs/guides/hook-processes.md): ``<``, ``>`` and ``&`` are escaped, other text is plain UTF-8,
keys of free-form maps are sorted. A reply's ``id`` must be a JSON integer; member names are case-insensitive; lone surrogates
and invalid UTF-8 become U+FFFD.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec

from patchbay._config import json_kind
from patchbay._subprocess import HEAD
from patchbay.tools import render_result, well_formed

NO_JSON: Final = "not JSON"
"""Begins the description of a line that is not JSON."""

_ESCAPES: Final = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


class UndecodableError(ValueError):
    """A line is not a reply. ``reply_id`` is the id that it seems to answer, None if unknown."""

    def __init__(self, why: str, reply_id: int | None = None) -> None:
        super().__init__(why)
        self.reply_id = reply_id


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply to request ``id`` (0: to none). ``error`` is an error's message, None for a result."""

    id: int
    result: Any = None
    error: str | None = None


class _Request(msgspec.Struct):
    jsonrpc: str
    id: int
    method: str
    params: Any


class _Notification(msgspec.Struct):
    jsonrpc: str
    method: str
    params: Any


def request_line(request_id: int, method: str, params: Any) -> bytes:
    """Return a request as a line with its newline."""
    return _line(_Request("2.0", request_id, method, params))


def notification_line(method: str, params: Any) -> bytes:
    """Return a notification as a line with its newline."""
    return _line(_Notification("2.0", method, params))


def read_reply(line: bytes) -> Reply:
    """Parse a line as a reply. Raises UndecodableError."""
    try:
        message = _DECODER.decode(line)
    except (ValueError, RecursionError):
        message = _read_leniently(line)
    if type(message) is not dict:
        raise UndecodableError(f"{json_kind(message)} instead of a JSON object")
    if not message.keys() <= _MEMBERS:
        message = {name.lower(): value for name, value in message.items()}
    reply_id = message.get("id", 0)
    if reply_id is None:
        reply_id = 0
    if type(reply_id) is not int:
        raise UndecodableError(f"the id is {json_kind(reply_id)} instead of a whole number")
    error = message.get("error")
    if error is not None:
        if type(error) is not dict:
            raise UndecodableError(f"the error is {json_kind(error)} instead of an object", reply_id)
        words = next((value for name, value in error.items() if name.lower() == "message"), "")
        return Reply(reply_id, error=words if isinstance(words, str) and words else "an error without a message")
    if "result" not in message and "method" in message:
        raise UndecodableError(f"a request ({message['method']!r:.80}) instead of a reply", reply_id)
    if reply_id == 0:  # an error may have none: it is about a line that could not be read
        raise UndecodableError("it has no id of a request")
    return Reply(reply_id, message.get("result"))


def id_in_head(head: bytes) -> int | None:
    """Return the id of a reply of which only the beginning is known, None if it cannot be found."""
    depth = 0
    previous = member = b""
    for token in _TOKEN.finditer(head):
        text = token[0]
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        elif text == b'"':  # a text without an end
            return None
        elif depth == 1 and text == b":":
            member = previous.lower()
        elif depth == 1 and text == b",":
            member = b""
        elif depth == 1 and member == b'"id"':
            is_whole = head[token.end() : token.end() + 1] in _AFTER_NUMBER  # at the end of the head digits may go on
            return int(text) if is_whole and _INTEGER.fullmatch(text) else None
        if depth == 0:
            return None
        previous = text
    return None


_DECODER: Final = msgspec.json.Decoder()
_MEMBERS: Final = frozenset({"jsonrpc", "id", "result", "error", "method", "params"})
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]:,"]|[^\s{}\[\]:,"]++', re.DOTALL)
_INTEGER: Final = re.compile(rb"-?\d{1,18}")
_AFTER_NUMBER: Final = frozenset({b",", b"}", b" ", b"\t", b"\r"})


def _line(message: Any) -> bytes:
    try:
        data = _ENCODER.encode(message)
    except (ValueError, TypeError, RecursionError):
        message.params = _encodable(message.params)
        data = _ENCODER.encode(message)
    for plain, escaped in _ESCAPES:
        if plain in data:
            data = data.replace(plain, escaped)
    return data + b"\n"


def _other(value: Any) -> Any:
    """Return the JSON form of a value that JSON does not have."""
    return dict(value) if isinstance(value, Mapping) else render_result(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_other, order="deterministic")


def _encodable(value: Any) -> Any:
    """Return a value that can be encoded: lone surrogates replaced, odd keys as strings, deep nesting cut."""
    if isinstance(value, msgspec.Struct):
        fields = type(value).__struct_fields__
        return type(value)(**{name: _encodable(getattr(value, name)) for name in fields})
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, Mapping | list | tuple):
        return json.loads(render_result(value))
    return value


def _read_leniently(line: bytes) -> Any:
    """Parse what the strict decoder rejects: lone surrogates and invalid UTF-8. Raises UndecodableError."""
    try:
        read = json.loads(line.decode("utf-8", "replace"), parse_constant=_no_number, parse_float=_finite)
        return json.loads(well_formed(json.dumps(read, ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else f"{NO_JSON}: {error}"
        raise UndecodableError(why, id_in_head(line[:HEAD].strip())) from None


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
