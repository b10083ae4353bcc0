"""The examples without the SDK, in two languages: the life cycle of a plugin over raw HTTP."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import signal
import sys
from collections.abc import Iterator

import pytest

from ports import kept_port

from .rig import EXAMPLES, NODE, ExampleProgram, ask, call, running, serving, tools

NO_NODE = NODE is None and os.environ.get("CI") != "true"

PYTHON = (sys.executable, str(EXAMPLES / "raw_http" / "plugin.py"))
JAVASCRIPT = (NODE or "node", str(EXAMPLES / "raw_http" / "plugin.mjs"))
LANGUAGES = [
    pytest.param(PYTHON, id="python"),
    pytest.param(JAVASCRIPT, id="node", marks=[pytest.mark.npm, pytest.mark.skipif(NO_NODE, reason="node is not installed")]),
]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving() as child:
        yield child.url


@pytest.fixture(params=LANGUAGES)
def program(request: pytest.FixtureRequest, server: str) -> Iterator[ExampleProgram]:
    """An example that has registered its tool."""
    with running(*request.param, server) as program:
        program.says("registered for default")
        yield program
        program.end()  # and takes its tool with it


@pytest.mark.parametrize("command", LANGUAGES)
def test_example_waits_for_its_server_and_returns_to_a_restarted_one(command: tuple[str, ...]) -> None:
    port = kept_port()
    with running(*command, f"http://127.0.0.1:{port}") as program:
        program.says("error: ")  # no server yet
        with serving(port=port) as killed:
            program.says("registered for default")
            assert {"city": "Oslo", "temp_c": 3, "weather": "rain"} == call(killed.url, "get_weather", city="Oslo")["output"]
            os.kill(killed.pid, signal.SIGKILL)
        program.says("error: ")
        with serving(port=port) as anew:
            program.says("registered for default")
            assert {"city": "Oslo", "temp_c": 3, "weather": "rain"} == call(anew.url, "get_weather", city="Oslo")["output"]


@pytest.mark.parametrize("command", LANGUAGES)
def test_example_exits_without_a_server(command: tuple[str, ...]) -> None:
    with running(*command, "http://127.0.0.1:9") as program:
        program.says("error: ")
        assert 0 == program.end()


def test_its_tool_is_described_as_it_is(program: ExampleProgram, server: str) -> None:
    tool = tools(server)["get_weather"]
    assert ("active", 10, None) == (tool["state"], tool["timeout_seconds"], tool["role"])
    assert {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]} == tool["parameters"]
    assert tool["source"].startswith("weather_in_")


def test_its_errors_reach_the_model_and_end_nothing(program: ExampleProgram, server: str) -> None:
    for city in ("Atlantis", "constructor", "日本"):
        answer = call(server, "get_weather", city=city)
        assert (False, True, f"city not found: {city}") == (answer["ok"], answer["is_error"], answer["error"])
        assert {"error": f"city not found: {city}"} == json.loads(answer["content"])
    for raw in ("{}", "not json", "[1]", '{"city": 5}', '{"city": ["Oslo", 1]}', '{"town": "Oslo"}'):
        _, answer = ask(f"{server}/api/tools/call", {"name": "get_weather", "raw_arguments": raw})
        assert answer["is_error"], raw
    assert "Oslo" == call(server, "get_weather", city="Oslo")["output"]["city"]


def test_a_call_that_the_server_has_not_signed_is_refused(program: ExampleProgram, server: str) -> None:
    url = tools(server)["get_weather"]["callback_url"]
    body = {"name": "get_weather", "arguments": {"city": "Oslo"}, "call_id": "c", "raw_arguments": "{}"}
    guessed = hmac.new(b"guess", json.dumps(body).encode(), hashlib.sha256).hexdigest()
    for signature in ("", "sha256=", f"sha256={guessed}", guessed, "x" * 71, "\xe9" * 71):
        status, answer = ask(url, body, x_patchbay_signature=signature)
        assert (403, False) == (status, "output" in answer), signature
    assert 403 == ask(url, body)[0]


def test_example_registers_an_unregistered_tool_again(program: ExampleProgram, server: str) -> None:
    assert ask(f"{server}/api/tools/unregister", {"name": "get_weather"})[1]["removed"]
    program.says("registered for default")
    assert ["get_weather"] == list(tools(server))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", LANGUAGES)
def test_example_exits_cleanly_and_unregisters_its_tool(command: tuple[str, ...], how: signal.Signals, server: str) -> None:
    with running(*command, server) as program:
        program.says("registered for default")
        assert 0 == program.end(how)
        assert [] == program.errors
    assert {} == tools(server)


def test_example_reports_a_taken_name_and_retries(server: str) -> None:
    taken = {"name": "get_weather", "callback_url": "http://127.0.0.1:9/", "source": "somebody_else"}
    assert ask(f"{server}/api/tools/register", taken)[1]["ok"]
    with running(*PYTHON, server) as program:
        assert "cross-source overwrite refused" in program.says("error: ")
        assert ask(f"{server}/api/tools/clear", {"source": "somebody_else"})[1]["ok"]
        program.says("registered for default")
        assert 0 == program.end()


@pytest.mark.parametrize("name", ["plugin.py", "plugin.mjs"])
def test_examples_are_short_and_use_standard_libraries_only(name: str) -> None:
    text = (EXAMPLES / "raw_http" / name).read_text(encoding="utf-8")
    imported = re.findall(r'^import .* from "(.+)";$|^(?:import|from) (\w+)', text, re.MULTILINE)
    assert imported
    for javascript, python in imported:
        assert javascript.startswith("node:") or python in sys.stdlib_module_names
    code = [line for line in text.splitlines() if line.strip() and not re.match(r"import|from|#|//", line)]
    assert 66 >= len(code)
