"""Faults that others' function tools have (their numbers are those of the agents' contract), each shown not to be ours."""

from __future__ import annotations

import asyncio
import enum
import json
from typing import TYPE_CHECKING, Any, Literal, Optional

import jsonschema_rs
import pytest
from pydantic import BaseModel

from patchbay.errors import ConfigurationError, ToolArgumentsError
from patchbay.tools import FunctionTool, State, ToolActions, ToolContext, Validation, collect_tools, merge_actions, tool

if TYPE_CHECKING:
    import patchbay.tools as elsewhere


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


class Street(BaseModel):
    name: str


class Address(BaseModel):
    street: Street
    number: int


def call(item: FunctionTool, **arguments: Any) -> Any:
    async def carry_out() -> Any:
        context = ToolContext(call_id="c1", name=item.name)
        return await item.run(item.validate(json.dumps(arguments), Validation()), context)

    return asyncio.run(asyncio.wait_for(carry_out(), 30))


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"a": None}, "/a"),
        ({"a": [1]}, "/a"),
        ({"a": "five"}, "/a"),
        ({"a": 1, "mode": "c"}, "/mode"),
        ({"a": 1, "unit": "kelvin"}, "/unit"),
        ({"a": 1, "address": {"street": "no object", "number": 1}}, "/address/street"),
        ({"a": 1, "address": {"street": {"name": "x"}}}, "/address"),
    ],
)
def test_invalid_arguments_do_not_reach_the_body(arguments, place):
    ran = []

    @tool
    def f(a: int, mode: Literal["a", "b"] = "a", unit: Unit = Unit.C, address: Address | None = None):
        ran.append(1)

    with pytest.raises(ToolArgumentsError) as caught:
        call(f, **arguments)
    assert any(line.startswith(place) for line in caught.value.details)
    assert "The tool did not run" in caught.value.for_model
    assert [] == ran


def test_valid_arguments_arrive_as_their_types():
    @tool
    def f(a: int, unit: Unit, address: Address):
        return [a, unit is Unit.F, address.street.name]

    assert [5, True, "x"] == call(f, a="5", unit="fahrenheit", address={"street": {"name": "x"}, "number": 1})


def test_nested_model_has_no_dangling_reference():
    @tool
    def f(address: Address, others: list[Address], maybe: Optional[Street] = None): ...  # noqa: UP045

    jsonschema_rs.Draft202012Validator(f.parameters)
    assert {"Address", "Street"} == set(f.parameters["$defs"])


def test_whole_prose_of_the_docstring_is_the_description():
    @tool
    def f(a: int):
        """First line.

        Second paragraph.

        Args:
            a: the a
        """

    assert "First line.\n\nSecond paragraph." == f.description


def test_failed_call_writes_nothing_and_parallel_counts_add_up():
    base = {"n": 0}

    def execution(work: Any, *, failed: bool = False) -> Any:
        state = State(base)
        work(state)
        actions = None if failed else ToolActions(state_delta=state.delta, state_found=state.found)
        return type("Execution", (), {"actions": actions})()

    def count(state: State) -> None:
        state["n"] += 1

    done = [execution(lambda state: state.update(from_a=1), failed=True), *[execution(count) for _ in range(5)]]
    assert {"n": 5} == merge_actions(done).state_delta
    assert {"n": 0} == base


def test_every_kind_of_parameter_is_filled():
    def f(a, /, b, *rest: int, c, tool_context, **more: int):
        return a, b, rest, c, tool_context.call_id, more

    assert (1, 2, (3, 4), 5, "c1", {"z": 6}) == call(tool(f), a=1, b=2, rest=[3, 4], c=5, z=6)


def test_generators_are_read_to_their_end():
    def numbers(n: int):
        yield from range(n)

    async def later(n: int):
        for number in range(n):
            yield number

    assert [0, 1, 2] == call(tool(numbers), n=3) == call(tool(later), n=3)


@pytest.mark.parametrize("item", [max, dict, int])
def test_callable_without_a_signature_is_refused(item):
    with pytest.raises((TypeError, ConfigurationError)):
        collect_tools([item])


def test_builtin_with_a_given_schema_is_a_tool():
    longest = {"type": "object", "properties": {"items": {"type": "array"}}}
    assert "longest" == tool(name="longest", parameters=longest, handler=lambda items: max(items)).name


def test_two_tools_of_one_name_are_refused():
    def f(): ...

    with pytest.raises(ConfigurationError, match="'f'"):
        collect_tools([f, tool(name="f", handler=f)])


def test_a_context_that_is_imported_for_type_checkers_only_is_still_the_context():
    def f(a: int, where: elsewhere.ToolContext, maybe: Optional[elsewhere.ToolContext] = None):  # noqa: UP045
        return a, where.call_id, maybe.call_id

    item = tool(f)
    assert ["a"] == list(item.parameters["properties"])
    assert (1, "c1", "c1") == call(item, a=1, where="the model's")
