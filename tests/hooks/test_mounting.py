"""Mounting and unmounting: valid hooks, misspelled methods, and turns in progress."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.errors import ConfigurationError
from patchbay.hooks import (
    AfterLLM,
    AfterTool,
    Approver,
    BeforeLLM,
    BeforeTool,
    HookManager,
    HookPolicy,
    HookTimeouts,
    Observer,
)
from support.running import run

from .turns import called, hook, managed, play_turn, run_turn

NO_HOOKS = {
    "an object": object(),
    "a string": "before_tool",
    "nothing": None,
    "a mapping": {"before_tool": print},
    "a class": type("Hook", (), {"before_tool": lambda self, call: None}),
    "a number where the method was to be": type("Empty", (), {"before_tool": 5})(),
}


@pytest.mark.parametrize("thing", NO_HOOKS.values(), ids=NO_HOOKS)
def test_object_without_hook_methods_is_refused(thing):
    with pytest.raises(TypeError, match="not a hook"):
        HookManager().mount("it", thing)


@pytest.mark.parametrize(
    ("protocol", "method"),
    [
        (BeforeLLM, "before_llm"),
        (AfterLLM, "after_llm"),
        (BeforeTool, "before_tool"),
        (AfterTool, "after_tool"),
        (Approver, "approve_tool"),
        (Observer, "on_runtime_event"),
    ],
)
def test_one_method_is_a_protocol(protocol, method):
    assert isinstance(hook(**{method: None}), protocol)
    assert not isinstance(hook(other=None), protocol)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("before_tools", "before_tool"),
        ("beforeTool", "before_tool"),
        ("prepare", None),
        ("close", None),
        ("after_lm", "after_llm"),
        ("approve_tools", "approve_tool"),
        ("on_runtime_events", "on_runtime_event"),
    ],
)
def test_a_name_that_is_nearly_right_is_warned_about(written, meant, caplog):
    managed(hook(**{written: None, "before_llm": None}))
    text = [record.getMessage() for record in caplog.records]
    assert ([f"The hook 'hook0' has a method {written!r}, which is never called: is {meant!r} meant?"] if meant else []) == text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(({"name": name}, "name must be a non-empty string") for name in ("", "  ", 5, None)),
        *(({"priority": priority}, "priority of the hook 'h' must be") for priority in (1.5, "1", True, None)),
        *(({"fail_closed": given}, "fail_closed of the hook 'h' must be True or False") for given in (1, "yes", [])),
        *(({"tools": tools}, "tools of the hook 'h' must be a list") for tools in ("rm", [""], [1])),
        ({"hook": hook(before_llm=None), "tools": ["rm"]}, "is asked about no calls"),
        ({"methods": ["before_llm"]}, "none of its methods"),
    ],
)
def test_invalid_settings_of_a_hook_are_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        HookManager().mount(**{"name": "h", "hook": hook(before_tool=None), **options})


def test_a_hook_can_be_mounted_for_some_of_its_methods():
    asked = []
    manager = HookManager()
    both = hook(before_tool=lambda _: asked.append("before"), after_tool=lambda _: asked.append("after"))
    manager.mount("it", both, methods=["after_tool"])
    play_turn(manager)
    assert ["after"] == asked


class Closed:
    def __init__(self, how: str = "aclose") -> None:
        self.times = 0

        async def aclose() -> None:
            await asyncio.sleep(0)
            self.times += 1

        def close() -> None:
            self.times += 1

        setattr(self, how, aclose if how == "aclose" else close)

    async def before_tool(self, call):
        return None


@pytest.mark.parametrize("how", ["aclose", "close"])
async def test_mounting_over_a_name_closes_the_hook_that_had_it(how):
    first, second = Closed(how), Closed(how)
    manager = HookManager()
    manager.mount("it", first)
    manager.mount("it", second)
    assert [second] == [each.hook for each in manager.mounted]
    await manager.aclose()
    assert (1, 1) == (first.times, second.times)
    assert () == manager.mounted


async def test_remounted_hook_is_not_closed():
    one = Closed()
    manager = HookManager()
    manager.mount("it", one)
    manager.mount("it", one, priority=5)
    manager.mount("other", one)
    assert manager.unmount("it")
    await asyncio.sleep(0)
    assert 0 == one.times
    await manager.aclose()
    assert 1 == one.times


def test_hooks_unmounted_outside_a_loop_are_closed_at_the_end():
    first = Closed()
    manager = managed(it=first)
    assert manager.unmount("it")
    assert not manager.unmount("it")
    run(manager.aclose())
    assert 1 == first.times


def test_failing_hook_close_does_not_stop_others(caplog):
    class Breaks(Closed):
        def __init__(self) -> None:
            super().__init__("close")
            self.close = self.breaks

        def breaks(self) -> None:
            raise OSError("no")

    second = Closed()
    run(managed(a=Breaks(), b=second).aclose())
    assert 1 == second.times
    assert "could not be closed" in caplog.text


async def test_turn_keeps_its_hooks():
    """RegisteredHook, unmounted and replaced between two rounds: the turn that is under way asks whom it would have asked."""
    asked = []
    manager = HookManager()

    def named(name: str) -> object:
        return hook(before_tool=lambda _call: asked.append(name))

    manager.mount("stays", named("stays"))
    manager.mount("leaves", named("leaves"))
    manager.mount("replaced", named("old"))

    def between(_request):
        manager.unmount("leaves")
        manager.mount("replaced", named("new"))
        manager.mount("joins", named("joins"))
        manager.policy = HookPolicy(tool_injection="off")
        return called(call_id="c2")

    await run_turn(manager, [called(), between, "done"])
    assert ["leaves", "old", "stays"] * 2 == asked[:3] + sorted(asked[3:])
    asked.clear()
    await run_turn(manager)
    assert ["joins", "new", "stays"] == asked


@pytest.mark.parametrize("member", ["observer", "interceptor", "approval", "tool"])
@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "5", True])
def test_non_limiting_timeout_is_refused(member, seconds):
    with pytest.raises(ConfigurationError, match=member):
        HookTimeouts(**{member: seconds})


@pytest.mark.parametrize(
    "given", [{"tool_injection": "some"}, {"respond_approval": "sometimes"}, {"protected": "rm"}, {"protected": [5]}], ids=str
)
def test_invalid_policy_is_refused(given):
    with pytest.raises(ConfigurationError, match=r"hooks\.policy"):
        HookPolicy(**given)


def test_where_no_approver_is_for_a_tool_its_calls_need_no_approval():
    manager = HookManager()
    manager.mount("no", hook(approve_tool=False), tools=["rm"])
    turned = play_turn(manager, [called(), called("rm", '{"path": "x"}', "2")], "done")
    assert [None, "tool_denied"] == turned.codes
