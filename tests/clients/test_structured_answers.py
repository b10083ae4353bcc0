"""``tools`` together with ``response_format``, asked by the real ``openai`` client of each kind of server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pydantic
import pytest

from patchbay import wrap
from patchbay.testing import ScriptedUpstream
from patchbay.testing.script import Text, error
from structured import BLOCK, QUESTION, RESPONSE_FORMAT, RESULT, TOOL, Kind, WeatherModel

KINDS: tuple[Kind, ...] = ("takes", "refuses", "apart", "enforces", "ignores")


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def streamed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


@contextmanager
def asking(script: Any, **options: Any) -> Iterator[tuple[openai.OpenAI, ScriptedUpstream]]:
    with ScriptedUpstream(script) as upstream, openai.OpenAI(base_url=upstream.url, api_key="-", max_retries=0) as client:
        yield wrap(client, **options), upstream


def ask(client: openai.OpenAI, messages: list[Any], *, streamed: bool, **fields: Any) -> Any:
    """The choice, read by the client's own helper for typed answers."""
    request = {"model": "m", "messages": messages, "tools": [TOOL], "response_format": Weather, **fields}
    if not streamed:
        return client.chat.completions.parse(**request).choices[0]
    with client.chat.completions.stream(**request) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion().choices[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_calls_its_tool_and_its_answer_is_of_the_type(kind: Kind, streamed: bool) -> None:
    with asking(WeatherModel(kind)) as (client, upstream):
        for _ in range(2):  # unlearnt, then learnt
            first = ask(client, [QUESTION], streamed=streamed)
            assert ("tool_calls", None) == (first.finish_reason, first.message.content)
            (call,) = first.message.tool_calls
            assert ("get_degrees", {"city": "Rome"}) == (call.function.name, json.loads(call.function.arguments))
            texts = {
                "role": "assistant",
                "content": None,
                "tool_calls": [call.model_dump(exclude={"function": {"parsed_arguments"}})],
            }
            messages = [QUESTION, texts, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
            last = ask(client, messages, streamed=streamed)
            assert ("stop", Weather(city="Rome", degrees=21)) == (last.finish_reason, last.message.parsed)
            assert not last.message.tool_calls
        bodies = [request.json for request in upstream.chats]
    if kind != "takes":
        learnt = bodies[-3:]  # one round with the call, one with the result, one for the answer alone
        assert [False, False, True] == ["response_format" in body for body in learnt]
        assert all("tools" not in body for body in learnt[2:])
        assert "labelled tool_call" not in json.dumps(learnt[2])


def test_answer_that_fits_the_schema_is_not_requested_again(streamed: bool) -> None:
    script = ['Hm.\n```json\n{"city": "Rome", "degrees": 21}\n```', '\n{"city": "Rome", "degrees": 21}']
    with asking(script[1:], tools="text") as (client, upstream):
        assert Weather(city="Rome", degrees=21) == ask(client, [QUESTION], streamed=streamed).message.parsed
        assert 1 == len(upstream.chats)
        prompt = upstream.chats[0].json["messages"][0]["content"]
    assert '"additionalProperties":false' in prompt
    assert "response_format" not in upstream.chats[0].json
    with asking([*script[:1], script[1]], tools="text") as (client, upstream):
        assert Weather(city="Rome", degrees=21) == ask(client, [QUESTION], streamed=streamed).message.parsed
        assert ("Hm." in upstream.chats[1].json["messages"][-2]["content"], 2) == (True, len(upstream.chats))


@pytest.mark.parametrize("blank", ["", "\n\n  "])
@pytest.mark.parametrize("tag", ["</think>", "[THINK]"])
@pytest.mark.parametrize(("tools", "name"), [("text", "fenced"), ("text", "mistral_args"), ("native", "auto")])
def test_tag_of_reasoning_in_a_string_of_the_requested_json_stays_there(
    tools: str, name: str, tag: str, blank: str, streamed: bool
) -> None:
    answer = json.dumps({"city": f"Rome {tag} Roma", "degrees": 21})
    with asking([Text(blank + answer, piece=1)], tools=tools, format=name) as (client, upstream):
        last = ask(client, [QUESTION], streamed=streamed).message
    assert (answer, 1) == ((last.content or "").strip(), len(upstream.chats))
    assert not getattr(last, "reasoning_content", None)


def test_markup_of_the_models_format_in_a_string_of_the_requested_json_stays_there(streamed: bool) -> None:
    city = "a<|end|><|begin|>assistant</x>"
    script = [json.dumps({"city": city, "degrees": 21})]
    with asking(script, tools="text", format="solar_open") as (client, upstream):
        assert Weather(city=city, degrees=21) == ask(client, [QUESTION], streamed=streamed).message.parsed
    assert 1 == len(upstream.chats)


def test_reasoning_before_the_requested_json_stays_apart(streamed: bool) -> None:
    answer = '{"city": "Rome </think> Roma", "degrees": 21}'
    with asking([f"<think>\nWarm.\n</think>\n\n{answer}"], tools="text") as (client, _):
        last = ask(client, [QUESTION], streamed=streamed).message
    assert (answer, "Warm.") == (last.content, last.reasoning_content)


@pytest.mark.parametrize("around", ["Here you are:\n```json\n{}\n```\nEnjoy!", "The answer is {}.", "Sure [1]:\n```\n{}\n```"])
def test_words_around_requested_json_are_dropped(around: str, streamed: bool) -> None:
    answer = '{\n  "city": "Rome",\n  "degrees": 21\n}'
    with asking(["It is warm.", around.replace("{}", answer)], tools="text") as (client, upstream):
        last = ask(client, [QUESTION], streamed=streamed).message
        assert (answer, Weather(city="Rome", degrees=21), 2) == (last.content, last.parsed, len(upstream.chats))


def test_model_without_an_answer_is_a_final_error(streamed: bool) -> None:
    with asking(WeatherModel("ignores", stubborn=True), tools="text", choice_rounds=1) as (client, upstream):
        messages = [QUESTION, {"role": "user", "content": RESULT}]
        with pytest.raises(openai.APIError, match=r"does not fit response_format \(asked 2 times\): it is not JSON") as caught:
            ask(client.with_options(max_retries=2), messages, streamed=streamed)
        assert ("response_format_unmet", 3) == (caught.value.code, len(upstream.chats))
        assert "does not fit: it is not JSON" in upstream.chats[-1].json["messages"][-1]["content"]


def test_model_gets_the_validation_error_of_its_answer(streamed: bool) -> None:
    script = ['{"city": "Rome"}', '{"city": "Rome", "degrees": "warm"}', '{"city": "Rome", "degrees": 21}']
    with asking(script, tools="text") as (client, upstream):
        assert Weather(city="Rome", degrees=21) == ask(client, [QUESTION], streamed=streamed).message.parsed
        assert "/degrees must be integer" in upstream.chats[-1].json["messages"][-1]["content"]


def test_answer_that_looks_like_a_call_is_text_without_tools(streamed: bool) -> None:
    class Named(pydantic.BaseModel):
        name: str
        arguments: dict[str, str]

    answer = '{"name": "get_degrees", "arguments": {"city": "Rome"}}'
    with asking(["No.", answer], tools="text") as (client, _):
        request = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": Named.model_json_schema()}}}
        if not streamed:
            last = client.chat.completions.create(model="m", messages=[QUESTION], tools=[TOOL], **request).choices[0].message
            assert (answer, None) == (last.content, last.tool_calls)
        else:
            chunks = client.chat.completions.create(model="m", messages=[QUESTION], tools=[TOOL], stream=True, **request)
            assert answer == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_where_no_tool_may_be_called_the_schema_is_enforced_at_once(streamed: bool) -> None:
    with asking(WeatherModel("enforces"), tools="text") as (client, upstream):
        last = ask(client, [QUESTION], streamed=streamed, tool_choice="none")
        assert (Weather(city="Rome", degrees=0), 1) == (last.message.parsed, len(upstream.chats))


def test_a_demanded_call_is_met_though_the_server_enforces_the_schema(streamed: bool) -> None:
    with asking(WeatherModel("enforces"), tools="text") as (client, upstream):
        first = ask(client, [QUESTION], streamed=streamed, tool_choice="required")
        assert (["get_degrees"], 1) == ([call.function.name for call in first.message.tool_calls], len(upstream.chats))


def test_any_json_object_is_accepted_without_a_schema(streamed: bool) -> None:
    with asking(["Rome is warm.", "[21]", '{"degrees": 21}'], tools="text") as (client, upstream):
        request = {"model": "m", "messages": [QUESTION], "tools": [TOOL], "response_format": {"type": "json_object"}}
        if streamed:
            content = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(**request, stream=True))
        else:
            content = client.chat.completions.create(**request).choices[0].message.content
        assert ('{"degrees": 21}', 3) == (content, len(upstream.chats))
        assert {"type": "json_object"} == upstream.chats[-1].json["response_format"]


def test_unsupported_response_format_becomes_an_instruction() -> None:
    def script(body: dict[str, Any]) -> Any:
        if "response_format" in body:
            return error(400, "This response_format type is unavailable now")
        return WeatherModel("ignores")(body)

    messages = [QUESTION, {"role": "user", "content": RESULT}]
    with asking(script, tools="text") as (client, upstream):
        for _ in range(2):
            assert Weather(city="Rome", degrees=21) == ask(client, messages, streamed=False).message.parsed
        assert [False, True, False, False, False] == ["response_format" in request.json for request in upstream.chats]


def test_a_wrong_schema_is_the_clients_mistake_and_no_refusal_of_the_format() -> None:
    refusal = error(400, "Invalid schema for response_format 'weather': unsupported keyword")
    with asking([refusal], tools="native") as (client, _), pytest.raises(openai.BadRequestError, match="Invalid schema"):
        ask(client, [QUESTION], streamed=False)


def test_reasoning_of_every_attempt_is_streamed_with_one_role() -> None:
    script = ["<think>One.</think>Rome is warm.", '<think>Two.</think>{"city": "Rome", "degrees": 21}']
    with asking(script, tools="text") as (client, _):
        request = {"model": "m", "messages": [QUESTION], "tools": [TOOL], "response_format": RESPONSE_FORMAT}
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**request, stream=True)]
    assert "One.Two." == "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert '{"city": "Rome", "degrees": 21}' == "".join(delta.content or "" for delta in deltas)
    assert 1 == sum(delta.role is not None for delta in deltas)


def test_truncated_answer_is_not_requested_again() -> None:
    with asking([Text('{"city": "Ro', finish_reason="length")], tools="text") as (client, upstream):
        with pytest.raises(openai.LengthFinishReasonError):
            ask(client, [QUESTION], streamed=False)
        assert 1 == len(upstream.chats)


def test_several_choices_are_refused_where_a_second_request_is_needed() -> None:
    with asking([BLOCK], tools="text") as (client, _), pytest.raises(openai.BadRequestError, match="'n' must be 1"):
        ask(client, [QUESTION], streamed=False, n=2)


def test_json_of_a_capable_server_is_streamed_unbuffered() -> None:
    with asking(['{"city": "Rome", "degrees": 21}'], tools="native") as (client, _):
        request = {"model": "m", "messages": [QUESTION], "tools": [TOOL], "response_format": RESPONSE_FORMAT}
        pieces = [chunk.choices[0].delta.content for chunk in client.chat.completions.create(**request, stream=True)]
    assert 3 < sum(bool(piece) for piece in pieces)
    assert '{"city": "Rome", "degrees": 21}' == "".join(piece or "" for piece in pieces)
