"""/api/models says how each model takes tools and why; /api/doctor examines the upstream, one examination at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Literal

import pytest
from proxy_rig import recording

from chat_server.rig import call, calls, whole
from patchbay.doctor import Finding
from patchbay.proxy import create_app
from patchbay.server import ToolsSettings, create_tools_app
from patchbay.testing import ScriptedUpstream
from patchbay.testing.script import error
from support.http_server import ask, serving
from support.served import wait_for

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
TOKEN = "the-token-of-this-test-1"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
UNCOUNTED = whole({"content": "Fine."})
"""An answer whose server counts no tokens."""
FENCED = '```tool_call\n{"name": "weather", "arguments": {}}\n```'


def model_after(
    script: Any, *, tools: Literal["ignore", "refuse"] = "ignore", offered: Any = TOOLS, **options: Any
) -> dict[str, Any]:
    """What is known of the model after one request."""
    with ScriptedUpstream(script, tools=tools) as upstream:
        app = create_app(upstream.url, **options)
        records = recording(app)
        with serving(app) as port:
            body = {"model": "org/m-1.5", "messages": [{"role": "user", "content": "Hi."}], "tools": offered}
            ask(port, "POST", CHAT, body)
            records.wait(1)
            [found] = ask(port, "GET", "/api/models").json["models"]
    assert "org/m-1.5" == found["name"]
    return found


@pytest.mark.parametrize(
    ("script", "settings", "mode", "why"),
    [
        ([calls(call("weather"))], {}, "native", "it called a tool by itself"),
        ([FENCED], {"tools": "refuse"}, "text", "the server refused a request with tools"),
        (["Fine.", FENCED], {}, "text", "the tokens of the prompt show that the server dropped the tools"),
        ([UNCOUNTED, whole({"content": FENCED})], {}, "text", "it wrote a call once its tools were in the prompt"),
        ([FENCED], {"options": "text"}, "text", "--tools text was chosen"),
        (["Fine."], {"offered": None}, "", "no request had tools yet"),
        (
            [UNCOUNTED, UNCOUNTED],
            {},
            "",
            "no call yet in 1 answer that could have one: tools are passed on natively",
        ),
    ],
)
def test_mode_of_a_model_has_its_reason(script: Any, settings: dict[str, Any], mode: str, why: str) -> None:
    chosen = {"tools": settings.pop("options")} if "options" in settings else {}
    if chosen:
        with ScriptedUpstream(script) as upstream, serving(app := create_app(upstream.url, **chosen)) as port:
            records = recording(app)
            ask(port, "POST", CHAT, {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "tools": TOOLS})
            records.wait(1)
            [found] = ask(port, "GET", "/api/models").json["models"]
    else:
        found = model_after(script, **settings)
    assert (mode, why) == (found["mode"], found["why"])


def test_what_a_server_refuses_is_a_limit_of_its_model() -> None:
    found = model_after([error(400, "Unsupported parameter: tool_choice"), calls(call("weather"))])
    assert [] == found["limits"]
    with ScriptedUpstream([error(400, "'tool_choice' is not supported"), calls(call("weather"))]) as upstream:
        app = create_app(upstream.url)
        records = recording(app)
        with serving(app) as port:
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "tools": TOOLS, "tool_choice": "required"}
            ask(port, "POST", CHAT, body)
            records.wait(1)
            [found] = ask(port, "GET", "/api/models").json["models"]
    assert ["takes no tool_choice: it is asked for in the prompt"] == found["limits"]


# doctor


class Doctor:
    """An examination of two checks; the second one waits until the test releases it."""

    def __init__(self) -> None:
        self.models: list[str] = []
        self.release: Callable[[], object] = lambda: None
        self.fails = self.is_closed = False

    async def examine(self, model: str, *, begins: Callable[[str, str], object]) -> AsyncGenerator[Finding, None]:
        self.models.append(model)
        going_on, loop = asyncio.Event(), asyncio.get_running_loop()
        self.release = lambda: loop.call_soon_threadsafe(going_on.set)
        begins("connection", model)
        yield Finding("connection", "ok", "It answers.")
        begins("tools", model or "first")
        try:
            await going_on.wait()
        finally:
            self.is_closed = True
        if self.fails:
            raise RuntimeError("a bug")
        yield Finding("tools", "problem", "It ignores tools.", "Use --tools text.")


@contextlib.contextmanager
def examined(kind: str = "proxy", *, token: str | None = None) -> Iterator[tuple[int, Doctor]]:
    doctor = Doctor()
    if kind == "serve":
        app: Any = create_tools_app(settings=ToolsSettings(token=token, lease=0.0), upstream="http://127.0.0.1:9/v1")
        app.proxy.examine = doctor.examine
    else:
        app = create_app("http://127.0.0.1:9/v1", api_key=token)
        app.examine = doctor.examine
    with serving(app) as port:
        yield port, doctor


def send(port: int, method: str, body: Any = None, **headers: str) -> Any:
    return ask(port, method, "/api/doctor", body, headers={**JSON, **headers})


def examination(port: int, state: str, check: str = "") -> Any:
    """Wait for the state of the last examination."""

    def read() -> Any:
        found = send(port, "GET").json["examination"]
        return found if (found["state"], found["check"]) == (state, check) else None

    return wait_for(read)


@pytest.mark.parametrize("kind", ["proxy", "serve"])
def test_findings_are_shown_as_they_come_and_kept(kind: str) -> None:
    with examined(kind) as (port, doctor):
        before = send(port, "GET").json
        begun = send(port, "POST", {"model": "m"})
        first = examination(port, "running", "tools")
        second = send(port, "POST", {"model": "n"})
        doctor.release()
        done = examination(port, "done")
        again = send(port, "POST", {})
        named = examination(port, "running", "tools")
    assert {"available": True, "examination": None} == before
    assert (202, "m") == (begun.status, begun.json["examination"]["model"])
    assert (["connection"], None) == ([each["name"] for each in first["findings"]], first["ended"])
    assert (409, "examination_running") == (second.status, second.json["error_code"])
    finding = {"name": "tools", "status": "problem", "seen": "It ignores tools.", "advice": "Use --tools text."}
    assert finding == done["findings"][1]
    assert done["began"] <= done["ended"]
    assert (202, ["m", ""], "first") == (again.status, doctor.models, named["model"])


def test_an_examination_can_be_cancelled_and_the_next_one_begins() -> None:
    with examined() as (port, doctor):
        send(port, "POST", {"model": "m"})
        examination(port, "running", "tools")
        assert 202 == send(port, "DELETE").status
        assert ["connection"] == [each["name"] for each in examination(port, "cancelled")["findings"]]
        send(port, "POST", {"model": "m"})
        examination(port, "running", "tools")
        doctor.release()
        examination(port, "done")


def test_an_examination_that_fails_says_so_and_the_server_goes_on() -> None:
    with examined() as (port, doctor):
        doctor.fails = True
        send(port, "POST", {"model": "m"})
        examination(port, "running", "tools")
        doctor.release()
        assert 1 == len(examination(port, "failed")["findings"])


@pytest.mark.parametrize("kind", ["proxy", "serve"])
def test_a_server_that_stops_cancels_the_examination(kind: str) -> None:
    with examined(kind) as (port, doctor):
        send(port, "POST", {"model": "m"})
        examination(port, "running", "tools")
        assert not doctor.is_closed
    assert doctor.is_closed


def test_only_who_has_the_token_examines_and_a_program_has_no_examination() -> None:
    with examined(token=TOKEN) as (port, doctor):
        statuses = [send(port, method, {} if method == "POST" else None).status for method in ("GET", "POST", "DELETE")]
        assert 200 == send(port, "GET", authorization=f"Bearer {TOKEN}").status
    assert ([401] * 3, []) == (statuses, doctor.models)
    with serving(create_app("http://127.0.0.1:9/v1")) as port:
        answer = send(port, "POST", {"model": "m"})
        about = send(port, "GET").json
    assert (409, "no_examination") == (answer.status, answer.json["error_code"])
    assert {"available": False, "examination": None} == about
