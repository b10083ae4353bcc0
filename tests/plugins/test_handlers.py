"""Handlers of a plugin's tools: their arguments, results, failures, time and progress."""

from __future__ import annotations

import asyncio
import json
import math
import threading

import pytest

from patchbay import ToolRetry
from patchbay.plugins import (
    Err,
    NekoPluginBase,
    Ok,
    Progress,
    ToolContext,
    llm_tool,
    neko_plugin,
)
from patchbay.testing import run_plugin
from plugins.host_rig import BOUND, run

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def plugin_with(handler, **options):
    """A plugin class with one tool, ``tool``."""

    @neko_plugin
    class Plugin(NekoPluginBase):
        tool = llm_tool(name="tool", **options)(handler)

    return Plugin


def called(handler, /, *, raw=None, within=None, options=None, **arguments):
    """Call a handler as the one tool of a plugin, and return the result."""

    async def main():
        async with run_plugin(plugin_with(handler, **(options or {}))) as plugin:
            return await plugin.call_json("tool", json.dumps(arguments) if raw is None else raw, within=within)

    return run(main())


# -- handlers


def test_a_handler_gets_its_arguments_by_keyword():
    async def handler(self, *, city: str, days: int = 1):
        return {"city": city, "days": days}

    assert {"city": "Rome", "days": 1} == called(handler, city="Rome").output
    assert {"city": "Rome", "days": 2} == called(handler, options={"parameters": CITY}, city="Rome", days=2).output


async def test_without_parameters_the_schema_is_that_of_the_signature():
    async def handler(self, *, city: str, days: int = 1):
        """Look up the weather.

        :param city: its name
        """

    async with run_plugin(plugin_with(handler)) as plugin:
        tool = plugin.tools["tool"]
    assert "Look up the weather." == tool.description
    expected = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "its name"},
            "days": {"type": "integer", "default": 1},
        },
        "required": ["city"],
    }
    assert expected == tool.parameters


def test_arguments_become_the_types_of_the_signature_and_are_checked():
    def handler(self, n: int):
        return n + 1

    assert 4 == called(handler, n="3").output
    refused = called(handler, n="three")
    assert ("INVALID_ARGUMENTS", "invalid_arguments") == (refused.error, refused.code)
    assert "/n" in refused.output["error"]


@pytest.mark.parametrize("raw", ["{", "[1]", "5", '"x"', '{"city": NaN}'])
def test_non_object_arguments_do_not_reach_the_handler(raw):
    def handler(self, **_):
        raise AssertionError("it was called")

    assert "INVALID_ARGUMENTS" == called(handler, raw=raw).error


async def test_sync_handlers_run_concurrently_in_threads():
    inside = threading.Barrier(2)

    def handler(self):
        inside.wait(BOUND)
        return threading.current_thread() is threading.main_thread()

    async with run_plugin(plugin_with(handler)) as plugin:
        assert [False, False] == [result.output for result in await asyncio.gather(plugin.call("tool"), plugin.call("tool"))]


async def test_static_and_class_methods_may_be_tools():
    class Plugin(NekoPluginBase):
        @llm_tool
        @staticmethod
        def alone(n: int):
            return n

        @classmethod
        @llm_tool
        def of_class(cls, n: int):
            return [cls.__name__, n]

    async with run_plugin(Plugin) as plugin:
        assert [3, ["Plugin", 3]] == [(await plugin.call(name, n=3)).output for name in ("alone", "of_class")]


async def test_tool_context_is_injected_and_not_in_the_schema():
    async def handler(self, city: str, tool_context: ToolContext):
        return [tool_context.name, tool_context.call_id]

    async with run_plugin(plugin_with(handler)) as plugin:
        result = await plugin.call_json("tool", '{"city": "Rome"}', call_id="call_9")
        assert (["tool", "call_9"], ["city"]) == (result.output, list(plugin.tools["tool"].parameters["properties"]))


# -- results


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("text", "text"),
        (None, None),
        (5, 5),
        (2**80, 2**80),
        ([1, "北京"], [1, "北京"]),
        ({"output": 5}, {"output": 5}),
        ({"error": "x"}, {"error": "x"}),
        ({"images": []}, {"images": []}),
        (Ok({"a": 1}), {"a": 1}),
        (Ok(None), None),
        (Ok(Ok(5)), 5),  # a helper's result that was handed on as it was
        ((1, 2), [1, 2]),
        ({1: "int key"}, {"1": "int key"}),
        (math.nan, None),
        ({1, 2}, [1, 2]),
        (b"bytes", "bytes"),
        ("\ud800", "�"),
        ("null", "null"),
        ('{"is_error": true}', '{"is_error": true}'),
    ],
)
def test_a_plain_value_is_the_output(value, output):
    result = called(lambda self: value, within=BOUND)
    assert {"output": output, "is_error": False} == result.body


def test_non_json_value_is_shown_as_text():
    class Odd:
        def __str__(self):
            return "an odd thing"

    looped: list[object] = []
    looped.append(looped)
    assert "an odd thing" == called(lambda self: Odd()).output
    assert ["an odd thing"] == called(lambda self: [Odd()]).output
    assert not called(lambda self: looped).is_error


@pytest.mark.parametrize(
    ("value", "body"),
    [
        (
            {"output": {"reason": "city not found"}, "is_error": True, "error": "CITY_NOT_FOUND"},
            {"output": {"reason": "city not found"}, "is_error": True, "error": "CITY_NOT_FOUND"},
        ),
        ({"output": 1, "is_error": False}, {"output": 1, "is_error": False}),
        ({"output": 1, "is_error": "false"}, {"output": 1, "is_error": False}),
        ({"output": 1, "is_error": "True"}, {"output": 1, "is_error": True}),
        ({"output": 1, "is_error": 3}, {"output": 1, "is_error": False}),
        ({"output": 1, "is_error": None}, {"output": 1, "is_error": False}),
        ({"output": 1, "images": ["x"]}, {"output": 1, "images": ["x"], "is_error": False}),
        ({"is_error": True, "error": {"code": 5}}, {"is_error": True, "error": '{"code": 5}'}),
        (Ok({"output": 1, "is_error": True, "error": "E"}), {"output": 1, "is_error": True, "error": "E"}),
    ],
)
def test_dict_with_is_error_or_images_is_the_body(value, body):
    result = called(lambda self: value)
    assert body == result.body
    assert body["is_error"] == result.is_error


def failure(error, message, code="tool_error"):
    return {"output": {"error": message}, "is_error": True, "error": error, "code": code}


FIX = "Error: The city must be in English. Fix the arguments and call the tool again."


@pytest.mark.parametrize(
    ("outcome", "body"),
    [
        (LookupError("no such city"), failure("LookupError", "LookupError: no such city")),
        (ToolRetry("The city must be in English."), failure("ToolRetry", FIX, "tool_retry")),
        (Err("no such city"), failure("no such city", "no such city")),
        (Ok(Err("no such city")), failure("no such city", "no such city")),
        (Err(Err("no such city")), failure("no such city", "no such city")),
        (Err(LookupError("no such city")), failure("LookupError", "LookupError: no such city")),
        (Err({"until": 9}), failure("TOOL_ERROR", None) | {"output": {"until": 9}}),
        (Err(""), failure("TOOL_ERROR", None) | {"output": ""}),
        (Err(None), failure("TOOL_ERROR", None) | {"output": None}),
    ],
    ids=repr,
)
def test_a_failure_is_an_error_with_its_content(outcome, body):
    def handler(self):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert body == called(handler).body


def raising(kind: str, error: BaseException):
    """A handler of some kind that raises ``error`` for ``bad``, and gives "fine" otherwise."""

    def give(bad: bool) -> str:
        if bad:
            raise error
        return "fine"

    def sync(self, bad: bool):
        return give(bad)

    async def coroutine(self, bad: bool):
        return give(bad)

    def generator(self, bad: bool):
        yield give(bad)

    async def async_generator(self, bad: bool):
        yield give(bad)

    return {each.__name__: each for each in (sync, coroutine, generator, async_generator)}[kind]


@pytest.mark.parametrize("kind", ["sync", "coroutine", "generator", "async_generator"])
@pytest.mark.parametrize(
    "error",
    [SystemExit(3), GeneratorExit(), asyncio.CancelledError(), KeyboardInterrupt(), BaseExceptionGroup("x", [SystemExit()])],
    ids=lambda error: type(error).__name__,
)
async def test_no_exception_of_a_handler_ends_the_plugin(error, kind):
    async with run_plugin(plugin_with(raising(kind, error))) as plugin:
        assert (await plugin.call("tool", bad=True)).is_error
        assert "fine" == (await plugin.call("tool", bad=False)).output


# -- time


def test_a_thread_learns_that_its_time_is_up():
    learnt = threading.Event()

    def handler(self, tool_context: ToolContext):
        assert tool_context.cancelled.wait(BOUND)
        learnt.set()

    assert "TOOL_TIMEOUT" == called(handler, options={"timeout": 0.05}).error
    assert learnt.wait(BOUND)


# -- progress


async def looks_twice(self):
    yield "looking"
    yield Progress("half", fraction=0.5)
    yield {"rows": 3}


async def ends_with_ok(self):
    yield "looking"
    yield Ok("found")
    raise AssertionError("it went on")


async def ends_with_progress(self):
    yield "found"
    yield Progress("cleaning up")


async def has_no_result(self):
    yield Progress("nothing")


async def fails(self):
    yield "one"
    raise ValueError("two")


def in_a_thread(self):
    yield "one"
    yield "two"


def err_in_a_thread(self):
    yield "one"
    yield Err("broken")


def returns(self):
    yield "looking"
    return "found"


@pytest.mark.parametrize(
    ("handler", "progress", "output", "error"),
    [
        (looks_twice, ("looking", "half", 0.5, {"rows": 3}), {"rows": 3}, None),
        (ends_with_ok, ("looking",), "found", None),
        (ends_with_progress, ("found", "cleaning up"), "found", None),
        (has_no_result, ("nothing",), None, None),
        (fails, ("one",), {"error": "ValueError: two"}, "ValueError"),
        (in_a_thread, ("one", "two"), "two", None),
        (err_in_a_thread, ("one",), {"error": "broken"}, "broken"),
        (returns, ("looking",), "found", None),
    ],
)
def test_what_a_generator_yields_is_progress_and_its_last_value_the_result(handler, progress, output, error):
    result = called(handler)
    assert (progress, output, error) == (result.progress, result.output, result.error)
