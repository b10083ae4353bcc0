"""The schema of a function and the validation of its arguments, for every kind of signature and annotation."""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import datetime as dt
import enum
import functools
import inspect
import json
import pathlib
import typing
import uuid
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, Required, Self, TypedDict, Unpack

import attrs
import jsonschema_rs
import pytest
import typing_extensions
from pydantic import AfterValidator, BaseModel, Field

from patchbay.errors import ConfigurationError, ToolArgumentsError
from patchbay.schema import FunctionSchema

T = typing.TypeVar("T")


class Price(BaseModel):
    amount: float
    currency: Literal["EUR", "USD"] = "EUR"


class Item(BaseModel):
    name: str
    price: Price
    parts: list[Item] = []


class Closed(BaseModel, extra="forbid"):
    x: int


@dataclass
class Point:
    x: int
    y: int = 0


class Movie(TypedDict):
    title: str


class Extended(typing_extensions.TypedDict):
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


@attrs.define
class Spot:
    x: int


class Outer:
    class Inner(BaseModel):
        a: int

    def method(self, item: Inner): ...


def even(value: int) -> int:
    if value % 2:
        raise ValueError("odd numbers make it slow")
    return value


def function_of(annotation: Any) -> Any:
    def f(a): ...

    f.__annotations__["a"] = annotation
    return f


def schema_of(function: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema = FunctionSchema(function).json_schema
    json.dumps(schema, allow_nan=False)
    jsonschema_rs.Draft202012Validator(schema)  # every $ref resolves
    return schema


def check(function: Any, **arguments: Any) -> dict[str, Any]:
    return FunctionSchema(function).validate("f", json.dumps(arguments))


def complaints(function: Any, raw: str) -> tuple[str, ...]:
    with pytest.raises(ToolArgumentsError) as caught:
        FunctionSchema(function).validate("f", raw)
    return caught.value.details


INTEGERS = {"type": "array", "items": {"type": "integer"}}
ANYTHING = {"type": "array", "items": {}}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list, ANYTHING),
        (list[int], INTEGERS),
        (set[int], {**INTEGERS, "uniqueItems": True}),
        (frozenset[int], {**INTEGERS, "uniqueItems": True}),
        (tuple[int, ...], INTEGERS),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        ),
        (abc.Sequence[int], INTEGERS),
        (abc.Iterable[int], INTEGERS),
        (abc.Collection[int], INTEGERS),
        (abc.Iterator[int], INTEGERS),
        (abc.Generator[int, None, None], INTEGERS),
        (typing.Collection, ANYTHING),
        (typing.Iterator, ANYTHING),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (abc.Mapping[str, list[int]], {"type": "object", "additionalProperties": INTEGERS}),
        (typing.Dict, {"type": "object", "additionalProperties": True}),  # noqa: UP006
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (typing.Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Literal[Color.RED, "none"], {"type": "string", "enum": ["red", "none"]}),
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
        *((each, {}) for each in (Any, object, Self, type[int], typing.Never, abc.Callable[[int], int], Spot)),
    ],
    ids=str,
)
def test_each_annotation_has_its_schema(annotation, expected):
    schema = schema_of(function_of(annotation))
    assert {"a": expected} == schema["properties"]
    assert ["a"] == schema["required"]


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, "3", 3),
        (Literal["x", "y"], "x", "x"),
        (Literal[Color.RED, "none"], "red", Color.RED),
        (Literal[Color.RED, "none"], "none", "none"),
        (Color, "red", Color.RED),
        (Point, {"x": "1"}, Point(1)),
        (Movie, {"title": "t"}, {"title": "t"}),
        (Extended, {"title": "t"}, {"title": "t"}),
        (
            Tree,
            {"name": "n", "size": "3", "below": [{"name": "m", "size": 1}]},
            {"name": "n", "size": 3, "below": [{"name": "m", "size": 1}]},
        ),
        (Pair, [1, 2], Pair(1, 2)),
        (
            Item,
            {"name": "n", "price": {"amount": "1.5"}, "parts": [{"name": "p", "price": {"amount": 2}}]},
            Item(name="n", price=Price(amount=1.5), parts=[Item(name="p", price=Price(amount=2))]),
        ),
        (UserId, 7, 7),
        (dt.date, "2026-01-02", dt.date(2026, 1, 2)),
        (dict[str, list[int]], {"q": ["1"]}, {"q": [1]}),
        (set[int], [1, 1], {1}),
        (tuple[int, str], [1, "z"], (1, "z")),
        (abc.Iterable[int], ["3"], [3]),
        (Optional[range], [1], [1]),  # noqa: UP045
        (Spot, {"x": "any"}, {"x": "any"}),
    ],
)
def test_each_annotation_becomes_a_value_of_its_type(annotation, value, expected):
    read = check(function_of(annotation), a=value)["a"]
    assert (expected, type(expected)) == (read, type(read))


def test_an_iterator_can_be_iterated():
    def f(a: abc.Iterator[int], b: typing.Iterator): ...

    read = check(f, a=["1", 2], b=["x"])
    assert (1, 2, "x") == (next(read["a"]), next(read["a"]), next(read["b"]))


NOT_AN_INTEGER = "must be a valid integer, unable to parse string as an integer"


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Annotated[int, Field(ge=1)], 0, ["/a must be greater than or equal to 1"]),
        (Literal["a", "b"], "c", ["/a must be 'a' or 'b'"]),
        (Literal[Color.RED, "none"], "blue", ["/a must be 'red' or 'none'"]),
        (Closed, {"x": 1, "y": 2}, ["/a/y is not a known property"]),
        (Tree, {"name": "n"}, ["/a must have required property 'size'"]),
        (Item, {"price": {"amount": 1}}, ["/a must have required property 'name'"]),
        (Item, {"name": "n", "price": {"amount": 1, "currency": "X"}}, ["/a/price/currency must be 'EUR' or 'USD'"]),
        (Annotated[int, AfterValidator(even)], 3, ["/a is not accepted: odd numbers make it slow"]),
        # The branch of a union is no part of the path.
        (int | list[int], [1, "q"], ["/a must be a valid integer", f"/a/1 {NOT_AN_INTEGER}"]),
        # Items are checked before the function is called.
        (abc.Iterable[int], ["x"], [f"/a/0 {NOT_AN_INTEGER}"]),
        (list[abc.Iterable[int]], [["x"]], [f"/a/0/0 {NOT_AN_INTEGER}"]),
        (abc.Iterator[int], ["x"], [f"/a/0 {NOT_AN_INTEGER}"]),
        (abc.Generator[int, None, None], ["x"], [f"/a/0 {NOT_AN_INTEGER}"]),
    ],
)
def test_error_messages_name_the_path_and_the_expected_type(annotation, value, expected):
    assert expected == list(complaints(function_of(annotation), json.dumps({"a": value})))


def test_required_parameters_are_those_without_a_default():
    def f(a: int, b: str = "x"): ...

    properties = {"a": {"type": "integer"}, "b": {"type": "string", "default": "x"}}
    assert {"type": "object", "properties": properties, "required": ["a"]} == schema_of(f)
    assert {"a": 1, "b": "x"} == check(f, a=1, unknown=2)
    assert ("(root) must have required property 'a'",) == complaints(f, "")


@pytest.mark.parametrize(
    "annotation",
    [
        Optional[int],  # noqa: UP045
        int | None,
        "int | None",
        Annotated[int | None, Field(ge=0)],
        Literal[3, None],  # noqa: PYI061
        typing_extensions.TypeAliasType("Maybe", int | None),
        Optional[range],  # noqa: UP045
    ],
    ids=str,
)
def test_optional_without_a_default_accepts_null_and_may_be_left_out(annotation):
    f = function_of(annotation)
    assert "required" not in schema_of(f)
    for raw in ("", "  ", "{}", "null", '{"a": null}'):
        assert {"a": None} == FunctionSchema(f).validate("f", raw)
    assert {"a": 3} == check(f, a=3)


def test_nested_and_recursive_models_have_their_definitions_at_the_root():
    def f(item: Item, spare: Item | None = None): ...

    schema = schema_of(f)
    assert {"$ref": "#/$defs/Item"} == schema["properties"]["item"]
    assert {"Item", "Price"} == set(schema["$defs"])


@pytest.mark.parametrize("annotation", [Tree, list[Tree], dict[str, Tree], Tree | None, Annotated[Tree, Field(description="t")]])
def test_typed_dicts_are_read_at_any_depth_and_from_any_module(annotation):
    tree = schema_of(function_of(annotation))["$defs"]["Tree"]
    assert ({"name", "size", "below"}, ["name", "size"]) == (set(tree["properties"]), sorted(tree["required"]))
    assert {"$ref": "#/$defs/Tree"} == tree["properties"]["below"]["items"]


def test_keywords_unpacked_from_a_typed_dict_are_parameters_of_their_own():
    def f(city: str, **options: Unpack[Options]): ...

    schema = schema_of(f)
    assert ({"city", "unit", "days"}, ["city", "unit"]) == (set(schema["properties"]), schema["required"])
    assert {"city": "x", "unit": "C"} == check(f, city="x", unit="C", other=1)
    assert {"city": "x", "unit": "C", "days": 2} == check(f, city="x", unit="C", days="2")


def test_positional_arguments_unpacked_from_a_tuple_are_that_tuple():
    def f(*args: *tuple[int, str]): ...
    def g(*args: *tuple[int, ...]): ...

    assert {"args": (1, "a")} == check(f, args=["1", "a"])
    assert ["args"] == schema_of(f)["required"]
    assert {"args": ()} == check(g)


def test_variable_and_positional_only_parameters_are_part_of_the_schema():
    def f(a: int, /, *args: int, b: int, **kwargs: int): ...

    schema = schema_of(f)
    assert {"a", "args", "b"} == set(schema["properties"])
    assert {"type": "integer"} == schema["additionalProperties"]
    assert {"a": 1, "args": [2, 3], "b": 4, "z": 5} == check(f, a=1, args=["2", 3], b=4, z="5")
    assert (f"/z {NOT_AN_INTEGER}",) == complaints(f, '{"a":1,"b":1,"z":"q"}')


def test_arguments_that_a_partial_has_bound_are_not_the_models_to_choose():
    def f(a: int, key: str, *, n: int = 2, **others: int): ...

    bound = functools.partial(functools.partial(f, key="secret"), n=5)
    schema = schema_of(bound)
    assert ["a"] == list(schema["properties"])
    assert "secret" not in json.dumps(schema)
    assert {"a": 1, "z": 2} == FunctionSchema(bound).validate("f", '{"a": 1, "key": 7, "n": 9, "z": 2}')
    assert {"a": 1, "z": 2} == FunctionSchema(bound).select("f", '{"a": 1, "key": "mine", "z": 2}')


def test_wrapped_callables_keep_their_hints():
    class Tools:
        def method(self, a: int, b: str | None = None): ...

        def __call__(self, a: int): ...

    def f(a: int, b: int): ...

    @functools.wraps(f)
    def wrapped(*args, **kwargs): ...

    def signed(*args, **kwargs): ...

    signed.__signature__ = inspect.Signature([inspect.Parameter("a", inspect.Parameter.KEYWORD_ONLY, annotation=int)])
    assert {"a", "b"} == set(schema_of(Tools().method)["properties"])
    assert {"type": "integer"} == schema_of(wrapped)["properties"]["b"]
    for item in (Tools(), functools.partial(f, b=2), signed):
        assert {"type": "integer"} == schema_of(item)["properties"]["a"]


def test_parameter_names_reserved_by_pydantic_are_allowed():
    def f(copy: int, schema: int, model_x: int, _hidden: int, self_: int, json: int, p0: int): ...

    names = list(schema_of(f)["properties"])
    assert ["copy", "schema", "model_x", "_hidden", "self_", "json", "p0"] == names
    assert dict.fromkeys(names, 1) == check(f, **dict.fromkeys(names, 1))


def test_a_class_inside_the_methods_class_is_found():
    assert ["a"] == list(schema_of(Outer().method)["$defs"]["Inner"]["properties"])


@pytest.mark.parametrize("wrap", [lambda kind: kind, lambda kind: list[kind] | None])
def test_a_local_class_that_names_another_local_class_is_refused_with_the_way_out(wrap):
    def tool_module():
        @dataclass
        class Inner:
            q: int

        @dataclass
        class Outer:
            inner: Inner

        return Outer

    with pytest.raises(ConfigurationError, match=r"parameter 'a' .*`Inner`.* top level"):
        schema_of(function_of(wrap(tool_module())))


def test_an_annotation_that_cannot_work_is_refused_by_its_parameters_name():
    with pytest.raises(ConfigurationError, match="'a'"):
        schema_of(function_of(Annotated[dict, Field(discriminator="kind")]))


def test_an_inexpressible_or_unresolvable_type_accepts_anything_and_spares_the_others():
    def f(a: NoSuchName, b: int, c: Any = Spot(1)): ...  # noqa: F821, B008

    f.__annotations__["c"] = Spot
    assert {"a": {}, "b": {"type": "integer"}, "c": {}} == schema_of(f)["properties"]
    assert {"a": [1], "b": 2, "c": Spot(1)} == check(f, a=[1], b="2")
    assert (f"/b {NOT_AN_INTEGER}",) == complaints(f, '{"a": 1, "b": "x"}')


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


def test_defaults_that_are_not_json_stay_the_functions_own():
    marker, infinity = object(), float("inf")

    def f(
        a: int,
        b: Any = marker,
        c: list[int] = Field(default_factory=list),  # noqa: B008
        d: int = Field(5, le=9),
        e: float = infinity,
        g: list[float] = [float("nan")],  # noqa: B006
    ): ...

    read = check(f, a=1)
    assert {"a": 1, "b": marker, "c": [], "d": 5, "e": infinity} == {key: read[key] for key in "abcde"}
    schema = schema_of(f)
    assert {"default": 5, "maximum": 9, "type": "integer"} == schema["properties"]["d"]
    assert ({"type": "number"}, ["a"]) == (schema["properties"]["e"], schema["required"])


def test_the_definition_of_a_generic_model_has_no_title():
    page = {"type": "object", "properties": {"items": INTEGERS}, "required": ["items"]}
    assert {"Page_int_": page} == schema_of(function_of(Page[int]))["$defs"]


def test_a_builtin_without_a_signature_is_refused_with_the_way_out():
    with pytest.raises(ConfigurationError, match="parameters="):
        schema_of(max)


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
    (line,) = complaints(function_of(Any), raw)
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
