"""Functions as tools: declaration, validation and binding of arguments."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

import pytest

from patchbay import tool
from patchbay.errors import ConfigurationError, ToolArgumentsError
from patchbay.tools import FunctionTool, Tool, ToolContext, Validation, as_tool, collect_tools
from support.running import run

if TYPE_CHECKING:
    import patchbay.tools as elsewhere

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def call(item: Tool, raw: str = "{}", validation: Validation | None = Validation()) -> Any:  # noqa: B008
    context = ToolContext(call_id="c1", name=item.name, iteration=2)
    return run(item.run(item.validate(raw, validation), context))


def test_decorator_takes_name_and_description_from_the_function():
    @tool
    def get_weather(city: str) -> str:
        """Tell the weather.

        Today's only.
        """
        return f"sunny in {city}"

    assert isinstance(get_weather, FunctionTool)
    assert ("get_weather", "Tell the weather.\n\nToday's only.") == (get_weather.name, get_weather.description)
    assert "sunny in Rome" == call(get_weather, '{"city": "Rome"}')
    assert "sunny in Oslo" == get_weather("Oslo")
    assert "get_weather" == get_weather.__name__


def test_decorator_options_override_the_function():
    @tool(name="weather", description="", parameters=SCHEMA, timeout=3)
    def get_weather(city: str) -> str:
        """Not this."""
        return city

    assert ("weather", "", SCHEMA, 3) == (get_weather.name, get_weather.description, get_weather.parameters, get_weather.timeout)


def test_the_seeds_form_with_a_schema_and_a_handler():
    weather = tool(name="weather", description="Tell it.", parameters=SCHEMA, handler=lambda city: {"in": city})
    assert {"in": "Rome"} == call(weather, '{"city": "Rome"}')
    assert {"name": "weather", "description": "Tell it.", "parameters": SCHEMA} == weather.spec.to_openai()["function"]
    with pytest.raises(ToolArgumentsError, match="required property 'city'"):
        call(weather)


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (lambda city: city, "Rome"),
        (lambda **given: given["city"], "Rome"),
        (lambda args: args["city"], "Rome"),
        (lambda args, /: args["city"], "Rome"),
        (lambda args, context: (args["city"], context.call_id), ("Rome", "c1")),
        (lambda city, tool_context: (city, tool_context.call_id), ("Rome", "c1")),
        (lambda args, tool_context: (args["city"], tool_context.iteration), ("Rome", 2)),
        (lambda city, unit="C": city + unit, "RomeC"),
    ],
)
def test_handler_with_a_schema_takes_keywords_or_the_dict(handler, expected):
    item = tool(name="w", parameters=SCHEMA, handler=handler)
    item.check()
    assert expected == call(item, '{"city": "Rome"}')


class SomeTool(Tool):
    async def run(self, arguments, context): ...


REMOTE = {"$ref": "http://127.0.0.1:1/x"}


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: tool(name="w", parameters=SCHEMA, handler=lambda city, secret: 1).check(), ConfigurationError, "'secret'"),
        (lambda: tool(name="w", parameters=REMOTE, handler=lambda args: 1).check(), ConfigurationError, "'w'"),
        (lambda: tool(print, handler=print), TypeError, "not both"),
        (lambda: tool(handler=3), TypeError, "callable"),
        (lambda: tool(lambda a: a), ConfigurationError, "name="),
        (lambda: tool(classmethod(lambda cls: 1)), TypeError, r"tool\(Shop\.open\)"),
        *((partial(tool, handler=dict, name=name), ConfigurationError, "name") for name in ("", " ", 3)),
        *(
            (partial(tool, name="t", handler=dict, timeout=limit), ConfigurationError, "positive number of seconds")
            for limit in (0, -1, float("nan"), float("inf"), "5", True)
        ),
        (partial(tool, name="t", handler=dict, max_parallel=0), ConfigurationError, "max_parallel"),
        *((partial(collect_tools, [item]), (TypeError, ConfigurationError), None) for item in (max, dict, int)),
        (partial(collect_tools, [print, print]), ConfigurationError, "'print'"),
        *((partial(collect_tools, items), TypeError, "list") for items in (print, "f", {"f": print}, None)),
        (partial(as_tool, {"type": "function"}), TypeError, "handler="),
        (partial(as_tool, SomeTool), TypeError, "class"),
        *((partial(as_tool, item), TypeError, "function or a Tool") for item in ("get_weather", None, 7)),
    ],
)
def test_what_can_be_no_tool_is_refused_with_the_way_out(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_context_is_found_by_name_or_annotation_and_not_in_the_schema():
    def by_name(a: int, tool_context):
        return a, tool_context.name

    def by_type(a: int, ctx: ToolContext):
        return a, ctx.name

    def by_optional(a: int, ctx: ToolContext | None = None):
        return a, ctx.name

    async def by_type_async(ctx: ToolContext, a: int):
        return a, ctx.name

    for function in (by_name, by_type, by_optional, by_type_async):
        item = tool(function)
        assert ["a"] == list(item.parameters["properties"])
        # A model that fills it in changes nothing.
        assert (1, function.__name__) == call(item, '{"a": 1, "tool_context": 5, "ctx": 5}')


def test_variable_arguments_are_not_a_context_under_any_name():
    def rest(a: int, *tool_context: int, **ctx: Any):
        return a, tool_context, ctx

    assert (1, (2,), {"b": 3}) == call(tool(rest), '{"a": 1, "tool_context": ["2"], "b": 3}')


def test_positional_only_variable_and_keyword_only_parameters_are_filled():
    def f(a, b=2, /, c=3, *args: int, d, tool_context, **others):
        return a, b, c, args, d, tool_context.call_id, others

    assert (1, 2, 3, (7, 8), 4, "c1", {"z": 5}) == call(tool(f), '{"a": 1, "args": [7, 8], "d": 4, "z": 5}')


def test_singledispatch_function_gets_positional_arguments():
    @functools.singledispatch
    def double(value: int | str, times: int = 2) -> Any:
        """Double it."""
        raise NotImplementedError

    @double.register
    def _(value: int, times: int = 2) -> Any:
        return value * times

    assert 6 == call(tool(double), '{"value": 3}')


def test_a_callable_object_is_described_by_its_class():
    class Search:
        """Search the web."""

        def __call__(self, query: str) -> str:
            return query

    class Said(Search):
        def __call__(self, query: str) -> str:
            """Say it."""
            return query

    assert "Search the web." == tool(Search()).description
    assert "Search the web." == tool(handler=functools.partial(Search(), query="x"), name="found").description
    assert "Say it." == tool(Said()).description


def test_docstring_of_keyword_arguments_is_in_the_schema():
    @tool
    def book(city: str, **extras: int) -> None:
        """Book.

        Args:
            city: where to
            **extras: how many of each extra
        """

    assert {"type": "integer", "description": "how many of each extra"} == book.parameters["additionalProperties"]


def _made_elsewhere(*, in_closure: bool = False) -> Any:
    @dataclass
    class Order:
        item: str

    def place(order: Order, tool_context: NotImported) -> Any:  # type: ignore[name-defined]  # noqa: F821
        return order if not in_closure else Order("other")

    def place_plainly(order: Order) -> Any:
        return order

    return place if in_closure else place_plainly


def test_postponed_annotations_of_local_types_are_found_in_the_closure():
    made = tool(_made_elsewhere(in_closure=True))
    assert ["item"] == list(made.parameters["$defs"]["Order"]["properties"])
    assert "other" == call(made, '{"order": {"item": "lamp"}}').item


def test_postponed_annotations_of_lost_local_types_are_refused_when_the_tool_is_made():
    with pytest.raises(
        ConfigurationError, match=r"'order' of tool 'place_plainly' .* annotation 'Order' .* local to _made_elsewhere.* top level"
    ):
        tool(_made_elsewhere())
    loose = tool(handler=_made_elsewhere(), parameters={"properties": {"order": {}}})
    assert 1 == call(loose, '{"order": 1}')


def test_sync_functions_run_in_a_thread_with_the_callers_context_variables():
    variable = contextvars.ContextVar("variable", default="none")

    def f():
        return threading.current_thread() is threading.main_thread(), variable.get()

    variable.set("mine")
    assert (False, "mine") == call(tool(f))


def test_async_functions_run_on_the_loop():
    async def f():
        return threading.current_thread() is threading.main_thread()

    class Callable:
        async def __call__(self):
            return threading.current_thread() is threading.main_thread()

    assert call(tool(f)) is True
    assert call(tool(functools.partial(f))) is True
    assert call(tool(Callable(), name="c")) is True
    assert (True, False) == (tool(f).interruptible, tool(handler=lambda: 1, name="s").interruptible)


def test_a_decorated_method_is_bound_like_the_method():
    class Shop:
        def __init__(self, stock: int) -> None:
            self.stock = stock

        @tool(description="How many are left.")
        def left(self, sold: int) -> int:
            return self.stock - sold

    item = Shop(5).left
    assert ("left", "How many are left.", ["sold"]) == (item.name, item.description, list(item.parameters["properties"]))
    assert 3 == call(item, '{"sold": 2}')
    assert 4 == Shop(5).left(1)


def test_a_static_method_is_a_tool_in_either_order_of_decorators():
    class Shop:
        @tool
        @staticmethod
        def outside(a: int) -> int:
            return a

        @staticmethod
        @tool
        def inside(a: int) -> int:
            return a

        @classmethod
        def owner(cls, a: int) -> tuple[str, int]:
            return cls.__name__, a

    for item in (Shop().outside, Shop.outside, Shop().inside, Shop.inside):
        assert ["a"] == list(item.parameters["properties"])
        assert 1 == call(item, '{"a": "1"}')
    assert ("Shop", 1) == call(tool(Shop.owner), '{"a": "1"}')


def test_blocking_decorator_on_an_async_function_runs_in_its_thread():
    async def inner(a: int) -> int:
        return a

    @functools.wraps(inner)
    def outer(a: int) -> int:
        return asyncio.run(inner(a))

    assert 1 == call(tool(outer), '{"a": 1}')


def test_awaitables_and_generators_are_read_to_their_end():
    async def answer():
        return 1

    def numbers():
        yield from (1, 2)

    async def later():
        yield 1
        yield 2

    async def begun():
        return asyncio.create_task(answer())

    assert 1 == call(tool(handler=lambda: answer(), name="a"))
    assert 1 == call(tool(begun))
    assert [1, 2] == call(tool(numbers))
    assert [1, 2] == call(tool(later))


def test_without_validation_arguments_need_only_be_an_object():
    @tool
    def f(a: int, b: int = 2):
        return a, b

    assert ("x", 2) == call(f, '{"a": "x", "z": 1}', None)
    with pytest.raises(ToolArgumentsError):
        call(f, "[]", None)
    with_schema = tool(name="w", parameters=SCHEMA, handler=lambda args: args)
    assert {"q": 1} == call(with_schema, '{"q": 1}', None)
    with pytest.raises(ToolArgumentsError):
        call(with_schema, "nope", None)


def test_coercion_of_a_schemas_tool_is_chosen_by_the_caller():
    item = tool(name="n", parameters={"properties": {"n": {"type": "integer"}, "m": {"default": 1}}}, handler=lambda args: args)
    assert {"n": 5, "m": 1} == call(item, '{"n": "5"}', Validation(coerce_types=True))
    assert {"n": 5} == call(item, '{"n": 5}', Validation(use_defaults=False))
    with pytest.raises(ToolArgumentsError, match="/n must be integer"):
        call(item, '{"n": "5"}')


def test_a_kind_of_tool_is_one_class_with_one_method():
    class Echo(Tool):
        async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
            return arguments

    echo = Echo("echo", "Say it back.", parameters=SCHEMA)
    assert as_tool(echo) is echo
    assert {"city": "Rome"} == call(echo, '{"city": "Rome"}')
    assert {} == call(Echo("bare"))


def test_coroutine_is_not_a_tool():
    async def answer(): ...

    coroutine = answer()
    try:
        with pytest.raises(TypeError, match="without calling it"):
            as_tool(coroutine)
    finally:
        coroutine.close()


def test_lists_may_be_mixed():
    def f(): ...

    assert ["f", "g"] == list(collect_tools([f, tool(name="g", handler=f)]))


def test_invalid_arguments_do_not_reach_the_body():
    ran = []

    @tool
    def f(a: int):
        ran.append(1)

    with pytest.raises(ToolArgumentsError) as caught:
        call(f, '{"a": "five"}')
    assert caught.value.details[0].startswith("/a ")
    assert "The tool did not run" in caught.value.for_model
    assert [] == ran


def test_context_imported_for_type_checkers_only_is_recognised():
    def f(a: int, where: elsewhere.ToolContext, maybe: Optional[elsewhere.ToolContext] = None):  # noqa: UP045
        return a, where.call_id, maybe.call_id

    item = tool(f)
    assert ["a"] == list(item.parameters["properties"])
    assert (1, "c1", "c1") == call(item, '{"a": 1, "where": "the model"}')
