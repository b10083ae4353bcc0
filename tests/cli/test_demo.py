"""``patchbay demo`` shows a real conversation, fails when it differs from the expectation, and leaves no process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import openai
import pytest

from patchbay.cli.children import ChildError, listening
from patchbay.cli.demo import Conversation, ModelLog
from patchbay.testing import ScriptedUpstream
from support.processes import Process, run_process

DEMO = [sys.executable, "-m", "patchbay", "demo"]


FOREIGN = {"PROXY_API_KEY": "secret", "PORT": "1", "PATCHBAY_TOOLS": "native", "UPSTREAM_BASE_URL": "http://127.0.0.1:9/v1"}
"""Settings of a proxy, which do not reach the demo."""


def run(*flags: str, **environment: str) -> str:
    done = run_process([*DEMO, *flags], capture_output=True, text=True, timeout=100, env={**os.environ, **environment})
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def steps() -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("--json", **FOREIGN).splitlines()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_demo_reports_each_step_of_both_conversations(steps):
    assert ["opening"] == [step["kind"] for step in steps[:1]]
    assert {"problems": []} == steps[-1]["data"]
    first = [step["kind"] for step in steps if step["conversation"] == 1]
    second = [step["kind"] for step in steps if step["conversation"] == 2]
    expected = ["question", "contract", "written", "calls", "result", "result", "framed", "written", "answer"]
    assert ["question", "refused", *expected[1:]] == first
    assert expected == second


def test_demo_shows_the_real_requests_and_results(steps):
    contract = next(step["data"] for step in steps if step["kind"] == "contract")
    assert "tools" not in contract["keys"]
    assert "multiply" in contract["messages"][0]["content"]
    calls = [call["function"] for step in steps if step["kind"] == "calls" for call in step["data"]["calls"]]
    assert ["multiply", "count_lines", "count_lines", "count_lines"] == [call["name"] for call in calls]
    results = [json.loads(step["data"]["result"]) for step in steps if step["kind"] == "result"]
    assert 12345678901234567890 * 3 == results[0]["product"]
    assert 4 == len({result["pid"] for result in results})


def test_the_page_fits_80_columns_and_has_no_colours_in_a_pipe():
    page = run(COLUMNS="80", FORCE_COLOR="")
    assert "\x1b" not in page
    assert max(len(line) for line in page.splitlines()) <= 80
    for word in ("(scripted model)", "```tool_call", "```tool_result", "37037036703703703670", "All as expected"):
        assert word in page


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_every_process(number):
    with Process([*DEMO, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            parties = json.loads(process.stdout.readline())["data"]
            process.send_signal(number)
            process.communicate(timeout=60)
            assert 128 + number == process.returncode
            assert not alive(parties["model_pid"])
            assert not alive(parties["proxy_pid"])
        finally:
            process.kill()


def test_unexpected_conversation_is_reported(tmp_path):
    talk = Conversation(number=1, streamed=False, question="Multiply 2 by 3.", expected=(("multiply", {"a": 2, "b": 3}),))
    with (
        ScriptedUpstream(["I will not."], record=tmp_path / "record") as upstream,
        openai.OpenAI(base_url=upstream.url, api_key="unused", max_retries=0, timeout=30) as client,
    ):
        problems = talk.run(client, ModelLog(tmp_path / "record"), lambda step: None)
    assert ["conversation 1: the calls were [], not [('multiply', {'a': 2, 'b': 3})]"] == problems


def start(code: str, *, timeout: float = 30.0) -> None:
    with listening([sys.executable, "-c", code], name="a thing", timeout=timeout):
        raise AssertionError("it is not listening")


def test_failing_child_reports_its_cause():
    with pytest.raises(ChildError, match=re.escape("a thing ended with code 3: no luck")):
        start("print('no luck'); raise SystemExit(3)")


def test_silent_child_is_not_awaited_forever():
    with pytest.raises(ChildError, match="printed no address"):
        start("input()", timeout=0.2)
