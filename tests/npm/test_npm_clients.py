"""JavaScript programs talk through the proxy with the packages that they use: those of the vendors, and ``ai``.

And a web page's program, that of docs/guides/realtime.md, holds a session.

``make test`` installs the packages where npm is. Without node the tests are skipped, but not in CI.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from frontends.failing_stream import HALF, failing_proxy
from patchbay.frontends import GenerateContent
from patchbay.testing import ContractModel, Message, ScriptedUpstream
from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Say
from realtime.server.rig import serving
from structured import WeatherModel
from support.processes import listening
from tools_server.rig import calling_back, json_response

HERE = Path(__file__).parent
NODE = shutil.which("node")


def why_not() -> str | None:
    if os.environ.get("CI") == "true":
        return None
    if NODE is None:
        return "node is not installed"
    return None if (HERE / "node_modules").exists() else "tests/npm/node_modules is missing: make test installs it"


pytestmark = [pytest.mark.npm, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


WAYS = [("text", "whole"), ("text", "stream"), ("native", "stream")]
PROVIDERS = ["compatible", "openai", "anthropic", "google"]

RUNS = {
    "openai.mjs": WAYS,
    "responses.mjs": [*WAYS, ("text", "socket"), ("native", "socket")],
    "anthropic.mjs": WAYS,
    "genai.mjs": WAYS,
    "ai.mjs": [(*way, provider) for provider in PROVIDERS for way in WAYS],
}
"""Each vendor's package, and the providers of ``ai``: over chat completions, Responses, Messages and generateContent."""


def run_program(program: str, *runs: tuple[str, ...]) -> list[dict]:
    """Run a program once with each of these arguments, in one process."""
    command = [NODE, "runs.mjs", program, json.dumps(runs)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=60)
    assert 0 == done.returncode, (done.stderr, done.stdout)
    return [json.loads(line) for line in done.stdout.splitlines()]


def native_model(body: dict) -> str | Message:
    """Answer as a server does that has tool calls of its own."""
    if results := [json.loads(message["content"]) for message in body["messages"] if message["role"] == "tool"]:
        assert "I use both." in [message["content"] for message in body["messages"]]  # (some clients send a reference to it)
        return "; ".join(f"{name} {value}" for result in results for name, value in result.items())
    arguments = {"multiply": '{"a": 6, "b": 7}', "measure": '{"text": "patchbay"}'}
    calls = [
        {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": arguments[name]}}
        for name in (tool["function"]["name"] for tool in body["tools"])
    ]
    return Message({"content": "I use both.", "tool_calls": calls}, finish_reason="tool_calls")


@pytest.fixture(scope="module")
def proxies():
    """The URLs of a proxy before a server that refuses tools, and of one before a server with tool calls of its own."""
    command = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream"]
    with (
        ScriptedUpstream(ContractModel(), tools="refuse") as text,
        ScriptedUpstream(native_model) as native,
        listening([*command, text.url], name="patchbay proxy", timeout=60) as before_text,
        listening([*command, native.url], name="patchbay proxy", timeout=60) as before_native,
    ):
        yield {"text": before_text.url, "native": before_native.url}


@pytest.mark.parametrize("program", RUNS)
def test_a_javascript_client_calls_two_tools_and_gets_its_answer(program, proxies):
    seen = run_program(program, *((proxies[kind], *more) for kind, *more in RUNS[program]))
    for run, text in zip(RUNS[program], seen, strict=True):
        called = [(call["name"], json.loads(call["arguments"])) for call in text["calls"]]
        assert [("multiply", {"a": 6, "b": 7}), ("measure", {"text": "patchbay"})] == called, run
        assert ["tool_calls", "stop"] == [finish.replace("-", "_") for finish in text["finish"]], run
        assert ["product", "42", "length", "8"] == re.findall(r"product|length|\d+", text["answer"]), run


@pytest.mark.parametrize("kind", ["enforces", "ignores"])
def test_javascript_client_gets_a_typed_answer_beside_tools(kind):
    with ScriptedUpstream(WeatherModel(kind)) as upstream:
        command = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream", upstream.url]
        with listening(command, name="patchbay proxy", timeout=60) as proxy:
            seen = run_program("structured.mjs", (proxy.url, "whole"), (proxy.url, "stream"))
    for text in seen:
        assert ([{"city": "Rome"}], {"city": "Rome", "degrees": 21}) == (text["calls"], text["output"])
        assert ["", {"city": "Rome", "degrees": 21}] == [text["steps"][0], json.loads(text["steps"][-1])]
    assert 2 == len(seen)


@pytest.mark.parametrize("package", ["@google/genai", "genai-of-gemini-cli"])
def test_a_stream_of_gemini_that_fails_after_a_silence_gives_its_half_and_throws(package):
    with failing_proxy(GenerateContent.heartbeat) as url:
        command = [NODE, "failing_stream.mjs", package, url]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=60)
    assert 0 == done.returncode, done.stderr
    seen = json.loads(done.stdout)
    assert HALF == seen["text"]
    # They give the reason and the status only if they did not read it together with the half.
    if "Incomplete JSON segment" not in seen["message"]:
        assert "The input token count (120) exceeds" in seen["message"]
        assert 400 == seen["status"]


def test_the_stream_brings_the_name_of_a_call_before_its_arguments(proxied):
    (seen,) = run_program("openai.mjs", (proxied.url, "stream"))
    deltas = [delta for delta in seen["chunks"] if delta and "tool_calls" in delta]
    first = deltas[0]["tool_calls"][0]
    assert ("multiply", "") == (first["function"]["name"], first["function"].get("arguments", ""))
    assert all("name" not in delta["tool_calls"][0]["function"] for delta in deltas if "id" not in delta["tool_calls"][0])


def test_documented_program_holds_a_session_like_a_web_page(tmp_path):
    file, token = tmp_path / "token", "a-token-of-this-server"
    file.write_text(token)
    file.chmod(0o600)
    sound = bytes(range(200)) * 24
    script = [Call("get_weather", {"city": "Rome"}), Answer((Say("It is sunny.", audio=sound, piece=100),)), "I heard you."]
    with (
        FakeOpenAI(script, hears=["Thanks."], utterance=24_000) as fake,
        calling_back(json_response({"output": "sunny"})) as callback,
        serving(fake, "--token-file", str(file)) as server,
    ):
        server.http.ask(
            "POST", "/api/tools/register", {"name": "get_weather", "callback_url": callback.url}, authorization=f"Bearer {token}"
        )
        docs = HERE.parents[1] / "docs" / "guides" / "realtime.md"
        command = [NODE, "session.mjs", str(docs), server.url.replace("http", "ws"), token]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=60)
    assert 0 == done.returncode, done.stderr
    seen = json.loads(done.stdout)
    assert (24_000, 24_000) == (seen["ready"], seen["rates"][0])
    assert len(sound) // 2 <= seen["samples"]
    assert "It is sunny.I heard you." == seen["written"]
    assert ['get_weather {"city":"Rome"}', "interrupted"] == seen["notes"]
    assert ["completed"] * 3 == seen["ends"]
    assert [] == fake.violations
    assert [] == fake.unanswered
