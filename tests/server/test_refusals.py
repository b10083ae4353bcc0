"""Upstream errors for clients: OpenAI's shape for a chat, the upstream's own JSON elsewhere."""

from __future__ import annotations

import json

import pytest

from patchbay._redaction import Redactor
from patchbay.server.errors import UpstreamStatusError, upstream_error_body

OLLAMA = {"error": "model 'x' not found"}
FASTAPI = {"detail": [{"loc": ["body", "tools"], "msg": "Extra inputs are not permitted"}]}
OPENAI = {"error": {"message": "No.", "type": "t", "code": "c", "param": None}}


def client_body(status: int, body: bytes, *, chat: bool) -> bytes:
    return upstream_error_body(status, "application/json", body, chat=chat, own_key=False, redact=Redactor([]))


@pytest.mark.parametrize(("document", "words"), [(OLLAMA, "model 'x' not found"), (FASTAPI, "Extra inputs are not permitted")])
def test_upstream_errors_become_openai_errors_for_chats(document: object, words: str) -> None:
    body = json.dumps(document).encode()
    error = json.loads(client_body(422, body, chat=True))["error"]
    assert words in error["message"]
    assert {"message", "type", "code", "param"} == error.keys()
    assert body == client_body(422, body, chat=False)


def test_openai_errors_pass_through_unchanged() -> None:
    body = json.dumps(OPENAI).encode()
    assert body == client_body(400, body, chat=True) == client_body(400, body, chat=False)


def test_a_page_that_is_not_found_brings_the_base_url_to_mind() -> None:
    assert "/v1" in json.loads(client_body(404, b"404 page not found", chat=True))["error"]["message"]


@pytest.mark.parametrize(("body", "words"), [(b"not here!", ": not here!"), (b"", "without a message")])
def test_a_status_is_named_once(body: bytes, words: str) -> None:
    text = str(UpstreamStatusError(404, client_body(404, body, chat=True), []))
    assert (1, True) == (text.count("HTTP 404"), words in text)
