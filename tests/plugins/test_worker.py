"""The worker process over a real socket: the order of its messages, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from patchbay.plugins.connection import MAX_FRAME_BYTES
from patchbay.plugins.errors import PluginError
from patchbay.plugins.protocol import (
    Begun,
    Bootstrap,
    CancelRun,
    Progress,
    Stop,
    child_command,
    read_bootstrap,
)
from plugins.host_rig import BOUND, RigHost, write_plugin

WEATHER = """
import asyncio, os, sys, threading

@neko_plugin
class Plugin(NekoPluginBase):
    @lifecycle(id="startup")
    async def startup(self, reason, **_):
        print("startup", reason)
        self.logger.info("starting")

    @lifecycle(id="shutdown")
    async def shutdown(self, reason):
        print("shutdown", reason)

    @lifecycle(id="reload")
    def reload(self):
        print("reload")

    @llm_tool(timeout=60)
    async def get_weather(self, *, city: str):
        return {"city": city, "temp_c": 22}

    @llm_tool(timeout=60)
    async def hang(self, *, name: str = ""):
        yield f"began {name}"
        try:
            await asyncio.Event().wait()
        finally:
            print("ended", name)
"""


@pytest.fixture
def weather(tmp_path):
    return write_plugin(tmp_path / "weather", WEATHER)


def plugin_of(tmp_path: Path, body: str, toml: str = "") -> Path:
    """A plugin of one class body."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    return write_plugin(
        tmp_path / "plugin", f"import asyncio, os, sys, threading, time\nclass Plugin(NekoPluginBase):\n{lines}\n", toml
    )


async def test_token_is_neither_in_the_command_nor_in_the_environment(tmp_path):
    folder = plugin_of(
        tmp_path,
        """
        @llm_tool
        def look(self):
            return [sys.argv, dict(os.environ), sys.orig_argv, sys.stdin.read()]
        """,
    )

    async with RigHost(folder, fresh=True) as host:
        await host.register()
        token, answer = (host.token, await host.call("look"))
    assert token not in json.dumps(answer)
    assert "" == answer["output"][3]


async def test_hundred_concurrent_calls_are_answered_in_any_order(weather):
    async with RigHost(weather) as host:
        await host.register(2)
        hanging = [host.trigger("hang", arguments={"name": str(n)}, run_id="all") for n in range(100)]
        for req_id in hanging:
            await host.expect(Progress, lambda progress, req_id=req_id: progress.req_id == req_id)
        assert not (await host.call("get_weather", arguments={"city": "Rome"}))["is_error"]
        host.send(CancelRun(run_id=hanging[7]))
        assert "TOOL_CANCELLED" == (await host.answer(hanging[7]))["error"]
        host.send(CancelRun(run_id="all"))
        errors = {(await host.answer(req_id))["error"] for req_id in hanging if req_id != hanging[7]}
        assert {"TOOL_CANCELLED"} == errors
        host.send(Stop())
        await host.exited()
        assert {f"ended {n}" for n in range(100)} <= set(host.stdout.splitlines())


async def test_begun_is_written_before_the_handler_runs(tmp_path):
    folder = plugin_of(
        tmp_path,
        """
        @llm_tool
        async def die(self):
            os._exit(9)
        """,
    )
    async with RigHost(folder) as host:
        await host.register()
        call = host.trigger("die")
        assert 9 == await host.exited()
        await host.closed.wait()
        assert [call] == [message.req_id for message in host.messages if isinstance(message, Begun)]
        assert host.connection.was_read_to_end


async def test_call_has_the_given_or_a_new_idempotency_key(tmp_path):
    folder = plugin_of(
        tmp_path,
        """
        @llm_tool
        def key(self, tool_context: ToolContext):
            return tool_context.idempotency_key
        """,
    )
    async with RigHost(folder) as host:
        await host.register()
        keys = [
            (await host.call("key", call_id=call_id, idempotency_key=key))["output"]
            for call_id, key in [("c", "k"), ("c", "other"), ("d", "k"), ("c", ""), ("c", "")]
        ]
        assert ["k", "other", "k"] == keys[:3]
        assert 5 == len({*keys, "k", "other", ""})


async def test_oversized_result_is_an_error_and_the_plugin_continues(tmp_path):
    folder = plugin_of(
        tmp_path,
        """
        @llm_tool
        def much(self, size: int):
            return "x" * size
        """,
    )
    async with RigHost(folder) as host:
        await host.register()
        answer = await host.call("much", arguments={"size": MAX_FRAME_BYTES})
        assert "RESULT_TOO_LARGE" == answer["error"]
        assert 5_000_000 == len((await host.call("much", arguments={"size": 5_000_000}))["output"])


# -- how it ends


@pytest.mark.parametrize(
    "stuck",
    [
        "while True: pass",
        "threading.Thread(target=threading.Event().wait).start()",
        "signal = __import__('signal'); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(10**6)",
    ],
)
async def test_a_plugin_that_is_stuck_does_not_outlive_its_host(tmp_path, stuck):
    folder = plugin_of(
        tmp_path,
        f"""
        @llm_tool
        async def block(self):
            yield "stuck"
            await asyncio.sleep(0)
            {stuck}
        """,
    )
    async with RigHost(folder, grace=0.1) as host:
        await host.register()
        host.trigger("block")
        await host.expect(Progress)
        host.process.stdin.close()
        host.connection.abort()
        await host.exited()


async def test_host_that_sends_no_start_is_left(tmp_path):
    folder = write_plugin(tmp_path / "p", "class Plugin(NekoPluginBase): ...")
    async with RigHost(folder, sends_start=False) as host:
        assert 70 == await host.exited()


ENDS = {
    "SIGTERM": lambda host: host.process.send_signal(signal.SIGTERM),
    "the connection": lambda host: host.connection.abort(),
    "its standard input": lambda host: host.process.stdin.close(),
    "garbage": lambda host: host.connection.transport.write(b"\xff" * 64),
}


@pytest.mark.parametrize("how", ENDS)
async def test_the_end_of_the_host_ends_the_calls_and_the_plugin(weather, how):
    async with RigHost(weather) as host:
        await host.register(2)
        host.trigger("hang", arguments={"name": "call"})
        await host.expect(Progress)
        ENDS[how](host)
        await host.exited()
        assert "ended call\nshutdown stop\n" in host.stdout


# -- the line on standard input


@pytest.mark.parametrize(
    ("data", "text", "code"),
    [
        (b"", b"started by a plugin host", 2),
        (b"[]\n", b"started by a plugin host", 2),
        (b"x" * 10_000, b"started by a plugin host", 2),
        (b'{"address": "unix:/x", "token": "t", "version": 99}\n', b"version 99", 2),
        (Bootstrap(address="unix:/nowhere/none", token="t").line(), b"cannot be reached", 70),
    ],
)
def test_worker_without_a_host_says_what_is_wrong(data, text, code):
    done = subprocess.run(child_command(), input=data, capture_output=True, timeout=BOUND, check=False)
    assert (code, b"") == (done.returncode, done.stdout)
    assert text in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_bootstrap_names_a_socket_of_this_machine_and_hides_its_token():
    bootstrap = Bootstrap(address="unix:/a:b", token="secret")
    assert ("/a:b", False) == (bootstrap.path, "secret" in repr(bootstrap))
    with pytest.raises(PluginError, match="on this machine"):
        _ = Bootstrap(address="tcp:127.0.0.1:80", token="t").path


def test_line_may_arrive_in_pieces():
    bootstrap = Bootstrap(address="unix:/x", token="t")
    read, write = socket.socketpair(type=socket.SOCK_SEQPACKET)  # each read gets one piece
    with read, write:
        for byte in bootstrap.line():
            write.send(bytes([byte]))
        assert bootstrap == read_bootstrap(read.fileno())
