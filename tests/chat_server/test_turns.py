"""A client without any tools gets answers that used the registry's, whole and as a stream."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from chat_server.rig import SUNNY, THEIRS, USER, call, calls, finish_of, report_of, serve_chat, serve_weather, text_of, whole
from patchbay.errors import ConfigurationError
from patchbay.server.app import create_tools_app
from patchbay.server.settings import ChatSettings
from patchbay.testing import ContractModel, Message, Raw, Text, events
from structured import RESPONSE_FORMAT, RESULT, WeatherModel
from tools_server.rig import BOUND, calling_back, json_response


def rome(name: str = "weather") -> Message:
    return calls(call(name, '{"city": "Rome"}'))


def test_whole_answer_has_used_the_tool() -> None:
    with calling_back(SUNNY) as callback, serve_chat([rome(), "It is clear."]) as at:
        at.server.register("weather", callback.url, description="The sky.")
        answer = at.ask(temperature=0.5, seed=7)
        assert ("It is clear.", "stop") == (answer.choices[0].message.content, answer.choices[0].finish_reason)
        assert {"city": "Rome"} == callback.calls[0].json["arguments"]
        first, second = at.asked
        assert (0.5, 7, ["weather"]) == (
            first["temperature"], first["seed"], [tool["function"]["name"] for tool in first["tools"]]
        )  # fmt: skip
        assert [USER, {"role": "assistant", "content": None, "tool_calls": [call("weather", '{"city": "Rome"}')]},
                {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "clear"}'}] == second["messages"]  # fmt: skip
        assert second["tools"] == first["tools"]
        assert (0.5, False) == (second["temperature"], second.get("stream", False))
        report = answer.model_extra["patchbay"]
        (done,) = report["calls"]
        assert ("ann", "weather", '{"city": "Rome"}', '{"sky": "clear"}', False, None) == (
            report["role"], done["name"], done["arguments"], done["content"], done["is_error"], done["code"]
        )  # fmt: skip
        assert report["revision"] == at.server.app.registry.snapshot("ann").revision


def test_a_streamed_answer_has_used_the_tool() -> None:
    with serve_weather([rome(), Text("It is clear.", piece=3)]) as at:
        chunks = at.stream()
        assert ("It is clear.", "stop") == (text_of(chunks), finish_of(chunks))
        assert 4 <= sum(1 for chunk in chunks if chunk.choices and chunk.choices[0].delta.content)
        assert ["assistant"] == [chunk.choices[0].delta.role for chunk in chunks if chunk.choices and chunk.choices[0].delta.role]
        assert 1 == len({chunk.id for chunk in chunks})
        assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks)
        assert ["weather"] == [done["name"] for done in report_of(chunks)["calls"]]
        assert True is at.asked[1]["stream"]


def test_usage_and_its_details_are_summed_over_all_rounds() -> None:
    def usage(body: dict[str, Any]) -> Any:
        round_ = sum(message["role"] == "tool" for message in body["messages"]) + 1
        counts = {"prompt_tokens": 10 * round_, "completion_tokens": 1, "total_tokens": 10 * round_ + 1}
        cost = {**counts, "prompt_tokens_details": {"cached_tokens": 2}}
        return whole(rome().message if round_ == 1 else {"content": "Clear."}, usage=cost)

    with serve_weather(usage) as at:
        total = at.ask().usage
        assert (30, 2, 32, 4) == (
            total.prompt_tokens, total.completion_tokens, total.total_tokens, total.prompt_tokens_details.cached_tokens
        )  # fmt: skip
        # The same answers where a stream was asked for.
        chunks = at.stream(stream_options={"include_usage": True})
        assert "Clear." == text_of(chunks)
        assert ([], 32) == (chunks[-1].choices, chunks[-1].usage.total_tokens)


def test_stream_includes_usage_only_on_request() -> None:
    with serve_weather([rome(), "x"] * 2) as at:
        assert not any(chunk.usage for chunk in at.stream())
        chunks = at.stream(stream_options={"include_usage": True})
        each = [request.get("stream_options") for request in at.asked]
        assert [None, None, {"include_usage": True}, {"include_usage": True}] == each
        assert chunks[-1].usage.total_tokens > 0


@pytest.mark.parametrize("streamed", [True, False])
def test_a_model_that_only_writes_text_uses_tools_too(streamed: bool) -> None:
    with (
        calling_back(json_response({"output": "42 degrees"})) as callback,
        serve_chat(ContractModel(), refuses=True, tools="auto") as at,
    ):
        at.server.register("get_weather", callback.url, parameters={"type": "object", "properties": {"city": {"type": "string"}}})
        ask = {"messages": [{"role": "user", "content": "What is the weather in Rome?"}]}
        outcome = at.outcome(streamed=streamed, **ask)
        assert "42 degrees" in (outcome.text or "")
        assert {"city": "Rome"} == callback.calls[0].json["arguments"]
        assert ["get_weather"] == [done["name"] for done in outcome.report["calls"]]


@pytest.mark.parametrize("name", ["天气", "what is the weather?", "a.b/c", "x" * 64])
@pytest.mark.parametrize("streamed", [True, False])
def test_a_tool_may_have_any_name(name: str, streamed: bool) -> None:
    def script(body: dict[str, Any]) -> Any:
        if body["messages"][-1]["role"] == "tool":
            assert wire_name(body) == body["messages"][-2]["tool_calls"][0]["function"]["name"]
            return "done"
        return calls(call(wire_name(body), "{}"))

    def wire_name(body: dict[str, Any]) -> str:
        return str(body["tools"][0]["function"]["name"])

    with calling_back(SUNNY) as callback, serve_chat(script) as at:
        at.server.register(name, callback.url)
        choice = {"type": "function", "function": {"name": name}}
        outcome = at.outcome(streamed=streamed, tool_choice=choice)
        assert ("done", name) == (outcome.text, callback.calls[0].json["name"])
        assert wire_name(at.asked[0]) == at.asked[0]["tool_choice"]["function"]["name"]
        assert wire_name(at.asked[0]).isascii()
        assert "auto" == at.asked[1]["tool_choice"]


def test_required_is_for_the_first_round() -> None:
    with serve_weather([rome(), "done"]) as at:
        assert "done" == at.ask(tool_choice="required").choices[0].message.content
        assert ["required", "auto"] == [body["tool_choice"] for body in at.asked]


def test_a_choice_of_no_tool_is_400() -> None:
    with serve_chat([]) as at:
        at.server.register("weather")
        with pytest.raises(openai.BadRequestError, match="sky") as caught:
            at.ask(tool_choice={"type": "function", "function": {"name": "sky"}})
        assert "tool_choice" == caught.value.param


def test_several_choices_with_tools_are_refused() -> None:
    with serve_chat(["a"]) as at:
        at.server.register("weather")
        with pytest.raises(openai.BadRequestError, match="'n' must be 1") as caught:
            at.ask(n=2)
        assert "n" == caught.value.param
        assert "a" == at.ask(n=1).choices[0].message.content


@pytest.mark.parametrize("streamed", [True, False])
def test_callback_error_reaches_the_model(streamed: bool) -> None:
    script = json_response({"output": None, "is_error": True, "error": "city not found"})
    with serve_weather([rome(), "I do not know."], answers=script) as at:
        outcome = at.outcome(streamed=streamed)
        assert "city not found" in at.asked[1]["messages"][-1]["content"]
        assert True is outcome.report["calls"][0]["is_error"]


@pytest.mark.parametrize(
    ("fields", "last", "text"),
    [({}, "It is clear.", "Let me see.\n\nIt is clear."), ({"response_format": {"type": "json_object"}}, "{}", "{}")],
    ids=["text of all rounds", "JSON of the last round"],
)
def test_answer_is_the_same_whole_and_streamed(fields: dict[str, Any], last: str, text: str) -> None:
    with serve_weather([calls(call("weather"), content="Let me see."), last] * 2) as at:
        assert text == at.ask(**fields).choices[0].message.content == text_of(at.stream(**fields))
        assert fields.items() <= at.asked[0].items()


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("kind", ["enforces", "ignores"])
def test_text_only_model_uses_the_tool_and_returns_the_requested_json(kind: Any, streamed: bool) -> None:
    with calling_back(json_response({"output": RESULT})) as callback, serve_chat(WeatherModel(kind), tools="auto") as at:
        at.server.register("get_degrees", callback.url)
        outcome = at.outcome(streamed=streamed, response_format=RESPONSE_FORMAT)
        assert ({"city": "Rome", "degrees": 21}, 1) == (json.loads(outcome.text or ""), len(callback.calls))


@pytest.mark.parametrize("streamed", [True, False])
def test_response_format_drops_content_beside_client_calls(streamed: bool) -> None:
    with serve_chat([calls(call("open_door"), content='{"sky":')]) as at:
        at.server.register("weather", "http://127.0.0.1:9/x")
        assert not at.outcome(streamed=streamed, response_format={"type": "json_object"}, tools=[THEIRS]).text


def test_reasoning_is_returned_as_reasoning_content() -> None:
    script = [calls(call("weather"), reasoning_content="Hm."), Message({"content": "<think>So.</think>Clear."})]
    with serve_weather(script * 2) as at:
        message = at.ask().choices[0].message
        assert ("Clear.", "Hm.\n\nSo.") == (message.content, message.reasoning_content)
        assert "Hm." == at.asked[1]["messages"][1]["reasoning_content"]
        deltas = [chunk.choices[0].delta for chunk in at.stream() if chunk.choices]
        assert "Hm.\n\nSo." == "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_limit_ends_the_answer_as_a_length_does(streamed: bool) -> None:
    script = [calls(call("weather", id=f"c{n}"), content=f"{n}") for n in range(2)]
    with serve_weather(script, chat={"max_iterations": 2}) as at:
        outcome = at.outcome(streamed=streamed)
        assert ("length", "0\n\n1") == (outcome.finish, outcome.text)
        assert ("max_iterations", 2) == (outcome.report["limit"], len(outcome.report["calls"]))


def test_quoted_report_is_bounded() -> None:
    with (
        calling_back(json_response({"output": "x" * 9000})) as callback,
        serve_chat([calls(call("weather", json.dumps({"a": "y" * 9000}))), "ok"]) as at,
    ):
        at.server.register("weather", callback.url)
        (done,) = at.ask().model_extra["patchbay"]["calls"]
        assert len(done["content"]) <= 2000
        assert len(done["arguments"]) <= 2000
        assert 9000 == len(at.asked[1]["messages"][-1]["content"])


def test_logprobs_are_returned_on_request() -> None:
    logprobs = {"content": [{"token": "Cl", "logprob": -0.5, "bytes": None, "top_logprobs": []}], "refusal": None}

    def chunk(delta: Any, reason: Any = None, logprobs: Any = None) -> Any:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": logprobs}
        return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    answer = Raw([events(chunk({"content": "Clear."}, logprobs=logprobs), chunk({}, "stop"))])
    with serve_weather([rome(), answer]) as at:
        (outcome,) = [each.choices[0].logprobs for each in at.stream(logprobs=True) if each.choices and each.choices[0].logprobs]
        assert "Cl" == outcome.content[0].token


def test_in_process_tools_run() -> None:
    from patchbay.tools import ToolDefinition

    async def handler(arguments: dict[str, Any]) -> Any:
        return {"seen": arguments}

    with serve_chat([rome(), "done"]) as at:
        at.server.app.managers["ann"].register_tool(ToolDefinition("weather", "The sky.", handler=handler))
        assert "done" == at.ask().choices[0].message.content
        assert '{"seen": {"city": "Rome"}}' == at.asked[1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    "parameters",
    [{"type": "array"}, {"type": "object", "properties": 5}, {"properties": {"a": {"$ref": "#/nowhere"}}}, {"type": ["x", 3]},
     {"type": "object", "properties": {"a": {"pattern": "(?=x"}}}, {"$ref": "https://example.com/x.json"}, {"type": "object", "required": "a"}],
)  # fmt: skip
@pytest.mark.parametrize("tools", ["native", "text"])
def test_unsupported_schema_leaves_out_only_its_tool(parameters: Any, tools: str) -> None:
    def script(body: dict[str, Any]) -> Any:
        if "sky" in json.dumps(body["messages"][-1]):
            return "done"
        return rome() if tools == "native" else '```tool_call\n{"name": "weather", "arguments": {"city": "Rome"}}\n```'

    with calling_back(json_response({"output": "sky"})) as callback, serve_chat(script, tools=tools) as at:
        at.server.register("odd", parameters=parameters)
        at.server.register("weather", callback.url)
        assert "done" == at.ask().choices[0].message.content


@pytest.mark.parametrize("answer", ["Hello.", whole({"content": "Hello."})], ids=["stream", "document"])
@pytest.mark.parametrize("streamed", [True, False])
def test_model_answers_without_tools_if_no_schema_is_supported(streamed: bool, answer: Any) -> None:
    with serve_chat([answer]) as at:
        at.server.register("odd", parameters={"type": "array"})
        assert ("Hello.", False) == (at.outcome(streamed=streamed).text, "tools" in at.asked[0])


@pytest.mark.parametrize("streamed", [True, False])
def test_deadline_ends_the_turn_with_the_partial_answer(streamed: bool) -> None:
    script = [calls(call("weather"), content="Let me see."), Raw([b": wait\n\n"], end="hang")]
    with serve_weather(script, chat={"max_seconds": 1.0}) as at:
        outcome = at.outcome(streamed=streamed)
        assert ("Let me see.", "length", "max_seconds") == (outcome.text, outcome.finish, outcome.report["limit"])
        assert at.upstream.chats[1].left.wait(BOUND)


@pytest.mark.parametrize("setting", ["max_iterations", "max_calls", "max_seconds", "max_kept", "kept_for"])
def test_a_turn_without_limits_is_refused_when_it_is_set(setting: str) -> None:
    with pytest.raises(ConfigurationError):
        ChatSettings(**{setting: -1})


def test_chat_settings_need_an_upstream() -> None:
    with pytest.raises(ConfigurationError, match="upstream"):
        create_tools_app(chat=ChatSettings())


def test_a_turn_sees_one_list_of_tools_from_its_beginning_to_its_end() -> None:
    def script(body: dict[str, Any]) -> Any:
        results = sum(message["role"] == "tool" for message in body["messages"])
        if results == 0:
            at.server.post("unregister", name="weather")
            at.server.register("other", at.callback.url)
        return calls(call("weather", id=f"c{results}")) if results < 2 else "done"

    with serve_weather(script) as at:
        revision = at.server.app.registry.snapshot("ann").revision
        answer = at.ask()
        assert [["weather"]] * 3 == [[tool["function"]["name"] for tool in body["tools"]] for body in at.asked]
        report = answer.model_extra["patchbay"]
        assert ([False, False], revision) == ([done["is_error"] for done in report["calls"]], report["revision"])
        assert 2 == len(at.callback.calls)
