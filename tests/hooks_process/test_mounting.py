"""A configuration's hooks are started, mounted, reported, replaced and taken down: policy P11."""

from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager

import pytest

from hooks_process.peers import open_files, process_exists, process_of, script, wait_for_exit, wait_until
from hooks_process.turns import add, results, take_turn
from patchbay import ToolCall
from patchbay.errors import ConfigurationError
from patchbay.executor import Executor
from patchbay.hooks import DenyTool, HookManager
from patchbay.hooks.config import MountedHook, mount_configured, parse_hooks_config
from patchbay.loop import turn
from patchbay.testing import ScriptedModel

DENYING = "def on(method, params): answer({'action': 'deny_tool', 'reason': '%s'} if method == 'before_tool' else {})"


def entry(command, *intercept, **members):
    asked = list(intercept or ("before_tool",))
    return {"enabled": True, "command": list(command), "intercept": asked, "hello_timeout_ms": 20_000, **members}


def config(processes=None, **hooks):
    return parse_hooks_config({"hooks": {"processes": processes or {}, **hooks}})


class Own:
    """A built-in hook that does nothing."""

    async def before_tool(self, call):
        return None


@asynccontextmanager
async def new_manager():
    manager = HookManager()
    try:
        yield manager
    finally:
        await manager.aclose()


async def test_configured_hooks_are_called_in_turns(tmp_path):
    command = script(tmp_path, DENYING % "configured")
    async with new_manager() as manager:
        configured = await mount_configured(manager, config({"h": entry(command)}, policy={"edit_system": True}))
        assert (MountedHook("h"),) == configured.outcomes
        assert manager.policy.edit_system
        assert ["Tool execution denied by hook: configured"] == results(await take_turn(manager))
        pid = process_of(manager).pid
        await configured.aclose()
        assert not process_exists(pid)
        assert ["3"] == results(await take_turn(manager))


async def test_process_with_a_tools_filter_is_called_for_those_and_its_own_tools(tmp_path):
    body = """
    def hello(params):
        answer({"tools": [{"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}]})

    def on(method, params):
        if method in ("before_tool", "approve_tool", "after_tool"):
            print(method, params["tool"], file=open("asked", "a"))
        if method == "before_tool" and params["tool"] == "mine":
            answer({"action": "respond", "result": {"for_llm": "my own"}})
        else:
            answer({"approved": True} if method == "approve_tool" else {})
    """
    process = entry(script(tmp_path, body), "before_tool", "approve_tool", tools=["write_*", "rm"], dir=str(tmp_path))

    def write_file(path: str) -> str:
        return f"wrote {path}"

    async with new_manager() as manager:
        await mount_configured(manager, config({"h": process}))
        wanted = [
            ToolCall("1", "add", '{"a": 1, "b": 2}'),
            ToolCall("2", "write_file", '{"path": "x"}'),
            ToolCall("3", "mine", "{}"),
        ]
        executor = Executor([add, write_file], hooks=manager)
        events = turn(ScriptedModel([wanted, "done"]), executor, [{"role": "user", "content": "go"}])
        *_, end = [event async for event in events]
        assert ["3", "wrote x", "my own"] == results(end)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert ["after_tool write_file", "approve_tool write_file", "before_tool mine", "before_tool write_file"] == sorted(asked)


async def test_builtin_with_a_tools_filter_and_no_call_points_does_not_start():
    class OfRequests:
        async def before_llm(self, request):
            return None

    async with new_manager() as manager:
        builtins = {"own": {"enabled": True, "required": True, "tools": ["rm"]}}
        with pytest.raises(ConfigurationError, match="for the calls of rm, and has no method that is asked about calls"):
            await mount_configured(manager, config(builtins=builtins), builtins={"own": lambda _: OfRequests()})
        assert () == manager.mounted


async def test_disabled_hooks_are_not_started_and_those_of_code_stay():
    async with new_manager() as manager:
        manager.mount("own", Own())
        configured = await mount_configured(manager, config({"h": entry(["/no/such/program"])}, enabled=False))
        assert () == configured.outcomes
        assert ["own"] == [each.name for each in manager.mounted]


async def test_an_optional_hook_that_does_not_start_is_reported_and_left_out(tmp_path, caplog):
    async with new_manager() as manager:
        processes = {"bad": entry(script(tmp_path, "sys.exit('broken')", name="bad")), "good": entry(script(tmp_path, ""))}
        configured = await mount_configured(manager, config(processes))
        bad, good = configured.outcomes
        assert ("bad", "hook.hello failed: exit status 1 (broken)", MountedHook("good")) == (bad.name, bad.problem, good)
        assert ["good"] == [each.name for each in manager.mounted]
    assert "The hook 'bad' is left out: hook.hello failed: exit status 1 (broken)" in caplog.text


async def test_required_hook_that_fails_to_start_stops_all_and_leaves_no_process(tmp_path):
    marker = tmp_path / "pid"
    good = script(tmp_path, f"def hello(params):\n    open({str(marker)!r}, 'w').write(str(os.getpid()))\n    answer()")
    async with new_manager() as manager:
        processes = {"gate": entry(["/no/such/program"], "approve_tool"), "good": entry(good)}
        with pytest.raises(ConfigurationError, match=r"hooks\.processes\.gate does not start: it cannot be started: .*required"):
            await mount_configured(manager, config(processes))
        assert () == manager.mounted
        await wait_for_exit(int(marker.read_text()))


async def test_hellos_are_at_the_same_time(tmp_path):
    """Each hook greets only once the other one has begun to."""
    mine, theirs = tmp_path / "a", tmp_path / "b"
    body = """
    def hello(params):
        open({mine!r}, "w").close()
        while not os.path.exists({theirs!r}):
            time.sleep(0.005)
        answer()
    """
    one = script(tmp_path, body.format(mine=str(mine), theirs=str(theirs)), name="one")
    two = script(tmp_path, body.format(mine=str(theirs), theirs=str(mine)), name="two")
    async with new_manager() as manager:
        configured = await mount_configured(manager, config({"one": entry(one), "two": entry(two)}))
        assert (MountedHook("one"), MountedHook("two")) == configured.outcomes


async def test_cancelled_start_stops_started_hooks(tmp_path):
    marker = tmp_path / "pid"
    good = script(tmp_path, f"def hello(params):\n    answer()\n    open({str(marker)!r}, 'w').write(str(os.getpid()))")
    slow = script(tmp_path, "def hello(params): sys.stdin.buffer.read()", name="slow")
    async with new_manager() as manager:
        mounting = asyncio.create_task(mount_configured(manager, config({"good": entry(good), "slow": entry(slow)})))
        await wait_until(lambda: marker.exists() and marker.read_text())
        mounting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await mounting
        await wait_for_exit(int(marker.read_text()))
        assert () == manager.mounted


async def test_reload_replaces_hooks(tmp_path):
    old, new = script(tmp_path, DENYING % "old", name="old"), script(tmp_path, DENYING % "new", name="new")
    async with new_manager() as manager:
        configured = await mount_configured(manager, config({"h": entry(old), "gone": entry(old)}))
        pids = [process_of(manager, name).pid for name in ("h", "gone")]
        await configured.reload(config({"h": entry(new)}, policy={"tool_injection": "off"}))
        assert ["h"] == [each.name for each in manager.mounted]
        assert "off" == manager.policy.tool_injection
        assert ["Tool execution denied by hook: new"] == results(await take_turn(manager))
        for pid in pids:
            await wait_for_exit(pid)


async def test_hook_stays_mounted_if_its_successor_fails_to_start(tmp_path):
    """Also one that is not required: what works is not given up for what does not."""
    guard, other = script(tmp_path, DENYING % "old", name="guard"), script(tmp_path, "", name="other")
    async with new_manager() as manager:
        hooks = config({"guard": entry(guard), "other": entry(other)})
        configured = await mount_configured(manager, hooks)
        before = {name: process_of(manager, name).pid for name in ("guard", "other")}
        script(tmp_path, "sys.exit('broken')", name="guard")
        with pytest.raises(
            ConfigurationError, match=r"hooks\.processes\.guard does not start: .*broken.*The one that is mounted stays"
        ):
            await configured.reload(config({"guard": entry(guard), "new": entry(other)}, policy={"edit_system": True}))
        assert before == {each.name: each.hook.pid for each in manager.mounted}
        assert ["Tool execution denied by hook: old"] == results(await take_turn(manager))
        assert (not manager.policy.edit_system, (MountedHook("guard"), MountedHook("other"))) == (True, configured.outcomes)
        await configured.reload(config({}))
        assert () == manager.mounted


async def test_factory_without_a_hook_instance_is_reported():
    async with new_manager() as manager:
        entries = {name: {"enabled": True, "required": False} for name in ("a class", "no hook")}
        factories = {"a class": lambda spec: Own, "no hook": lambda spec: 5}
        configured = await mount_configured(manager, config(builtins=entries), builtins=factories)
        one, other = (each.problem for each in configured.outcomes)
        assert "Own is a class, not a hook: give an instance of it, Own(...)" == one
        assert "int is not a hook: it has none of the methods" in other
        assert () == manager.mounted


async def test_configured_fail_closed_is_mounted(tmp_path):
    class Closed(Own):
        fail_closed = True

    async with new_manager() as manager:
        entries = {"says no": {"enabled": True, "fail_closed": False}, "says nothing": {"enabled": True}}
        processes = {"guard": entry(script(tmp_path, ""), fail_closed=True), "other": entry(script(tmp_path, ""))}
        made = {name: lambda spec: Closed() for name in entries}
        await mount_configured(manager, config(processes, builtins=entries), builtins=made)
        closed = {each.name: each.fail_closed for each in manager.mounted}
        assert {"says no": False, "says nothing": True, "guard": True, "other": False} == closed


async def test_a_turn_does_not_call_hooks_that_a_reload_ended_and_their_approval_is_denied(tmp_path):
    asked = tmp_path / "asked"
    waiting = script(tmp_path, f"def on(method, params): open({str(asked)!r}, 'w').close()", name="waiting")
    willing = script(tmp_path, "def on(method, params): answer({'approved': True})", name="willing")
    async with new_manager() as manager:
        configured = await mount_configured(manager, config({"h": entry(waiting, "approve_tool")}))
        turn = asyncio.create_task(take_turn(manager))
        await wait_until(asked.exists)
        await configured.reload(config({"h": entry(willing, "approve_tool")}))
        end = await turn
        assert ['Tool execution denied by approval hook: tool approval hook "h" failed'] == results(end)
        assert ("stop", "done") == (end.finish_reason, end.content)
        assert ["3"] == results(await take_turn(manager))


async def test_reloads_during_turns_leave_nothing_behind(tmp_path):
    command = script(tmp_path, "def on(method, params): answer({'approved': True} if method == 'approve_tool' else {})")
    hooks = config({"h": entry(command, "before_llm", "before_tool", "approve_tool"), "i": entry(command, observe=["*"])})
    gc.collect()  # what other tests have left goes now, or not before the end
    files, tasks = open_files(), len(asyncio.all_tasks())
    async with new_manager() as manager:
        configured = await mount_configured(manager, hooks)
        pids = []
        turns = [asyncio.create_task(take_turn(manager)) for _ in range(20)]
        for _ in range(5):
            pids += [process_of(manager, name).pid for name in "hi"]
            turns.append(asyncio.create_task(take_turn(manager)))
            await configured.reload(hooks)
        for end in await asyncio.gather(*turns):
            assert "stop" == end.finish_reason
            (result,) = results(end)
            assert "3" == result or "denied by approval hook" in result
        assert ["3"] == results(await take_turn(manager))
        pids += [process_of(manager, name).pid for name in "hi"]
    for pid in pids:
        await wait_for_exit(pid)
    await wait_until(lambda: open_files() <= files and len(asyncio.all_tasks()) <= tasks)  # fewer, where others end meanwhile


async def test_hook_mounted_by_code_under_a_configured_name_is_kept(tmp_path):
    command = script(tmp_path, DENYING % "configured")

    class Denying:
        async def before_tool(self, call):
            return DenyTool("own")

    async with new_manager() as manager:
        configured = await mount_configured(manager, config({"h": entry(command)}))
        pid = process_of(manager).pid
        manager.mount("h", Denying())
        await wait_for_exit(pid)
        await configured.reload(config())
        assert ["Tool execution denied by hook: own"] == results(await take_turn(manager))
        await configured.aclose()
        assert ["Tool execution denied by hook: own"] == results(await take_turn(manager))


class Closable:
    def __init__(self):
        self.closed = False

    async def approve_tool(self, call):
        return True

    async def aclose(self):
        self.closed = True


async def test_a_builtin_is_made_by_its_factory_which_may_be_async():
    made = []

    async def make(spec):
        made.append(spec)
        return Closable()

    async with new_manager() as manager:
        settings = config(builtins={"gate": {"enabled": True, "config": {"x": 1}}})
        await mount_configured(manager, settings, builtins={"gate": make})
        assert [settings.builtins[0]] == made
        assert ["gate"] == [each.name for each in manager.mounted]


async def test_a_builtin_without_a_factory_is_a_mistake():
    async with new_manager() as manager:
        settings = config(builtins={"gate": {"enabled": True}})
        with pytest.raises(ConfigurationError, match=r"hooks\.builtins\.gate: unknown builtin hook; there are none here"):
            await mount_configured(manager, settings)
        with pytest.raises(ConfigurationError, match="there are audit, log"):
            await mount_configured(manager, settings, builtins={"log": Closable, "audit": Closable})


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (lambda spec: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda spec: "x", "str is not a hook: it has none of the methods before_llm"),
    ],
)
async def test_a_builtin_that_cannot_be_made_stops_everything_unless_it_is_optional(factory, why, caplog):
    other = Closable()
    async with new_manager() as manager:
        builtins = {"a": lambda spec: other, "b": factory}
        settings = {"a": {"enabled": True}, "b": {"enabled": True}}
        with pytest.raises(ConfigurationError, match=rf"hooks\.builtins\.b does not start: {why}"):
            await mount_configured(manager, config(builtins=settings), builtins=builtins)
        assert other.closed
        settings["b"]["required"] = False
        configured = await mount_configured(manager, config(builtins=settings), builtins=builtins)
        assert configured.outcomes[1].problem.startswith(why)


async def test_hello_includes_the_media_folder(tmp_path):
    body = """
    def hello(params):
        global folder
        folder = params.get("media_dir")
        answer()

    def on(method, params):
        answer({"action": "deny_tool", "reason": folder} if method == "before_tool" else {})
    """
    async with new_manager() as manager:
        await mount_configured(manager, config({"h": entry(script(tmp_path, body))}), media_dir=tmp_path)
        assert [f"Tool execution denied by hook: {tmp_path}"] == results(await take_turn(manager))


async def test_unknown_settings_are_logged(caplog):
    async with new_manager() as manager:
        await mount_configured(manager, config(polices={}))
    assert "hooks.polices is not known" in caplog.text
