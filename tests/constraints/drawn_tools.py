"""Tools with drawn schemas, and arguments for them: what fits and lies in the form of a schema, and what is damaged."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

from patchbay.constraints.forms import AnyForm, ArrayForm, ChoiceForm, ConstantForm, Form, NumberForm, ObjectForm, TextForm
from patchbay.constraints.patterns import FORMATS
from patchbay.types import ToolSpec

PATTERNS: Final = {
    "^[A-Z]{3}$": ["EUR", "USD"],
    r"^#?[0-9a-f]{6}$": ["#00ff7f", "123abc"],
    r"^\d+(\.\d+){0,2}$": ["1", "3.11.2"],
    "^(low|mid|high)$": ["low", "high"],
    r"^\w+( \w+)*$": ["Rome", "New York City"],
    "b": ["abc", "b"],
    r"^https?://[^\s/]+(/\S*)?$": ["https://example.org/a?b=c", "http://x"],
    r'^[^"\\]{1,8}$': ["it's", "a-b"],
}
"""Patterns, each with texts that match."""
_OF_FORMATS: Final = {
    "date": ["2026-02-03"],
    "time": ["12:30:00Z", "00:00:59.125+01:00"],
    "date-time": ["2026-12-31T23:59:59Z"],
    "duration": ["P1Y2M3D", "PT5M", "P2W"],
    "email": ["ada.l@example.org"],
    "hostname": ["www.example.org"],
    "ipv4": ["192.168.0.1"],
    "uuid": ["01234567-89ab-cdef-0123-456789abcdef"],
}
MATCHING: Final = PATTERNS | {FORMATS[name]: texts for name, texts in _OF_FORMATS.items()}
TOOL_NAMES: Final = ["get_weather", "send_mail", "search", "add", "files-read", "db_query2", "Ping", "calendar_list_events"]
KEYS: Final = ["city", "to", "count", "unit", "a_b", "kind", "items", "path", "from", "class", "name", "type", "value", "x"]
ODD_KEYS: Final = ["a b", "user-id", "é", "$top", "@type"]
_ENUMS: Final = [
    ["celsius", "fahrenheit"],
    ["a", "ab", "abc"],
    [1, 2, 3],
    ["on", True, None],
    ["it's", 'say "x"', "a<b"],
    [1.5, "x"],
]

Drawer = Callable[[random.Random, int], dict[str, Any]]


def draw_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema whose keywords are all enforced."""
    kinds = _SCALARS if depth == 0 else [*_SCALARS, *_NESTED]
    return rng.choice(kinds)(rng, depth)


def _bounded(rng: random.Random, _depth: int) -> dict[str, Any]:
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 20)}


def _integer(rng: random.Random, _depth: int) -> dict[str, Any]:
    least = rng.choice([None, 0, 1, -20, 17, -999])
    most = None if rng.random() < 0.4 else (least or 0) + rng.choice([0, 5, 93, 1000])
    return {"type": "integer"} | {key: bound for key, bound in (("minimum", least), ("maximum", most)) if bound is not None}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample([*KEYS, *ODD_KEYS], rng.randint(1, 3))
    properties = {name: draw_schema(rng, depth - 1) for name in names}
    return {"type": "object", "properties": properties, "required": [name for name in names if rng.random() < 0.6]}


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randint(0, 2)
    return {"type": "array", "items": draw_schema(rng, depth - 1), "minItems": least, "maxItems": least + rng.randint(0, 3)}


_SCALARS: Final[list[Drawer]] = [
    lambda _rng, _depth: {"type": "string"},
    lambda _rng, _depth: {"type": "string"},
    _bounded,
    _integer,
    lambda rng, _depth: {"type": "string", "pattern": rng.choice(list(PATTERNS))},
    lambda rng, _depth: {"type": "string", "format": rng.choice(list(_OF_FORMATS))},
    lambda rng, _depth: {"type": "number"} | ({"minimum": 0} if rng.random() < 0.5 else {}),
    lambda _rng, _depth: {"type": "boolean"},
    lambda rng, _depth: {"enum": rng.choice(_ENUMS)},
    lambda rng, _depth: {"anyOf": [{"type": rng.choice(["string", "integer", "boolean"])}, {"type": "null"}]},
    lambda rng, _depth: {"type": ["integer", "string"]},
]
_NESTED: Final[list[Drawer]] = [
    _object,
    _array,
    lambda rng, depth: {"type": "array", "prefixItems": [draw_schema(rng, depth - 1), {"type": "integer"}], "items": False},
    lambda rng, depth: {"anyOf": [_object(rng, depth), {"type": "integer"}]},
    lambda _rng, _depth: {"type": "object"},
    lambda rng, depth: {"type": "object", "additionalProperties": draw_schema(rng, depth - 1)},
]


def draw_tools(rng: random.Random) -> list[ToolSpec]:
    """One to four tools."""
    return [
        ToolSpec(name, f"Tool {name}.", {"type": "object", "properties": {}} if rng.random() < 0.1 else _parameters(rng))
        for name in rng.sample(TOOL_NAMES, rng.randint(1, 4))
    ]


def _parameters(rng: random.Random) -> dict[str, Any]:
    names = rng.sample(KEYS, rng.randint(1, 4)) + ([rng.choice(ODD_KEYS)] if rng.random() < 0.1 else [])
    properties = {name: draw_schema(rng) for name in names}
    return {"type": "object", "properties": properties, "required": [name for name in names if rng.random() < 0.6]}


PLAIN: Final = "aZ09 .,-_éß漢😀'/:;?!()"
ESCAPED: Final = PLAIN + '"\\\n\t{}[]'


def draw_value(rng: random.Random, form: Form, letters: str) -> Any:
    """A value in a form; its free texts are of these characters."""
    if isinstance(form, TextForm):
        if form.pattern is not None:
            return rng.choice(MATCHING[form.pattern])
        length = rng.randint(form.least, form.least + 8 if form.most is None else form.most)
        return "".join(rng.choice(letters) for _ in range(length))
    if isinstance(form, NumberForm):
        least = form.least if form.least is not None else 0 if form.positive else min(-40, form.most or 0)
        most = form.most if form.most is not None else max(least, 0) + 1200
        return rng.randint(least, most) if form.integer else round(rng.uniform(least, most), rng.randint(1, 4))
    if isinstance(form, ConstantForm):
        return json.loads(rng.choice(form.values))
    if isinstance(form, ObjectForm):
        if form.extra is not None:
            return {f"k{index}": draw_value(rng, form.extra, letters) for index in range(rng.randint(0, 2))}
        return {
            member.name: draw_value(rng, member.form, letters) for member in form.members if member.required or rng.random() < 0.5
        }
    if isinstance(form, ArrayForm):
        length = rng.randint(form.least, form.most if form.items is None else min(form.most, form.least + 3))
        items = [*form.first, *([form.items] if form.items is not None else []) * length]
        return [draw_value(rng, item, letters) for item in items[:length]]
    if isinstance(form, ChoiceForm):
        return draw_value(rng, rng.choice(form.options), letters)
    assert isinstance(form, AnyForm)
    return rng.choice([None, True, 3, -1.5, "any text", [], {}, [1, "x"], {"k": [None]}])


def damaged(rng: random.Random, value: Any) -> Any:
    """The value with one change, at its top or further inside: another type, a wrong key, a missing or one more member."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        change = rng.choice(["key", "missing", "more", "inside", "inside"])
        rest = {key: item for key, item in value.items() if key != name}
        if change == "missing":
            return rest
        if change == "inside":
            return value | {name: damaged(rng, value[name])}
        return rest | {f"{name}_": value[name]} if change == "key" else value | {"not_there": 1}
    if isinstance(value, list) and value and rng.random() < 0.8:
        return rng.choice([[damaged(rng, value[0]), *value[1:]], value * 5, value[:-1]])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return rng.choice([value * 1000 + 7, -value - 1000, value + 0.5, str(value) + "x"])
    if isinstance(value, str) and rng.random() < 0.7:
        return rng.choice([value[1:], value[:1], value + "!" * 25])
    return rng.choice([None, 12, "wrong", ["wrong"], {"wrong": 1}, False])
