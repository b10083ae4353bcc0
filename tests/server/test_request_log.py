"""The log: bodies but never keys, for this user alone, and bounded over restarts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from proxy_rig import chat_body, json_answer, proxied

from patchbay._redaction import Redactor, secret_values
from patchbay.errors import ConfigurationError
from patchbay.server.request_log import CAPTURE_LIMIT, BodyCapture, RequestLog
from support.http_server import ask

CHAT = "/v1/chat/completions"
KEY = "sk-upstream-0123456789abcdef"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_step_of_a_chat_is_one_line_with_time_and_request_id(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with proxied(json_answer, log_file=str(log), upstream_key=KEY) as (_, port):
        ask(
            port,
            "POST",
            CHAT,
            b'{ "model": "m",\n "tools": [1], "big": 12345678901234567890.10 }',
            headers={"x-mine": "header-value"},
        )
    entries = read(log)
    assert ["client_request", "upstream_request", "response"] == [entry["event"] for entry in entries]
    assert 1 == len({entry["request"] for entry in entries})
    assert all(entry["time"].endswith("+00:00") for entry in entries)
    assert ("POST", CHAT) == (entries[0]["method"], entries[0]["path"])
    assert {"model": "m", "tools": [1], "big": 12345678901234567890.10} == entries[0]["body"]
    assert b"12345678901234567890.10" in log.read_bytes()
    assert (200, {"id": "1", "said": "exchange"}) == (entries[2]["status"], entries[2]["body"])
    assert b"header-value" not in log.read_bytes()
    assert KEY.encode() not in log.read_bytes()


def test_streamed_answers_are_logged_as_the_client_saw_them(tmp_path: Path) -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"data: upstream\n\ndata: 2\n\n", headers={"content-type": "text/event-stream"})

    log = tmp_path / "log"
    with proxied(script, log_file=str(log)) as (_, port):
        ask(port, "POST", CHAT, chat_body(stream=True))
        ask(port, "POST", CHAT, chat_body(stream=True, tools=None))
    bodies = [entry["body"] for entry in read(log) if entry["event"] == "response"]
    assert ["data: exchange\n\ndata: 2\n\ndata: [DONE]\n\n", "data: upstream\n\ndata: 2\n\n"] == bodies


def test_failures_are_logged_with_the_upstreams_error_and_without_keys(tmp_path: Path) -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": f"no {KEY}"}}, status=400)

    log = tmp_path / "log"
    with proxied(script, log_file=str(log), upstream_key=KEY) as (_, port):
        ask(port, "POST", CHAT, chat_body(note=KEY))
        ask(port, "POST", CHAT, b"{nonsense")
        ask(port, "GET", "/v1/models")
    events = [(entry["event"], entry.get("status")) for entry in read(log)]
    assert [
        ("client_request", None), ("upstream_request", None), ("upstream_error", 400),
        ("client_request", None), ("error", 400),
        ("client_request", None), ("upstream_request", None), ("upstream_error", 400),
    ] == events  # fmt: skip
    assert KEY not in log.read_text()
    assert "{nonsense" in log.read_text()


def test_passthrough_logs_json_and_not_uploads(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with proxied(json_answer, log_file=str(log)) as (_, port):
        ask(port, "POST", "/v1/embeddings?key=query-secret", b'{"input": "words"}', headers={"content-type": "application/json"})
        ask(port, "POST", "/v1/audio", b"RIFF-sound", headers={"content-type": "audio/wav"})
    text = log.read_text()
    assert "words" in text
    assert "RIFF" not in text
    assert "query-secret" not in text
    assert {"id": "1", "said": "upstream"} in [entry.get("body") for entry in read(log)]


def test_log_file_is_private_even_if_it_was_not(tmp_path: Path) -> None:
    for path in (tmp_path / "new", tmp_path / "old"):
        if path.name == "old":
            path.write_text("")
            path.chmod(0o644)
        journal = RequestLog(path, max_size=10_000, redact=Redactor())
        journal.record("response", "1", body=b"{}")
        journal.close()
        assert 0o600 == path.stat().st_mode & 0o777


def test_both_files_together_stay_within_the_limit_over_restarts(tmp_path: Path) -> None:
    path, old = tmp_path / "log", tmp_path / "log.1"
    for _ in range(5):
        journal = RequestLog(path, max_size=8000, redact=Redactor())
        for number in range(40):
            journal.record("response", f"x-{number}", body=b"x" * 50)
        journal.close()
        assert path.stat().st_size + (old.stat().st_size if old.exists() else 0) <= 8000
    assert 0o600 == old.stat().st_mode & 0o777
    assert "x-39" == read(path)[-1]["request"]


def test_entries_beyond_the_queue_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchbay.server.request_log._QUEUE_LIMIT", 2000)
    journal = RequestLog(tmp_path / "log", max_size=100_000, redact=Redactor())
    journal.record("response", "big", body=b"x" * 5000)
    journal.record("response", "small", body=b"{}")
    journal.close()
    assert [("response", None), ("dropped", 1)] == [(entry["event"], entry.get("entries")) for entry in read(tmp_path / "log")]


def test_entry_larger_than_the_file_reports_its_size(tmp_path: Path) -> None:
    journal = RequestLog(tmp_path / "log", max_size=8000, redact=Redactor())
    journal.record("response", "1", body=b"x" * 9000)
    journal.close()
    assert 9000 < read(tmp_path / "log")[0]["omitted"]


@pytest.mark.parametrize("body", [b"\xff\xfe", b"[" * 100_000, b'{"a":"\xff"}', b"", b"line\nline", b'"\\ud800"'])
def test_any_bytes_become_one_line_of_json(tmp_path: Path, body: bytes) -> None:
    journal = RequestLog(tmp_path / "log", max_size=1_000_000, redact=Redactor())
    journal.record("client_request", "1", body=body)
    journal.close()
    assert 1 == len(read(tmp_path / "log"))


def test_logged_part_of_a_streamed_body_is_bounded() -> None:
    capture = BodyCapture()
    capture.add(b"x" * (CAPTURE_LIMIT - 1))
    capture.add(b"yz")
    capture.add(b"w")
    fields = capture.fields()
    assert (CAPTURE_LIMIT, True, b"xy") == (len(fields["body"]), fields["truncated"], fields["body"][-2:])


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, Path(os.devnull), tmp_path / "no" / "such"):
        with pytest.raises(ConfigurationError, match="log file"):
            RequestLog(path, max_size=10_000, redact=Redactor())


def test_keys_are_found_in_every_spelling_and_words_are_left() -> None:
    redact = Redactor(['my/"key"', "abcd1234", "ollama"])
    assert b"[redacted] [redacted]" == redact(b'my/"key" abcd1234')
    assert b'"my [redacted]"' == redact(b'"my my\\/\\"key\\""'.replace(b"\\/", b"/"))
    for text in (b"token: 5000", b"ollama pull", b"Bearer authentication is needed", b"task-sk-learn", b"sk-learn"):
        assert text == redact(text)
    assert b"Authorization: Bearer [redacted]" == redact(b"Authorization: Bearer abc.def123-x")
    for token in (b"eyJhbGc.AAA/BBB+CCC", b"abcd-efgh_ijkl~mnop==", b"qwertyui+asdfghjk=", b"qwertyuiasdfgh==", b"AbCdEfGhIjKl"):
        assert b"Authorization: Bearer [redacted]" == redact(b"Authorization: Bearer " + token)
    assert b'Bearer realm="mcp", error="invalid_token"' == redact(b'Bearer realm="mcp", error="invalid_token"')
    assert b'"sk-[redacted]"' != redact(b'"sk-proj-0123456789abcdef"') == b'"[redacted]"'


def test_secrets_in_extra_headers_are_known() -> None:
    assert ["Bearer abc", "abc", "k", "k"] == secret_values({"Authorization": "Bearer abc", "X-Api-Key": "k", "X-Other": "o"})
