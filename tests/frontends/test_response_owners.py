"""A stored response belongs to the caller that asked for it: to its key or token, and its role."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from tests.server.proxy_rig import running_upstream
from websockets.sync.client import connect

from frontends.test_stored_responses import answer
from patchbay.proxy import create_app
from patchbay.server.app import create_tools_app
from patchbay.server.settings import ProxySettings, ToolsSettings
from support.http_server import BOUND, HttpResponse, ask, serving

TOKEN = "0123456789abcdef-token"
OWNER = {"authorization": "Bearer key-of-ann-1234"}
STRANGERS: dict[str, dict[str, str]] = {
    "another key": {"authorization": "Bearer key-of-ben-1234"},
    "no key": {},
    "another key as x-api-key": {"x-api-key": "key-of-ben-1234"},
    "the same key for another role": {**OWNER, "x-patchbay-role": "ben"},
    "another scheme": {"authorization": "Basic a2V5"},
}


@contextmanager
def served(kind: str, store: str | None = None) -> Iterator[int]:
    with running_upstream(answer) as upstream:
        settings = ProxySettings(upstream.url, response_store=store)
        if kind == "proxy":
            app: Any = create_app(upstream.url, response_store=store)
        else:
            app = create_tools_app(("ann", "ben"), upstream=settings, settings=ToolsSettings(token=TOKEN))
        with serving(app, sockets=True) as port:
            yield port


def post(port: int, path: str, body: dict[str, Any], headers: dict[str, str]) -> HttpResponse:
    return ask(port, "POST", path, body, headers={"content-type": "application/json", **headers})


def create(port: int, headers: dict[str, str], **fields: Any) -> HttpResponse:
    return post(port, "/v1/responses", {"model": "m", "input": "Secret.", **fields}, headers)


def attempts(port: int, response_id: str, headers: dict[str, str]) -> dict[str, HttpResponse]:
    """Try everything that can be done with a response; the last attempt would delete it."""
    path = f"/v1/responses/{response_id}"
    return {
        "continue": create(port, headers, previous_response_id=response_id),
        "refer": create(port, headers, input=[{"type": "item_reference", "id": f"msg_{response_id[5:]}00"}]),
        "compact": post(port, "/v1/responses/compact", {"model": "m", "previous_response_id": response_id}, headers),
        "read": ask(port, "GET", path, headers=headers),
        "items": ask(port, "GET", f"{path}/input_items", headers=headers),
        "events": ask(port, "GET", f"{path}?stream=true", headers=headers),
        "cancel": post(port, f"{path}/cancel", {}, headers),
        "delete": ask(port, "DELETE", path, headers=headers),
    }


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("kind", ["proxy", "serve"])
def test_a_response_of_another_caller_is_as_if_it_was_never_stored(kind: str, stranger: str) -> None:
    with served(kind) as port:
        stored = create(port, OWNER, background=True, stream=True)
        response_id = json.loads(stored.body.partition(b"data: ")[2].partition(b"\n")[0])["response"]["id"]
        unknown = attempts(port, "resp_unknown", OWNER)
        for name, tried in attempts(port, response_id, STRANGERS[stranger]).items():
            assert unknown[name].status == tried.status == (400 if name in ("continue", "compact") else 404), name
            assert tried.body == unknown[name].body.replace(b"unknown", response_id[5:].encode()), name
        mine = attempts(port, response_id, OWNER)
        assert {"200"} == {str(each.status) for each in mine.values()}, mine
        assert b"Secret." in mine["items"].body


def test_callers_without_a_key_are_one_caller_and_a_key_may_come_in_any_header() -> None:
    with served("proxy") as port:
        response_id = create(port, {}).json["id"]
        assert 200 == ask(port, "GET", f"/v1/responses/{response_id}").status
        response_id = create(port, OWNER).json["id"]
        for headers in ({"x-api-key": "key-of-ann-1234"}, {"authorization": "bearer  key-of-ann-1234"}):
            assert 200 == ask(port, "GET", f"/v1/responses/{response_id}", headers=headers).status
        assert 200 == ask(port, "GET", f"/v1/responses/{response_id}?key=key-of-ann-1234").status
        assert 404 == ask(port, "GET", f"/v1/responses/{response_id}?key=key-of-ben-1234").status


def test_the_holder_of_the_token_is_a_caller_of_its_own() -> None:
    holder = {"authorization": f"Bearer {TOKEN}"}
    with served("serve") as port:
        response_id = create(port, holder).json["id"]
        assert 404 == ask(port, "GET", f"/v1/responses/{response_id}").status
        assert 404 == ask(port, "GET", f"/v1/responses/{response_id}", headers=OWNER).status
        assert 200 == ask(port, "GET", f"/v1/responses/{response_id}", headers=holder).status


def test_a_websocket_continues_only_responses_of_its_own_caller() -> None:
    with served("proxy") as port:
        response_id = create(port, OWNER).json["id"]
        request = {"type": "response.create", "model": "m", "input": "And?", "previous_response_id": response_id}
        for headers, expected in ((STRANGERS["another key"], "error"), ({}, "error"), (OWNER, "response.created")):
            with connect(f"ws://127.0.0.1:{port}/v1/responses", additional_headers=headers) as socket:
                socket.send(json.dumps(request))
                event = json.loads(socket.recv(timeout=BOUND))
                assert expected == event["type"]
                assert expected != "error" or (400, "previous_response_not_found") == (event["status"], event["error"]["code"])


def test_a_restart_keeps_the_owner_and_responses_without_one_are_found_by_nobody(url: str) -> None:
    with served("proxy", url) as port:
        response_id = create(port, OWNER).json["id"]
    with served("proxy", url) as port:
        assert 404 == ask(port, "GET", f"/v1/responses/{response_id}").status
        assert 200 == ask(port, "GET", f"/v1/responses/{response_id}", headers=OWNER).status
    engine = sa.create_engine(url)  # what versions without owners wrote: the response's own id alone
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE patchbay_responses SET id = :id"), {"id": response_id})
    engine.dispose()
    with served("proxy", url) as port:
        for headers in (OWNER, {}):
            assert 404 == ask(port, "GET", f"/v1/responses/{response_id}", headers=headers).status
