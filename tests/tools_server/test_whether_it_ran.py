"""A call that failed says whether its tool ran: "no" only where that is known."""

from __future__ import annotations

from typing import Any

import pytest

from patchbay.tools import Tool
from ports import kept_port
from tools_server.rig import calling_back, json_response, no_response, raw_response, serving

FAILED = {"output": None, "is_error": True, "error": "x"}


@pytest.mark.parametrize(
    ("script", "ran"),
    [
        (json_response(FAILED), "yes"),
        (json_response({**FAILED, "ran": "no"}), "no"),
        (json_response({**FAILED, "ran": "unknown"}), "unknown"),
        (json_response({**FAILED, "ran": ["no"]}), "yes"),
        (json_response(b"", status="500 Oops"), "unknown"),
        (json_response(b"", status="302 Found"), "unknown"),
        (raw_response(b""), "unknown"),
        (no_response, "unknown"),
    ],
)
def test_a_callback_that_failed(server: Any, script: Any, ran: str) -> None:
    with calling_back(script) as callback:
        server.register("a", callback.url, timeout_seconds=0.2 if script is no_response else 30)
        assert (True, ran) == ((answer := server.call("a"))["is_error"], answer["ran"])


def test_a_call_that_reaches_no_tool_did_not_run(server: Any) -> None:
    server.register("gone", f"http://127.0.0.1:{kept_port()}/", source="s")
    assert ["no", "no", "no"] == [server.call(name)["ran"] for name in ("nowhere", "gone", "gone")]


def test_invalid_arguments_did_not_run_and_a_raising_tool_did() -> None:
    class Fails(Tool):
        async def run(self, arguments: Any, context: Any) -> Any:
            raise ValueError("x")

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with serving(strict_arguments=True) as server, calling_back(json_response("done")) as callback:
        server.register("a", callback.url, parameters=schema)
        server.app.managers["ann"].register_tool(Fails("fails"))
        assert ("no", "yes") == (server.call("a")["ran"], server.call("fails")["ran"])
        assert "ran" not in server.call("a", arguments={"n": 1})
