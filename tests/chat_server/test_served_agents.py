"""Agents of a tool server: models of its list that every protocol can ask, with sessions that clients name."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import pty
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from websockets.sync.client import connect

from chat_server.rig import PROTOCOLS, USER, call, calls, finish_of, request_of, text_of
from patchbay.agents import LlmAgent, SequentialAgent
from patchbay.errors import ConfigurationError
from patchbay.hooks import Event, HookManager
from patchbay.models.chat_model import ChatRequest, ModelEvent, ModelReply
from patchbay.models.request_record import RequestRecord
from patchbay.server.app import create_tools_app
from patchbay.server.governance import Governance
from patchbay.server.settings import ToolsSettings
from patchbay.testing import ScriptedUpstream
from patchbay.types import Reply, ToolCall, Usage
from support.cli import run_cli
from support.http_server import serving as serve_app
from support.processes import Process, listening
from tools_server.rig import BOUND, Server, poll_until, serving

WEATHER = [calls(call("get_weather", '{"city": "Rome"}'), content="I look."), "It is clear."]


async def get_weather(city: str) -> str:
    """Get the weather."""
    return f"clear in {city}"


class Recorder:
    """A hook that collects events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def on_runtime_event(self, event: Event) -> None:
        self.events.append(event)


class Agents:
    """A server with agents, the models behind them, and the events of their runs."""

    def __init__(self, server: Server, models: ScriptedUpstream, recorder: Recorder) -> None:
        self.server = server
        self.models = models
        self.events = recorder.events

    def client(self, **headers: str) -> openai.OpenAI:
        url = f"http://127.0.0.1:{self.server.port}/v1"
        return openai.OpenAI(base_url=url, api_key="k", max_retries=0, timeout=BOUND, default_headers=headers)

    def ask(self, *messages: dict[str, Any], session: str = "", **fields: Any) -> Any:
        with self.client(**({"X-Patchbay-Session": session} if session else {})) as client:
            answer = client.chat.completions.create(**{"model": "forecaster", "messages": messages or [USER], **fields})
            return list(answer) if fields.get("stream") else answer

    def sent(self, at: int) -> list[tuple[str, str]]:
        """Role and text of each message of a request to the agent's model."""
        return [(each["role"], each["content"]) for each in self.models.chats[at].json["messages"]]


@contextlib.contextmanager
def served(
    script: Any, *, upstream: str | None = None, store: str | None = None, agents: Any = None, **options: Any
) -> Iterator[Agents]:
    with ScriptedUpstream(script) as models:
        model = f"{models.url}#m"
        forecaster = LlmAgent(name="forecaster", model=model, instruction="Be brief.", tools=[get_weather], tool_mode="native")
        hooks, recorder = HookManager(), Recorder()
        hooks.mount("recorder", recorder)
        app = create_tools_app(
            ("ann",),
            settings=ToolsSettings(lease=0.0, **options),
            upstream=upstream,
            store=store,
            governance=Governance(hooks=hooks),
            agents=[forecaster] if agents is None else agents(model),
        )
        with serving(app=app) as server:
            yield Agents(server, models, recorder)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_can_ask_an_agent_which_calls_its_own_tools(protocol: str, stream: bool):
    with served(WEATHER) as at:
        answer = at.server.ask("POST", *request_of(protocol, model="forecaster", stream=stream))
        text = answer.body.decode()
        assert 200 == answer.status, text
        assert "It is" in text
        assert "get_weather" not in text
        assert "clear in Rome" in at.models.chats[1].body.decode()


@pytest.mark.parametrize("stream", [False, True])
def test_text_of_all_rounds_is_streamed_and_whole_the_same(stream: bool):
    with served(WEATHER) as at:
        answer = at.ask(stream=stream)
        if stream:
            found = text_of(answer), finish_of(answer), answer[0].model
        else:
            found = answer.choices[0].message.content, answer.choices[0].finish_reason, answer.model
            assert {"agent": "forecaster", "session": None} == answer.patchbay
    assert ("I look.\n\nIt is clear.", "stop", "forecaster") == found


@pytest.mark.parametrize("stream", [False, True])
def test_each_answer_has_an_id_and_a_time_of_its_own(stream: bool):
    with served(["One.", "Two."]) as at:
        answers = [at.ask(stream=stream) for _ in range(2)]
        heads = [answer[0] if stream else answer for answer in answers]
        assert heads[0].id != heads[1].id
        assert all(head.created > 0 for head in heads)
        if stream:
            assert {heads[0].id} == {chunk.id for chunk in answers[0]}


def test_agents_are_models_of_every_list_before_those_of_the_upstream():
    lists = [("/v1/models", {}, "data", "id"), ("/v1/models", {"anthropic-version": "2023-06-01"}, "data", "id"),
             ("/v1beta/models", {"x-goog-api-key": "k"}, "models", "displayName")]  # fmt: skip
    with ScriptedUpstream([]) as upstream, served([], upstream=upstream.url) as at:
        for path, headers, listed, name in lists:
            found = at.server.ask("GET", path, **headers).json[listed]
            assert ["forecaster", "scripted-model"] == [each[name] for each in found]
        assert "patchbay-agent" == at.server.ask("GET", "/v1/models/forecaster").json["owned_by"]
        at.server.ask("GET", "/v1/models/scripted-model")
        assert "/v1/models/scripted-model" == upstream.requests[-1].path


def test_without_an_upstream_agents_are_the_only_models():
    with served(["Hello."]) as at:
        assert ["forecaster"] == [each["id"] for each in at.server.ask("GET", "/v1/models").json["data"]]
        other = at.server.ask("POST", "/v1/chat/completions", {"model": "other", "messages": [USER]})
        assert (404, "no_upstream") == (other.status, other.json["error"]["code"])
        assert 404 == at.server.ask("GET", "/v1/models/other").status
        assert "Hello." == at.ask().choices[0].message.content


def test_without_a_session_the_client_sends_the_history():
    with served(["Fine."]) as at:
        at.ask(
            {"role": "system", "content": "Speak Latin."},
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": "Salve."},
            {"role": "user", "content": [{"type": "text", "text": "How are"}, {"type": "text", "text": "you?"}]},
        )
        assert [
            ("system", "Be brief."),
            ("user", "<system_instruction>\nSpeak Latin.\n</system_instruction>"),
            ("user", "Hi."),
            ("assistant", "Salve."),
            ("user", "How are\nyou?"),
        ] == at.sent(0)


@pytest.mark.parametrize("stored", [False, True])
def test_a_named_session_has_its_own_history_which_the_store_keeps(stored: bool, tmp_path: Path):
    store = f"sqlite:///{tmp_path}/tools.db" if stored else None
    with served(["One.", "Two.", "Other."], store=store) as at:
        at.ask({"role": "user", "content": "First."}, session="monday")
        at.ask({"role": "user", "content": "Second."}, session="monday")
        at.ask({"role": "user", "content": "Apart."}, session="tuesday")
        history = [("system", "Be brief."), ("user", "First."), ("assistant", "One."), ("user", "Second.")]
        assert history == at.sent(1)
        assert [("system", "Be brief."), ("user", "Apart.")] == at.sent(2)
    with served(["Three."], store=store) as at:
        at.ask({"role": "user", "content": "Third."}, session="monday")
        known = [*history, ("assistant", "Two.")] if stored else [("system", "Be brief.")]
        assert [*known, ("user", "Third.")] == at.sent(0)


def test_events_of_a_run_have_the_agents_name_and_the_session():
    with served(WEATHER) as at:
        at.ask(session="monday")
        poll_until(lambda: any(each.kind == "agent.turn.end" for each in at.events), shown=at.events)
        assert {("forecaster", "monday")} == {(each.meta.agent_id, each.meta.session_key) for each in at.events}
        assert 1 == sum(each.kind == "agent.turn.start" for each in at.events)


def recorded(at: Agents) -> list[RequestRecord]:
    assert at.server.app.proxy is not None
    records: list[RequestRecord] = []
    at.server.app.proxy.observers.append(records.append)
    return records


def test_record_of_a_run_has_the_agents_tools_and_calls_and_the_id_of_its_turn():
    with served(WEATHER) as at:
        records = recorded(at)
        at.ask()
        poll_until(lambda: records and any(each.kind == "agent.turn.end" for each in at.events), shown=at.events)
        assert (1, ("get_weather",), "forecaster") == (records[0].tools, records[0].calls, records[0].model)
        assert {records[0].id} == {each.meta.turn_id for each in at.events}


class Counting:
    """A model that counts tokens, and calls a tool first."""

    async def respond(self, request: ChatRequest) -> AsyncIterator[ModelEvent]:
        called = request.messages[-1]["role"] == "tool"
        reply = Reply("Clear.") if called else Reply(None, tool_calls=(ToolCall("c", "get_weather", '{"city": "Rome"}'),))
        yield ModelReply(reply, "stop" if called else "tool_calls", Usage(5, 2, 7))


@pytest.mark.parametrize("stream", [False, True])
def test_usage_of_all_rounds_is_summed(stream: bool):
    def counting(_model: str) -> list[Any]:
        return [LlmAgent(name="forecaster", model=Counting(), tools=[get_weather])]

    with served([], agents=counting) as at:
        answer = at.ask(**({"stream": True, "stream_options": {"include_usage": True}} if stream else {}))
        usage = answer[-1].usage if stream else answer.usage
        assert (10, 4, 14) == (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_the_agent_and_its_tools(stream: bool):
    begun, stopped = threading.Event(), threading.Event()

    async def get_weather(city: str) -> str:
        """Wait until it is stopped."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return city

    def waiting(_model: str) -> list[Any]:
        return [LlmAgent(name="forecaster", model=Counting(), tools=[get_weather])]

    with served([], agents=waiting) as at:
        connection = http.client.HTTPConnection("127.0.0.1", at.server.port, timeout=BOUND)
        with contextlib.closing(connection):
            body = json.dumps({"model": "forecaster", "messages": [USER], "stream": stream})
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            assert begun.wait(BOUND)
        assert stopped.wait(BOUND)


@pytest.mark.parametrize("stream", [False, True])
def test_agents_made_of_agents_answer_with_the_text_of_each(stream: bool):
    def pair(model: str) -> list[Any]:
        return [SequentialAgent(name="both", sub_agents=[LlmAgent(name=name, model=model) for name in ("first", "second")])]

    with served(["One.", "Two."], agents=pair) as at:
        answer = at.ask(model="both", stream=stream)
        assert "One.\n\nTwo." == (text_of(answer) if stream else answer.choices[0].message.content)


@pytest.mark.parametrize("stream", [False, True])
def test_a_failing_agent_is_an_error_in_the_package(stream: bool):
    with served([]) as at, pytest.raises(openai.APIError, match="The agent forecaster has failed: "):
        at.ask(stream=stream)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_failing_agent_is_described_alike_in_every_protocol(protocol: str):
    with served([]) as at:
        answer = at.server.ask("POST", *request_of(protocol, model="forecaster"))
    error = answer.json["error"]
    assert (500, "false") == (answer.status, answer.headers["x-should-retry"])
    assert error["message"].startswith("The agent forecaster has failed: ")
    assert error.get("code") in ("agent_failed", None, 500)


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 2}, "'n' must be 1"),
        ({"response_format": {"type": "json_object"}}, "'response_format' must be text"),
        ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "x"}}]}, "calls its own tools alone"),
        ({"messages": [{"role": "assistant", "content": "Hi."}]}, "needs a last message of the user"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, "takes text only"),
    ],
)
def test_what_an_agent_cannot_do_is_refused(fields: dict[str, Any], message: str):
    with served([]) as at, pytest.raises(openai.BadRequestError, match=message):
        at.ask(**fields)


def test_two_agents_of_one_name_are_refused():
    with pytest.raises(ConfigurationError, match="two agents with the name 'a'"):
        create_tools_app(agents=[LlmAgent(name="a", model="x"), LlmAgent(name="a", model="x")])


def test_a_live_session_talks_to_an_agent():
    hooks, recorder = HookManager(), Recorder()
    records: list[RequestRecord] = []
    hooks.mount("recorder", recorder)
    with ScriptedUpstream(["Hello.", *WEATHER[:1], "Fine."]) as models:
        agent = LlmAgent(name="forecaster", model=f"{models.url}#m", tools=[get_weather], tool_mode="native")
        governance = Governance(hooks=hooks)
        app = create_tools_app(("ann",), settings=ToolsSettings(lease=0.0), agents=[agent], governance=governance)
        assert app.proxy is not None
        app.proxy.observers.append(records.append)
        with (
            serve_app(app, sockets=True) as port,
            connect(f"ws://127.0.0.1:{port}/api/sessions/ann?model=forecaster&session=monday", proxy=None) as socket,
        ):
            assert "forecaster" == json.loads(socket.recv(BOUND))["model"]
            for said, text in (("Hi.", "Hello."), ("How are you?", "I look.\n\nFine.")):
                socket.send(json.dumps({"type": "text", "text": said}))
                frames = []
                while not frames or frames[-1]["type"] != "response_end":
                    frames.append(json.loads(socket.recv(BOUND)))
                assert text == "".join(each["delta"] for each in frames if each["type"] == "text")
            poll_until(lambda: sum(each.kind == "agent.turn.end" for each in recorder.events) == len(records) == 2, shown=records)
        assert ["Hi.", "Hello.", "How are you?"] == [each["content"] for each in models.chats[1].json["messages"]]
        assert [(1, ()), (1, ("get_weather",))] == [(each.tools, each.calls) for each in records]
        assert [each.id for each in records] == list(dict.fromkeys(each.meta.turn_id for each in recorder.events))


SERVE = [sys.executable, "-m", "patchbay", "serve", "--port", "0", "--store", "memory", "--mcp-config", "none"]


def test_serve_offers_the_agents_of_modules_and_chat_talks_to_them(tmp_path: Path):
    module = tmp_path / "forecaster.py"
    with ScriptedUpstream(["Hello."]) as models:
        module.write_text(f"import patchbay.agents as p\nagent = p.LlmAgent(name='forecaster', model='{models.url}#m')\n")
        with listening([*SERVE, "--agent", f"{module}:agent"], name="patchbay serve") as server:
            ours, theirs = pty.openpty()
            chat = [sys.executable, "-m", "patchbay", "chat", "--server", server.url]
            with Process(chat, stdin=theirs, stdout=theirs, stderr=theirs) as process:
                os.close(theirs)
                try:
                    seen = ""
                    for said, expected in ((b"Hi.\n", "default with forecaster"), (b"\x04", "Hello.\r\n> ")):
                        while expected not in seen or not seen.endswith("> "):
                            seen += os.read(ours, 4096).decode()
                        os.write(ours, said)
                    assert 0 == process.wait(BOUND)
                finally:
                    process.kill()
            os.close(ours)
        assert "tool" not in seen
        assert f"  chat {server.url}/v1, with the agent forecaster\n" in server.printed


@pytest.mark.parametrize("target", ["no_such_module:agent", "nowhere.py:agent", "json:nothing", "json:dumps", "json"])
def test_an_agent_that_cannot_be_loaded_is_a_one_line_error(target: str):
    done = run_cli("serve", "--port", "0", "--store", "memory", "--mcp-config", "none", "--agent", target)
    assert (2, 1, True) == (done.returncode, done.stderr.count("\n"), target.partition(":")[0] in done.stderr)
