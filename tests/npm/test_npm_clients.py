"""JavaScript programs talk through the proxy with the packages that JavaScript programs use: ``openai`` and ``ai``.

And a web page's program, that of docs/guides/realtime.md, holds a session.

``make test`` installs the packages where npm is. Without node the tests are skipped, but not in CI.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patchbay.cli.children import listening
from patchbay.testing import ScriptedUpstream
from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Say
from realtime.server.rig import serving
from structured import WeatherModel
from tools_server.rig import calling_back, says

HERE = Path(__file__).parent
NODE = shutil.which("node")


def why_not() -> str | None:
    if os.environ.get("CI") == "true":
        return None
    if NODE is None:
        return "node is not installed"
    return None if (HERE / "node_modules").exists() else "tests/npm/node_modules is missing: make test installs it"


pytestmark = [pytest.mark.npm, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


def talk(script: str, proxy: str, how: str) -> dict:
    done = subprocess.run([NODE, script, proxy, how], cwd=HERE, capture_output=True, text=True, timeout=60)
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", ["whole", "stream"])
@pytest.mark.parametrize("script", ["openai.mjs", "ai.mjs"])
def test_a_javascript_client_calls_two_tools_and_gets_its_answer(script, how, proxied):
    said = talk(script, proxied.url, how)
    called = [(call["name"], json.loads(call["arguments"])) for call in said["calls"]]
    assert [("multiply", {"a": 6, "b": 7}), ("measure", {"text": "patchbay"})] == called
    assert ["tool_calls", "stop"] == [finish.replace("-", "_") for finish in said["finish"]]
    assert "product 42" in said["answer"]
    assert "length 8" in said["answer"]
    assert "tools" not in proxied.upstream.chats[-1].json


@pytest.mark.parametrize("how", ["whole", "stream"])
@pytest.mark.parametrize("kind", ["enforces", "ignores"])
def test_a_javascript_client_gets_an_answer_of_its_type_beside_tools(kind, how):
    with ScriptedUpstream(WeatherModel(kind)) as upstream:
        command = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream", upstream.url]
        with listening(command, name="patchbay proxy", timeout=60) as proxy:
            said = talk("structured.mjs", proxy.url, how)
    assert ([{"city": "Rome"}], {"city": "Rome", "degrees": 21}) == (said["calls"], said["output"])
    assert ["", {"city": "Rome", "degrees": 21}] == [said["steps"][0], json.loads(said["steps"][-1])]


def test_the_stream_brings_the_name_of_a_call_before_its_arguments(proxied):
    deltas = [delta for delta in talk("openai.mjs", proxied.url, "stream")["chunks"] if delta and "tool_calls" in delta]
    first = deltas[0]["tool_calls"][0]
    assert ("multiply", "") == (first["function"]["name"], first["function"].get("arguments", ""))
    assert all("name" not in delta["tool_calls"][0]["function"] for delta in deltas if "id" not in delta["tool_calls"][0])


def test_the_program_of_the_docs_holds_a_session_as_a_web_page_would(tmp_path):
    file, token = tmp_path / "token", "a-token-of-this-server"
    file.write_text(token)
    file.chmod(0o600)
    sound = bytes(range(200)) * 24
    script = [Call("get_weather", {"city": "Rome"}), Answer((Say("It is sunny.", audio=sound, piece=100),)), "I heard you."]
    with (
        FakeOpenAI(script, hears=["Thanks."], utterance=24_000) as fake,
        calling_back(says({"output": "sunny"})) as callback,
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
