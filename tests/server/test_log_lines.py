"""What the terminal of a running server shows: one line per event worth knowing, none of it a secret or a control character."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from proxy_rig import running_command

from patchbay.testing import ContractModel, ScriptedUpstream
from support.cli import run_cli
from support.http_server import HttpResponse, ask
from support.processes import Process

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CHAT = {"model": "gem\x1bma", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
KEY = "a-key-of-this-test"
ID = r" \[[0-9a-f]{8}-\d+\]$"


def register(port: int, tool: object) -> HttpResponse:
    return ask(port, "POST", "/api/tools/register", tool, headers={"content-type": "application/json"})


def lines_of(process: Process) -> list[str]:
    """Stop the server, and return its lines on stderr from the level on; each ends with the id of its request."""
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    return [re.sub(ID, "", line.split(" ", 2)[2]) for line in stderr.splitlines()]


LEARNT = [
    "INFO First request for the model gem\\u001bma",
    "INFO The server of the model gem\\u001bma takes no tools: they are written into the prompt, and calls are read from the model's text",
]
FAILED = [
    "WARNING POST /v1/chat/completions from 127.0.0.1: HTTP 401, invalid_api_key: Missing or invalid API key.",
    "WARNING POST /v1/chat/completions from 127.0.0.1: HTTP 400, invalid_request: 'messages' must be an array of messages.",
]


REQUESTS = [
    (
        "chat gem\\u001bma text whole 1 tool 0 calls N → N tokens 200 "
        "(HTTP 400: the server refuses tools, so they are in the prompt)"
    ),
    "chat 401 invalid_api_key: Missing or invalid API key.",
    "chat 400 invalid_request: 'messages' must be an array of messages.",
]


@pytest.mark.parametrize("flag", ["--quiet", "", "--verbose"])
def test_proxy_logs_learnt_capabilities_and_failed_requests(flag):
    with (
        ScriptedUpstream(ContractModel(), tools="refuse") as upstream,
        running_command("proxy", "--upstream", upstream.url, *filter(None, [flag]), PROXY_API_KEY=KEY) as (process, port),
    ):
        sent = [(CHAT, KEY), (CHAT, "wrong"), ({"model": "m"}, KEY)]
        assert [200, 401, 400] == [
            ask(port, "POST", "/v1/chat/completions", body, headers={"authorization": f"Bearer {key}"}).status
            for body, key in sent
        ]
        lines = lines_of(process)
    requests = [re.sub(r"\d+ → \d+", "N → N", re.sub(r"[0-9.]+ m?s ", "", line)) for line in lines if line.startswith("chat ")]
    assert (REQUESTS if flag == "--verbose" else []) == requests
    logged = {"--quiet": [], "": LEARNT + FAILED, "--verbose": LEARNT}[flag]
    assert logged == [line for line in lines if not line.startswith("chat ")]


def test_json_log_has_an_object_per_line_with_the_id_of_its_answer(tmp_path: Path) -> None:
    with (
        ScriptedUpstream(ContractModel(), tools="refuse") as upstream,
        running_command("proxy", "--upstream", upstream.url, PATCHBAY_LOG_FORMAT="json", PROXY_API_KEY=KEY) as (process, port),
    ):
        answers = [
            ask(port, method, path, body, headers={"authorization": f"Bearer {key}"})
            for method, path, body, key in (
                ("POST", "/v1/chat/completions", CHAT, KEY),
                ("POST", "/v1/chat/completions", CHAT, "wrong"),
                ("GET", "/v1/models", None, "wrong"),
                ("GET", "/api/turns", None, "wrong"),
            )
        ]
        process.terminate()
        lines = [json.loads(line) for line in process.communicate(timeout=60)[1].splitlines()]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert (4, [200, 401, 401, 401]) == (len(set(ids)), [answer.status for answer in answers])
    by_id = {each: [line for line in lines if line.get("id") == each] for each in ids}
    assert set(ids) >= {line["id"] for line in lines}
    learnt, first = by_id[ids[0]][0], by_id[ids[0]][-1]
    assert ("info", "patchbay.models", "First request for the model gem\x1bma") == (
        learnt["level"], learnt["logger"].rpartition(".")[0], learnt["message"].replace("\\u001b", "\x1b"),
    )  # fmt: skip
    assert ("chat", "text", 1, 200, "info") == tuple(first[name] for name in ("protocol", "mode", "tools", "status", "level"))
    assert [(401, "warning")] == [(line["status"], line["level"]) for line in by_id[ids[1]]]
    refused = [line["message"] for each in ids[2:] for line in by_id[each]]
    assert ["GET /v1/models from 127.0.0.1: HTTP 401", "GET /api/turns from 127.0.0.1: HTTP 401"] == [
        message.partition(",")[0] for message in refused
    ]


def test_left_out_lines_are_counted_in_json_too(caplog: pytest.LogCaptureFixture) -> None:
    with running_command("serve", "--store", "memory", "--log-format", "json") as (process, port):
        for _ in range(60):
            assert 422 == register(port, {"description": "x"}).status
        process.terminate()
        lines = [json.loads(line) for line in process.communicate(timeout=60)[1].splitlines()]
    assert {"logger", "message"} <= lines[0].keys()
    assert 60 > len(lines)


def test_registry_logs_refused_registrations_without_their_content():
    with running_command("serve", "--store", "memory") as (process, port):
        assert 422 == register(port, {"description": "a-secret"}).status
        lines = lines_of(process)
    assert ["WARNING POST /api/tools/register from 127.0.0.1: HTTP 422, body.name: Field required"] == lines


def test_registry_logs_requests_refused_without_the_token(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text(KEY)
    token.chmod(0o600)
    with running_command("serve", "--store", "memory", "--token-file", str(token)) as (process, port):
        plugin = {"name": "a", "callback_url": "http://127.0.0.1:9/", "source": "plugin:a"}
        assert 200 == register(port, plugin).status
        for path in ("approvals", "audit", "events", "media/0-a"):
            assert 401 == ask(port, "GET", f"/api/{path}").status
        assert 200 == register(port, {**plugin, "source": "external"}).status
        lines = lines_of(process)
    refused = ["POST /api/tools/register from 127.0.0.1: HTTP 200, refused: source_reserved"]
    refused += [
        f"GET /api/{path} from 127.0.0.1: HTTP 401, wrong_token" for path in ("approvals", "audit", "events", "media/0-a")
    ]
    assert [f"WARNING {line}" for line in refused] == lines


def test_log_lines_show_no_keys():
    with running_command("proxy", "--upstream", "http://127.0.0.1:9/v1", "--verbose") as (process, port):
        assert 404 == ask(port, "POST", "/models/sk-0123456789abcdefghij", {}).status
        lines = lines_of(process)
    assert (["/models/[redacted]"] * 2, False) == (
        re.findall(r"(?<=POST )\S+(?= from| 404)", "\n".join(lines)),
        "sk-0123" in str(lines),
    )


def test_verbose_and_quiet_exclude_each_other():
    done = run_cli("proxy", "--upstream", "http://127.0.0.1:9/v1", "-v", "-q")
    assert (2, "patchbay: --verbose and --quiet exclude each other.\n") == (done.returncode, done.stderr)
