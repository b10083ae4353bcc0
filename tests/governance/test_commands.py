"""``--config`` of the real commands, before a model that only writes text: hooks, approvals, reloading, restarts."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from patchbay.cli.children import Child
from patchbay.cli.serving import make_governance
from patchbay.testing import ContractModel, ScriptedUpstream
from ports import kept_port
from support.processes import listening, run_process
from tools_server.rig import BOUND, Callback, calling_back, json_response, poll_until

COMMAND = [sys.executable, "-m", "patchbay"]
WEATHER = Path(__file__).parents[2] / "examples" / "hooks" / "weather.py"
BEIJING = [{"role": "user", "content": "How is the weather in Beijing?"}]
ERASE = [{"role": "user", "content": "Please erase Rome."}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}


def hooks(**more: Any) -> dict[str, Any]:
    process = {"enabled": True, "command": [sys.executable, str(WEATHER)], "intercept": ["before_llm", "before_tool"]}
    process |= {"hello_timeout_ms": 30_000, "timeout_ms": 30_000}
    return {"hooks": {"processes": {"weather": {**process, **more}}}}


ASKING = {"approvals": {"rules": [{"tools": ["erase"], "outcome": "ask"}]}}


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({**hooks(), **ASKING}))
    return tmp_path


@contextlib.contextmanager
def running(what: str, folder: Path, upstream: str, *flags: str, port: int = 0) -> Iterator[Child]:
    command = [*COMMAND, what, "--port", str(port), "--upstream", upstream, "--config", str(folder / "config.json")]
    with listening(
        [*command, "--store", f"sqlite:///{folder / 'kept.db'}", *flags], name=f"patchbay {what}", timeout=BOUND
    ) as child:
        yield child


def ask(child: Child, messages: Any, **fields: Any) -> str:
    base = child.url if child.url.endswith("/v1") else f"{child.url}/v1"
    with openai.OpenAI(base_url=base, api_key="k", timeout=BOUND, max_retries=0) as client:
        answer = client.chat.completions.create(model="small", messages=messages, **fields)
        return answer.choices[0].message.content or ""


def request(child: Child, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", int(child.url.removesuffix("/v1").rpartition(":")[2]), timeout=BOUND)
    with contextlib.closing(connection):
        connection.request(
            method, path, None if body is None else json.dumps(body), {} if body is None else {"content-type": "application/json"}
        )
        return json.loads(connection.getresponse().read())


def register_erase(child: Child, callback: Callback) -> None:
    registered = {"name": "erase", "callback_url": callback.url, "parameters": CITY, "description": "Erase."}
    assert request(child, "POST", "/api/tools/register", registered)["ok"]


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_process([*COMMAND, *arguments], capture_output=True, text=True, timeout=60)


def wait_for_member(child: Child, path: str, member: str) -> Any:
    """What an answer has under ``member``, asked for until there is something."""
    return poll_until(lambda: request(child, "GET", path)[member])


def waiting(child: Child) -> Any:
    """The request for approval that waits."""
    return wait_for_member(child, "/api/approvals", "approvals")[0]


def printed(child: Child, words: str) -> None:
    """Wait until the command has said this."""
    poll_until(lambda: any(words in line for line in list(child.printed)), shown=child.printed)


@pytest.mark.parametrize("what", ["serve", "proxy"])
def test_the_tool_of_a_hook_in_another_process_is_offered_called_and_answered(what, folder) -> None:
    with ScriptedUpstream(ContractModel(), tools="refuse") as upstream, running(what, folder, upstream.url) as child:
        assert "Beijing: sunny, 15 °C" in ask(child, BEIJING)
        [entry] = wait_for_member(child, "/api/audit", "entries")
        assert ("get_weather", "hook:weather", False) == (entry["tool"], entry["source"], entry["is_error"])
        printed(child, "weather; approvals by 1 rule")
        assert [] == request(child, "GET", "/api/approvals")["approvals"]


@pytest.mark.parametrize(("what", "flags"), [("serve", ()), ("proxy", ()), ("serve", ("--audit", "memory"))])
def test_audit_is_in_memory_without_a_store(what, flags, folder) -> None:
    kept = flags or ("--store", "memory")
    with ScriptedUpstream(ContractModel(), tools="refuse") as upstream, running(what, folder, upstream.url, *kept) as child:
        ask(child, BEIJING)
        [entry] = wait_for_member(child, "/api/audit", "entries")
        assert "get_weather" == entry["tool"]
        done = run_command("audit", "--server", child.url.removesuffix("/v1"), "--json")
        assert (0, "get_weather") == (done.returncode, json.loads(done.stdout)["tool"]), done.stderr
    assert not Path("memory").exists()  # the name of a file, where it is not known


@pytest.mark.parametrize(("days", "kept"), [(90, 1), (0, 1), (0.5, 0.5)])
def test_audit_in_memory_is_bounded(days, kept) -> None:
    for audit, store in (("memory", "sqlite:///kept.db"), (None, None), ("sqlite://", None)):
        assert kept * 86400 == make_governance(None, audit, days, store=store).settings.audit_kept


def test_audit_none_disables_the_audit_log(folder) -> None:
    with ScriptedUpstream(ContractModel()) as upstream, running("serve", folder, upstream.url, "--audit", "none") as child:
        done = run_command("audit", "--server", child.url)
        assert 1 == done.returncode
        assert "has no audit log: `patchbay serve` has one unless it runs with --audit none" in done.stderr


def test_proxy_forwards_other_requests(folder) -> None:
    with ScriptedUpstream(ContractModel(), tools="refuse") as upstream, running("proxy", folder, upstream.url) as child:
        assert {"object": "list"}.items() <= request(child, "GET", "/v1/models").items()


def test_proxy_key_protects_approvals_and_media(folder) -> None:
    with ScriptedUpstream(ContractModel()) as upstream, running("proxy", folder, upstream.url, "--api-key", "k" * 20) as child:
        for path in ("/api/approvals", f"/api/media/{uuid.uuid4()}"):
            assert "wrong_token" == request(child, "GET", path)["error_code"]


def test_the_configuration_is_read_again_at_a_signal_and_a_broken_one_changes_nothing(folder) -> None:
    with ScriptedUpstream(ContractModel(), tools="refuse") as upstream, running("serve", folder, upstream.url) as child:
        path = folder / "config.json"
        path.write_text("{")
        os.kill(child.pid, signal.SIGHUP)
        printed(child, "The configuration was not reloaded")
        path.write_text(json.dumps({"approvals": {"rules": [{"when": {"path": {"regx": "x"}}, "outcome": "deny"}]}}))
        os.kill(child.pid, signal.SIGHUP)
        printed(child, "approvals, rule '1': when.path.regx is not an operator: is 'regex' meant?")
        assert "Beijing: sunny" in ask(child, BEIJING)
        path.write_text(json.dumps(hooks(enabled=False)))
        os.kill(child.pid, signal.SIGHUP)
        printed(child, "The configuration was reloaded: weather is not enabled; no more: weather, approvals")
        assert "Beijing: sunny" not in ask(child, BEIJING)


def test_a_call_under_way_survives_when_the_configuration_is_read_again(folder) -> None:
    (folder / "config.json").write_text(json.dumps(hooks(enabled=False)))
    arrived, go = threading.Event(), threading.Event()

    def slow(connection: socket.socket, end: threading.Event) -> None:
        arrived.set()
        assert go.wait(BOUND)
        json_response("Rome is gone.")(connection, end)

    with (
        ScriptedUpstream(ContractModel(), tools="refuse") as upstream,
        calling_back(slow) as callback,
        running("serve", folder, upstream.url) as child,
        ThreadPoolExecutor(1) as pool,
    ):
        register_erase(child, callback)
        answer = pool.submit(ask, child, ERASE)
        assert arrived.wait(BOUND)
        (folder / "config.json").write_text(json.dumps({"approvals": {"rules": [{"tools": ["erase"], "outcome": "deny"}]}}))
        os.kill(child.pid, signal.SIGHUP)
        printed(child, "The configuration was reloaded: approvals by 1 rule")
        go.set()
        assert "Rome is gone." in answer.result(BOUND)
        assert "Rome is gone." not in ask(child, ERASE)


GUARD = """
from patchbay.hooks.sdk import Ask, Hook

hook = Hook()


@hook.before_tool
def guard(call):
    if call.tool == "erase":
        return Ask("cities stay")


hook.run()
"""


@pytest.mark.parametrize(("decision", "count"), [("approve", 1), ("deny", 0)])
def test_hook_process_can_request_approval_over_http_without_a_policy(decision, count, folder) -> None:
    (folder / "guard.py").write_text(GUARD)
    (folder / "config.json").write_text(json.dumps(hooks(command=[sys.executable, str(folder / "guard.py")])))
    with (
        ScriptedUpstream(ContractModel(), tools="refuse") as upstream,
        calling_back(json_response("it is gone")) as callback,
        running("serve", folder, upstream.url) as child,
        ThreadPoolExecutor(1) as pool,
    ):
        register_erase(child, callback)
        answer = pool.submit(ask, child, ERASE)
        asked = waiting(child)
        assert ("weather: cities stay", "erase", []) == (asked["why"], asked["tool"], callback.calls)
        shown = run_command("approvals", "show", asked["id"], "--server", child.url.removesuffix("/v1"))
        assert "asked for by weather: cities stay" in shown.stdout, shown.stderr
        assert request(child, "POST", f"/api/approvals/{asked['id']}", {"decision": decision, "by": "ann"})["ok"]
        answer.result(BOUND)
        assert count == len(callback.calls)
        [entry] = wait_for_member(child, "/api/audit", "entries")
        assert {"by": "weather", "point": "before_tool", "decision": "asked a person: cities stay"} == entry["decisions"][0]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_pending_approval_survives_a_kill_and_a_stop(how, folder) -> None:
    session = {
        "extra_headers": {"X-Patchbay-Session": "s1"}
    }  # without one it would be withdrawn: no later call could get the decision
    with (
        ScriptedUpstream(ContractModel(), tools="refuse") as upstream,
        calling_back(json_response("it is gone")) as callback,
        ThreadPoolExecutor(1) as pool,
    ):
        with running("serve", folder, upstream.url, "--drain-timeout", "0") as child:
            register_erase(child, callback)
            lost = pool.submit(ask, child, ERASE, **session)
            asked = waiting(child)
            os.kill(child.pid, how)
            with pytest.raises(openai.APIConnectionError if how == signal.SIGKILL else openai.APIError):
                lost.result(BOUND)
        with running("serve", folder, upstream.url) as child:
            assert asked["id"] == waiting(child)["id"]
            decided = request(child, "POST", f"/api/approvals/{asked['id']}", {"decision": "approve", "by": "ann"})
            assert "approved" == decided["approval"]["state"]
            assert [] == callback.calls
            assert "it is gone" in ask(child, ERASE, **session)
            assert 1 == len(callback.calls)


def test_a_person_at_a_terminal_decides_while_the_client_waits(folder) -> None:
    with (
        ScriptedUpstream(ContractModel(), tools="refuse") as upstream,
        calling_back(json_response("it is gone")) as callback,
        ThreadPoolExecutor(1) as pool,
        running("serve", folder, upstream.url) as child,
    ):
        register_erase(child, callback)
        answer = pool.submit(ask, child, ERASE)
        asked = waiting(child)
        done = run_command("approvals", "approve", asked["id"], "--server", child.url)
        assert 0 == done.returncode, done.stderr
        assert "it is gone" in answer.result(BOUND)


def test_a_folder_in_place_of_the_configuration_is_called_a_folder(tmp_path) -> None:
    done = run_command("serve", "--port", "0", "--config", str(tmp_path), "--store", "memory")
    assert (2, f"patchbay: --config: {tmp_path} is a folder.\n") == (done.returncode, done.stderr)


@pytest.mark.parametrize("what", ["serve", "proxy"])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "this is not JSON"),
        ('{"hooks": {"processes": {"a": {"enabled": true, "command": ["x"], "intercept": ["before_lm"]}}}}', "before_lm"),
        ('{"approvals": {"rules": [{"tool": "erase", "outcome": "ask"}]}}', "tool"),
        (json.dumps(hooks(command=["/nowhere/at/all"], required=True)), "does not start"),
        (None, "no such file"),
    ],
)
def test_invalid_configuration_prevents_the_start(what, config, message, tmp_path) -> None:
    path = tmp_path / "config.json"
    if config is not None:
        path.write_text(config)
    done = run_command(what, "--port", "0", "--upstream", "http://127.0.0.1:9", "--config", str(path), "--store", "memory")
    assert 2 == done.returncode, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("what", ["serve", "proxy"])
def test_an_audit_log_in_no_folder_prevents_the_start(what, folder) -> None:
    flags = ["--upstream", "http://127.0.0.1:9", "--config", str(folder / "config.json"), "--store", "memory"]
    done = run_command(what, "--port", "0", *flags, "--audit", str(folder / "nowhere" / "audit.db"))
    assert (2, True) == (done.returncode, f"--audit: no such folder {folder / 'nowhere'}." in done.stderr)


def test_hooks_are_those_of_one_process(folder) -> None:
    flags = ["--workers", "2", "--config", str(folder / "config.json"), "--upstream", "http://127.0.0.1:9"]
    done = run_command("proxy", *flags, "--port", str(kept_port()))
    assert 2 == done.returncode
    assert "--workers 1" in done.stderr
