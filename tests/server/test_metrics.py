"""``/metrics`` has what a server has done, in Prometheus' format, behind the guard of the API."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from proxy_rig import recording

from chat_server.rig import call, calls
from patchbay.approvals import parse_policy
from patchbay.hooks import HookManager
from patchbay.proxy import create_app
from patchbay.server import Governance, ToolsSettings, create_tools_app
from patchbay.testing import ScriptedUpstream
from patchbay.testing.script import error
from support.http_server import HttpResponse, ask, serving
from support.served import wait_for

CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
JSON = {"content-type": "application/json"}
CALL = '```tool_call\n{"name": "weather", "arguments": {"city": "Rome",}}\n```'
TOKEN = "the-token-of-this-test-1"
DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "assets" / "patchbay-grafana.json"


def chat(port: int, **fields: Any) -> HttpResponse:
    return ask(port, "POST", CHAT, {"model": "m", "messages": [{"role": "user", "content": "Hi."}], **fields}, headers=JSON)


def scrape(port: int, **headers: str) -> HttpResponse:
    return ask(port, "GET", "/metrics", headers=headers)


def samples(port: int) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(scrape(port).body.decode()) for sample in family.samples]


def value(found: list[Sample], metric: str, /, **labels: str) -> float:
    return sum(each.value for each in found if each.name == metric and labels.items() <= each.labels.items())


def test_the_requests_of_a_proxy_are_counted_with_their_tokens_repairs_and_format() -> None:
    with ScriptedUpstream([CALL, "Fine.", error(500, "It is broken.")]) as upstream:
        app = create_app(upstream.url, tools="text")
        records = recording(app)
        with serving(app) as port:
            answers = [chat(port, tools=TOOLS), chat(port), chat(port, model="n"), chat(port, messages=3)]
            records.wait(4)
            found = samples(port)
    assert [200, 200, 500, 400] == [each.status for each in answers]
    requests = [each for each in found if each.name == "patchbay_requests_total"]
    counted = {(each.labels["model"], each.labels["outcome"]): each.value for each in requests}
    assert {("m", "ok"): 2, ("n", "5xx"): 1, ("unknown", "4xx"): 1} == counted
    assert 1 == value(found, "patchbay_tool_requests_total", model="m", mode="text", format="fenced", constraint="none")
    assert 1 == value(found, "patchbay_calls_total", tool="weather", outcome="passed")
    assert (1, 1) == (value(found, "patchbay_repairs_total", model="m"), value(found, "patchbay_model_calls_total", model="m"))
    assert 0 < value(found, "patchbay_tokens_total", model="m", kind="completion")
    assert 2 == value(found, "patchbay_request_duration_seconds_count", model="m")
    assert 2 == value(found, "patchbay_request_duration_seconds_bucket", model="m", le="+Inf")


def weather(city: str) -> str:
    """The weather of a city."""
    if city == "Atlantis":
        raise ValueError("there is no such city")
    return "Sunny."


@contextlib.contextmanager
def serving_weather(script: Any, *, governance: Governance | None = None, token: str | None = None) -> Iterator[int]:
    with ScriptedUpstream(script) as upstream:
        settings = ToolsSettings(token=token, lease=0.0)
        app = create_tools_app(("ann",), settings=settings, upstream=upstream.url, governance=governance)
        app.managers["ann"].register_tool(weather)
        app.restarts["plugin"] = lambda: [("clock", 3)]
        assert app.proxy is not None
        app.proxy.observers.append(lambda _record: done.set())
        done = threading.Event()
        with serving(app) as port:
            yield port
        assert done.is_set()


def test_calls_that_a_server_runs_are_counted_by_tool_role_and_outcome() -> None:
    made = [call("weather", json.dumps({"city": city}), city) for city in ("Rome", "Atlantis")]
    with serving_weather([calls(*made), "Fine."]) as port:
        assert 200 == chat(port).status
        found = wait_for(lambda: (seen := samples(port)) and value(seen, "patchbay_requests_total") and seen)
    outcomes = {each.labels["outcome"]: each.value for each in found if each.name == "patchbay_calls_total"}
    assert {"ok": 1, "tool_error": 1} == outcomes
    assert 2 == value(found, "patchbay_calls_total", tool="weather", role="ann")
    assert 2 == value(found, "patchbay_call_duration_seconds_count", tool="weather")
    assert (2, 2) == (value(found, "patchbay_rounds_total"), value(found, "patchbay_model_calls_total"))
    assert 3 == value(found, "patchbay_restarts_total", part="plugin", name="clock")


def test_an_approval_that_waits_is_shown_with_its_age() -> None:
    governance = Governance(hooks=HookManager())
    governance.approvals.policy = parse_policy({"rules": [{"tools": ["*"], "outcome": "ask"}]})
    made = calls(call("weather", '{"city": "Rome"}'))
    with serving_weather([made, "Fine."], governance=governance) as port:
        before = samples(port)
        client = threading.Thread(target=chat, args=(port,))
        client.start()
        try:
            found = wait_for(lambda: (seen := samples(port)) and value(seen, "patchbay_approvals_oldest_seconds") and seen)
        finally:
            [waiting] = wait_for(lambda: ask(port, "GET", "/api/approvals").json["approvals"])
            ask(port, "POST", f"/api/approvals/{waiting['id']}", {"decision": "approve"}, headers=JSON)
            client.join()
        after = samples(port)
    assert [0, 1, 0] == [value(each, "patchbay_approvals_waiting") for each in (before, found, after)]
    assert {"hook_events"} == {each.labels["queue"] for each in found if each.name == "patchbay_queue_depth"}


@pytest.mark.parametrize("kind", ["proxy", "proxy with hooks", "serve"])
def test_a_scraper_sends_the_token_as_a_bearer(kind: str) -> None:
    with contextlib.ExitStack() as opened:
        if kind == "serve":
            port = opened.enter_context(serving_weather(["Fine."], token=TOKEN))
            assert 200 == chat(port).status
        else:
            governance = Governance(hooks=HookManager()) if kind == "proxy with hooks" else None
            port = opened.enter_context(serving(create_app("http://127.0.0.1:9/v1", api_key=TOKEN, governance=governance)))
        answers = [
            scrape(port),
            scrape(port, authorization="Bearer wrong"),
            scrape(port, authorization=f"Bearer {TOKEN}", host="rebound.example.com"),
            scrape(port, authorization=f"Bearer {TOKEN}", origin="https://example.com"),
            scrape(port, authorization=f"Bearer {TOKEN}"),
        ]
    assert [401, 401, 400, 403, 200] == [each.status for each in answers]
    assert [False] * 4 + [True] == [b"patchbay_info" in each.body for each in answers]


def test_openmetrics_is_written_where_the_scraper_takes_it() -> None:
    with serving(create_app("http://127.0.0.1:9/v1")) as port:
        chat(port)
        answer = scrape(port, accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert "patchbay_requests" in {family.name for family in openmetrics_families(answer.body.decode())}


def test_without_the_package_the_answer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.exposition", None)
    with serving(create_app("http://127.0.0.1:9/v1")) as port:
        answer = scrape(port)
    assert (404, "text/plain; charset=utf-8") == (answer.status, answer.headers["content-type"])
    assert b"pip install 'patchbay-tools[metrics]'" in answer.body


def test_names_from_models_and_tools_cannot_break_the_format() -> None:
    hostile = 'm"} 1\n# HELP x\ny{z="\u202e'
    with ScriptedUpstream(["Fine."]) as upstream, serving(app := create_app(upstream.url)) as port:
        records = recording(app)
        assert 200 == chat(port, model=hostile).status
        records.wait(1)
        found = samples(port)
    [model] = {each.labels["model"] for each in found if "model" in each.labels}
    assert model.startswith('m"} 1')
    assert model.isprintable()
    assert 1 == value(found, "patchbay_requests_total", model=model)


def test_each_metric_of_the_dashboard_exists() -> None:
    made = [call("weather", '{"city": "Rome"}')]
    with serving_weather([calls(*made), "Fine."]) as port:
        assert 200 == chat(port).status
        found = wait_for(lambda: (seen := samples(port)) and value(seen, "patchbay_requests_total") and seen)
    queried = set(re.findall(r"patchbay_\w+", DASHBOARD.read_text()))
    names: dict[str, set[str]] = {}
    for each in found:
        names.setdefault(each.name, set()).update(each.labels)
    assert 15 <= len(queried)
    assert set() == queried - names.keys()
    expressions = [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]
    labels = {name for text in expressions for group in re.findall(r"by \(([^)]*)\)", text) for name in group.split(", ")}
    assert set() == labels - set().union(*names.values())
