"""``patchbay plugins`` as a process, and the commands that ask it."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest

from patchbay.cli.children import listening

BOUND = 60
PLUGIN = """
from patchbay.plugins import *

@plugin
class Greeter(PluginBase):
    @lifecycle(id="shutdown")
    def shutdown(self, reason):
        print("bye", reason)

    @llm_tool
    def greet(self):
        print("greeting")
        return "hello"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "greeter").mkdir()
    (tmp_path / "greeter" / "main.py").write_text(textwrap.dedent(PLUGIN))
    (tmp_path / "greeter" / "plugin.toml").write_text('[plugin]\nentry = "main:Greeter"\n[plugin_runtime]\nauto_start = true\n')
    return tmp_path


def patchbay(*arguments, **options):
    command = [sys.executable, "-m", "patchbay", "plugins", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False, **options)


@contextmanager
def running(*arguments):
    with socket.create_server(("127.0.0.1", 0)) as nobody:  # takes connections, and answers none
        server = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        command = [sys.executable, "-m", "patchbay", "plugins", "run", *map(str, arguments), "--port", "0", "--server", server]
        with listening(command, name="patchbay plugins") as child:
            yield child, child.url.rpartition(":")[2]


def followed(port, text):
    """Read the host's logs until a line has the text in it."""
    command = [sys.executable, "-m", "patchbay", "plugins", "logs", "--follow", "--port", port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if text in line:
                    return line
        finally:
            process.terminate()
    raise AssertionError(f"{text!r} was not logged")


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
    assert not control.parent.exists()
    assert any("[greeter] bye" in line for line in child.printed)


def test_a_signal_stops_the_plugins_and_leaves_nothing_behind(folder):
    with running(folder) as (child, port):
        patchbay("reload", "--port", port)
        pid = int(re.search(r"pid (\d+)", patchbay("list", "--port", port).stdout)[1])
        os.kill(child.pid, signal.SIGTERM)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not (folder / "patchbay" / port).exists()


def test_a_class_is_run_by_its_name(folder, monkeypatch):
    monkeypatch.chdir(folder / "greeter")
    with running("main:Greeter") as (_, port):
        assert patchbay("list", "--port", port).stdout.startswith("main  ")


def test_what_cannot_be_done_is_said_on_one_line(folder):
    with running(folder) as (_, port):
        failed = patchbay("reload", "nobody", "--port", port)
        assert (1, "patchbay: There is no plugin 'nobody'; there are: greeter.\n") == (failed.returncode, failed.stderr)
        failed = patchbay("logs", "nobody", "--port", port)
        assert (1, "patchbay: There is no plugin 'nobody'.\n") == (failed.returncode, failed.stderr)
    failed = patchbay("list", "--port", port)
    assert 1 == failed.returncode
    assert f"no plugin host runs at port {port}" in failed.stderr
    assert 2 == patchbay("run", folder / "nowhere").returncode


def test_a_folder_is_listed_without_running_anything(folder):
    assert "greeter  main:Greeter\n" == patchbay("list", folder).stdout
    assert '"id": "greeter"' in patchbay("list", folder, "--json").stdout


def test_a_folder_that_others_can_enter_is_not_used(folder):
    (folder / "patchbay").mkdir(mode=0o755)
    failed = patchbay("run", folder, "--port", "0")
    assert 2 == failed.returncode
    assert "not a folder of this user alone" in failed.stderr


def test_watching_reloads_a_plugin_whose_file_was_changed(folder):
    with running(folder, "--watch") as (_, port):
        main = folder / "greeter" / "main.py"
        main.write_text(main.read_text() + "\nprint('as it is now')\n")
        assert "[greeter]" in followed(port, "as it is now")
