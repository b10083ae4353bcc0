"""A plugin as its author sees it, run by ``patchbay.testing.run_plugin``."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
from contextvars import ContextVar

import pytest

from patchbay import ToolFailed, ToolRetry
from patchbay.plugins import (
    EntryConflictError,
    Err,
    NekoPluginBase,
    Ok,
    PluginError,
    Progress,
    RegistrationError,
    ToolContext,
    lifecycle,
    llm_tool,
    neko_plugin,
)
from patchbay.plugins.protocol import LlmToolState
from patchbay.plugins.sdk import LlmToolMeta, ToolTable
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


def test_handler_is_called_by_keyword_without_named_properties():
    async def handler(self, city):
        return city

    for parameters in ({"type": "object"}, {"type": "object", "properties": {}}, {}):
        assert "Rome" == called(handler, options={"parameters": parameters}, city="Rome").output


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


async def test_async_calls_run_concurrently():
    class Plugin(NekoPluginBase):
        def __init__(self, ctx):
            super().__init__(ctx)
            self.both = asyncio.Barrier(2)

        @llm_tool
        async def meet(self):
            await self.both.wait()
            return "met"

    async with run_plugin(Plugin) as plugin:
        assert ["met", "met"] == [result.output for result in await asyncio.gather(plugin.call("meet"), plugin.call("meet"))]


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


async def test_handlers_of_a_tool_have_context_variables_of_their_own():
    seen: ContextVar[int] = ContextVar("seen", default=0)

    async def handler(self):
        seen.set(seen.get() + 1)
        return seen.get()

    async with run_plugin(plugin_with(handler)) as plugin:
        assert [1, 1] == [(await plugin.call("tool")).output for _ in range(2)]


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


def test_handler_exception_is_an_error_with_class_and_message():
    def handler(self):
        raise LookupError("no such city")

    expected = {
        "output": {"error": "LookupError: no such city"},
        "is_error": True,
        "error": "LookupError",
        "code": "tool_error",
    }
    assert expected == called(handler).body


@pytest.mark.parametrize(
    ("error", "message", "name", "code"),
    [
        ("no such city", "no such city", "no such city", "tool_error"),
        (LookupError("no such city"), "LookupError: no such city", "LookupError", "tool_error"),
        (Err("no such city"), "no such city", "no such city", "tool_error"),
        (ToolFailed("No."), "Error: No. Do not try the same again", "ToolFailed", "tool_failed"),
    ],
)
def test_err_result_is_an_error_with_its_content(error, message, name, code):
    result = called(lambda self: Err(error))
    assert result.output["error"].startswith(message)
    assert (True, name, code) == (result.is_error, result.error, result.code)


def test_err_with_data_includes_the_data():
    result = called(lambda self: Err({"reason": "closed", "until": 9}))
    assert ({"reason": "closed", "until": 9}, True, "TOOL_ERROR") == (result.output, result.is_error, result.error)


def test_err_within_ok_is_a_failure():
    assert called(lambda self: Ok(Err("no such city"))).body == called(lambda self: Err("no such city")).body


@pytest.mark.parametrize("silent", ["", None])
def test_empty_err_has_a_default_error_name(silent):
    result = called(lambda self: Err(silent))
    assert (True, "TOOL_ERROR", silent) == (result.is_error, result.error, result.output)


def test_tool_retry_text_reaches_the_model():
    def handler(self):
        raise ToolRetry("The city must be in English.")

    result = called(handler)
    assert "Error: The city must be in English. Fix the arguments and call the tool again." == result.output["error"]
    assert "tool_retry" == result.code


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


async def test_an_unknown_tool_is_an_error_result():
    async with run_plugin(plugin_with(lambda self: 1)) as plugin:
        body = (await plugin.call("nothing")).body
    assert {"error": "tool 'nothing' is not registered for plugin 'test'"} == body["output"]
    assert (True, "TOOL_NOT_REGISTERED") == (body["is_error"], body["error"])


# -- time


def test_a_tool_that_is_too_slow_is_stopped_and_the_limit_named_is_the_one_that_was_promised():
    stopped = []

    async def handler(self):
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    result = called(handler, options={"timeout": 0.05})
    assert {"error": "tool 'tool' timed out after 0.05s"} == result.output
    assert ("TOOL_TIMEOUT", "tool_timeout", [True]) == (result.error, result.code, stopped)


def test_the_caller_may_promise_less_than_the_tool_but_not_more():
    async def handler(self):
        await asyncio.Event().wait()

    assert {"error": "tool 'tool' timed out after 0.02s"} == called(handler, within=0.02).output
    assert {"error": "tool 'tool' timed out after 0.01s"} == called(handler, options={"timeout": 0.01}, within=9.0).output


def test_a_thread_learns_that_its_time_is_up():
    learnt = threading.Event()

    def handler(self, tool_context: ToolContext):
        assert tool_context.cancelled.wait(BOUND)
        learnt.set()

    assert "TOOL_TIMEOUT" == called(handler, options={"timeout": 0.05}).error
    assert learnt.wait(BOUND)


async def test_cancelling_a_call_cancels_the_handler():
    began, ended = asyncio.Event(), asyncio.Event()

    async def handler(self):
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with run_plugin(plugin_with(handler)) as plugin:
        call = asyncio.create_task(plugin.call("tool"))
        await began.wait()
        call.cancel()
        await ended.wait()
        with pytest.raises(asyncio.CancelledError):
            await call


# -- progress


def test_generator_yields_progress_and_its_last_value_is_the_result():
    async def handler(self):
        yield "looking"
        yield Progress("half", fraction=0.5)
        yield {"rows": 3}

    result = called(handler)
    assert ("looking", "half", 0.5, {"rows": 3}) == result.progress
    assert {"rows": 3} == result.output


def test_an_ok_is_the_result_at_once_and_ends_the_generator():
    closed = []

    async def handler(self):
        try:
            yield "looking"
            yield Ok("found")
            raise AssertionError("it went on")
        finally:
            closed.append(True)

    result = called(handler)
    assert (("looking",), "found", [True]) == (result.progress, result.output, closed)


def test_a_progress_is_never_the_result():
    async def handler(self):
        yield "found"
        yield Progress("cleaning up")

    async def nothing(self):
        yield Progress("nothing")

    assert "found" == called(handler).output
    assert None is called(nothing).output


def test_sync_generators_do_the_same_in_their_thread():
    def handler(self, fail: bool):
        yield "one"
        yield Err("broken") if fail else "two"

    assert (("one", "two"), "two") == (called(handler, fail=False).progress, called(handler, fail=False).output)
    assert ("broken", ("one",)) == (called(handler, fail=True).error, called(handler, fail=True).progress)


def test_return_value_of_a_sync_generator_is_the_result():
    def handler(self):
        yield "looking"
        return "found"

    assert (("looking",), "found") == (called(handler).progress, called(handler).output)


def test_a_generator_that_raises_is_a_failure():
    async def handler(self):
        yield "one"
        raise ValueError("two")

    result = called(handler)
    assert ("ValueError", ("one",)) == (result.error, result.progress)


# -- tools that come and go


class Shop(NekoPluginBase):
    @llm_tool(description="Open the shop.", parameters=CITY, timeout=5, role="clerk", annotations={"destructiveHint": True})
    async def open_shop(self, *, city: str):
        return city


async def test_a_plugin_lists_its_tools_as_plain_dicts():
    expected = {
        "name": "open_shop",
        "description": "Open the shop.",
        "parameters": CITY,
        "timeout_seconds": 5.0,
        "role": "clerk",
        "annotations": {"destructive": True},
    }
    async with run_plugin(Shop) as running:
        assert [expected] == running.plugin.list_llm_tools()


async def test_a_tool_may_be_registered_and_unregistered_while_the_plugin_runs():
    async def add(a: int, b: int):
        return a + b

    async with run_plugin(Shop) as running:
        plugin = running.plugin
        schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
        assert plugin.register_llm_tool(name="add", description="Add.", parameters=schema, handler=add, timeout=30.0, role=None)
        assert "pending" == plugin.llm_tool_state("add").state
        await plugin.registered("add", timeout=BOUND)
        assert "active" == plugin.llm_tool_state("add").state
        assert 5 == (await running.call("add", a=2, b=3)).output
        assert plugin.unregister_llm_tool("add")
        assert not plugin.unregister_llm_tool("add")
        await asyncio.sleep(0)
        assert ["open_shop"] == list(running.tools)
        assert "TOOL_NOT_REGISTERED" == (await running.call("add", a=2, b=3)).error
        assert plugin.register_llm_tool("add", "Add.", schema, add)


async def test_taken_name_is_a_conflict_without_changes():
    async with run_plugin(Shop) as running:
        with pytest.raises(EntryConflictError, match="open_shop"):
            running.plugin.register_llm_tool("open_shop", "", {}, lambda: 1)
        assert "Rome" == (await running.call("open_shop", city="Rome")).output


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"handler": None}, TypeError),
        ({"handler": "text"}, TypeError),
        ({"name": "a b"}, ValueError),
        ({"parameters": []}, TypeError),
        ({"parameters": {"type": "no such type"}}, ValueError),
        ({"parameters": {"type": "array"}}, ValueError),
        ({"parameters": {"type": ["object", "null"]}}, ValueError),
        ({"parameters": {"properties": {"x": {"const": {1, 2}}}}}, ValueError),
        ({"parameters": {"properties": {"x": {"maximum": 2**70}}}}, ValueError),
        ({"timeout": 0}, ValueError),
        ({"parameters": CITY, "handler": lambda town: town}, ValueError),
        ({"description": "\ud800"}, ValueError),
    ],
)
async def test_invalid_tool_is_refused_at_registration(options, error):
    async with run_plugin(Shop) as running:
        with pytest.raises(error):
            running.plugin.register_llm_tool(**{"name": "new", "handler": lambda: 1, **options})
        assert ["open_shop"] == [tool["name"] for tool in running.plugin.list_llm_tools()]


async def test_tools_may_be_registered_from_any_thread():
    async with run_plugin(Shop) as running:
        plugin = running.plugin
        names = [f"tool_{n}" for n in range(50)]

        def register(name):
            plugin.register_llm_tool(name, "", None, lambda: name)

        await asyncio.gather(*(asyncio.to_thread(register, name) for name in names))
        await plugin.registered(timeout=BOUND)
        assert sorted([*names, "open_shop"]) == sorted(running.tools)


async def test_waiting_ends_with_the_reason_when_a_tool_is_refused():
    async with run_plugin(Shop) as running:
        plugin, table = running.plugin, running.plugin.ctx.tools
        number = running.tools["open_shop"].registration
        table.set_state(LlmToolState(name="open_shop", state="stale", registration=number))
        waiting = asyncio.create_task(plugin.registered())
        await asyncio.sleep(0)
        table.set_state(LlmToolState(name="open_shop", state="active", registration=number + 1))  # of another one
        with pytest.raises(TimeoutError):
            await plugin.registered(timeout=0)
        table.set_state(LlmToolState(name="open_shop", state="refused", reason="taken", registration=number))
        with pytest.raises(RegistrationError, match="'open_shop' was refused: taken"):
            await waiting
        state = plugin.llm_tool_state("open_shop")
    assert ("refused", "taken") == (state.state, state.reason)


async def test_timed_out_waiters_are_not_woken(monkeypatch):
    table = ToolTable("p", lambda _message: None)
    table.add(lambda: 1, LlmToolMeta("tool"))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await table.registered()
    woken = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", lambda *call: woken.append(call))
    table.set_state(LlmToolState(name="tool", state="active", registration=1))
    assert [] == woken


async def test_unregistered_tool_is_not_awaited():
    async with run_plugin(Shop) as running:
        number = running.tools["open_shop"].registration
        running.plugin.ctx.tools.set_state(LlmToolState(name="open_shop", state="pending", registration=number))
        waiting = asyncio.create_task(running.plugin.registered("open_shop"))
        await asyncio.sleep(0)
        running.plugin.unregister_llm_tool("open_shop")
        await waiting
        with pytest.raises(KeyError):
            await running.plugin.registered("open_shop")


async def test_startup_hook_cannot_await_later_steps_but_its_task_can():
    class Plugin(Shop):
        @lifecycle(id="startup")
        async def startup(self, **_):
            self.task = asyncio.create_task(self.registered())
            with pytest.raises(RuntimeError, match="when the startup hook has returned"):
                await self.registered()

    async with run_plugin(Plugin) as running:
        await running.plugin.task


async def test_invalid_plugin_tools_are_logged_and_fail_run_plugin(caplog):
    class Plugin(Shop):
        @llm_tool(parameters={"type": "no such type"})
        def broken(self): ...

        @llm_tool(name="open_shop")
        def zz_again(self): ...

    with pytest.raises(ValueError, match="broken"), caplog.at_level(logging.ERROR):
        async with run_plugin(Plugin):
            pass
    assert ["broken", "open_shop"] == [record.args[0] for record in caplog.records]


# -- the plugin's life


async def test_hooks_are_called_in_order_with_their_parameters():
    texts = []

    class Plugin(NekoPluginBase):
        def on_start(self, reason):
            texts.append(f"start {reason}")
            return Ok(None)

        @lifecycle(id="freeze")
        async def cool(self, **_):
            texts.append("freeze")

        @lifecycle(id="unfreeze")
        def warm(self):
            texts.append("unfreeze")
            return "warm"

        @lifecycle(id="config_change")
        async def changed(self, config, previous):
            texts.append((previous["units"], config["units"], self.config["units"]))

        @lifecycle(id="shutdown")
        async def shutdown(self, **about):
            texts.append(about)

        @llm_tool
        async def ask(self):
            return self.config.get("units")

    async with run_plugin(Plugin, config={"units": "C"}) as running:
        assert not (await running.freeze()).is_error
        refused = await running.call("ask")
        assert ("PLUGIN_NOT_RUNNING", {"error": "plugin 'test' is frozen"}) == (refused.error, refused.output)
        assert "warm" == (await running.unfreeze()).output
        assert "C" == (await running.call("ask")).output
        await running.change_config({"units": "F"})
        assert "F" == (await running.call("ask")).output
    assert ["start start", "freeze", "unfreeze", ("C", "F", "F"), {"reason": "stop"}] == texts


@pytest.mark.parametrize(
    "outcome",
    [
        Err("no key"),
        Ok(Err("no key")),
        RuntimeError("no key"),
        SystemExit("no key"),
        KeyboardInterrupt("no key"),
        asyncio.CancelledError("no key"),
        BaseExceptionGroup("no key", [SystemExit()]),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
async def test_failed_startup_is_a_plugin_error(outcome):
    class Plugin(NekoPluginBase):
        @lifecycle(id="startup")
        async def startup(self, **_):
            if isinstance(outcome, Err | Ok):
                return outcome
            raise outcome

    with pytest.raises(PluginError, match="no key"):
        async with run_plugin(Plugin):
            raise AssertionError("it started")


async def test_startup_timeout_stops_a_hook_that_ignores_cancellation():
    class Plugin(NekoPluginBase):
        @lifecycle(id="startup")
        async def startup(self, **_):
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    pass

    released: asyncio.Event
    released = asyncio.Event()
    try:
        with pytest.raises(PluginError, match=r"longer than 0\.05 s"):
            async with run_plugin(Plugin, startup_timeout=0.05):
                pass
    finally:
        released.set()


@pytest.mark.parametrize("error", [ValueError("too hot"), asyncio.CancelledError("too hot"), SystemExit("too hot")])
async def test_failing_lifecycle_hook_is_reported_and_the_plugin_continues(error):
    class Plugin(Shop):
        @lifecycle(id="freeze")
        async def cool(self):
            raise error

        @lifecycle(id="shutdown")
        async def shutdown(self):
            raise error

    async with run_plugin(Plugin) as running:
        frozen = await running.freeze()
        await running.unfreeze()
        assert ("ValueError" if isinstance(error, ValueError) else "PluginError", "Rome") == (
            frozen.error,
            (await running.call("open_shop", city="Rome")).output,
        )


async def test_running_calls_are_cancelled_when_the_plugin_stops():
    began, ended = asyncio.Event(), asyncio.Event()

    async def handler(self):
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with run_plugin(plugin_with(handler)) as running:
        call = asyncio.create_task(running.call("tool"))
        await began.wait()
    result = await call
    assert (True, "TOOL_CANCELLED") == (ended.is_set(), result.error)


async def test_init_without_super_call_is_an_error():
    class Plugin(NekoPluginBase):
        def __init__(self, ctx):
            pass

    with pytest.raises(PluginError, match=r"does not call super\(\).__init__"):
        async with run_plugin(Plugin):
            pass


async def test_a_plugin_may_set_itself_up_after_its_tools_are_found():
    class Plugin(NekoPluginBase):
        def __init__(self, ctx):
            super().__init__(ctx)
            self.config = {"greeting": "hello"}

        @llm_tool
        def greet(self):
            return self.config["greeting"]

    async with run_plugin(Plugin) as running:
        assert "hello" == (await running.call("greet")).output
