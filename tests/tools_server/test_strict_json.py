"""Numbers that JSON does not have are refused in every body, before anything is done."""

from __future__ import annotations

from typing import Any

import pytest

from tools_server.rig import calling_back, json_response

NOT_JSON = pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity"])


@NOT_JSON
def test_a_call_with_a_number_that_json_does_not_have_is_422_and_the_tool_does_not_run(server: Any, number: str) -> None:
    with calling_back(json_response("done")) as callback:
        server.register("a", callback.url)
        answer = server.ask("POST", "/api/tools/call", raw=f'{{"name": "a", "arguments": {{"x": [{number}]}}}}'.encode())
        [fault] = answer.json["detail"]
        assert (422, "json_invalid", []) == (answer.status, fault["type"], callback.calls)
        assert number in fault["ctx"]["error"]


@NOT_JSON
@pytest.mark.parametrize("path", ["tools/register", "tools/unregister", "tools/clear", "approvals/x"])
def test_every_other_body_is_read_as_strictly(server: Any, path: str, number: str) -> None:
    body = f'{{"name": "a", "callback_url": "http://127.0.0.1:9/", "source": "s", "decision": "deny", "ignored": {number}}}'
    answer = server.ask("POST", f"/api/{path}", raw=body.encode())
    assert (422, "json_invalid") == (answer.status, answer.json["detail"][0]["type"])
    assert {} == server.tools()
