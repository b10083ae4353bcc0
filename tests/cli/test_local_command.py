"""``patchbay local``: its mistakes are one line, and its model server is watched. A stand-in is llama.cpp here: see tests/real_model."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from patchbay.cli import llama_server
from patchbay.cli.children import Child
from support.cli import run_cli
from support.processes import listening, run_process

BOUND = 60.0
FAKE = Path(__file__).with_name("fake_llama")
LOCAL = [sys.executable, "-m", "patchbay", "local", "--port", "0"]


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the stand-in importable, here and in processes."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("PYTHONPATH", str(FAKE))


def model(folder: Path, wish: str = "") -> str:
    path = folder / "tiny.gguf"
    path.write_text(f"GGUF {wish}")
    return str(path)


def running(path: str, *flags: str) -> AbstractContextManager[Child]:
    return listening([*LOCAL, "--model", path, *flags], name="patchbay local", timeout=BOUND)


def poll(condition: Callable[[], bool], words: str) -> None:
    pause = threading.Event()
    for _ in range(600):
        if condition():
            return
        pause.wait(0.1)
    raise AssertionError(f"not within a minute: {words}")


def upstream_of(child: Child) -> str:
    poll(lambda: len(child.printed) > 2, "the upstream is printed")
    (url,) = re.findall(r"upstream (\S+)/v1 \(llama\.cpp, tiny\)", "".join(child.printed))
    return str(url)


def answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=BOUND) as answer:
        return bool(answer.status == 200)
    return False


def server_process(child: Child) -> int:
    """The process id of the model server."""
    (found,) = {
        int(each) for task in Path(f"/proc/{child.pid}/task").iterdir() for each in (task / "children").read_text().split()
    }
    return found


@pytest.mark.usefixtures("llama")
@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "no such file or directory"), ("# Qwen", "not a GGUF file")],
)
def test_model_that_cannot_be_one_is_a_one_line_error(tmp_path: Path, content: str | None, problem: str) -> None:
    path = tmp_path / "x.gguf"
    if content is not None:
        path.write_text(content)
    done = run_cli("local", "--port", "0", "--model", str(path))
    assert (2, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert done.stderr.startswith(f"patchbay: --model {path}: ")
    assert problem in done.stderr


def test_missing_llamacpp_is_said_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_server, "find_spec", lambda _name: None)
    done = run_cli("local")
    assert (2, 1) == (done.returncode, done.stderr.count("\n"))
    assert "pip install 'patchbay-tools[local]'" in done.stderr


@pytest.mark.usefixtures("llama")
def test_port_in_use_is_said_before_a_model_is_looked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_cli("local", "--port", str(port), "--model", "/nowhere.gguf")
    assert (2, f"patchbay: cannot listen on 127.0.0.1 port {port}: address already in use.\n") == (done.returncode, done.stderr)


@pytest.mark.usefixtures("llama")
def test_flags_of_the_proxy_are_checked_before_a_model_is_looked_for() -> None:
    done = run_cli("local", "--port", "0", "--format", "no-such-format", "--model", "/nowhere.gguf")
    assert 2 == done.returncode
    assert "no-such-format" in done.stderr


def test_settings_of_clients_name_the_model() -> None:
    assert "aider --model openai/qwen3-8b" in run_cli("local", "--print-env", "aider", "--model", "/models/qwen3-8b.gguf").stdout


@pytest.mark.usefixtures("llama")
def test_what_llamacpp_logs_explains_a_model_that_it_cannot_load(tmp_path: Path) -> None:
    path = model(tmp_path, "unreadable")
    done = run_process([*LOCAL, "--model", path], capture_output=True, text=True, timeout=BOUND)
    assert (1, "") == (done.returncode, done.stdout)
    assert [
        f"patchbay: loading {path}",
        "patchbay: llama.cpp's server did not start: gguf_init: no such architecture",
    ] == done.stderr.splitlines()


def test_missing_library_of_llamacpp_is_named_with_the_way_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_process([*LOCAL, "--model", model(tmp_path)], capture_output=True, text=True, timeout=BOUND)
    assert (1, "") == (done.returncode, done.stdout)
    assert "libgomp.so.1: cannot open shared object file: install OpenMP's library (Debian: apt install libgomp1)" in done.stderr


@pytest.mark.usefixtures("llama")
def test_server_that_was_killed_is_started_again_at_its_address(tmp_path: Path) -> None:
    with running(model(tmp_path)) as child:
        url, first = upstream_of(child), server_process(child)
        os.kill(first, signal.SIGKILL)
        poll(lambda: "llama.cpp's server runs again" in "".join(child.printed), "it runs again")
        assert answers(url)
        assert first != server_process(child)
        assert "WARNING llama.cpp's server: ended by SIGKILL. It is started again in 0." in "".join(child.printed)


@pytest.mark.usefixtures("llama")
def test_server_that_ends_again_and_again_ends_the_command(tmp_path: Path) -> None:
    done = run_process([*LOCAL, "--model", model(tmp_path, "mortal")], capture_output=True, text=True, timeout=BOUND)
    assert 1 == done.returncode
    assert (
        "patchbay: llama.cpp's server: exit status 3: GGML_ASSERT failed. It ended 5 times in a row"
        == done.stderr.splitlines()[-1]
    )


@pytest.mark.usefixtures("llama")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_server_ends_with_the_command(tmp_path: Path, number: signal.Signals) -> None:
    with running(model(tmp_path)) as child:
        url = upstream_of(child)
        assert answers(url)
        child.process.send_signal(number)
        assert (-9 if number == signal.SIGKILL else 0) == child.process.wait(BOUND)
        poll(lambda: not answers(url), "the server has ended")


@pytest.mark.usefixtures("llama")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_all_processes_leaves_the_server_to_the_requests_that_run(tmp_path: Path, number: signal.Signals) -> None:
    with running(model(tmp_path)) as child:
        url = upstream_of(child)
        os.kill(server_process(child), number)  # as a terminal's Ctrl-C and systemd's stop do
        assert answers(url)


@pytest.mark.usefixtures("llama")
def test_port_of_the_server_is_kept_while_it_is_started_again(tmp_path: Path) -> None:
    with running(model(tmp_path)) as child:
        port = int(upstream_of(child).rpartition(":")[2])
        os.kill(server_process(child), signal.SIGKILL)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        poll(lambda: "llama.cpp's server runs again" in "".join(child.printed), "it runs again")
