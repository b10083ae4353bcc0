"""``patchbay tools`` against a real server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from support.cli import run_cli
from tools_server.rig import Server, calling_back, json_response, serving

TOKEN = "a-token-of-this-server"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with the roles ann and ben, and two tools of ann."""
    with serving() as server, calling_back(json_response({"output": {"sky": "clear\x1b[2J"}})) as weather:
        server.register(
            "get_weather", weather.url, role="ann", source="weather", description="Current weather.\nOf a city.",
            parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            annotations={"read_only": True},
        )  # fmt: skip
        with calling_back(json_response({"output": "no such file", "is_error": True})) as failing:
            server.register("read", failing.url, role="ann", description="Read a \x1b[31mfile.")
            yield server


def tools(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_cli("tools", *arguments, "--server", f"http://127.0.0.1:{server.port}")


def test_tools_are_listed_by_role_in_one_line_each(server: Server):
    listed = tools(server, "list")
    assert (0, "") == (listed.returncode, listed.stderr)
    assert [
        "ann  2 tools",
        "  get_weather  weather  Current weather. Of a city.",
        "  read         external  Read a \\x1b[31mfile.",
        "ben  0 tools",
    ] == listed.stdout.splitlines()
    assert ["ben"] == list(json.loads(tools(server, "list", "--role", "ben", "--json").stdout))


def test_a_tool_is_shown_with_its_parameters(server: Server):
    shown = tools(server, "show", "get_weather").stdout
    assert shown.startswith("get_weather\n  Current weather.\n  Of a city.\n  source weather\n  roles ann\n  state active\n")
    assert "annotations read_only=true\n" in shown
    assert ["city"] == json.loads(shown[shown.index("{") :])["required"]
    assert "get_weather" == json.loads(tools(server, "show", "get_weather", "--json").stdout)["name"]


def test_a_call_prints_the_result_that_a_model_would_get(server: Server):
    called = tools(server, "call", "get_weather", '{"city": "Rome"}')
    assert (0, {"sky": "clear\x1b[2J"}, "") == (called.returncode, json.loads(called.stdout), called.stderr)
    whole = json.loads(tools(server, "call", "get_weather", '{"city": "Rome"}', "--role", "ann", "--json").stdout)
    assert ({"sky": "clear\x1b[2J"}, False, "ann") == (whole["output"], whole["is_error"], whole["role"])


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize(("name", "text"), [("read", "no such file"), ("nothing", "nothing")])
def test_an_error_result_is_exit_status_1(name: str, text: str, flags: list[str], server: Server):
    called = tools(server, "call", name, *flags)
    assert (1, True, "") == (called.returncode, text in called.stdout, called.stderr)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["call", "read", "{'a': 1}"], 2, "ARGS must be a JSON object"),
        (["call", "read", "[1]"], 2, "ARGS must be a JSON object"),
        (["call", "read", "--role", "nobody"], 1, "nobody"),
        (["list", "--role", "nobody"], 1, "nobody"),
        (["show", "nothing"], 1, "The role 'ann' has no tool 'nothing': see patchbay tools list."),
        (["show", "get_weather", "--role", "ben"], 1, "The role 'ben' has no tool 'get_weather'"),
    ],
)
def test_a_mistake_is_a_one_line_error(arguments: list[str], status: int, message: str, server: Server):
    done = tools(server, *arguments)
    assert (status, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert message in done.stderr


def test_the_token_is_sent_and_a_missing_server_is_named(tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    with serving(token=TOKEN, needs_secret=True) as server:
        server.register("a", "http://127.0.0.1:9/call?key=secret")
        for flags, shown in (([], False), (["--token-file", str(file)], True)):
            assert shown == ("key=secret" in tools(server, "show", "a", *flags).stdout)
    gone = tools(server, "list")
    assert (1, True) == (gone.returncode, "Start `patchbay serve`, or use --server" in gone.stderr)
