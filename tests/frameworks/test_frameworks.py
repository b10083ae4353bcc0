"""Agent frameworks get tools and a typed answer through the proxy, on each kind of server.

``make clients`` installs them into an environment of their own. Without that the tests are skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import pytest

from patchbay.cli.children import listening
from patchbay.testing import ScriptedUpstream
from structured import Kind, WeatherModel

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".build/frameworks/bin/python"


@pytest.mark.skipif(not PYTHON.exists(), reason="make clients installs the frameworks")
@pytest.mark.parametrize("framework", ["openai-agents", "pydantic-ai", "langchain"])
def test_a_framework_calls_its_tool_and_gets_an_answer_of_its_type(framework: str) -> None:
    with ExitStack() as stack:
        urls = []
        for kind in get_args(Kind):
            upstream = stack.enter_context(ScriptedUpstream(WeatherModel(kind)))
            command = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream", upstream.url]
            urls.append(stack.enter_context(listening(command, name="patchbay proxy", timeout=60)).url)
        done = subprocess.run(
            [PYTHON, HERE / "weather.py", framework, *urls], capture_output=True, text=True, timeout=200, check=False
        )
    assert 0 == done.returncode, done.stderr
    expected = [[how, ["Rome"], {"city": "Rome", "degrees": 21}] for _ in urls for how in ("whole", "stream")]
    assert expected == [json.loads(line) for line in done.stdout.splitlines()]
