"""``patchbay demo`` shows a real conversation, fails when it differs from the expectation, and leaves no process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import openai
import pytest

from patchbay.cli import demo_small
from patchbay.cli.children import ChildError, listening
from patchbay.cli.demo import ask
from patchbay.testing import ScriptedUpstream
from support.chat_clients import wrapped_client
from support.processes import Process, run_process

DEMO = [sys.executable, "-m", "patchbay", "demo"]
FOREIGN = {"PROXY_API_KEY": "secret", "PORT": "1", "PATCHBAY_TOOLS": "native", "UPSTREAM_BASE_URL": "http://127.0.0.1:9/v1"}
"""Settings of a proxy, which do not reach the demo."""


def test_demo_shows_each_step_of_a_conversation_in_80_columns_without_colours():
    environment = {**os.environ, **FOREIGN, "COLUMNS": "80", "FORCE_COLOR": ""}
    done = run_process(DEMO, capture_output=True, text=True, timeout=100, env=environment)
    assert (0, "") == (done.returncode, done.stderr), done
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert [
        "A model that only writes text calls two tools",
        "client → proxy, with the tools multiply, count_lines",
        "proxy → model: the tools as text, without `tools`",
        "model → proxy: the raw text",
        "proxy → client: finish_reason tool_calls",
        "client: runs multiply",
        "client: runs count_lines",
        "proxy → model: results as text",
        "model → proxy: the raw text",
        "proxy → client: the answer",
        "As expected: both calls ran, and every value reached the answer.",
    ] == [line for line in done.stdout.splitlines() if line[:1].strip()]
    for word in ("```tool_call", "```tool_result", str(12345678901234567890 * 3)):
        assert word in done.stdout
    assert 2 == len(set(re.findall(r'"pid": (\d+)', done.stdout)))  # of the processes of both tools


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_proxy_too(number):
    with Process(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = next(line for line in process.stdout if "proxy   http" in line)
            process.send_signal(number)
            process.communicate(timeout=60)
            assert 128 + number == process.returncode
            with pytest.raises(ProcessLookupError):
                os.kill(int(line.rpartition("process ")[2]), 0)
        finally:
            process.kill()


def test_unexpected_conversation_is_reported():
    with (
        ScriptedUpstream(["I will not."]) as upstream,
        openai.OpenAI(base_url=upstream.url, api_key="unused", max_retries=0, timeout=30) as client,
    ):
        assert ask(client, "Multiply 2 by 3.").startswith("0 calls")


@pytest.mark.parametrize(
    ("call", "answer", "problem"),
    [
        ('{"name": "multiply", "arguments": {"a": 1234, "b": 5678}}', "It is 7006652.", ""),
        (
            '{"name": "multiply", "arguments": {"a": 1234, "b": 5678}}',
            "It is 1234.",
            "the answer lacks 7006652: It is 1234.",
        ),
        (
            '{"name": "multiply", "arguments": {"a": 1234, "b": 2}}',
            "It is 2468.",
            'What is 1234 times 5678? needs another call than multiply {"a": 1234, "b": 2}',
        ),
        (
            '{"name": "count_lines", "arguments": {"module": "no_such_module"}}',
            "Many.",
            'What is 1234 times 5678? needs another call than count_lines {"module": "no_such_module"}',
        ),
    ],
)
def test_wrong_call_or_answer_of_the_small_model_is_reported(call, answer, problem):
    with ScriptedUpstream([f"```tool_call\n{call}\n```", answer]) as upstream, wrapped_client(upstream.url) as client:
        assert problem == demo_small.ask(client, demo_small.QUESTIONS[1], log=None)


@pytest.mark.parametrize(
    ("code", "seconds", "problem"),
    [
        ("print('no luck'); raise SystemExit(3)", 30.0, "a thing: exit status 3: no luck"),
        ("input()", 0.2, "printed no address"),
    ],
)
def test_child_that_does_not_listen_is_reported_with_its_output(code, seconds, problem):
    with (
        pytest.raises(ChildError, match=problem),
        listening([sys.executable, "-c", code], name="a thing", timeout=seconds),
    ):
        raise AssertionError("it is not listening")
