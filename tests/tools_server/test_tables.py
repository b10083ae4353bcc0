"""Every row of the contract's tables of ``/api/tools``: status, keys and values."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.registry import Registration
from tools_server.rig import BOUND, TOKEN, serving

URL = "http://127.0.0.1:9/call"


def only(answer: Any, *keys: str) -> dict[str, Any]:
    return {key: answer[key] for key in keys}


def no_session(server: Any, *roles: str) -> None:
    class Broken:
        async def use_tools(self, snapshot: Any) -> None:
            raise ConnectionError("gone")

    for role in roles:
        server.app.managers[role].active = Broken()


def test_a_registration_of_a_name_and_a_url_gets_the_defaults(server: Any) -> None:
    server.register("x" * 64, URL)
    assert {
        "name": "x" * 64,
        "description": "",
        "source": "external",
        "callback_url": URL,
        "is_remote": True,
        "parameters": {"type": "object", "properties": {}},
        "timeout_seconds": 30,
        "annotations": {},
        "role": None,
        "state": "active",
        "problem": None,
    } == server.tools()["x" * 64]


@pytest.mark.parametrize("role", [None, ""])
def test_missing_role_means_all_roles_including_later_ones(server: Any, role: str | None) -> None:
    assert ["ann", "ben"] == server.register(role=role)["affected_roles"]
    server.app.registry.add_role("eve")
    assert ["a"] == list(server.tools("eve"))


def test_a_role_is_that_role_alone(server: Any) -> None:
    assert ["ben"] == server.register(role="ben")["affected_roles"]
    assert ([], ["a"]) == (list(server.tools("ann")), list(server.tools("ben")))
    assert "ben" == server.tools("ben")["a"]["role"]


def test_unknown_fields_are_passed_over(server: Any) -> None:
    assert server.register(color="red", handler="rm -rf")["ok"]


@pytest.mark.parametrize(("given", "kept"), [("12.5", 12.5), (True, 1), (300, 300), (0.001, 0.001), ("3e2", 300)])
def test_a_timeout_may_be_written_as_text_or_as_a_truth_value(server: Any, given: Any, kept: float) -> None:
    server.register(timeout_seconds=given)
    assert kept == server.tools()["a"]["timeout_seconds"]


@pytest.mark.parametrize("name", ["get weather", "天气", "a.b/c?d", "-", "💡" * 64, "a\nb", "null"])
def test_name_can_hold_any_characters(server: Any, name: str) -> None:
    assert name == server.register(name)["registered"]
    assert [name] == list(server.tools())
    assert server.post("unregister", name=name).json["removed"]


def test_parameters_are_stored_without_reading_them_as_a_schema(server: Any) -> None:
    odd = {"type": ["object", 5], "properties": 7, "$ref": "http://x/y", "é": [None, 1.5, {"z": 2**70}]}
    server.register(parameters=odd)
    assert odd == server.tools()["a"]["parameters"]


def test_repeated_registration_replaces_the_tool_in_place(server: Any) -> None:
    for name in ("a", "b"):
        server.register(name)
    server.register("a", description="new")
    assert ["a", "b"] == list(server.tools())
    assert "new" == server.tools()["a"]["description"]


@pytest.mark.parametrize("roles", [["ben"], ["ann", "ben"]])
def test_role_with_a_failed_sync_has_the_tool_and_the_error(server: Any, roles: list[str]) -> None:
    no_session(server, *roles)
    answer = server.register()
    error = "RuntimeError: tool sync failed: active: ConnectionError: gone"
    failed = [{"role": role, "error": error, "code": "sync_failed"} for role in roles]
    assert {"ok": True, "affected_roles": ["ann", "ben"], "failed_roles": failed, "pending_roles": roles} == only(
        answer, "ok", "affected_roles", "failed_roles", "pending_roles"
    )
    assert "error" not in answer
    assert ["a"] == list(server.tools("ben"))  # its next turn has it


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
    no_session(server, "ben")
    server.register()
    behind = server.ask("GET", "/api/tools")
    assert ["ben"] == behind.json["pending_roles"]
    assert 304 == server.ask("GET", "/api/tools", if_none_match=behind.headers["etag"]).status
    server.app.managers["ben"].active = None
    assert 200 == server.ask("GET", "/api/tools", if_none_match=behind.headers["etag"]).status


def test_silent_session_is_abandoned() -> None:
    class Silent:
        async def use_tools(self, snapshot: Any) -> None:
            import asyncio

            await asyncio.Event().wait()

    with serving(("ann",), sync_timeout=0.01) as server:
        server.app.managers["ann"].active = Silent()
        [failure] = server.register()["failed_roles"]
        assert "RuntimeError: tool sync failed: not done within 0.01 s" == failure["error"]


def test_registration_without_roles_is_refused() -> None:
    with serving(()) as server:
        answer = server.register()
        assert {"ok": False, "affected_roles": [], "failed_roles": [], "error": "no role accepted the registration"} == only(
            answer, "ok", "affected_roles", "failed_roles", "error"
        )


def test_a_name_that_is_another_sources_is_refused_live_first_then_the_ledger(server: Any) -> None:
    server.register(source="first")
    answer = server.register(source="second")
    assert [
        {"role": "ann", "error": "cross-source overwrite refused", "code": "source_conflict", "owned_by": "first"},
        {"role": "ben", "error": "cross-source overwrite refused", "code": "source_conflict", "owned_by": "first"},
        {"role": "*", "error": "cross-source ledger overwrite refused", "code": "source_conflict", "owned_by": "first"},
    ] == answer["failed_roles"]
    assert {"ok": False, "registered": "a", "affected_roles": []} == only(answer, "ok", "registered", "affected_roles")
    assert "error" not in answer
    assert "secret" not in answer
    assert "first" == server.tools()["a"]["source"]


@pytest.mark.parametrize("path", ["register", "unregister", "clear", "call"])
def test_unknown_role_is_404_and_changes_nothing(server: Any, path: str) -> None:
    server.register()
    before = server.ask("GET", "/api/tools").body
    for answer in (
        server.post(path, name="a", callback_url=URL, source="external", role="nobody"),
        server.ask("GET", "/api/tools?role=nobody"),
    ):
        assert (404, "unknown role: nobody") == (answer.status, answer.json["detail"])
    assert before == server.ask("GET", "/api/tools").body


@pytest.mark.parametrize(
    ("body", "kind", "place"),
    [
        ({"callback_url": URL}, "missing", ["body", "name"]),
        ({"name": "a"}, "missing", ["body", "callback_url"]),
        ({"name": "", "callback_url": URL}, "string_too_short", ["body", "name"]),
        ({"name": "x" * 65, "callback_url": URL}, "string_too_long", ["body", "name"]),
        ({"name": 5, "callback_url": URL}, "string_type", ["body", "name"]),
        ({"name": None, "callback_url": URL}, "string_type", ["body", "name"]),
        ({"name": " \t", "callback_url": URL}, "value_error", ["body", "name"]),
        ({"name": "\ud800", "callback_url": URL}, "string_unicode", ["body", "name"]),
        ({"name": "a", "callback_url": URL, "description": None}, "string_type", ["body", "description"]),
        ({"name": "a", "callback_url": URL, "description": "half \ud83d"}, "string_unicode", ["body", "description"]),
        ({"name": "a", "callback_url": URL, "source": "\ud83d"}, "string_unicode", ["body", "source"]),
        ({"name": "a", "callback_url": URL, "role": "\ud83d"}, "string_unicode", ["body", "role"]),
        ({"name": "a", "callback_url": URL, "parameters": []}, "dict_type", ["body", "parameters"]),
        ({"name": "a", "callback_url": URL, "parameters": None}, "dict_type", ["body", "parameters"]),
        ({"name": "a", "callback_url": URL, "parameters": {"a": ["\udfff"]}}, "value_error", ["body", "parameters"]),
        ({"name": "a", "callback_url": ""}, "string_too_short", ["body", "callback_url"]),
        ({"name": "a", "callback_url": None}, "string_type", ["body", "callback_url"]),
        ({"name": "a", "callback_url": "http://example.com/"}, "value_error", ["body", "callback_url"]),
        ({"name": "a", "callback_url": URL, "role": 5}, "string_type", ["body", "role"]),
        ({"name": "a", "callback_url": URL, "source": None}, "string_type", ["body", "source"]),
        ({"name": "a", "callback_url": URL, "timeout_seconds": 0}, "greater_than", ["body", "timeout_seconds"]),
        ({"name": "a", "callback_url": URL, "timeout_seconds": 300.1}, "less_than_equal", ["body", "timeout_seconds"]),
        ({"name": "a", "callback_url": URL, "timeout_seconds": "soon"}, "float_parsing", ["body", "timeout_seconds"]),
        ({"name": "a", "callback_url": URL, "timeout_seconds": None}, "float_type", ["body", "timeout_seconds"]),
        ({"name": "a", "callback_url": URL, "timeout_seconds": "NaN"}, "finite_number", ["body", "timeout_seconds"]),
        ({"name": "a", "callback_url": URL, "timeout_seconds": 10**400}, "float_type", ["body", "timeout_seconds"]),
        ([], "model_attributes_type", ["body"]),
        ("text", "model_attributes_type", ["body"]),
        (None, "model_attributes_type", ["body"]),
    ],
)  # fmt: skip
def test_invalid_body_is_422_with_its_path(server: Any, body: Any, kind: str, place: list[str]) -> None:
    raw = b"null" if body is None else None
    answer = server.ask("POST", "/api/tools/register", body, raw=raw)
    assert 422 == answer.status
    assert [(kind, place)] == [(each["type"], each["loc"]) for each in answer.json["detail"]]
    assert {} == server.tools()


@pytest.mark.parametrize(
    "raw", [b"{", b"", b"nonsense", b'{"name": "a",}', b"\xff\xfe\xfa", b"[" * 100_000, b'{"name":' + b'{"a":' * 5000]
)
def test_body_with_invalid_json_is_422(server: Any, raw: bytes) -> None:
    answer = server.ask("POST", "/api/tools/register", raw=raw)
    assert 422 == answer.status
    assert answer.json["detail"][0]["type"] in ("json_invalid", "missing")


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


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/api/tools/register"), ("PUT", "/api/tools/register"), ("POST", "/api/tools"), ("DELETE", "/api/tools")],
)
def test_another_method_is_405(server: Any, method: str, path: str) -> None:
    answer = server.ask(method, path, {})
    assert (405, {"detail": "Method Not Allowed"}) == (answer.status, answer.json)


def test_a_slash_at_the_end_is_redirected(server: Any) -> None:
    answer = server.ask("GET", "/api/tools/")
    assert (307, True) == (answer.status, answer.headers["location"].endswith("/api/tools"))


def test_unknown_path_is_404(server: Any) -> None:
    assert (404, {"detail": "Not Found"}) == ((answer := server.ask("GET", "/nothing")).status, answer.json)


# Taking away


def test_tool_is_removed_from_all_roles(server: Any) -> None:
    server.register()
    answer = server.post("unregister", name="a", role=None)
    assert 200 == answer.status
    assert {
        "ok": True, "removed": True, "name": "a", "affected_roles": ["ann", "ben"], "failed_roles": [], "refused_roles": [],
    } == only(answer.json, "ok", "removed", "name", "affected_roles", "failed_roles", "refused_roles")  # fmt: skip
    assert {} == server.tools()


def test_tool_is_removed_from_one_role(server: Any) -> None:
    server.register()
    assert ["ben"] == server.post("unregister", name="a", role="ben").json["affected_roles"]
    assert (["a"], []) == (list(server.tools("ann")), list(server.tools("ben")))


def test_removing_a_missing_tool_is_no_failure(server: Any) -> None:
    assert {"ok": True, "removed": False, "affected_roles": []} == only(
        server.post("unregister", name="a").json, "ok", "removed", "affected_roles"
    )


def test_expected_source_limits_the_removal(server: Any) -> None:
    server.register(source="mine", role="ann")
    answer = server.post("unregister", name="a", expected_source="yours").json
    assert {"ok": True, "removed": False, "refused_roles": [{"role": "ann", "owned_by": "mine"}]} == only(
        answer, "ok", "removed", "refused_roles"
    )
    assert server.post("unregister", name="a", expected_source="mine").json["removed"]


def test_builtin_is_listed_and_cannot_be_replaced_or_removed(server: Any) -> None:
    builtin = ToolDefinition("recall_memory", handler=lambda _: None, metadata={"source": "builtin"})
    server.app.registry.register(Registration.of(builtin), inside=True)
    assert {"source": "builtin", "callback_url": None, "is_remote": False} == only(
        server.tools()["recall_memory"], "source", "callback_url", "is_remote"
    )
    answer = server.post("unregister", name="recall_memory").json
    assert (True, False) == (answer["ok"], answer["removed"])
    assert [{"role": role, "owned_by": "builtin"} for role in ("ann", "ben")] == answer["refused_roles"]
    assert not server.register("recall_memory")["ok"]
    assert not server.register("recall_memory", source="builtin")["ok"]
    answer = server.post("clear", source="builtin").json
    assert (False, 0) == (answer["ok"], answer["removed"])
    assert ["recall_memory"] == list(server.tools())


@pytest.mark.parametrize("body", [{}, {"name": ""}, {"name": "x" * 65}, {"name": 5}, {"name": "a", "expected_source": 5}])
def test_a_bad_body_of_unregister_is_422(server: Any, body: Any) -> None:
    assert 422 == server.ask("POST", "/api/tools/unregister", body).status


def test_a_source_is_cleared_exactly(server: Any) -> None:
    for name, source in (("a", "s"), ("b", "s"), ("c", "st")):
        server.register(name, source=source)
    server.register("d", source="s", role="ben")
    answer = server.post("clear", source="s", role=None)
    assert 200 == answer.status
    assert {"ok": True, "removed": 5, "source": "s", "affected_roles": ["ann", "ben"], "failed_roles": []} == only(
        answer.json, "ok", "removed", "source", "affected_roles", "failed_roles"
    )
    assert (["c"], ["c"]) == (list(server.tools("ann")), list(server.tools("ben")))


def test_a_source_is_cleared_for_one_role(server: Any) -> None:
    server.register()
    answer = server.post("clear", source="external", role="ann").json
    assert (1, ["ann"]) == (answer["removed"], answer["affected_roles"])
    assert ["a"] == list(server.tools("ben"))


def test_clearing_an_empty_source_is_no_failure(server: Any) -> None:
    answer = server.post("clear", source="nobody").json
    assert {"ok": True, "removed": 0, "affected_roles": []} == only(answer, "ok", "removed", "affected_roles")


@pytest.mark.parametrize("body", [{}, {"source": ""}, {"source": None}, {"role": None}])
def test_clear_needs_a_source(server: Any, body: Any) -> None:
    assert 422 == server.ask("POST", "/api/tools/clear", body).status


def test_the_source_of_no_text_can_be_registered_and_never_cleared(server: Any) -> None:
    server.register(source="")
    assert "" == server.tools()["a"]["source"]


def test_plugin_sources_are_reserved_for_token_holders() -> None:
    with serving(token=TOKEN) as server:
        answer = server.register(source="plugin:weather")
        assert [("ann", "source_reserved"), ("ben", "source_reserved")] == [
            (failure["role"], failure["code"]) for failure in answer["failed_roles"]
        ]
        assert (False, "no role accepted the registration") == (answer["ok"], answer["error"])
        shown = {"authorization": f"Bearer {TOKEN}"}
        body = {"name": "a", "callback_url": URL, "source": "plugin:weather"}
        assert server.ask("POST", "/api/tools/register", body, **shown).json["ok"]
        assert not server.post("unregister", name="a").json["removed"]
        assert not server.post("clear", source="plugin:weather").json["ok"]
        assert server.ask("POST", "/api/tools/clear", {"source": "plugin:weather"}, **shown).json["removed"]
        assert server.register("b", source="my_plugin")["ok"]  # all others go on working


# Listing


def test_the_list_of_all_roles(server: Any) -> None:
    server.register(role="ben")
    for path in ("/api/tools", "/api/tools?role="):
        answer = server.ask("GET", path)
        assert (200, True) == (answer.status, answer.json["ok"])
        assert {"ann": [], "ben": ["a"]} == {
            role: [tool["name"] for tool in tools] for role, tools in answer.json["tools_by_role"].items()
        }


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


# Secrets


def test_an_owner_may_choose_the_secret_and_otherwise_gets_one(server: Any) -> None:
    assert "mine" == server.register(secret="mine")["secret"]
    made = server.register("b")["secret"]
    assert 32 == len(made)
    assert made != server.register("b")["secret"]


def test_with_secrets_needed_only_the_owner_and_the_trusted_replace_or_remove() -> None:
    with serving(needs_secret=True, token=TOKEN) as server:
        secret = server.register()["secret"]
        assert ["secret_needed"] == [failure["code"] for failure in server.register()["failed_roles"]]
        assert not server.post("unregister", name="a", secret="wrong").json["removed"]
        assert not server.post("clear", source="external").json["removed"]
        assert server.register(secret=secret)["ok"]
        assert server.post("unregister", name="a", secret=secret).json["removed"]
        server.register()
        answer = server.ask("POST", "/api/tools/clear", {"source": "external"}, authorization=f"bearer {TOKEN}")
        assert 2 == answer.json["removed"]


def test_an_equal_registration_of_a_trusted_caller_changes_nothing() -> None:
    with serving(token=TOKEN) as server:
        answers = [
            server.ask("POST", "/api/tools/register", {"name": "a", "callback_url": URL}, authorization=f"Bearer {TOKEN}").json
            for _ in range(2)
        ]
        assert answers[0] == answers[1]
