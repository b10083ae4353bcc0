"""Tool results and errors as text for a model."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import math
from collections import deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeVar
from uuid import UUID

from patchbay.types import Attachment, Illustrated

_NEAR = 200
"""The most characters by which a cut is moved to the end of a line."""


def excerpt(text: str, limit: int, *, how_to_read: Callable[[int], str] | None = None) -> str:
    """Return at most ``limit`` characters of a text: head, tail, and a note on the omitted part between them.

    Two thirds are from the head; both are cut at a line end if one is near. ``limit`` is at least 1000. ``how_to_read`` takes
    the position of the omitted part, in characters, and returns advice on how to read it.
    """
    if len(text) <= limit:
        return text

    def note(begin: int, end: int) -> str:
        advice = f" {how_to_read(begin)}" if how_to_read is not None else ""
        return f"\n[... {end - begin} of {len(text)} characters are left out here, from {begin} to {end}.{advice} ...]\n"

    size = limit - len(note(len(text), 2 * len(text)))  # no number in the note can be longer
    if size < limit // 2 and how_to_read is not None:
        return excerpt(text, limit)  # the advice is too long
    head = _cut_after_line(text, size * 2 // 3)
    tail = len(text) - (size - size * 2 // 3)
    if (newline := text.find("\n", tail, tail + _NEAR)) >= 0:
        tail = newline + 1
    return f"{text[:head]}{note(head, tail)}{text[tail:]}"


def _cut_after_line(text: str, at: int) -> int:
    newline = text.rfind("\n", at - _NEAR, at)
    return at if newline < 0 else newline + 1


MOST_ITEMS = 1_000_000
"""The most items that are read from an iterable, which may be infinite."""

MOST_CONTAINERS = 250_000
"""The most containers that ``_plain`` visits: a value that contains itself has infinitely many."""

T = TypeVar("T")

_MAX_DEPTH = 64
_MOST_LEAVES = 10
_MOST_BITS = 14_000  # Python writes no more than 4300 decimal digits
_JSON_TYPES = (dict, list, tuple, int, float, type(None))
_TEXT_TYPES = (Decimal, UUID, PurePath, timedelta)
_ARRAY_TYPES = (list, tuple, deque, range, Iterator, KeysView, ValuesView, ItemsView)
"""Types that become an array. Other iterables do not: they may hold more than their items."""

_LIST_METHODS = ("tolist", "to_dicts", "to_list", "to_pylist")  # numpy and array.array; polars; pyarrow
_UNKNOWN = object()
_LONG_BASE64 = 256
"""Characters from which on bytes are written as a ``data:`` URL, which a model gets as a file (``patchbay.media``)."""


def render_result(value: Any) -> str:
    """Write a tool's result: a str as it is, None as ``null``, all else as JSON, or by its ``str()`` if JSON cannot express it.

    Where that is Python's default, which shows nothing of the value, a note says so. An iterator is read to its end; raises
    what it raises, and ValueError if it has more than MOST_ITEMS items.
    """
    if type(value) is str:
        return well_formed(value)
    if isinstance(value, Iterator):
        value = read_items(value)
    if isinstance(value, Enum):
        return render_result(value.value)
    if isinstance(value, str):
        return well_formed(_text(value))
    if isinstance(value, BaseException):
        return well_formed(describe(value))
    if isinstance(value, Attachment):
        return well_formed(str(value))
    if isinstance(value, Illustrated):
        return render_result(value.output)
    return well_formed(_json(value))


def read_items(items: Iterable[T]) -> list[T]:
    """Return all items. Raises ValueError for more than MOST_ITEMS."""
    read = list(itertools.islice(items, MOST_ITEMS + 1))
    if len(read) > MOST_ITEMS:
        raise too_many_items()
    return read


def too_many_items() -> ValueError:
    """Return the error of an iterable that was not read to its end."""
    return ValueError(f"more than {MOST_ITEMS} items")


def render_error(name: str, error: BaseException) -> str:
    """Write a tool's exception: its class and its message."""
    return well_formed(f"Error: tool {name!r} failed: {describe(error)}")


def describe(error: BaseException) -> str:
    """Return ``Type: message``, or the type alone if there is no message; for a group also its members."""
    if isinstance(error, BaseExceptionGroup):
        leaves = [describe(leaf) for leaf in itertools.islice(_leaves(error), _MOST_LEAVES + 1)]
        if len(leaves) > _MOST_LEAVES:
            leaves[-1] = "..."
        return f"{type(error).__name__}: {error.message}: {'; '.join(leaves)}"
    message = _text(error).strip()
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    waiting: list[BaseException] = [group]
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(reversed(error.exceptions))
        else:
            yield error


def well_formed(text: str) -> str:
    """Replace lone surrogates, which cannot be sent to a server."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _json(value: Any) -> str:
    try:
        replacement = value if isinstance(value, _JSON_TYPES) else _json_type(value)
        return _text(value) if replacement is _UNKNOWN else _encode(replacement)
    except Exception:  # noqa: BLE001  (odd keys, cycles, NaN, or a broken method of the value's own)
        try:
            plain = _plain(value, (), iter(range(MOST_CONTAINERS)))
            return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
        except Exception:  # noqa: BLE001  (a value may refuse even that)
            return _text(value)


def _text(value: Any) -> str:
    try:
        kind: Any = type(value)
        if (kind.__str__, kind.__repr__) == (object.__str__, object.__repr__):
            return f"{value!r} (note: {kind.__name__} has no text form, so its contents are not shown)"
        return str(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  (the value's own __str__ may do anything, and must not end the host)
        return f"<{type(value).__name__}>"


def _plain(value: Any, parents: tuple[int, ...], budget: Iterator[int]) -> Any:
    """Convert ``value`` to JSON types recursively; cycles, very deep values, and those beyond ``budget`` become text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < _MOST_BITS else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if id(value) in parents or len(parents) >= _MAX_DEPTH or next(budget, None) is None:
        return f"<{type(value).__name__}>"
    parents = (*parents, id(value))
    if isinstance(value, Mapping):
        return {_key(key): _plain(item, parents, budget) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, parents, budget) for item in value]
    return _plain(_json_type_or_text(value), parents, budget)


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        key = key.value
    if not isinstance(key, (str, *_JSON_TYPES)):
        key = _json_type_or_text(key)
    return key if isinstance(key, str) else render_result(key)


def _json_type_or_text(value: Any) -> Any:
    try:
        replacement = _json_type(value)
    except Exception:  # noqa: BLE001  (the value's own method failed: the rest of the result need not)
        return _text(value)
    return _text(value) if replacement is _UNKNOWN else replacement


def _json_type(value: Any) -> Any:
    """Return a replacement that JSON can express, or that this function converts further; _UNKNOWN if there is none."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, BaseException):
        return describe(value)
    if isinstance(value, Attachment):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes(bytes(value))
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if (fields := getattr(type(value), "__struct_fields__", None)) is not None:  # msgspec
        return {name: getattr(value, name) for name in fields}
    if (attributes := getattr(type(value), "__attrs_attrs__", None)) is not None:
        return {item.name: getattr(value, item.name) for item in attributes}
    if isinstance(value, Mapping):
        return _members(value.items())
    if isinstance(value, set | frozenset):
        return _sorted(value)
    if isinstance(value, _ARRAY_TYPES):
        return read_items(value)
    if isinstance(value, _TEXT_TYPES):
        return str(value)
    return _converted(value) if not isinstance(value, type) else _UNKNOWN


def _converted(value: Any) -> Any:
    """Convert an object of a third-party class by its methods; _UNKNOWN if it has none of them."""
    if iso := _method(value, "isoformat"):
        return iso()
    if (keys := _method(value, "keys")) and hasattr(type(value), "__getitem__"):
        if not (items := _method(value, "items")):
            return {key: value[key] for key in read_items(keys())}  # sqlite3.Row
        if hasattr(type(value), "__contains__"):  # not an element of XML, whose items are only its attributes
            return {**_members(items()), **_body(value)}
    if convert := next(filter(None, (_method(value, name) for name in _LIST_METHODS)), None):
        return convert()
    return _UNKNOWN


def _method(value: Any, name: str) -> Callable[..., Any] | None:
    method = getattr(value, name, None)
    return method if callable(method) else None


def _members(items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return the items as a dict, with a list for a key that occurs several times (headers)."""
    found: dict[Any, list[Any]] = {}
    for key, item in read_items(items):
        found.setdefault(key, []).append(item)
    return {key: item[0] if len(item) == 1 else item for key, item in found.items()}


def _body(value: Any) -> dict[str, Any]:
    """Return the payload of an email message, whose items are only its headers; {} for other mappings."""
    if (payload := _method(value, "get_payload")) is None:
        return {}
    content = payload(decode=True)
    return {"payload": payload() if content is None else content}


def _bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        code = base64.b64encode(value).decode()
        return code if len(code) < _LONG_BASE64 else f"data:;base64,{code}"


def json_default(value: Any) -> Any:
    """Convert a value for ``json``; a writer's ``default``. Raises TypeError for an iterator, which can be read only once."""
    if isinstance(value, Iterator):
        raise TypeError("can be read only once, and this attempt may fail")
    return _json_type_or_text(value)


# Created once: json.dumps creates an encoder for each value unless all options have their defaults.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=json_default).encode


write_exactly = json.JSONEncoder(default=json_default).encode
"""Write a value as JSON unrepaired, to be compared or approved; NaN and lone surrogates stay.

Raises TypeError, ValueError, and RecursionError for values that JSON cannot express.
"""


def _json_type_or_raise(value: Any) -> Any:
    if (replacement := _json_type(value)) is _UNKNOWN:
        raise TypeError(f"a {type(value).__name__} is not JSON")
    return replacement


write_strictly = json.JSONEncoder(ensure_ascii=False, default=_json_type_or_raise).encode
"""Write a value as JSON; raises TypeError for a value that only has a ``str()``."""

read_exactly = json.JSONDecoder(parse_constant=str).decode
"""Read the output of ``write_exactly``: a number that JSON does not have becomes its name ("Infinity")."""


def _sorted(values: set[Any] | frozenset[Any]) -> list[Any]:
    """Return a set in an order that is the same in every process, so that a prompt cache holds."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)
