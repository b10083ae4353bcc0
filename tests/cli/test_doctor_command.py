"""``patchbay doctor``: what it prints, its exit status, and Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from doctor.scripted import MODEL, Habits, HabitualServer
from patchbay.doctor import model_servers
from patchbay.doctor.examination import PROBES
from patchbay.testing import Raw
from support.cli import run_cli
from support.processes import Process
from support.scripted_server import PATIENCE, SharedUpstream, json_body


def test_a_server_without_a_problem_ends_with_its_command_line_and_status_0():
    with HabitualServer(Habits()) as server:
        done = run_cli("doctor", "--upstream", server.url, "--model", MODEL)
    lines = done.stdout.splitlines()
    assert (0, "") == (done.returncode, done.stderr)
    assert f"ok       recommended          patchbay proxy --upstream {server.url} --tools native" == lines[-3]
    assert f"{'':<29} -> Use it: the model calls tools natively." == lines[-2]
    assert "23 findings: 21 ok, 0 note, 0 problem, 2 skipped" == lines[-1]


def test_json_has_each_finding_by_its_name_and_a_problem_ends_with_status_1():
    with HabitualServer(Habits(key="right-key-0123456789")) as server:
        done = run_cli("doctor", "--upstream", server.url, "--json", UPSTREAM_API_KEY="wrong-key-0123456789")
    found = json.loads(done.stdout)
    assert 1 == done.returncode
    assert ["python", "packages", *PROBES] == [each["name"] for each in found["findings"]]
    assert {"name", "status", "seen", "advice"} == {*found["findings"][0]}
    assert (1, None, False) == (found["problems"], found["recommended"], found["interrupted"])
    assert "wrong-key" not in done.stdout


def test_the_recommended_command_line_of_json_is_that_of_the_finding():
    with HabitualServer(Habits(tools="ignore", text="hermes")) as server:
        found = json.loads(run_cli("doctor", "--upstream", server.url, "--json").stdout)
    assert f"patchbay proxy --upstream {server.url} --tools text --format hermes" == found["recommended"]


@pytest.mark.parametrize("flags", [("--upstream", "nonsense"), ("--timeout", "0"), ("--unknown",)])
def test_a_usage_error_ends_with_status_2(flags):
    done = run_cli("doctor", *flags)
    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("patchbay: ")


def test_files_that_are_not_there_are_problems_not_usage_errors(tmp_path):
    missing = tmp_path / "missing.toml"
    found = json.loads(run_cli("doctor", "--json", "--config", str(missing), "--mcp-config", str(missing)).stdout)
    assert {"config": "problem", "mcp": "problem"} == {each["name"]: each["status"] for each in found["findings"][2:-1]}


def test_without_an_upstream_the_model_servers_of_this_machine_are_named(monkeypatch):
    with HabitualServer(Habits(owner="llamacpp")) as server:
        port = int(server.url.removesuffix("/v1").rpartition(":")[2])
        row = next(each for each in model_servers.KNOWN_SERVERS if each.name == "llama.cpp")
        monkeypatch.setattr(model_servers, "KNOWN_SERVERS", (replace(row, port=port),))
        done = run_cli("doctor", "--mcp-config", "none")
    *_, seen, advice, _ = done.stdout.splitlines()
    expected = f"No model server is examined; on this machine there is: llama.cpp, 1 model at {server.url}."
    assert (0, f"skipped  upstream             {expected}") == (done.returncode, seen)
    assert advice.endswith(f"-> Examine one: patchbay doctor --upstream {server.url}.")


def test_a_terminal_gets_colours_lines_of_its_width_and_what_runs_now():
    ours, theirs = pty.openpty()
    printed = b""
    with HabitualServer(Habits(tools="ignore")) as server:
        command = [sys.executable, "-m", "patchbay", "doctor", "--upstream", server.url]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "90"}
        environment.pop("NO_COLOR", None)
        process = Process(command, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        alarm = threading.Timer(PATIENCE, process.kill)
        alarm.start()
        with contextlib.suppress(OSError):  # closed at the other end
            while data := os.read(ours, 65536):
                printed += data
        alarm.cancel()
        assert 0 == process.wait(PATIENCE)
    os.close(ours)
    text = printed.decode()
    assert "\r\x1b[Kchecking tools …\r\x1b[K\x1b[33mnote    \x1b[0m tools                Tools are silently ignored: " in text
    assert f"recommended          patchbay proxy --upstream {server.url} --tools text\r\n" in text
    visible = re.sub(r"\x1b\[[0-9;]*[mK]|checking \w+ …", "", text).replace("\r", "").splitlines()
    assert 90 >= max(len(line) for line in visible if "recommended" not in line)


def test_ctrl_c_stops_and_prints_what_is_known():
    with SharedUpstream() as upstream:
        upstream.on("/v1/models", json_body({"data": [{"id": MODEL}]}))
        upstream.on(MODEL, Raw(end="hang"))
        command = [sys.executable, "-m", "patchbay", "doctor", "--upstream", upstream.url, "--json"]
        process = Process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        upstream.wait_for(MODEL)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE)
    found = json.loads(stdout)
    assert (130, "", True) == (process.returncode, stderr, found["interrupted"])
    assert "model" == found["findings"][-1]["name"]
