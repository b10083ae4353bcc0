"""The example with the SDK: run by its host as a user would run it, and by its own test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ports import kept_port

from .rig import BOUND, EXAMPLES, ask, call, environment, running, serving, tools, wait_for_tools

NAMES = ("find_warmest_city", "get_weather")


def copy_of_the_example(folder: Path) -> Path:
    """What running it writes is not written into the project."""
    original = EXAMPLES / "weather_plugin"
    return shutil.copytree(original, folder / original.name, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_of_the_example(tmp_path)


def hosting(server: str, folder: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "patchbay", "plugins", "run", str(folder), "--server", server, "--port", "0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the example's tools, which go with its host."""
    folder = copy_of_the_example(tmp_path_factory.mktemp("example"))
    with serving() as child, running(*hosting(child.url, folder)) as host:
        host.says("patchbay plugins listening on ")
        wait_for_tools(child.url, *NAMES)
        yield child.url
        assert (0, []) == (host.end(), host.errors)
        assert {} == tools(child.url)


def test_plugin_tools_are_called(server: str) -> None:
    assert {"plugin:weather_plugin"} == {tool["source"] for tool in tools(server).values()}
    answer = call(server, "get_weather", city="Oslo")
    assert {"city": "Oslo", "temperature": 3, "weather": "rain"} == answer["output"]
    answer = call(server, "get_weather", city="Atlantis")
    assert (False, "city not found: Atlantis") == (answer["ok"], answer["error"])
    assert {"city": "Tunis"} == call(server, "find_warmest_city", cities=["Oslo", "Tunis", "Atlantis"])["output"]
    assert call(server, "find_warmest_city", cities=[])["is_error"]


def test_its_schemas_are_those_of_the_signatures(server: str) -> None:
    found = tools(server)
    properties = found["get_weather"]["parameters"]["properties"]
    assert {"city": {"type": "string", "description": "the city's name, such as 'Beijing'"}} == properties
    assert ["cities"] == found["find_warmest_city"]["parameters"]["required"]
    assert (30, 60) == tuple(found[name]["timeout_seconds"] for name in ("get_weather", "find_warmest_city"))


def test_a_call_that_the_server_has_not_signed_is_refused(server: str) -> None:
    url = tools(server)["get_weather"]["callback_url"]
    body = {"name": "get_weather", "arguments": {"city": "Oslo"}, "call_id": "c", "raw_arguments": "{}"}
    assert 403 == ask(url, body)[0]
    assert 403 == ask(url, body, x_patchbay_signature=f"sha256={'0' * 64}")[0]


def test_its_tools_are_back_after_the_server_was_killed(folder: Path) -> None:
    port = kept_port()
    with serving(port=port) as killed, running(*hosting(killed.url, folder)) as host:
        wait_for_tools(killed.url, *NAMES)
        os.kill(killed.pid, signal.SIGKILL)
        with serving(port=port) as anew:
            wait_for_tools(anew.url, *NAMES)
            assert "rain" == call(anew.url, "get_weather", city="Oslo")["output"]["weather"]
            assert 0 == host.end()


def test_its_own_test_passes(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "-c", os.devnull]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BOUND, env=environment(), check=False)
    assert 0 == done.returncode, done.stdout
    assert "3 passed" in done.stdout
