"""``/api/agents/NAME/runs`` of a server, and a worker beside it that is stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import Any

from agents.databases import restart_postgres
from support.processes import Process
from support.served import wait_for

from .children import ROOT, clean_environment, workers


@contextmanager
def server(url: str, environment: dict[str, str], store: str):
    command = [
        sys.executable,
        "-m",
        "patchbay",
        "serve",
        "--port",
        "0",
        "--store",
        store,
        "--mcp-config",
        "none",
    ]
    command += ["--agent", "tests.durable.clerk:agent", "--durable", url, "--run-concurrency", "1"]
    with Process(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as process:
        try:
            yield process.stdout.readline().split()[-1] + "/api/agents"
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
    assert 0 == process.returncode


def ask(url: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data, {"content-type": "application/json"}), timeout=60
        ) as answer:
            text = answer.read().decode()
            return answer.status, text if "event-stream" in answer.headers["content-type"] else json.loads(text)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_runs_over_http(tmp_path):
    url, environment = f"sqlite:///{tmp_path}/runs.db", clean_environment(LOG=str(tmp_path / "log"), PAUSE="0.3", GONE="1.5")
    with server(url, environment, f"{tmp_path}/tools.db") as base:
        body = {"message": "pay", "id": "a", "session": "s"}
        status, run = ask(f"{base}/clerk/runs", body)
        assert (202, "a", "s") == (status, run["id"], run["session"])
        assert 202 == ask(f"{base}/clerk/runs", body)[0]  # the same run
        status, refusal = ask(f"{base}/clerk/runs", {**body, "session": "t"})
        assert (409, "run_exists") == (status, refusal["error_code"])
        status, stream = ask(f"{base}/clerk/runs/a/events")
        kinds = [line.removeprefix("event: ") for line in stream.splitlines() if line.startswith("event: ")]
        assert ["model", "tool_begins", "tool", "model", "end"] == kinds
        status, run = ask(f"{base}/clerk/runs/a")
        assert (200, "completed", "paid", 1) == (status, run["status"], run["text"], run["attempts"])
        assert (404, 404) == (ask(f"{base}/clerk/runs/b")[0], ask(f"{base}/other/runs/a")[0])
        # one is cancelled while it runs, another while it waits
        slow = ["slow_1", "slow_2"]
        for run_id in slow:
            ask(f"{base}/clerk/runs", {"message": "pay", "id": run_id})
        wait_for(lambda: "running" in [ask(f"{base}/clerk/runs/{run_id}")[1]["status"] for run_id in slow])
        for run_id in sorted(slow, key=lambda run_id: ask(f"{base}/clerk/runs/{run_id}")[1]["status"]):  # the waiting one first
            assert "cancelled" == ask(f"{base}/clerk/runs/{run_id}/cancel", {})[1]["status"]
    # A worker that is stopped ends the step under way, and gives the run back.
    with server(url, environment, f"{tmp_path}/tools.db") as base:
        with workers(url, environment, 1) as (worker,):
            worker.wait_for("database")
            for number in range(6):
                ask(f"{base}/clerk/runs", {"message": "pay", "id": f"w{number}"})
            worker.wait_for("begun")
            worker.process.send_signal(signal.SIGINT)
            assert worker.wait_for("stopped")
            assert 0 == worker.process.wait(30)
        for number in range(6):
            wait_for(lambda number=number: "completed" == ask(f"{base}/clerk/runs/w{number}")[1]["status"])
            assert "paid" == ask(f"{base}/clerk/runs/w{number}")[1]["text"]
    assert 7 == len(set((tmp_path / "log").read_text().split()) - {*slow})


def test_a_server_that_stops_ends_the_step_under_way_and_the_streams(tmp_path):
    log = tmp_path / "log"
    url, environment = f"sqlite:///{tmp_path}/runs.db", clean_environment(LOG=str(log), PAUSE="2", GONE="1.5")
    with server(url, environment, str(tmp_path / "tools.db")) as base:
        assert 422 == ask(f"{base}/clerk/runs", {"message": "pay", "id": "a/b"})[0]
        for run_id in "ab":
            ask(f"{base}/clerk/runs", {"message": "pay", "id": run_id})
        wait_for(lambda: log.exists() and log.read_text())
        first = log.read_text().strip()
        stream = urllib.request.urlopen(f"{base}/clerk/runs/{first}/events", timeout=60)
        assert b"event: model\n" == stream.readline()
        began = time.monotonic()
    assert 10 > time.monotonic() - began
    assert b"event: end" not in stream.read()
    assert first == log.read_text().strip()  # the other one waits
    with server(url, environment, str(tmp_path / "tools.db")) as base:
        for run_id in "ab":
            wait_for(lambda run_id=run_id: "completed" == ask(f"{base}/clerk/runs/{run_id}")[1]["status"])
            assert "paid" == ask(f"{base}/clerk/runs/{run_id}")[1]["text"]
    assert ["a", "b"] == sorted(log.read_text().split())


def test_a_response_in_the_background_goes_on_when_its_server_has_stopped(tmp_path):
    log = tmp_path / "log"
    url, environment = f"sqlite:///{tmp_path}/runs.db", clean_environment(LOG=str(log), PAUSE="1", GONE="1.5")
    with server(url, environment, str(tmp_path / "tools.db")) as base:
        responses = base.replace("/api/agents", "/v1/responses")
        ids = [ask(responses, {"model": "clerk", "input": "pay", "background": True})[1]["id"] for _ in range(2)]
        wait_for(lambda: log.exists() and log.read_text())
    with server(url, environment, str(tmp_path / "tools.db")) as base:
        responses = base.replace("/api/agents", "/v1/responses")
        for response_id in ids:
            wait_for(lambda each=response_id: "in_progress" != ask(f"{responses}/{each}")[1]["status"])
            found = ask(f"{responses}/{response_id}")[1]
            assert ("completed", "paid") == (found["status"], found["output"][0]["content"][0]["text"])
        cancelled = ask(responses, {"model": "clerk", "input": "pay", "background": True})[1]["id"]
        wait_for(lambda: 200 == ask(f"{base}/clerk/runs/{cancelled}")[0])
        assert "cancelled" == ask(f"{responses}/{cancelled}/cancel", {})[1]["status"]
        assert "cancelled" == ask(f"{base}/clerk/runs/{cancelled}")[1]["status"]
    assert sorted(ids) == sorted({*log.read_text().split()} - {cancelled})


def test_streams_and_responses_go_on_when_the_database_was_away(new_postgres, tmp_path):
    environment = clean_environment(LOG=str(tmp_path / "log"), PAUSE="1")
    with server("store", environment, new_postgres) as base:
        responses = base.replace("/api/agents", "/v1/responses")
        response_id = ask(responses, {"model": "clerk", "input": "pay", "background": True})[1]["id"]
        wait_for((tmp_path / "log").exists)
        stream = urllib.request.urlopen(f"{base}/clerk/runs/{response_id}/events", timeout=60)
        assert b"event: model\n" == stream.readline()
        restart_postgres(new_postgres, away=1.0)
        assert b"event: end\n" in stream.read()
        wait_for(lambda: "completed" == ask(f"{responses}/{response_id}")[1].get("status"))
