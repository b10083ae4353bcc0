"""The schema of a function and the validation of its arguments, for every kind of signature and annotation."""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import datetime as dt
import enum
import functools
import json
import pathlib
import typing
import uuid
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, Required, Self, TypedDict, Unpack

import attrs
import jsonschema_rs
import msgspec
import pytest
import typing_extensions
from pydantic import BaseModel, Field

from patchbay.errors import ConfigurationError, ToolArgumentsError
from patchbay.schema import FunctionSchema

T = typing.TypeVar("T")


class Price(BaseModel):
    """A price."""

    amount: float
    currency: Literal["EUR", "USD"] = "EUR"


class Item(BaseModel):
    name: str
    price: Price
    parts: list[Item] = []


@dataclass
class Point:
    x: int
    y: int = 0


class Movie(TypedDict):
    title: str


class Pair(NamedTuple):
    left: int
    right: int


class Page(BaseModel, typing.Generic[T]):
    items: list[T]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


UserId = NewType("UserId", int)


class Extended(typing_extensions.TypedDict):
    title: str


class Base(TypedDict):
    """A node."""

    name: Required[str]


class Tree(Base, total=False):
    below: list[Tree]
    size: Required[int]


class Options(TypedDict):
    """What may be set."""

    unit: Literal["C", "F"]
    days: NotRequired[int]


def _above_zero(_instance: Any, _field: Any, value: int) -> None:
    if value < 0:
        raise TypeError("must be above 0")


@attrs.define
class Spot:
    _x: int = attrs.field(validator=_above_zero)
    tags: list[str] = attrs.field(factory=list)


@attrs.define
class Parcel:
    at: Spot
    inside: list[Parcel] = attrs.field(factory=list)


class Unit(msgspec.Struct):
    size: int


class Outer:
    class Inner(BaseModel):
        a: int

    def method(self, item: Inner): ...


def schema_of(function: Any) -> dict[str, Any]:
    schema = FunctionSchema(function).json_schema
    json.dumps(schema)
    jsonschema_rs.Draft202012Validator(schema)  # every $ref resolves
    return schema


def check(function: Any, **arguments: Any) -> dict[str, Any]:
    return FunctionSchema(function).validate("f", json.dumps(arguments))


def complaints(function: Any, raw: str) -> tuple[str, ...]:
    with pytest.raises(ToolArgumentsError) as caught:
        FunctionSchema(function).validate("f", raw)
    return caught.value.details


def test_required_parameters_are_those_without_a_default():
    def f(a: int, b: str = "x"): ...

    assert schema_of(f) == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string", "default": "x"}},
        "required": ["a"],
    }


@pytest.mark.parametrize(
    "annotation",
    [
        Optional[int],  # noqa: UP045
        int | None,
        "int | None",
        Annotated[int | None, Field(ge=0)],
        Literal[3, None],  # noqa: PYI061
        typing_extensions.TypeAliasType("Maybe", int | None),
    ],
)
def test_optional_without_a_default_accepts_null_and_may_be_left_out(annotation):
    def f(a): ...

    f.__annotations__["a"] = annotation
    assert "required" not in schema_of(f)
    assert {"a": None} == check(f)
    assert {"a": None} == check(f, a=None)
    assert {"a": 3} == check(f, a=3)


def test_nested_and_recursive_models_have_their_definitions_at_the_root():
    def f(item: Item, spare: Item | None = None): ...

    schema = schema_of(f)
    assert {"$ref": "#/$defs/Item"} == schema["properties"]["item"]
    assert {"Item", "Price"} == set(schema["$defs"])
    assert "$defs" not in schema["properties"]["item"]
    given = check(f, item={"name": "n", "price": {"amount": "1.5"}, "parts": [{"name": "p", "price": {"amount": 2}}]})
    assert Item(name="n", price=Price(amount=1.5), parts=[Item(name="p", price=Price(amount=2))]) == given["item"]


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list, {"type": "array", "items": {}}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        (frozenset[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        ),
        (abc.Sequence[int], {"type": "array", "items": {"type": "integer"}}),
        (abc.Iterable[int], {"type": "array", "items": {"type": "integer"}}),
        (abc.Collection[int], {"type": "array", "items": {"type": "integer"}}),
        (abc.Iterator[int], {"type": "array", "items": {"type": "integer"}}),
        (abc.Generator[int, None, None], {"type": "array", "items": {"type": "integer"}}),
        (typing.Collection, {"type": "array", "items": {}}),
        (typing.Iterator, {"type": "array", "items": {}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (
            abc.Mapping[str, list[int]],
            {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
        ),
        (typing.Dict, {"type": "object", "additionalProperties": True}),  # noqa: UP006
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (typing.Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Annotated[int, Field(ge=1, le=5)], {"type": "integer", "minimum": 1, "maximum": 5}),
        (Annotated[str, Field(pattern="^a", max_length=9)], {"type": "string", "pattern": "^a", "maxLength": 9}),
        (Annotated[str, "the city"], {"type": "string", "description": "the city"}),
        (Annotated[str, typing_extensions.Doc("the city")], {"type": "string", "description": "the city"}),
        (dt.datetime, {"type": "string", "format": "date-time"}),
        (dt.date, {"type": "string", "format": "date"}),
        (dt.time, {"type": "string", "format": "time"}),
        (dt.timedelta, {"type": "string", "format": "duration"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (pathlib.Path, {"type": "string", "format": "path"}),
        (bytes, {"type": "string", "format": "binary"}),
        (UserId, {"type": "integer"}),
        (typing.LiteralString, {"type": "string"}),
        (typing.Final[int], {"type": "integer"}),
        (typing.ClassVar[int], {"type": "integer"}),
        (dataclasses.InitVar[int], {"type": "integer"}),
        (Any, {}),
        (object, {}),
        (Self, {}),
        (type[int], {}),
        (typing.Never, {}),
        (abc.Callable[[int], int], {}),
    ],
    ids=str,
)
def test_each_annotation_has_its_schema(annotation, expected):
    def f(a): ...

    f.__annotations__["a"] = annotation
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema = schema_of(f)
    assert expected == schema["properties"]["a"]
    assert ["a"] == schema["required"]


@pytest.mark.parametrize("annotation", [Tree, list[Tree], dict[str, Tree], Tree | None, Annotated[Tree, Field(description="t")]])
def test_typed_dicts_are_read_at_any_depth_and_from_any_module(annotation):
    def f(a): ...

    f.__annotations__["a"] = annotation
    tree = schema_of(f)["$defs"]["Tree"]
    assert {"name", "size", "below"} == set(tree["properties"])
    assert ["name", "size"] == sorted(tree["required"])
    assert {"$ref": "#/$defs/Tree"} == tree["properties"]["below"]["items"]
    if annotation is Tree:
        read = check(f, a={"name": "n", "size": "3", "below": [{"name": "m", "size": 1}]})
        assert {"name": "n", "size": 3, "below": [{"name": "m", "size": 1}]} == read["a"]
        assert ("/a must have required property 'size'",) == complaints(f, '{"a": {"name": "n"}}')


def test_keywords_unpacked_from_a_typed_dict_are_parameters_of_their_own():
    def f(city: str, **options: Unpack[Options]): ...

    schema = schema_of(f)
    assert {"city", "unit", "days"} == set(schema["properties"])
    assert ["city", "unit"] == schema["required"]
    assert {"city": "x", "unit": "C"} == check(f, city="x", unit="C", other=1)
    assert {"city": "x", "unit": "C", "days": 2} == check(f, city="x", unit="C", days="2")


def test_positional_arguments_unpacked_from_a_tuple_are_that_tuple():
    def f(*args: *tuple[int, str]): ...
    def g(*args: *tuple[int, ...]): ...

    assert {"args": (1, "a")} == check(f, args=["1", "a"])
    assert ["args"] == schema_of(f)["required"]
    assert {"args": ()} == check(g)


def test_a_class_inside_the_methods_class_is_found():
    assert ["a"] == list(schema_of(Outer().method)["$defs"]["Inner"]["properties"])


def test_arguments_that_a_partial_has_bound_are_not_the_models_to_choose():
    def f(a: int, key: str, *, n: int = 2, **others: int): ...

    bound = functools.partial(functools.partial(f, key="secret"), n=5)
    schema = schema_of(bound)
    assert ["a"] == list(schema["properties"])
    assert "secret" not in json.dumps(schema)
    assert {"a": 1, "z": 2} == FunctionSchema(bound).validate("f", '{"a": 1, "key": 7, "n": 9, "z": 2}')
    assert {"a": 1, "z": 2} == FunctionSchema(bound).select("f", '{"a": 1, "key": "mine", "z": 2}')


def test_a_signature_given_by_a_decorator_brings_its_annotations():
    import inspect

    def f(*args, **kwargs): ...

    f.__signature__ = inspect.Signature([inspect.Parameter("a", inspect.Parameter.KEYWORD_ONLY, annotation=int)])
    assert {"a": {"type": "integer"}} == schema_of(f)["properties"]


def test_an_annotation_that_cannot_work_is_refused_by_its_parameters_name():
    def f(good: int, bad: Any): ...

    f.__annotations__["bad"] = Annotated[dict, Field(discriminator="kind")]
    with pytest.raises(ConfigurationError, match="'bad'"):
        _ = FunctionSchema(f).json_schema


def test_every_kind_of_annotation_becomes_values_of_its_type():
    def f(
        a: Literal["x", "y"],
        b: Color,
        c: Annotated[int, Field(ge=1)],
        d: Point,
        e: Movie,
        n: Extended,
        g: Pair,
        h: UserId,
        i: dt.date,
        j: dict[str, list[int]],
        k: set[int],
        m: tuple[int, str],
    ): ...

    schema_of(f)
    given = {
        "a": "x",
        "b": "red",
        "c": "3",
        "d": {"x": 1},
        "e": {"title": "t"},
        "n": {"title": "t"},
        "g": [1, 2],
        "h": 7,
        "i": "2026-01-02",
    }
    given |= {"j": {"q": ["1"]}, "k": [1, 1], "m": [1, "z"]}
    read = check(f, **given)
    assert ("x", Color.RED, 3, Point(1), {"title": "t"}, Pair(1, 2), 7) == tuple(read[key] for key in "abcdegh")
    assert (dt.date(2026, 1, 2), {"q": [1]}, {1}, (1, "z")) == tuple(read[key] for key in "ijkm")


def test_parameter_names_reserved_by_pydantic_are_allowed():
    def f(copy: int, schema: int, model_x: int, _hidden: int, self_: int, json: int, p0: int): ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = list(schema_of(f)["properties"])
    assert ["copy", "schema", "model_x", "_hidden", "self_", "json", "p0"] == names
    assert dict.fromkeys(names, 1) == check(f, **dict.fromkeys(names, 1))


@pytest.mark.parametrize("wrap", [lambda kind: kind, lambda kind: list[kind] | None])
@pytest.mark.parametrize("make", [dataclasses.dataclass, attrs.define])
def test_a_local_class_that_names_another_local_class_is_refused_with_the_way_out(make, wrap):
    def tool_module():
        @make
        class Inner:
            q: int

        @make
        class Outer:
            inner: Inner

        return Outer

    def f(a, b: int): ...

    f.__annotations__["a"] = wrap(tool_module())
    with pytest.raises(ConfigurationError, match=r"parameter 'a' .* 'Inner', .* top level"):
        schema_of(f)


def test_a_name_that_cannot_be_resolved_accepts_anything_and_spares_the_others():
    def f(a: NoSuchName, b: int): ...  # noqa: F821

    assert {"a": {}, "b": {"type": "integer"}} == schema_of(f)["properties"]
    assert {"a": [1], "b": 2} == check(f, a=[1], b="2")


def test_attrs_and_msgspec_parameters_are_objects_and_passed_as_instances():
    def f(parcel: Parcel, unit: Unit = Unit(1)): ...  # noqa: B008

    tags = {"items": {"type": "string"}, "type": "array"}
    spot = {"type": "object", "properties": {"x": {"type": "integer"}, "tags": tags}, "required": ["x"]}
    unit = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    parcel = {"type": "object", "properties": {"at": {"$ref": "#/$defs/Spot"}, "inside": {"items": {}, "type": "array"}}}
    assert {"Parcel": {**parcel, "required": ["at"]}, "Spot": spot, "Unit": unit} == schema_of(f)["$defs"]
    assert {"parcel": Parcel(Spot(1)), "unit": Unit(2)} == check(f, parcel={"at": {"x": "1"}}, unit={"size": 2})
    assert {"parcel": Parcel(Spot(1, ["a"])), "unit": Unit(1)} == check(f, parcel={"at": {"x": 1, "tags": ["a"]}})
    assert complaints(f, '{"parcel": {"at": {"x": "one"}}}')[0].startswith("/parcel/at/x must be a valid integer")
    assert "/parcel/at is not accepted: must be above 0" == complaints(f, '{"parcel": {"at": {"x": -1}}}')[0]


def test_optional_parameter_stays_optional_without_a_json_default():
    def f(a): ...

    f.__annotations__["a"] = Optional[range]  # noqa: UP045
    assert {"a": None} == check(f)
    assert {"a": [1]} == check(f, a=[1])


@pytest.mark.parametrize(
    "annotation", [abc.Iterable[int], list[abc.Iterable[int]], abc.Iterator[int], abc.Generator[int, None, None]]
)
def test_each_item_is_checked_before_the_function_is_called(annotation):
    def f(a): ...

    f.__annotations__["a"] = annotation
    bad = ["x"] if typing.get_origin(annotation) is not list else [["x"]]
    assert complaints(f, json.dumps({"a": bad}))[0].startswith(f"/a/0{'/0' if bad != ['x'] else ''} must be a valid integer")


def test_an_iterator_can_be_iterated():
    def f(a: abc.Iterator[int], b: typing.Iterator, c: abc.Iterable[int]): ...

    read = check(f, a=["1", 2], b=["x"], c=["3"])
    assert (1, 2, "x", [3]) == (next(read["a"]), next(read["a"]), next(read["b"]), list(read["c"]))


def test_an_enum_member_in_a_literal_is_written_by_its_value():
    def f(a: Literal[Color.RED, "none"]): ...

    assert {"type": "string", "enum": ["red", "none"]} == schema_of(f)["properties"]["a"]
    assert ({"a": Color.RED}, {"a": "none"}) == (check(f, a="red"), check(f, a="none"))
    assert ("/a must be 'red' or 'none'",) == complaints(f, '{"a": "blue"}')


def test_default_may_be_in_the_annotation():
    def f(
        a: Annotated[int, Field(default=4, le=9)],
        b: Annotated[list[int], Field(default_factory=list)],
        c: Annotated[int | None, Field(5)],
        d: Annotated[int, Field(default=4)] = 6,
    ): ...

    assert {"a": 4, "b": [], "c": 5, "d": 6} == check(f)
    schema = schema_of(f)
    assert "required" not in schema
    assert {"type": "integer", "maximum": 9, "default": 4} == schema["properties"]["a"]


def test_the_definition_of_a_generic_model_has_no_title():
    def f(a: Page[int]): ...

    assert {
        "Page_int_": {
            "type": "object",
            "properties": {"items": {"type": "array", "items": {"type": "integer"}}},
            "required": ["items"],
        }
    } == schema_of(f)["$defs"]


def test_a_type_that_json_cannot_express_accepts_anything_and_spares_the_others():
    class Opaque: ...

    def f(a: Opaque, b: int, c: Opaque = Opaque()): ...  # noqa: B008

    f.__annotations__ = {"a": Opaque, "b": int, "c": Opaque}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {"a": {}, "b": {"type": "integer"}, "c": {}} == schema_of(f)["properties"]
    assert ("/b must be a valid integer, unable to parse string as an integer",) == complaints(f, '{"a": 1, "b": "x"}')


def test_variable_and_positional_only_parameters_are_part_of_the_schema():
    def f(a: int, /, *args: int, b: int, **kwargs: int): ...

    schema = schema_of(f)
    assert {"a", "args", "b"} == set(schema["properties"])
    assert {"type": "integer"} == schema["additionalProperties"]
    assert {"a": 1, "args": [2, 3], "b": 4, "z": 5} == check(f, a=1, args=["2", 3], b=4, z="5")
    assert ("/z must be a valid integer, unable to parse string as an integer",) == complaints(f, '{"a":1,"b":1,"z":"q"}')


def test_wrapped_callables_keep_their_hints():
    class Tools:
        def method(self, a: int, b: str | None = None): ...

        def __call__(self, a: int): ...

    def f(a: int, b: int): ...

    @functools.wraps(f)
    def wrapped(*args, **kwargs): ...

    assert {"a", "b"} == set(schema_of(Tools().method)["properties"])
    assert {"a": {"type": "integer"}} == schema_of(Tools())["properties"]
    assert {"type": "integer"} == schema_of(functools.partial(f, b=2))["properties"]["a"]
    assert {"type": "integer"} == schema_of(wrapped)["properties"]["b"]


def test_defaults_that_are_not_json_stay_the_functions_own():
    marker = object()

    def f(a: int, b: Any = marker, c: list[int] = Field(default_factory=list), d: int = Field(5, le=9)): ...  # noqa: B008

    assert {"a": 1, "b": marker, "c": [], "d": 5} == check(f, a=1)
    assert {"default": 5, "maximum": 9, "type": "integer"} == schema_of(f)["properties"]["d"]


def test_arguments_that_the_function_does_not_have_are_dropped():
    def f(a: int): ...

    assert {"a": 1} == check(f, a=1, b=2)


def test_a_builtin_without_a_signature_is_refused_with_the_way_out():
    with pytest.raises(ConfigurationError, match="parameters="):
        _ = FunctionSchema(max).json_schema


def test_error_messages_name_the_path_and_the_expected_type():
    def f(item: Item, count: Annotated[int, Field(ge=1)] = 1, mode: Literal["a", "b"] = "a", x: int | list[int] = 0): ...

    assert (
        "/item must have required property 'name'",
        "/item/price/currency must be 'EUR' or 'USD'",
        "/count must be greater than or equal to 1",
        "/mode must be 'a' or 'b'",
    ) == complaints(f, '{"item":{"price":{"amount":1,"currency":"X"}},"count":0,"mode":"c"}')
    assert ("(root) must have required property 'item'",) == complaints(f, "")
    # The branch of a union is not part of the path.
    lines = complaints(f, '{"item":{"name":"n","price":{"amount":1}},"x":[1,"q"]}')
    assert {"/x", "/x/1"} == {line.split()[0] for line in lines}


def test_unknown_key_of_a_closed_model_is_an_error():
    class Closed(BaseModel, extra="forbid"):
        x: int

    def f(a): ...

    f.__annotations__["a"] = Closed
    assert ("/a/y is not a known property",) == complaints(f, '{"a": {"x": 1, "y": 2}}')


def test_a_validator_that_raises_is_a_complaint_with_its_words():
    from pydantic import AfterValidator

    def even(value: int) -> int:
        if value % 2:
            raise ValueError("odd numbers make it slow")
        return value

    def f(a: int): ...

    f.__annotations__["a"] = Annotated[int, AfterValidator(even)]
    assert ("/a is not accepted: odd numbers make it slow",) == complaints(f, '{"a": 3}')


@pytest.mark.parametrize("raw", ["", "  ", "{}", "null"])
def test_no_arguments_can_be_written_in_several_ways(raw):
    def f(a: int = 1): ...

    assert {"a": 1} == FunctionSchema(f).validate("f", raw)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("[1]", "(root) must be object, not array: [1]"),
        ('{"a": 1', "not valid JSON (Expecting ',' delimiter at line 1, column 8)"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": 1e999}', "out of range"),
        ('{"a":' * 200 + "1" + "}" * 200, "nested"),
        ("[" * 100_000, "nested"),
    ],
)
def test_arguments_other_than_one_object_are_one_error(raw, expected):
    def f(a: Any): ...

    (line,) = complaints(f, raw)
    assert expected in line
    assert len(line) < 500


def test_integers_keep_every_digit_and_lone_surrogates_are_accepted():
    def f(a: int = 0, b: str = ""): ...

    assert 12345678901234567890123 == FunctionSchema(f).validate("f", '{"a": 12345678901234567890123}')["a"]
    assert "\ud800" == FunctionSchema(f).validate("f", '{"b": "\\ud800"}')["b"]
    assert "\ud800" == FunctionSchema(f).validate("f", '{"b": "\ud800"}')["b"]


def test_unchecked_arguments_are_only_read_and_sorted_out():
    def f(a: int, b: int | None): ...

    assert {"a": "5", "b": None} == FunctionSchema(f).select("f", '{"a": "5", "z": 1}')
    with pytest.raises(ToolArgumentsError):
        FunctionSchema(f).select("f", "nope")


def test_pydantic_schema_is_built_once(monkeypatch):
    from patchbay.schema import pydantic_model

    built = []
    original = pydantic_model.create_model
    monkeypatch.setattr(pydantic_model, "create_model", lambda *args, **fields: built.append(1) or original(*args, **fields))

    def f(a: int): ...

    schema = FunctionSchema(f)
    assert [] == built
    for _ in range(3):
        _ = schema.json_schema
        schema.validate("f", '{"a": 1}')
    assert [1] == built


def test_a_default_that_json_has_no_number_for_is_left_out_of_the_schema():
    def near(x: int, limit: float = float("inf"), steps: list[float] = [float("nan")], at: float = 1.5):  # noqa: B006
        """Look."""

    schema = FunctionSchema(near).json_schema
    json.dumps(schema, allow_nan=False)
    assert ["x"] == schema["required"]
    assert 1.5 == schema["properties"]["at"]["default"]
    assert float("inf") == FunctionSchema(near).validate("near", '{"x": 1}')["limit"]
