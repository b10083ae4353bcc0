"""What a stranger stumbled over: errors that did not say what to do, and what one tool or server did to others."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from patchbay.errors import ConfigurationError
from patchbay.server.settings import ToolsSettings
from ports import kept_port
from support.cli import run_cli
from support.processes import Process
from tools_server.rig import BOUND, Server, calling_back, json_response, no_response, serving
from tools_server.test_access import LOCAL, guarded_request
from tools_server.test_stored_registrations import ENVIRONMENT

NO_OBJECT = {"type": "string"}
NO_TYPE = {"type": "object", "properties": {"city": {"type": "strng"}}}
NO_TARGET = {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}}
UNUSABLE = pytest.mark.parametrize("parameters", [NO_OBJECT, NO_TYPE, NO_TARGET, {"properties": {"a": {"required": "b"}}}])


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("sqlite:///{}/nowhere/t.db", "there is no folder {}/nowhere"),
        ("{}/text", "is not a database"),
        ("", "is not a database"),
        ("postgresql://ann:hush@127.0.0.1:{port}/x", "postgresql://ann:***@127.0.0.1:{port}/x cannot be opened"),
    ],
)
def test_unopenable_store_is_a_one_line_error(store: str, message: str, tmp_path: Any) -> None:
    (tmp_path / "text").write_text("no database\n" * 100)
    port = kept_port()
    done = run_cli("serve", "--port", "0", "--store", store.format(tmp_path, port=port))
    assert (2, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert message.format(tmp_path, port=port) in done.stderr
    assert "hush" not in done.stderr


def test_store_of_a_newer_version_is_a_one_line_error(tmp_path: Any) -> None:
    import sqlite3

    file = tmp_path / "tools.db"
    with serving(store=str(file)):
        pass
    connection = sqlite3.connect(file)
    connection.execute("UPDATE patchbay_versions SET version = 99")
    connection.commit()
    connection.close()
    done = run_cli("serve", "--port", "0", "--store", str(file))
    assert (2, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert "update Patchbay" in done.stderr


@pytest.mark.parametrize("again", [False, True])
def test_stop_reports_the_requests_it_waits_for(again: bool) -> None:
    command = [
        sys.executable,
        "-m",
        "patchbay",
        "serve",
        "--port",
        "0",
        "--store",
        "memory",
        "--drain-timeout",
        "30" if again else "1",
    ]
    with (
        calling_back(no_response) as callback,
        Process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        server: Any = Server(int(process.stdout.readline().rpartition(":")[2]), None)  # type: ignore[arg-type]
        reached = threading.Event()
        script = callback.script
        callback.script = lambda connection, end: (reached.set(), script(connection, end))[1]
        server.register("a", callback.url)
        caller = threading.Thread(target=lambda: server.post("call", name="a"), daemon=True)
        caller.start()
        assert reached.wait(BOUND)
        process.send_signal(signal.SIGINT)
        line = process.stderr.readline()
        assert f"stopping: 1 request running, up to {30 if again else 1} s; press Ctrl-C again to stop at once\n" == line
        if again:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=BOUND)
        caller.join(BOUND)
    assert (0, "") == (process.returncode, errors)


@UNUSABLE
def test_tool_that_no_provider_supports_is_registered_with_a_warning(server: Any, parameters: Any, caplog: Any) -> None:
    for _ in range(2):
        answer = server.register("a", parameters=parameters)
        [warning] = answer["warnings"]
        assert (True, True) == (answer["ok"], "this tool is not offered to models: its " in warning)
    assert "warnings" not in server.register("b")
    listed = server.tools()
    assert (True, None, parameters) == (listed["a"]["problem"] in warning, listed["b"]["problem"], listed["a"]["parameters"])
    assert ["b"] == [spec.name for spec in server.app.registry.snapshot("ann").specs]
    assert 1 == caplog.text.count("The tool 'a' is not offered to models")


@UNUSABLE
def test_broken_schema_is_not_reported_as_invalid_arguments(parameters: Any) -> None:
    with serving(strict_arguments=True) as server:
        server.register("a", parameters=parameters)
        answer = server.call("a", arguments={"city": "Rome"})
    assert ("unusable_schema", True) == (answer["code"], "did not run" in answer["content"])
    assert "Fix the arguments" not in answer["content"]


def test_a_tool_with_the_spellings_of_older_drafts_is_offered(server: Any) -> None:
    old = {"$schema": "x:y", "type": "object", "properties": {"n": {"type": "number", "minimum": 0, "exclusiveMinimum": True}}}
    assert "warnings" not in server.register("a", parameters=old)
    assert server.tools()["a"]["problem"] is None


def test_a_store_has_one_server_at_a_time(tmp_path: Any) -> None:
    file = tmp_path / "tools.db"
    with serving(store=str(file)) as server:
        server.register("a")
        done = run_cli("serve", "--port", "0", "--store", f"sqlite:///{file}")
        assert (2, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
        assert f"The store sqlite:///{file} is in use by another server" in done.stderr
    with serving(store=str(file)) as server:
        assert ["a"] == list(server.tools())
    assert 0o600 == (tmp_path / "tools.db-serving").stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("headers", "flag"),
    [([("host", "evil.com")], "--allow-host"), ([*LOCAL, ("origin", "https://evil.com")], "--allow-origin"),
     ([*LOCAL, ("x-forwarded-for", "127.0.0.1")], "--proxy")],
)  # fmt: skip
def test_rejection_names_the_flag_that_permits_the_request(headers: Any, flag: str) -> None:
    assert f"patchbay serve {flag} " in guarded_request(headers)[1]["hint"]


def test_response_without_a_failure_flag_is_logged_with_the_tool_name(server: Any, caplog: Any) -> None:
    with calling_back(json_response({"output": 1, "is_error": "maybe"})) as callback:
        server.register("odd_one", callback.url)
        assert 1 == server.call("odd_one")["output"]
    assert "The tool 'odd_one' returned is_error='maybe'" in caplog.text


@pytest.mark.parametrize(
    "origin", ["x", "example.com", "https://", "https://a b", "https://x/path", "https://*.example.com", "http://x:y"]
)
def test_invalid_origin_is_rejected(origin: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an origin"):
        ToolsSettings(allowed_origins=(origin,))


def test_origins_are_accepted_as_browsers_send_them() -> None:
    settings = ToolsSettings(allowed_origins=("https://App.example.com/", "http://[::1]:3000", "chrome-extension://abc", "null"))
    assert ("https://app.example.com", "http://[::1]:3000", "chrome-extension://abc", "null") == settings.allowed_origins


def test_a_role_that_is_named_twice_is_one_role() -> None:
    command = [sys.executable, "-m", "patchbay", "serve", "--port", "0", "--store", "memory", "--roles", "ann,ben,ann"]
    with Process(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(3)]
        process.terminate()
        process.communicate(timeout=BOUND)
    assert "  roles ann, ben\n" == printed[2]
