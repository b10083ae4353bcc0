"""The loop of a hook, as a real process: whatever the locale, whatever is printed, however slow a tool is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest

BOUND = 60
C_LOCALE = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


class Running:
    """A hook's process, spoken to by hand."""

    def __init__(self, process):
        self.process = process
        self._last_id = 0

    def send(self, method, params=None, **members):
        """Send a request, and return its id."""
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params or {}, **members}
        self.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
        return self._last_id

    def write(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self):
        line = self.process.stdout.readline()
        assert line.endswith(b"\n")
        return json.loads(line)

    def ask(self, method, params=None):
        request_id = self.send(method, params)
        reply = self.read()
        assert request_id == reply["id"]
        return reply.get("result", reply.get("error"))

    def end(self):
        """Close its input; return its exit status, and what was on its output and on its standard error."""
        out, err = self.process.communicate(timeout=BOUND)
        return self.process.returncode, out, err.decode()


@contextmanager
def running(folder, body, **env):
    path = folder / "hook.py"
    source = "from patchbay.hooks.sdk import *\nimport os, sys, time, threading, asyncio\nhook = Hook('h')\n" + textwrap.dedent(
        body
    )
    path.write_text(source + "\nhook.run()\n", encoding="utf-8")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, str(path)], stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **env}
    ) as process:
        try:
            yield Running(process)
        finally:
            process.kill()
            process.communicate()


ECHO = """
@hook.tool
def echo(text: str) -> str:
    return text
"""


def test_serve_answers_and_ends_with_its_input(tmp_path):
    with running(tmp_path, ECHO) as hook:
        assert "h" == hook.ask("hook.hello", {"name": "x"})["name"]
        assert "hi" == hook.ask("hook.before_tool", {"tool": "echo", "arguments": {"text": "hi"}})["result"]["for_llm"]
        assert (0, b"", "") == hook.end()


def test_utf8_is_used_in_any_locale(tmp_path):
    with running(tmp_path, ECHO, **C_LOCALE) as hook:
        text = "Zürich 北京 🌦"
        assert text == hook.ask("hook.before_tool", {"tool": "echo", "arguments": {"text": text}})["result"]["for_llm"]


def test_printed_text_stays_off_the_wire(tmp_path):
    body = """
    print("at the start", flush=True)
    print("half a line", end="")

    @hook.before_tool
    def noisy(call):
        print("ärger 北京")
        os.write(1, b"from below\\n")
        os.system("echo from a child")
        return DenyTool(repr(sys.stdin.read()))
    """
    with running(tmp_path, body, **C_LOCALE, PYTHONUNBUFFERED="") as hook:
        first = hook.process.stdout.readline()
        assert b"at the start\n" == first  # before run() standard output is what it always is
        assert "''" == hook.ask("hook.before_tool", {"tool": "x"})["reason"]
        status, out, err = hook.end()
    assert (0, b"") == (status, out)
    assert all(text in err for text in ("half a line", "ärger 北京", "from below", "from a child"))


def test_slow_tool_does_not_delay_other_calls(tmp_path):
    body = """
    gate = threading.Event()

    @hook.tool
    def slow() -> str:
        gate.wait()
        return "slow"

    @hook.tool
    async def slow_too() -> str:
        while not gate.is_set():
            await asyncio.sleep(0.005)
        return "slow too"

    @hook.tool
    def quick() -> str:
        gate.set()
        return "quick"
    """
    with running(tmp_path, body) as hook:
        ids = [hook.send("hook.before_tool", {"tool": name}) for name in ("slow", "slow_too")]
        quick = hook.send("hook.before_tool", {"tool": "quick"})
        replies = {reply["id"]: reply["result"]["result"]["for_llm"] for reply in (hook.read(), hook.read(), hook.read())}
        assert {ids[0]: "slow", ids[1]: "slow too", quick: "quick"} == replies


def test_an_unknown_method_and_params_of_a_wrong_type_are_answered_with_their_code(tmp_path):
    with running(tmp_path, "") as hook:
        assert {"code": -32601, "message": "unknown method 'hook.nonsense'"} == hook.ask("hook.nonsense")
        assert -32601 == hook.ask("hook.approve_tool")["code"]
        hook.write(b'{"jsonrpc":"2.0","id":5,"method":"hook.before_tool","params":[1]}\n')
        assert {"id": 5, "code": -32602} == {"id": (reply := hook.read())["id"], "code": reply["error"]["code"]}


def test_odd_lines_are_skipped(tmp_path):
    odd = [b"", b"   ", b"hello", b"[]", b"null", b'"x"', b"{}", b'{"method":1,"id":2}', b'{"id":1,', b"\xff\xfe", b"[" * 100_000]
    with running(tmp_path, "") as hook:
        for line in odd:
            hook.write(line + b"\n")
        hook.write(b'\r\n{"jsonrpc":"2.0","method":"hook.before_tool","params":[]}\r\n')
        assert {} == hook.ask("hook.before_tool")
        status, out, err = hook.end()
    assert (0, b"", 9) == (status, out, err.count("patchbay: the host sent"))


def test_exception_of_a_function_is_an_error_with_a_traceback(tmp_path):
    body = """
    @hook.before_tool
    def broken(call):
        if call.tool == "exit":
            sys.exit(3)
        return {}["city"]
    """
    with running(tmp_path, body) as hook:
        assert {"code": -32000, "message": "KeyError: 'city'"} == hook.ask("hook.before_tool", {"tool": "x"})
        assert {"code": -32000, "message": "SystemExit"} == hook.ask("hook.before_tool", {"tool": "exit"})
        assert {} == hook.ask("hook.after_tool")
        status, _, err = hook.end()
    assert 0 == status
    assert 'return {}["city"]' in err


def test_an_answer_that_is_invalid_json_is_an_error(tmp_path):
    body = """
    @hook.before_tool
    def odd(call):
        return Modify({"arguments": {"x": float("nan") if call.tool == "nan" else object()}})
    """
    with running(tmp_path, body) as hook:
        assert "TypeError" in hook.ask("hook.before_tool", {"tool": "x"})["message"]
        assert "ValueError" in hook.ask("hook.before_tool", {"tool": "nan"})["message"]


def test_unreadable_answer_is_an_error(tmp_path):
    with running(tmp_path, ECHO) as hook:
        hook.ask("hook.hello", {"name": "h", "line_limit": 5000})
        error = hook.ask("hook.before_tool", {"tool": "echo", "arguments": {"text": "x" * 5000}})
        words = "return an image or a file as a patchbay.Attachment, or set max_line_bytes in the hook's entry"
        assert f"bytes, and the host reads 5000: {words}" in error["message"]
        hook.ask("hook.hello", {"name": "h"})
        assert "respond" == hook.ask("hook.before_tool", {"tool": "echo", "arguments": {"text": "x" * 5000}})["action"]


def test_long_error_is_truncated_for_any_line_limit(tmp_path):
    body = """
@hook.approve_tool
def fails(call):
    raise ValueError("x" * 10_000)
"""
    with running(tmp_path, ECHO + body) as hook:
        hook.ask("hook.hello", {"name": "h", "line_limit": 5000})
        message = hook.ask("hook.approve_tool", {"tool": "echo"})["message"]
        assert (True, True) == (message.startswith("ValueError: xxx"), len(message) < 1000)
        hook.ask("hook.hello", {"name": "h", "line_limit": 10})  # below any real limit: the error is still sent
        assert "the host reads 10" in hook.ask("hook.before_tool", {"tool": "echo", "arguments": {"text": "hi"}})["message"]
        assert 0 == hook.end()[0]


def test_notifications_are_not_answered_and_events_are_ordered(tmp_path):
    body = """
    seen = []

    @hook.observer
    async def first(event):
        seen.append(event.kind)
        if event.kind == "broken":
            raise ValueError(event.kind)

    @hook.observer
    def second(event):
        if event.kind == "a":
            sys.exit("no more of this")

    @hook.before_tool
    def told(call):
        while len(seen) < 5:
            time.sleep(0.001)
        return DenyTool(" ".join(seen))
    """
    with running(tmp_path, body) as hook:
        for kind in ("a", "broken", "c"):
            hook.write(json.dumps({"method": "hook.runtime_event", "params": {"kind": kind}}).encode() + b"\n")
        hook.write(
            b'{"method":"hook.event","params":{"Kind":"d"}}\n{"method":"hook.later","params":{}}\n{"method":"hook.event"}\n'
        )
        assert "a broken c d " == hook.ask("hook.before_tool")["reason"]
        assert "ValueError: broken" in hook.end()[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_ends_on_a_signal(tmp_path, number):
    with running(tmp_path, "import atexit\natexit.register(lambda: os.write(2, b'bye'))") as hook:
        hook.ask("hook.hello")
        hook.process.send_signal(number)
        status = hook.process.wait(BOUND)
        assert {signal.SIGTERM: 0, signal.SIGINT: 130}[number] == status
        assert "bye" == hook.process.stderr.read().decode()


def test_running_calls_are_answered_when_the_input_ends(tmp_path):
    body = """
    @hook.tool
    def slow() -> str:
        time.sleep(0.1)
        return "done"
    """
    with running(tmp_path, body) as hook:
        hook.ask("hook.before_tool", {"tool": "slow"})  # what is imported on first use may take longer than a host waits
        hook.send("hook.before_tool", {"tool": "slow"})
        status, out, _ = hook.end()
        assert (0, "done") == (status, json.loads(out)["result"]["result"]["for_llm"])


def test_hanging_call_does_not_keep_the_process_alive(tmp_path):
    with running(tmp_path, "@hook.before_tool\ndef hang(call):\n    time.sleep(60)") as hook:
        hook.send("hook.before_tool")
        assert (0, b"", "") == hook.end()


def test_where_no_thread_is_to_be_had_calls_are_answered_one_after_the_other(tmp_path):
    refusing = """
def refuse(self):
    raise RuntimeError("can't start new thread")

threading.Thread.start = refuse
"""
    with running(tmp_path, ECHO + refusing) as hook:
        for text in ("a", "b"):
            assert text == hook.ask("hook.before_tool", {"tool": "echo", "arguments": {"text": text}})["result"]["for_llm"]
        assert 0 == hook.end()[0]


def test_importing_the_sdk_is_light():
    probe = """
import json, sys
before = set(sys.modules)
import patchbay.hooks.sdk
new = set(sys.modules) - before
print(json.dumps([sorted({n.partition(".")[0] for n in new} - set(sys.stdlib_module_names)), sorted(n for n in new if n.startswith("patchbay."))]))
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=BOUND, check=True)
    packages, modules = json.loads(done.stdout)
    assert ["patchbay"] == packages
    assert not any(
        module in modules for module in ("patchbay.hooks.manager", "patchbay.hooks.pipeline", "patchbay.hooks.process.client")
    )
    rooms = {module.split(".")[1] for module in modules}
    assert rooms.isdisjoint({"executor", "loop", "models", "server", "agents", "cli", "plugins"})
