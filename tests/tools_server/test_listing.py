"""The listing of ``/api/tools`` with its revisions and ETags, secrets, and sessions that are behind."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from patchbay.tools.manager import LLMSessionManager
from tools_server.rig import BOUND, TOKEN, serving
from tools_server.test_wire import Gone

URL = "http://127.0.0.1:9/call"


def test_role_is_pending_until_its_session_is_synced(server: Any) -> None:
    outcome = threading.Event()

    class Fails:
        left = 2

        async def use_tools(self, snapshot: Any) -> None:
            self.left -= 1
            if self.left >= 0:
                raise ConnectionError("gone")
            outcome.set()

    ben = server.app.managers["ben"] = LLMSessionManager("ben", server.app.registry, retry_delays=[0.01] * 3)
    before = server.ask("GET", "/api/tools")
    assert [] == before.json["pending_roles"]
    ben.active = Fails()
    answer = server.register()
    assert (["ben"], True) == (answer["pending_roles"], answer["ok"])
    assert outcome.wait(BOUND)
    while (listing := server.ask("GET", "/api/tools")).json["pending_roles"]:
        pass
    assert listing.json["revision"] == answer["revision"]
    assert listing.headers["etag"] != before.headers["etag"]


def test_etag_shows_whether_sessions_are_behind(server: Any) -> None:
    server.app.managers["ben"].active = Gone()
    server.register()
    behind = server.ask("GET", "/api/tools")
    assert ["ben"] == behind.json["pending_roles"]
    assert 304 == server.ask("GET", "/api/tools", if_none_match=behind.headers["etag"]).status
    server.app.managers["ben"].active = None
    assert 200 == server.ask("GET", "/api/tools", if_none_match=behind.headers["etag"]).status


def test_silent_session_is_abandoned() -> None:
    class Silent:
        async def use_tools(self, snapshot: Any) -> None:
            await asyncio.Event().wait()

    with serving(("ann",), sync_timeout=0.01) as server:
        server.app.managers["ann"].active = Silent()
        [failure] = server.register()["failed_roles"]
        assert "RuntimeError: tool sync failed: not done within 0.01 s" == failure["error"]


def test_quotes_of_an_invalid_body_are_short_and_valid_json(server: Any) -> None:
    body = {"name": {"deep": [[[[["x" * 9000]]]]], "half": "\ud800", "long": 10**4000}, "callback_url": 1}
    answer = server.ask("POST", "/api/tools/register", body)
    assert 422 == answer.status
    assert ["string_type", "string_type"] == [each["type"] for each in answer.json["detail"]]
    assert 2000 > len(answer.body)


def test_parameters_that_are_too_deep_to_be_written_again_are_422(server: Any) -> None:
    deep: dict[str, Any] = {}
    for _ in range(129):
        deep = {"a": deep}
    answer = server.ask("POST", "/api/tools/register", {"name": "a", "callback_url": URL, "parameters": deep})
    assert (422, "value_error") == (answer.status, answer.json["detail"][0]["type"])


def test_lists_show_no_secret(server: Any) -> None:
    secret = server.register()["secret"]
    assert secret.encode() not in server.ask("GET", "/api/tools").body


def test_a_list_that_was_seen_is_304_until_anything_changes(server: Any) -> None:
    server.register()
    for path in ("/api/tools", "/api/tools?role=ann"):
        first = server.ask("GET", path)
        etag = first.headers["etag"]
        assert f'"{first.json["etag"]}"' == etag
        for given in (etag, f"W/{etag}", f'"x", {etag}', "*"):
            again = server.ask("GET", path, if_none_match=given)
            assert (304, b"", etag) == (again.status, again.body, again.headers["etag"])
        assert 200 == server.ask("GET", path, if_none_match='"x"').status
    all_roles, one = (server.ask("GET", path).headers["etag"] for path in ("/api/tools", "/api/tools?role=ann"))
    assert all_roles != one
    server.register("b")
    assert 200 == server.ask("GET", "/api/tools", if_none_match=all_roles).status


def test_each_response_has_the_instance_and_an_increasing_revision(server: Any) -> None:
    server.register()
    answers = [server.register("b"), server.post("unregister", name="b").json, server.post("clear", source="x").json]
    answers.append(server.ask("GET", "/api/tools").json)
    assert 1 == len({answer["instance_id"] for answer in answers})
    revisions = [answer["revision"] for answer in answers]
    assert sorted(revisions) == revisions
    assert revisions[0] < revisions[1] == revisions[-1]


def test_another_start_is_another_instance() -> None:
    seen = []
    for _ in range(2):
        with serving() as server:
            seen.append(server.ask("GET", "/api/tools").json)
    assert seen[0]["instance_id"] != seen[1]["instance_id"]
    assert seen[0]["etag"] != seen[1]["etag"]
    assert seen[0]["etags_by_role"] == seen[1]["etags_by_role"]


def test_an_owner_may_choose_the_secret_and_otherwise_gets_one(server: Any) -> None:
    assert "mine" == server.register(secret="mine")["secret"]
    made = server.register("b")["secret"]
    assert 32 == len(made)
    assert made != server.register("b")["secret"]


def test_an_equal_registration_of_a_trusted_caller_changes_nothing() -> None:
    with serving(token=TOKEN) as server:
        answers = [
            server.ask("POST", "/api/tools/register", {"name": "a", "callback_url": URL}, authorization=f"Bearer {TOKEN}").json
            for _ in range(2)
        ]
        assert answers[0] == answers[1]


def test_sessions_of_all_roles_are_synced_concurrently(server: Any) -> None:
    waiting: list[asyncio.Event] = []

    class Together:
        """Takes its list only when all the others have been asked to take theirs."""

        async def use_tools(self, _snapshot: Any) -> None:
            waiting.append(asyncio.Event())
            if len(waiting) == len(server.app.managers):
                for each in waiting:
                    each.set()
            await waiting[-1].wait()

    for manager in server.app.managers.values():
        manager.active = Together()
    answer = server.register()
    assert (["ann", "ben"], []) == (answer["affected_roles"], answer["failed_roles"])
