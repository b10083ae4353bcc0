"""Each provider's endpoint is asked in a way that it takes, and what it answers is understood: a turn with a tool, on each wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

import patchbay
from patchbay.errors import UpstreamError
from patchbay.models.chat_model import ModelReply
from patchbay.models.openai import OpenAIChatModel
from patchbay.models.providers import OPENAI
from patchbay.models.resolve import HostedModel, Link, resolve_model
from patchbay.testing import Message, Raw, Text, events
from patchbay.types import ToolSpec

from . import chat_servers as servers
from .chat_servers import ChatServer, calls
from .conftest import QUESTION, TIME, WEATHER, answered_messages, replies, reply_of, run, turn
from .wires import piece

ROME = ("get_weather", '{"city": "Rome"}')
OSLO = ("get_weather", '{"city": "Oslo"}')

WIRES: dict[str, tuple[str, tuple[Callable[[Any], None], ...], dict[str, Any]]] = {
    "openai": ("openai/gpt-5", (servers.openai_rules,), {}),
    "glm": ("glm/glm-4.6", (servers.glm_rules, servers.wants_reasoning("reasoning_content")), {"reasoning_content": "Rome, so."}),
    "qwen": ("qwen/qwen-plus", (servers.qwen_rules,), {"content": ""}),
    "qwen thinking": (
        "qwen/qwen3-thinking",
        (servers.qwen_rules, servers.wants_reasoning("reasoning_content")),
        {"reasoning_content": "Rome, so."},
    ),
    "stepfun": (
        "stepfun/step-3.5-flash",
        (servers.stepfun_rules, servers.wants_reasoning("reasoning")),
        {"reasoning": "Rome, so."},
    ),
}


def model_at(server: ChatServer, name: str, **options: Any) -> Any:
    """The model on a provider's server, found at the fake's address."""
    if "/" not in name or name.startswith("openai/"):  # a URL of another host than OpenAI's is not OpenAI's by name
        return HostedModel(name.rpartition("/")[2], lambda: openai_link(server), provider="openai", where=server.url)
    return resolve_model(name, api_key="secret", base_url=server.url, max_retries=0, **options)


@pytest.fixture(params=list(WIRES))
def wire(request: pytest.FixtureRequest) -> Any:
    return WIRES[request.param]


def openai_link(server: ChatServer) -> Link:
    client = patchbay.wrap(openai.AsyncOpenAI(base_url=server.url, api_key="secret", max_retries=0), tools="native")
    return Link(OpenAIChatModel(client, provider=OPENAI), client.close)


def test_tool_turn_works_on_each_wire_format(wire: Any, stream: bool) -> None:
    name, rules, extra = wire
    script = [calls(ROME, OSLO, **extra), Text("Clear in both.")]
    with ChatServer(script, *rules) as server:
        model = model_at(server, name)
        (asked, text), _ = run(model, turn(model, stream=stream, parameters={"max_tokens": 500}))
    assert [("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Oslo"})] == [
        (call.name, call.arguments) for call in asked.reply.tool_calls
    ]
    assert "Clear in both." == text.reply.content
    assert 0 < text.usage.total_tokens == text.usage.prompt_tokens + text.usage.completion_tokens
    assert ["Bearer secret"] * len(server.requests) == [request.headers["authorization"] for request in server.requests]
    assert {name.partition("/")[2]} == {body["model"] for body in server.bodies}
    if "reasoning" in "".join(extra):
        assert "Rome, so." == asked.reply.reasoning


def test_reasoning_is_sent_back_within_its_turn_only(stream: bool) -> None:
    script = [
        calls(ROME, reasoning_content="One."),
        Message({"role": "assistant", "content": "Clear.", "reasoning_content": "Two."}),
        calls(OSLO, reasoning_content="Three."),
        Text("Rain."),
    ]
    with ChatServer(script, servers.glm_rules, servers.wants_reasoning("reasoning_content")) as server:
        model = model_at(server, "glm/glm-4.6")

        async def two_turns() -> None:
            _, conversation = await turn(model, stream=stream)
            await turn(model, [*conversation, {"role": "user", "content": "And Oslo?"}], stream=stream)

        run(model, two_turns())
    sent = [[message.get("reasoning_content") for message in body["messages"]] for body in server.bodies]
    assert [None, "One.", None] == sent[1]
    assert [None] * 5 + ["Three.", None] == sent[3]


def test_openai_is_not_sent_fields_of_other_providers(stream: bool) -> None:
    signature = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}, **signature}
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call], **signature}
    history = [QUESTION, message, {"role": "tool", "tool_call_id": "a", "content": "clear"}]
    with ChatServer(["Clear."], servers.openai_rules) as server:
        model = model_at(server, "gpt-4o-mini")
        assert "Clear." == run(model, reply_of(model, history, stream=stream)).reply.content


def test_the_words_for_the_end_of_an_answer_are_openais() -> None:
    ends = [Text("x", finish_reason="sensitive"), Text("y", finish_reason="model_context_window_exceeded")]
    with ChatServer(ends, strays=True) as server:
        model = model_at(server, "zai/glm-4.6")
        assert ["content_filter", "length"] == [end.finish_reason for end in run(model, replies(model, {}, {}))]


def test_an_answer_that_the_server_gave_up_is_an_error(stream: bool) -> None:
    with ChatServer([Text("It is", finish_reason="network_error")], strays=True) as server:
        model = model_at(server, "glm/glm-4.6")
        with pytest.raises(UpstreamError, match="network_error"):
            run(model, reply_of(model, [QUESTION], stream=stream))


def test_streaming_only_model_is_streamed_from_then_on() -> None:
    with ChatServer(["Clear.", "Rain."], servers.qwen_rules) as server:
        model = model_at(server, "qwen/qwen3-thinking")
        assert ["Clear.", "Rain."] == [end.reply.content for end in run(model, replies(model, {}, {}))]
    assert [None, True, True] == [body.get("stream") for body in server.bodies]


def test_qwen_requests_parallel_tool_calls_by_default() -> None:
    with ChatServer(["a", "b", "c"], servers.qwen_rules) as server:
        model = model_at(server, "qwen/qwen-plus")
        run(model, replies(model, {}, {"parameters": {"parallel_tool_calls": False}}, {"tools": ()}))
    assert [True, False, None] == [body.get("parallel_tool_calls") for body in server.bodies]


def test_a_providers_own_parameters_may_be_given_by_name() -> None:
    with ChatServer(["Clear."]) as server:
        model = model_at(server, "qwen/qwen-plus")
        run(
            model, reply_of(model, [QUESTION], parameters={"enable_search": True, "extra_body": {"top_k": 3}, "temperature": 0.1})
        )
    (body,) = server.bodies  # a known provider is not probed
    assert (True, 3, 0.1) == tuple(body[name] for name in ("enable_search", "top_k", "temperature"))


@pytest.mark.parametrize(
    ("name", "rules"),
    [("glm/glm-4.6", servers.glm_rules), ("qwen/qwen3-thinking", servers.qwen_rules)],
)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=["any", "named"])
def test_refused_tool_choice_becomes_an_instruction_and_is_remembered(name: str, rules: Any, choice: Any) -> None:
    with ChatServer(["I would rather not.", calls(ROME), calls(OSLO)], rules) as server:
        model = model_at(server, name)
        ends = run(model, replies(model, *[{"stream": True, "tool_choice": choice}] * 2))
    assert ["Rome", "Oslo"] == [end.reply.tool_calls[0].arguments["city"] for end in ends]
    first, *others = server.bodies
    assert 4 == len(server.bodies)  # refused, answered without a call, called; and the second time called at once
    assert choice == first["tool_choice"]
    assert not any("tool_choice" in body for body in others)
    assert [False, True, True, True] == ["call" in body["messages"][-1]["content"] for body in server.bodies]
    assert all(body["tools"] for body in server.bodies)


def test_a_server_that_refuses_tools_is_taught_in_text_from_then_on(stream: bool) -> None:
    written = '```tool_call\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n```'
    with ChatServer([written, "Clear.", written], tools="refuse") as server:
        model = model_at(server, "qwen/an-old-one")

        async def three() -> list[str]:
            ends, _ = await turn(model, stream=stream)
            ends.append(await reply_of(model, [QUESTION], stream=stream))
            return [call.arguments["city"] for end in ends for call in end.reply.tool_calls]

        assert ["Rome", "Rome"] == run(model, three())
    assert [True, False, False, False] == ["tools" in body for body in server.bodies]


def test_text_mode_sends_no_tools_and_native_mode_only_tools() -> None:
    written = '```tool_call\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n```'
    with ChatServer([written], tools="refuse") as server:
        model = model_at(server, "qwen/an-old-one", tool_mode="text")
        assert 1 == len(run(model, reply_of(model, [QUESTION])).reply.tool_calls)
        native = model_at(server, "qwen/an-old-one", tool_mode="native")
        with pytest.raises(UpstreamError, match="does not support tools"):
            run(native, reply_of(native, [QUESTION]))
    assert [False, True] == ["tools" in body for body in server.bodies]


def test_calls_under_finish_reason_stop_are_calls(stream: bool) -> None:
    with ChatServer([calls(ROME, finish="stop")]) as server:
        model = model_at(server, "glm/glm-4.6")
        end = run(model, reply_of(model, [QUESTION], stream=stream))
    assert ["Rome"] == [call.arguments["city"] for call in end.reply.tool_calls]
    assert "tool_calls" == end.finish_reason


NAMES = ["weather.get", "天气", "1st", "a" * 80, "get_weather"]


@pytest.mark.parametrize(("provider", "rules"), [("qwen", ()), ("stepfun", (servers.stepfun_rules,))])
def test_unsupported_names_are_sent_as_aliases_and_mapped_back(provider: str, rules: Any, stream: bool) -> None:
    tools = [ToolSpec(name, "", WEATHER.parameters) for name in NAMES]

    def script(body: dict[str, Any]) -> Any:
        if body["messages"][-1]["role"] == "tool":
            return Text("Clear.")
        return calls(*((tool["function"]["name"], ROME[1]) for tool in body["tools"]))

    with ChatServer(script, *rules) as server:
        model = model_at(server, f"{provider}/m")
        choice = {"type": "function", "function": {"name": "weather.get"}}
        ends, _ = run(model, turn(model, tools=tools, stream=stream))
        chosen = run(model, reply_of(model, [QUESTION], tools=tools, stream=stream, tool_choice=choice))
    assert NAMES == [call.name for call in ends[0].reply.tool_calls]
    assert ["weather.get"] == [call.name for call in chosen.reply.tool_calls]
    first, second, third = server.bodies
    offered = [tool["function"]["name"] for tool in first["tools"]]
    assert "get_weather" == offered[-1]
    assert offered == [call["function"]["name"] for call in second["messages"][1]["tool_calls"]]
    assert offered[0] == third["tool_choice"]["function"]["name"]
    assert first["tools"] == second["tools"]


def test_inexpressible_tool_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    broken = ToolSpec("broken", "", {"type": "object", "properties": {"x": {"$ref": "#/$defs/missing"}}})
    with ChatServer(["Clear.", "Clear."]) as server:
        model = model_at(server, "glm/glm-4.6")
        run(model, replies(model, {"tools": [broken, WEATHER]}, {"tools": [broken, WEATHER, TIME]}))
    assert [["get_weather"], ["get_weather", "get_time"]] == [
        [tool["function"]["name"] for tool in body["tools"]] for body in server.bodies
    ]
    (record,) = [record for record in caplog.records if record.name == "patchbay.models.tool_encoder"]
    assert all(words in record.getMessage() for words in ("'broken'", "#/$defs/missing"))


def test_strict_tool_uses_the_strict_subset_and_drops_added_nulls() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
    tool = ToolSpec("forecast", "", parameters, strict=True)
    with ChatServer([calls(("forecast", '{"city": "Rome", "days": null}'))]) as server:
        model = model_at(server, "gpt-4o-mini")
        end = run(model, reply_of(model, [QUESTION], tools=[tool]))
    (sent,) = server.bodies[0]["tools"]
    assert (True, ["city", "days"]) == (sent["function"]["strict"], sorted(sent["function"]["parameters"]["required"]))
    assert {"city": "Rome"} == end.reply.tool_calls[0].arguments


def test_geminis_signatures_go_back_through_its_openai_endpoint(stream: bool) -> None:
    signed = calls(ROME, OSLO)
    signature = {"google": {"thought_signature": "c2ln"}}
    signed.message["tool_calls"][0]["extra_content"] = signature
    with ChatServer([signed, "Clear."], servers.wants_signatures) as server:
        model = resolve_model(f"{server.url}#gemini-3-pro", max_retries=0)
        (asked, text), _ = run(model, turn(model, stream=stream))
    assert {"extra_content": signature} == asked.reply.tool_calls[0].extra
    assert asked.reply.tool_calls[1].extra is None
    assert "Clear." == text.reply.content


def test_field_refused_in_the_history_is_learnt(stream: bool) -> None:
    script = [calls(ROME, reasoning_content="hm"), "Clear.", calls(OSLO, reasoning_content="hm"), "Rain."]
    with ChatServer(script, servers.refuses_reasoning) as server:
        model = resolve_model(f"{server.url}#m", max_retries=0)

        async def twice() -> list[str | None]:
            return [(await turn(model, stream=stream))[0][-1].reply.content for _ in range(2)]

        assert ["Clear.", "Rain."] == run(model, twice())
    assert [False, True, False, False, False] == [
        any("reasoning_content" in message for message in body["messages"]) for body in server.bodies
    ]


def test_error_that_only_mentions_a_field_is_an_error() -> None:
    refusal = servers.error(400, "The reasoning_content is too long.")
    with ChatServer(lambda _: refusal) as server:
        model = resolve_model(f"{server.url}#m", max_retries=0)
        history = [QUESTION, {**answered_messages(ModelReply(calls_reply()))[0], "reasoning_content": "hm"}]
        history.append({"role": "tool", "tool_call_id": "a", "content": "clear"})
        with pytest.raises(UpstreamError, match="too long"):
            run(model, reply_of(model, history))
        assert [True, False] == ["reasoning_content" in body["messages"][1] for body in server.bodies]
        with pytest.raises(UpstreamError):
            run(model, reply_of(model, history))
    assert "reasoning_content" in server.bodies[2]["messages"][1]


def calls_reply() -> Any:
    from patchbay.types import Reply, ToolCall

    return Reply(None, tool_calls=(ToolCall("a", "get_weather", "{}"),))


def insists_on_reasoning(body: dict[str, Any]) -> None:
    """As DeepSeek and Kimi do while they think: every call of the conversation needs the reasoning that led to it."""
    for index, message in enumerate(body["messages"]):
        if message.get("tool_calls") and not message.get("reasoning_content"):
            raise servers.RefusedError(
                f"thinking is enabled but reasoning_content is missing in assistant tool call message at index {index}"
            )


def test_demanded_reasoning_history_is_sent_from_then_on(stream: bool) -> None:
    script = [calls(ROME, reasoning_content="One."), "Clear.", calls(OSLO, reasoning_content="Two."), "Rain."]
    with ChatServer(script, insists_on_reasoning) as server:
        model = resolve_model(f"{server.url}#m", max_retries=0)

        async def two_turns() -> list[str | None]:
            first, conversation = await turn(model, stream=stream)
            second, _ = await turn(model, [*conversation, {"role": "user", "content": "And Oslo?"}], stream=stream)
            return [first[-1].reply.content, second[-1].reply.content]

        assert ["Clear.", "Rain."] == run(model, two_turns())
    sent = [[message.get("reasoning_content") for message in body["messages"]] for body in server.bodies]
    assert [None, "One.", None] == sent[1]
    assert [[None] * 5, [None, "One.", None, " ", None]] == sent[2:4]  # refused, and asked again with what it missed
    assert [None, "One.", None, " ", None, "Two.", None] == sent[4]
    assert 5 == len(sent)


def test_calls_that_another_model_made_go_to_such_a_server_with_a_blank(stream: bool) -> None:
    history = [*answered_messages(ModelReply(calls_reply())), {"role": "user", "content": "And now?"}]
    with ChatServer(["Clear."], insists_on_reasoning) as server:
        model = resolve_model(f"{server.url}#m", max_retries=0)
        assert "Clear." == run(model, reply_of(model, [QUESTION, *history], stream=stream, tools=())).reply.content
    assert [None, " "] == [body["messages"][1].get("reasoning_content") for body in server.bodies]


def test_learned_reasoning_rules_are_per_model() -> None:
    def rules(body: dict[str, Any]) -> None:
        (insists_on_reasoning if body["model"] == "thinker" else servers.refuses_reasoning)(body)

    message = {**answered_messages(ModelReply(calls_reply()))[0], "reasoning_content": "hm"}
    history = [QUESTION, message, {"role": "tool", "tool_call_id": "a", "content": "clear"}]
    with ChatServer(lambda _: Text("Clear."), rules) as server:
        model = resolve_model(f"{server.url}#thinker", max_retries=0)
        asked = [{"tools": (), "parameters": {"model": name}} for name in ("thinker", "other", "thinker", "other")]
        run(model, replies(model, *asked, messages=history))
    outcome = [(body["model"], "reasoning_content" in body["messages"][1]) for body in server.bodies]
    assert [("thinker", True), ("other", True), ("other", False), ("thinker", True), ("other", False)] == outcome


def test_a_picture_that_a_tool_gave_does_not_end_the_turn() -> None:
    """It is shown in a message of the user's; the reasoning before it belongs to the turn that goes on."""
    from patchbay import ToolRunner
    from patchbay.types import Attachment

    def get_weather(city: str) -> Attachment:
        """Show the sky."""
        return Attachment(b"bytes", "image/png")

    with ChatServer([calls(ROME, reasoning_content="One."), "Clear."], servers.glm_rules) as server:
        model = model_at(server, "glm/glm-4.6v")
        runner = ToolRunner(model, tools=[get_weather], attachments=["image"])
        assert "Clear." == run(model, runner.run("How is Rome?")).content
    roles = [message["role"] for message in server.bodies[1]["messages"]]
    assert ["user", "assistant", "tool", "user"] == roles
    assert "One." == server.bodies[1]["messages"][1]["reasoning_content"]
    assert "data:image/png;base64," in server.bodies[1]["messages"][3]["content"][1]["image_url"]["url"]


def named(name: str, arguments: str, **rest: Any) -> dict[str, Any]:
    return piece({"tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}, **rest}]})


@pytest.mark.parametrize(
    "pieces",
    [
        [named(*ROME, index=0), named(*OSLO, index=0)],
        [named(*ROME, index=0, id="a"), named(*OSLO, index=0, id="a")],
        [named(*ROME, index=0, id=""), named(*OSLO, index=0, id="")],
        [
            named("get_weather", '{"city":', index=0, id="a"),
            named("get_weather", ' "Rome"}', index=0, id="a"),
            named(*OSLO, index=1),
        ],
        [named("get_time", "", index=0), named(*ROME, index=0), named(*OSLO, index=0)],
        [named(*ROME), named(*OSLO)],
    ],
    ids=["no ids", "one id", "empty ids", "a name with every piece", "another name", "no indexes"],
)
@pytest.mark.parametrize("mode", ["native", None], ids=["wrapped", "bare"])
def test_calls_with_the_same_index_are_separated(pieces: list[Any], mode: str | None) -> None:
    answer = Raw([events(*pieces, piece({}, "tool_calls"))])
    with ChatServer(lambda _: answer, strays=True) as server:
        if mode is None:
            client = openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0)
            model: Any = OpenAIChatModel(client, model="m")
            model.aclose = client.close
        else:
            model = resolve_model(f"{server.url}#m", tool_mode=mode)
        end = run(model, reply_of(model, [QUESTION], tools=[WEATHER, TIME], stream=True))
    given = [(call.name, call.arguments) for call in end.reply.tool_calls]
    assert [("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Oslo"})] == [
        one for one in given if one != ("get_time", {})
    ]
    assert ("get_time" in str(pieces)) == (("get_time", {}) in given)
    assert len(given) == len({call.id for call in end.reply.tool_calls} - {""})
