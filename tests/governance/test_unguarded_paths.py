"""A hook that checks requests to models sees all of them: what it would not see is refused, however its path is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pytest

from patchbay.hooks import AbortTurn, HookManager
from patchbay.proxy import create_app
from patchbay.server.app import create_tools_app
from patchbay.server.governance import Governance
from patchbay.server.settings import ProxySettings
from patchbay.testing import ScriptedUpstream
from support.http_server import ask, serving

BODY = {"model": "m", "input": "Hi.", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 5}
GEMINI = {"contents": [{"parts": [{"text": "Hi."}]}]}

SPELLINGS = [
    "/v1//chat/completions", "/v1/chat//completions", "//v1/chat/completions", "/v1/chat/completions;x=1", "/v1/chat;x/completions",
    "/v1/chat/completions%20", "/v1/chat/completions%3Bx", "/v1/Chat/Completions", "/V1/chat/completions", "/v1/./chat/completions",
    "/v1/chat/%2e/completions", "/v1/x/../chat/completions", "/v1/chat\\completions", "/v1/chat%5Ccompletions", "/v1/chat/completions%00",
    "/v1/chat/completions%2Fx%2F..", "/v1/%2563hat/completions", "/v1/chat/completions%23x", "/v1/chat/completions.", "/v1/chat/completions%09",
    "/v1/respon%73es", "/v1//responses", "/v1/Responses", "/v1/responses;x", "/v1/messages%20", "/v1//messages", "/v1/MESSAGES",
]  # fmt: skip
UNSEEN = [
    "/v1/completions", "/v1/embeddings", "/v1/images/generations", "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/moderations",
    "/v1/rerank", "/v1/batches", "/v1/engines/m/completions", "/v1/chat", "/v1/generate", "/v1/messages/batches", "/v1/nothing/known",
]  # fmt: skip
SEEN = ["/v1/chat/completions", "/v1/chat/completions/", "/v1/chat%2Fcompletions", "/v1/responses", "/v1/messages/"]


class RefusingHook:
    """A guard that refuses every request to a model."""

    fail_closed = True

    def before_llm(self, _request: Any) -> AbortTurn:
        return AbortTurn("not allowed")


class ToolHook:
    """A hook that is asked about calls only."""

    def before_tool(self, _call: Any) -> None:
        return None


def governed(hook: object) -> Governance:
    manager = HookManager()
    manager.mount("guard", hook)
    return Governance(hooks=manager)


@contextmanager
def guarded(kind: str, hook: object | None = None, **settings: Any) -> Iterator[tuple[int, ScriptedUpstream]]:
    """Serve the proxy or the tool server before a scripted upstream, with the hook."""
    governance = governed(hook or RefusingHook())
    with ScriptedUpstream(["Hello."] * 50) as upstream:
        if kind == "proxy":
            app: Any = create_app(upstream.url, governance=governance, **settings)
        else:
            app = create_tools_app(upstream=ProxySettings(upstream.url, **settings), governance=governance)
        with serving(app) as port:
            yield port, upstream


def post(port: int, path: str, body: dict[str, Any] = BODY) -> Any:
    return ask(port, "POST", path, body, headers={"content-type": "application/json"})


@pytest.mark.parametrize("kind", ["proxy", "serve"])
def test_no_spelling_of_a_path_and_no_other_path_reaches_the_model_past_a_guard(kind: str) -> None:
    with guarded(kind) as (port, upstream):
        for path in SPELLINGS:
            assert post(port, path).status in (400, 403, 404), path
        for path in UNSEEN:
            answer = post(port, path)
            assert (403, "unguarded_path", True) == (
                answer.status,
                answer.json["error"]["code"],
                "--allow-unguarded" in answer.message,
            )
        for path in SEEN:
            answer = post(port, path)
            assert (403, True) == (answer.status, answer.message.endswith("not allowed")), path
        for path in (
            "/v1beta/models/m:generateContent",
            "/v1beta//models/m:generateContent",
            "/v1beta/models/m%3AgenerateContent",
        ):
            assert post(port, path, GEMINI).status in (403, 404), path
        for method in ("PUT", "PATCH"):
            assert 403 == ask(port, method, "/v1/embeddings", BODY, headers={"content-type": "application/json"}).status
        assert [] == [request.path for request in upstream.requests]
        assert 200 == ask(port, "GET", "/v1/models").status


@pytest.mark.parametrize("kind", ["proxy", "serve"])
@pytest.mark.parametrize(
    "fields", [{"functions": [{"name": "f", "parameters": {}}]}, {"tools": [{"type": "custom", "custom": {"name": "c"}}]}]
)
def test_a_request_that_hooks_cannot_see_is_refused(kind: str, fields: dict[str, Any]) -> None:
    with guarded(kind) as (port, upstream):
        answer = post(port, "/v1/chat/completions", {**BODY, **fields})
        assert (403, "unguarded_path") == (answer.status, answer.json["error"]["code"])
        assert [] == upstream.requests


@pytest.mark.parametrize("kind", ["proxy", "serve"])
def test_unguarded_paths_pass_if_the_operator_allows_them_or_no_hook_checks_models(kind: str) -> None:
    with guarded(kind, allow_unguarded=True) as (port, upstream):
        assert 200 == post(port, "/v1/embeddings").status
        assert 403 == post(port, "/v1/chat/completions").status
        assert 200 == post(port, "/v1/chat/completions", {**BODY, "functions": [{"name": "f"}]}).status
    with guarded(kind, ToolHook()) as (port, upstream):
        assert 200 == post(port, "/v1/embeddings").status
        assert 404 == post(port, "/v1//chat/completions").status
        assert ["/v1/embeddings"] == [request.path for request in upstream.requests]


def test_the_plain_proxy_answers_one_spelling_of_each_path() -> None:
    with ScriptedUpstream(["Hello."] * 50) as upstream, serving(create_app(upstream.url)) as port:
        for path in SPELLINGS:
            assert post(port, path).status in (400, 404), path
        assert [] == upstream.requests
        for method, path in (("POST", "/v1/embeddings"), ("GET", "/v1/models/org%2Fname"), ("GET", "/v1/files/A%20b")):
            ask(port, method, path, BODY if method == "POST" else None)
            assert unquote(path) == upstream.requests[-1].path
