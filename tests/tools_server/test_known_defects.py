"""The 24 defects of the original (W1 to W24 in section 2 of the contract), each with the tests that show it is not ours.

Folders are those of ``tests/``; what is tested nowhere else is tested here, under its number.

W1   the error of a tool never reached the model: ``tools_server/test_dispatch`` (the error of an answer),
     ``registry/test_running`` (what a handler says of its failure)
W2   a restart lost every registration: ``tools_server/test_stored_registrations``, ``registry/test_store`` (killed at any moment),
     ``plugins/test_host_reconciler`` (back after the server was restarted), ``tools_server/test_tables`` (another start is
     another instance), ``examples``
W3   one attempt to register, and the plugin never told: ``plugins/test_host_reconciler`` (a server that comes later; refusals;
     stale), ``plugins/test_host_parts`` (delays grow, and differ), ``plugins/test_running`` and ``plugins/test_worker`` (states
     reach the plugin)
W4   a new or rebuilt role had no tools, and "" was a role: ``registry/test_registry`` (inherits, exclusions, empty role),
     ``registry/test_manager`` (rebuilt), ``plugins/test_host_reconciler`` (a role that was made anew)
W5   any local process could do anything: ``tools_server/test_access`` (token), ``tools_server/test_tables`` (secrets, reserved
     sources), ``registry/test_sources``
W6   sources were taken on trust, builtins could be replaced: ``tools_server/test_tables`` (a builtin),
     ``registry/test_sources``
W7   web pages and proxies came in, bodies were read before that: ``tools_server/test_access``; the real process: here
W8   callbacks reached any local service, unsigned: ``tools_server/test_callback_url``, ``tools_server/test_dispatch`` (as the
     seeds show it: the signature), ``plugins/test_host_callback`` (not signed)
W9   no total deadline, no size limit, redirects and pages were results: ``tools_server/test_dispatch``
W10  ``"false"`` was true: ``tools_server/test_dispatch`` (the output), ``registry/test_running``, ``plugins/test_running``
W11  one schema broke every request: ``schema/test_subsets``, ``schema/test_dialects``, ``models/providers/test_chat_providers``
     (left out alone), ``models/providers/test_gemini`` (as Gemini takes them)
W12  one name broke every request: ``schema/test_names``, ``registry/test_snapshot`` (stays),
     ``models/providers/test_chat_providers`` (goes out under an alias and comes back)
W13  "ok" preceded the sync of sessions, and hid its failures; for sessions of any kind: ``registry/test_manager``
     (sync), ``tools_server/test_tables`` (a session with a failed or hanging sync); removed tools and the
     lease: here
W14  calls without name or id were lost; in chats: ``loop/test_loop`` (missing and repeated ids),
     ``models/providers/test_chat_providers`` (under finish_reason stop; without ids and places), ``laws/test_loop_laws``
     (one result each)
W15  tools of a reply that was cut off ran; in chats: ``executor/test_executor`` (cut off), ``loop/test_loop`` (answered, and
     the turn goes on)
W16  one call after the other, and no limit: ``executor/test_executor``, ``executor/test_order_and_limits``,
     ``executor/test_repeats``, ``loop/test_budgets``
W17  arguments were not checked: ``tools_server/test_dispatch`` (strict; whatever the model wrote), ``plugins/test_running``
W18  sync handlers failed, classes were lost, timers raced: ``plugins/test_running``, ``plugins/test_deadlines``,
     ``plugins/test_host_callback`` (in time); all three timers together: here
W19  one slow plugin held up all, messages were lost unnoticed: ``plugins/test_host_plugins`` (64 calls, hangs),
     ``plugins/test_frames`` (missing, twice), ``plugins/test_connection`` (delivered); roles together: here
W20  crashed plugins stayed down and stayed listed: ``plugins/test_host_plugins`` (killed; given up; tools away first),
     ``tools_server/test_callback_health``
W21  the list hid what was registered: ``tools_server/test_tables`` (defaults, 304), ``plugins/test_host_reconciler`` (shows
     otherwise)
W22  two envelopes, untyped errors: here (one answer, three ways), ``tools_server/test_tables`` and
     ``tools_server/test_dispatch`` (``code``)
W23  pickles, and a token that children inherit: ``plugins/test_frames``, ``plugins/test_worker`` (neither in the command nor in
     the environment)
W24  NaN was a 500: ``tools_server/test_tables`` (a body that does not fit)
"""

from __future__ import annotations

import asyncio
import http.client
import json
import queue
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from patchbay.executor import Executor
from patchbay.plugins import PluginBase, llm_tool, plugin
from patchbay.testing import run_plugin
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from patchbay.types import ToolCall
from plugins.host_rig import run, write_plugin
from plugins.host_stand import Stand
from ports import kept_port
from support.processes import listening
from tools_server.rig import BOUND, calling_back, json_response, serving

TESTS = Path(__file__).parents[1]


def test_each_defect_has_a_test_and_the_files_that_are_named_are_there() -> None:
    assert __doc__ is not None
    _, *defects = re.split(r"^(?=W\d+ )", __doc__, flags=re.MULTILINE)
    assert [f"W{number}" for number in range(1, 25)] == [defect.partition(" ")[0] for defect in defects]
    here = Path(__file__).read_text(encoding="utf-8")
    for defect in defects:
        named = re.findall(r"``([\w/]*test_\w+)``", defect)
        number = defect.partition(" ")[0].lower()
        assert ("here" in defect.split()) == (f"def test_{number}_" in here), defect
        assert named or "here" in defect.split(), defect
        for name in named:
            assert (TESTS / f"{name}.py").is_file(), name


class Session:
    """A live session that records its tools; ``error`` is raised instead."""

    def __init__(self, error: Exception | None = None) -> None:
        self.told: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self._error = error

    async def use_tools(self, snapshot: Any) -> None:
        if self._error is not None:
            raise self._error
        self.told.put(list(snapshot.tools))


@pytest.fixture(scope="module")
def real() -> Any:
    """A real ``patchbay serve``."""
    command = [sys.executable, "-m", "patchbay", "serve", "--port", "0", "--store", "memory"]
    with listening(command, name="patchbay serve", timeout=60) as child:
        yield child.url


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"X-Forwarded-For": "127.0.0.1"}, 403, "unexpected_proxy"),  # what a client behind a proxy would write itself
        ({"X-Forwarded-For": "8.8.8.8"}, 403, "unexpected_proxy"),
        ({"Forwarded": "for=127.0.0.1"}, 403, "unexpected_proxy"),
        ({"Origin": "https://example.com"}, 403, "untrusted_origin"),
        ({"Host": "rebound.example.com"}, 400, "untrusted_host"),
        ({"Content-Type": "text/plain"}, 422, None),
    ],
)
def test_w7_the_real_server_believes_no_header_about_where_a_request_comes_from(
    real: str, headers: dict[str, str], status: int, code: str | None
) -> None:
    connection = http.client.HTTPConnection(urlsplit(real).netloc, timeout=BOUND)
    try:
        # Headers alone: reading the declared body first would block.
        connection.putrequest("POST", "/api/tools/register", skip_host="Host" in headers)
        for name, value in {"Content-Type": "application/json", "Content-Length": "10", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = json.loads(answer.read())
    finally:
        connection.close()
    assert (status, code) == (answer.status, body.get("error_code"))


def test_w13_failed_sync_does_not_restore_removed_tools(server: Any) -> None:
    server.register("a")
    server.register("b", source="other")
    for manager in server.app.managers.values():
        manager.active = Session(ConnectionError("gone"))
    error = "RuntimeError: tool sync failed: active: ConnectionError: gone"
    failed = [{"role": role, "error": error, "code": "sync_failed"} for role in ("ann", "ben")]
    for path, body, removed in (("unregister", {"name": "a"}, True), ("clear", {"source": "other"}, 2)):
        answer = server.post(path, **body).json
        assert (True, removed, ["ann", "ben"]) == (answer["ok"], answer["removed"], answer["affected_roles"])
        assert failed == answer["failed_roles"]
    assert {} == server.tools()


def test_w13_sessions_get_tool_changes_of_the_callback_health(server: Any) -> None:
    session = server.app.managers["ann"].active = Session()
    with calling_back(json_response("done"), port=kept_port()) as callback:
        server.register("a", callback.url, source="plugin:p")
        assert ["a"] == session.told.get(timeout=BOUND)
        tool = server.app.registry.snapshot("ann").tools["a"]
        server.app.managers["ben"].register_tool(ToolDefinition("before", handler=called_as_before(tool)))
    server.call("before", role="ben")
    assert [] == session.told.get(timeout=BOUND)  # hidden
    with calling_back(json_response("done"), port=callback.port):
        server.call("before", role="ben")
        assert ["a"] == session.told.get(timeout=BOUND)  # shown
    for _ in range(3):
        server.call("before", role="ben")
    assert [] == session.told.get(timeout=BOUND)
    assert "a" not in server.app.registry.snapshot("ann").registrations  # dropped


def called_as_before(tool: Any) -> Any:
    """A handler that calls a tool as a turn does that took it before it was hidden."""

    async def handler(_arguments: Any) -> Any:
        [execution] = await Executor([tool]).run([ToolCall("c", tool.name, "{}")])
        return execution.content

    return handler


def test_w18_tools_own_timeout_is_reported(tmp_path: Path) -> None:
    slow = write_plugin(
        tmp_path / "slow",
        """
        import asyncio
        class Plugin(NekoPluginBase):
            @llm_tool(timeout=4)
            async def wait(self):
                await asyncio.Event().wait()
        """,
    )

    async def main(server: Any) -> Any:
        async with Stand(slow, server=f"http://127.0.0.1:{server.port}") as stand:
            await stand.registered()
            return await asyncio.gather(*(asyncio.to_thread(server.call, "wait") for _ in range(3)))

    with serving() as server:
        for answer in run(main(server)):
            assert (True, {"error": "tool 'wait' timed out after 4.0s"}) == (answer["is_error"], json.loads(answer["content"]))
            assert "TOOL_TIMEOUT" == answer["error"]


def test_w19_sessions_of_all_roles_are_synced_concurrently(server: Any) -> None:
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


ANSWERS: list[tuple[Any, Any, Any, Any]] = [
    # what a tool gives back: what it is as a callback's body, as a handler's return value, as a plugin's
    ({"output": 1}, 1, {"output": 1}, {"output": 1}),
    ({"error": "x"}, {"error": "x"}, {"error": "x"}, {"error": "x"}),
    ({"output": 1, "is_error": False}, 1, 1, 1),
    ({"a": 1, "is_error": False}, {"a": 1, "is_error": False}, {"a": 1, "is_error": False}, {"a": 1, "is_error": False}),
    ([1], [1], [1], [1]),
]


@pytest.mark.parametrize(("given", "of_a_callback", "of_a_handler", "of_a_plugin"), ANSWERS)
def test_w22_each_way_has_its_own_envelope(
    server: Any, given: Any, of_a_callback: Any, of_a_handler: Any, of_a_plugin: Any
) -> None:
    with calling_back(json_response(given)) as callback:
        server.register("callback", callback.url)
        assert of_a_callback == server.call("callback")["output"]

    manager: LLMSessionManager = server.app.managers["ann"]
    manager.register_tool(ToolDefinition("handler", handler=lambda _: given))
    assert of_a_handler == server.call("handler")["output"]

    @plugin
    class Plugin(PluginBase):
        @llm_tool
        def tool(self) -> Any:
            return given

    async def called() -> Any:
        async with run_plugin(Plugin) as running:
            return (await running.call("tool")).body

    with calling_back(json_response(asyncio.run(called()))) as callback:  # through the host's callback, as it is answered
        server.register("plugin", callback.url)
        assert of_a_plugin == server.call("plugin")["output"]
