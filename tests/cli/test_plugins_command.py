"""``patchbay plugins run`` as a process, and the commands that connect to it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from support.cli import run_cli
from support.processes import Process, listening, run_process

BOUND = 60
PLUGIN = """
from patchbay.plugins import *

@plugin
class Greeter(PluginBase):
    @lifecycle(id="shutdown")
    def shutdown(self, reason):
        print("bye", reason)

    @lifecycle(id="config_change")
    def changed(self, config):
        print("units", config["own.units"])

    @llm_tool
    def greet(self):
        return "hello"

print("\\x1b[2Ja \\x1b[31mred\\x1b[0m word")
"""


def write_plugin(folder):
    (folder / "greeter").mkdir()
    (folder / "greeter" / "main.py").write_text(textwrap.dedent(PLUGIN))
    (folder / "greeter" / "plugin.toml").write_text('[plugin]\nentry = "main:Greeter"\n[plugin_runtime]\nauto_start = true\n')
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return write_plugin(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The folder and the port of a host that stays for the tests that leave its plugin running."""
    folder = write_plugin(tmp_path_factory.mktemp("shared"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        with running(folder) as (_, port):
            yield folder, port


@pytest.fixture
def host(shared):
    """That host, its plugin running."""
    wait_until_running(shared[1])
    return shared


def patchbay(*arguments):
    return run_cli("plugins", *map(str, arguments))


def patchbay_run(*arguments):
    command = [sys.executable, "-m", "patchbay", "plugins", "run", *map(str, arguments)]
    return run_process(command, capture_output=True, text=True, timeout=BOUND)


def command_of(*arguments, server):
    return [sys.executable, "-m", "patchbay", "plugins", "run", *map(str, arguments), "--port", "0", "--server", server]


@contextmanager
def running(*arguments):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and answers none
        command = command_of(*arguments, server=f"http://127.0.0.1:{silent.getsockname()[1]}")
        with listening(command, name="patchbay plugins") as child:
            yield child, child.url.rpartition(":")[2]


def followed(port, text):
    """Read the host's logs until a line has the text in it."""
    command = [sys.executable, "-m", "patchbay", "plugins", "logs", "--follow", "--port", port]
    with Process(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if text in line:
                    return line
        finally:
            process.terminate()
    raise AssertionError(f"{text!r} was not logged")


def listed(port):
    """The row of the only plugin."""
    [row] = json.loads(patchbay("list", "--json", "--port", port).stdout)
    return row


def wait_until_running(port):
    """Ask until the plugin runs and has said what tools it has."""
    deadline = time.monotonic() + BOUND
    while (row := listed(port))["state"] != "running" or not row["tools"]:
        assert time.monotonic() < deadline, row
        time.sleep(0.1)  # each question costs as much CPU time


def test_a_host_is_listed_reloaded_read_and_stopped(folder):
    with running(folder) as (child, port):
        control = folder / "patchbay" / port / "control"
        assert (0o600, 0o700) == (stat.S_IMODE(control.stat().st_mode), stat.S_IMODE(control.parent.stat().st_mode))
        reloaded = patchbay("reload", "greeter", "--port", port)
        assert (0, "reloaded greeter\n") == (reloaded.returncode, reloaded.stdout)
        listed = patchbay("list", "--port", port)
        assert re.match(r"greeter  (starting|running), pid \d+\n", listed.stdout)
        stopped = patchbay("stop", "greeter", "--port", port)
        assert (0, "stopped greeter\n") == (stopped.returncode, stopped.stdout)
        assert patchbay("list", "--port", port).stdout.startswith("greeter  stopped")
        assert "bye" in patchbay("logs", "greeter", "--port", port).stdout
        assert "the host stops\n" == patchbay("stop", "--port", port).stdout
        with socket.create_server(("127.0.0.1", int(port))):  # it has exited
            pass
    assert not control.parent.exists()
    assert any("[greeter] bye" in line for line in child.printed)


def test_signal_stops_the_plugins_and_leaves_nothing_behind(folder):
    with running(folder) as (child, port):
        wait_until_running(port)
        pid = listed(port)["pid"]
        with os.fdopen(os.pidfd_open(child.pid)) as process:
            os.kill(child.pid, signal.SIGTERM)
            assert select.select([process], [], [], BOUND)[0]  # it has all the time that it needs
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not (folder / "patchbay" / port).exists()


def test_a_plugin_that_was_killed_is_listed_as_restarted_once(folder):
    with running(folder) as (_, port):
        wait_until_running(port)
        os.kill(listed(port)["pid"], signal.SIGKILL)
        deadline = time.monotonic() + BOUND
        while not re.match(r"greeter  running, pid \d+, restarted once\n", patchbay("list", "--port", port).stdout):
            assert time.monotonic() < deadline


def test_a_class_is_run_by_its_name(folder, monkeypatch):
    monkeypatch.chdir(folder / "greeter")
    with running("main:Greeter") as (_, port):
        assert patchbay("list", "--port", port).stdout.startswith("main  ")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("os:path", "There is no class 'path' in 'os'."),
        ("no_such_module:Class", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("main:Greeter", "SyntaxError: invalid syntax (main.py, line 1)"),
    ],
)
def test_unloadable_plugin_class_is_a_one_line_error_and_ends_the_host(folder, monkeypatch, target, reason):
    monkeypatch.chdir(folder / "greeter")
    (folder / "greeter" / "main.py").write_text("no python")
    failed = patchbay_run(target, "--port", "0", "--server", "http://127.0.0.1:9")
    assert (2, f"patchbay: {target} cannot be run: {reason}") == (failed.returncode, failed.stderr.splitlines()[-1])
    assert "Traceback" not in failed.stdout + failed.stderr
    assert 1 == (failed.stdout + failed.stderr).count(reason)


def test_broken_plugin_file_is_retried_under_watch(folder, monkeypatch):
    monkeypatch.chdir(folder / "greeter")
    main = folder / "greeter" / "main.py"
    right = main.read_text()
    main.write_text("no python")
    with running("main:Greeter", "--watch") as (_, port):
        assert "invalid syntax" in followed(port, "cannot be run as it is")
        main.write_text(right)
        wait_until_running(port)


def test_plugin_output_cannot_control_the_terminal(host):
    assert "[greeter] \\x1b[2Ja red word\n" in patchbay("logs", "greeter", "--port", host[1]).stdout


def test_a_plugin_is_frozen_and_unfrozen(host):
    _, port = host
    frozen = patchbay("freeze", "greeter", "--port", port)
    assert (0, "frozen greeter\n", "") == (frozen.returncode, frozen.stdout, frozen.stderr)
    tool = {"name": "greet", "state": "pending", "reason": "the plugin is frozen"}
    assert ("frozen", [tool]) == (listed(port)["state"], listed(port)["tools"])
    assert "unfrozen greeter\n" == patchbay("unfreeze", "greeter", "--port", port).stdout
    again = patchbay("unfreeze", "greeter", "--port", port)
    assert (1, "patchbay: Plugin 'greeter' is not frozen: it is running.\n") == (again.returncode, again.stderr)


def test_new_configuration_is_delivered_without_a_new_process(host):
    folder, port = host
    before = listed(port)["pid"]
    toml = folder / "greeter" / "plugin.toml"
    toml.write_text(toml.read_text() + '[own]\nunits = "F"\n')
    done = patchbay("reload", "greeter", "--config", "--port", port)
    assert (0, "configured greeter\n") == (done.returncode, done.stdout)
    lines = [json.loads(line) for line in patchbay("logs", "--json", "--port", port).stdout.splitlines()]
    assert ("greeter", "stdout") in [(line["plugin"], line["stream"]) for line in lines if line["text"] == "units F"]
    assert before == listed(port)["pid"]


def test_logs_end_at_ctrl_c_without_output(host):
    command = [sys.executable, "-m", "patchbay", "plugins", "logs", "--follow", "--port", host[1]]
    with Process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert any("[greeter] " in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, reply = process.communicate(timeout=BOUND)
    assert (130, "") == (process.returncode, reply)


@pytest.mark.parametrize("command", ["reload", "logs"])
def test_unknown_plugin_is_a_one_line_error(command, host):
    failed = patchbay(command, "nobody", "--port", host[1])
    assert (1, "patchbay: There is no plugin 'nobody'; there are: greeter.\n") == (failed.returncode, failed.stderr)


def test_missing_folder_or_host_is_a_one_line_error(folder):
    failed = patchbay("list", "--port", "1")
    assert (1, 1, True) == (failed.returncode, failed.stderr.count("\n"), "no plugin host runs at port 1" in failed.stderr)
    assert 2 == patchbay_run(folder / "nowhere").returncode


def test_a_folder_that_others_can_enter_is_not_used(folder):
    (folder / "patchbay").mkdir(mode=0o755)
    failed = patchbay_run(folder, "--port", "0")
    assert 2 == failed.returncode
    assert "not a folder of this user alone" in failed.stderr


@contextmanager
def serving(folder):
    command = [sys.executable, "-m", "patchbay", "serve", "--port", "0", "--store", "memory"]
    with listening(command, name="patchbay serve") as server:
        yield server.url


def test_registered_tools_of_a_plugin_are_reported(folder):
    with (
        serving(folder) as server,
        Process(command_of(folder, server=server), stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            assert "greeter: greet registered for default\n" in process.stdout
        finally:
            process.terminate()


def test_plugin_host_continues_if_its_output_is_closed(folder):
    with (
        serving(folder) as server,
        Process(command_of(folder, server=server), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        port = process.stdout.readline().strip().rpartition(":")[2]
        process.stdout.close()
        try:
            wait_until_running(port)
            assert 0 == patchbay("reload", "greeter", "--port", port).returncode
            assert 0 == patchbay("stop", "--port", port).returncode
            assert (0, "") == (process.wait(BOUND), process.stderr.read())
        finally:
            process.kill()


def test_at_a_second_ctrl_c_calls_are_answered_and_not_waited_for(folder):
    main = folder / "greeter" / "main.py"
    main.write_text(main.read_text().replace("    @llm_tool\n", HANGING + "    @llm_tool\n"))
    with (
        serving(folder) as server,
        ThreadPoolExecutor() as threads,
        Process(
            command_of(folder, "--drain-timeout", "600", server=server),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        wait_for_output(process, "registered for default")
        answer = threads.submit(post, f"{server}/api/tools/call", {"name": "hang", "arguments": {}})
        wait_for_output(process, "it hangs")
        process.send_signal(signal.SIGINT)
        wait_for_output(process, "patchbay plugins stopping")
        process.send_signal(signal.SIGINT)
        assert 0 == process.wait(BOUND)
        assert "ended while the call was under way" in answer.result(BOUND)["content"]


HANGING = """
    @llm_tool(timeout=300)
    async def hang(self):
        import asyncio
        print("it hangs")
        await asyncio.Event().wait()

"""


def wait_for_output(process, text):
    """Read what a host prints until a line has the text in it."""
    assert any(text in line for line in process.stdout), f"{text!r} was not printed"


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=BOUND) as answer:
        return json.load(answer)


def test_plugin_that_exits_right_after_a_reload_counts_as_not_reloaded(folder):
    with running(folder) as (_, port):
        wait_until_running(port)
        (folder / "greeter" / "main.py").write_text("import no_such_library_here")
        failed = patchbay("reload", "greeter", "--port", port)
        assert (1, "") == (failed.returncode, failed.stdout)
        assert "ModuleNotFoundError: No module named 'no_such_library_here'" in failed.stderr


@pytest.mark.parametrize("server", ["ftp://x", "http://x:99999"])
def test_invalid_server_address_is_a_one_line_error_and_creates_no_files(folder, server):
    failed = patchbay_run(folder, "--port", "0", "--server", server)
    assert (2, 1) == (failed.returncode, len(failed.stderr.splitlines()))
    assert not (folder / "patchbay").exists()


def test_a_folder_is_listed_without_running_anything(folder, tmp_path):
    assert "greeter  main:Greeter\n" == patchbay("list", folder).stdout
    assert ["greeter"] == [each["id"] for each in json.loads(patchbay("list", folder, "--json").stdout)]
    (empty := tmp_path / "empty").mkdir()
    done = patchbay("list", empty)
    assert (0, "", f"No plugins in {empty}.\n") == (done.returncode, done.stdout, done.stderr)
    assert ("[]\n", "") == ((quiet := patchbay("list", empty, "--json")).stdout, quiet.stderr)
