"""Each protocol over each kind of upstream, whole and streamed: the same calls, text, end and usage, whatever the server's form."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest

from frontends.protocols import PROTOCOLS, Read, Server, Written, ask

TEXT = "Let me look."
ROME, OSLO = ("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})
WAYS = list(product(PROTOCOLS, [False, True]))
"""Each protocol, whole and streamed."""


def written(*calls: tuple[str, Any], native: bool, text: str = TEXT) -> Written:
    """An answer with calls, native or in text."""
    if not native:
        blocks = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
        return Written(text + "".join(f"\n\n```tool_call\n{block}\n```" for block in blocks))
    return Written(text, [native_call(json.dumps(arguments), id=f"c{at}") for at, (_, arguments) in enumerate(calls)])


def native_call(arguments: Any, **fields: Any) -> dict[str, Any]:
    """A native call of ``weather``."""
    return {"id": "c0", "type": "function", **fields, "function": {"name": "weather", "arguments": arguments}}


@dataclass(frozen=True)
class Case:
    """What is asked for, and the calls that the model answers with."""

    name: str
    tools: bool = True
    choice: str | None = None
    calls: tuple[tuple[str, Any], ...] = ()


CASES = [
    Case("no tools", tools=False),
    Case("no call"),
    Case("one call", calls=(ROME,)),
    Case("two calls", calls=(ROME, OSLO)),
    Case("forced", choice="tool", calls=(ROME,)),
    Case("any", choice="any", calls=(ROME,)),
    Case("none", choice="none"),
]


@pytest.mark.parametrize(("name", "stream"), WAYS)
@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_same_answer_in_every_protocol(case, native, name, stream):
    server = Server([written(*case.calls, native=native)], stream=stream)
    read = await ask(name, server, stream=stream, native=native, tools=case.tools, choice=case.choice)
    assert (TEXT, list(case.calls), "calls" if case.calls else "stop", (11, 7)) == (
        read.text.strip(), read.calls, read.finish, read.usage
    )  # fmt: skip


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.name)
async def test_whole_answer_may_come_as_a_stream(case, name):
    server = Server([written(*case.calls, native=False)], stream=True)
    read = await ask(name, server, stream=False, native=False, collected=True, choice=case.choice)
    assert (TEXT, list(case.calls), "calls" if case.calls else "stop", (11, 7)) == (
        read.text.strip(), read.calls, read.finish, read.usage
    )  # fmt: skip
    assert [True] == [body["stream"] for body in server.asked]


@pytest.mark.parametrize("name", ["messages", "responses", "gemini"])
async def test_stream_split_anywhere_gives_the_same_answer(name):
    answer = written(ROME, OSLO, native=False)
    whole = await ask(name, Server([answer], stream=True), stream=True, native=False)
    for cut in range(1, 1500, 7):
        read = await ask(name, Server([answer], stream=True, cut=cut), stream=True, native=False)
        assert whole == replace(read, ids=whole.ids)


ARGUMENTS = '{"city": "Rome"}'


def pieces(size: int, **later: Any) -> list[list[dict[str, Any]]]:
    """The deltas of a call with its arguments in pieces; ``later`` are the fields that a server repeats in each of them."""
    first = {"index": 0, **native_call("")}
    rest = [ARGUMENTS[at : at + size] for at in range(0, len(ARGUMENTS), size)]
    name = {"name": later.pop("name")} if "name" in later else {}
    return [[first], *([{"index": 0, **later, "function": {**name, "arguments": piece}}] for piece in rest)]


FORMS: dict[str, Written] = {
    "as OpenAI's": Written(TEXT, [native_call(ARGUMENTS)], deltas=pieces(4)),
    "an object": Written(TEXT, [native_call({"city": "Rome"})]),
    "an object and a number as id": Written(TEXT, [native_call({"city": "Rome"}, id=7)]),
    "a number as id": Written(TEXT, [native_call(ARGUMENTS, id=7)]),
    "no id": Written(TEXT, [native_call(ARGUMENTS, id=None)]),
    "an empty id": Written(TEXT, [native_call(ARGUMENTS, id="")]),
    "an id that Anthropic does not allow": Written(TEXT, [native_call(ARGUMENTS, id="functions.weather:0")]),
    "the name in each delta": Written(TEXT, [native_call(ARGUMENTS)], deltas=pieces(4, name="weather")),
    "the id in each delta": Written(TEXT, [native_call(ARGUMENTS)], deltas=pieces(4, id="c0")),
    "both in each delta": Written(TEXT, [native_call(ARGUMENTS)], deltas=pieces(4, id="c0", name="weather")),
    "no index": Written(TEXT, [native_call(ARGUMENTS)], deltas=[[native_call(ARGUMENTS)]]),
    "a text as index": Written(TEXT, [native_call(ARGUMENTS)], deltas=[[{"index": "0", **native_call(ARGUMENTS)}]]),
    "a namespace": Written(TEXT, [{**native_call(ARGUMENTS), "function": {"name": "functions.weather", "arguments": ARGUMENTS}}]),
    "a Python dict": Written(TEXT, [native_call("{'city': 'Rome'}")]),
    "a missing brace": Written(TEXT, [native_call(ARGUMENTS[:-1])]),
    "encoded twice": Written(TEXT, [native_call(json.dumps(ARGUMENTS))]),
}


@pytest.mark.parametrize(("name", "stream"), WAYS)
@pytest.mark.parametrize("form", FORMS)
async def test_native_call_in_any_form_is_the_same_call(form, name, stream):
    read = await ask(name, Server([FORMS[form]], stream=stream), stream=stream, native=True)
    assert Read(TEXT, [ROME], "calls", (11, 7), read.ids) == read
    (call_id,) = read.ids
    assert re.fullmatch(r"[\w-]+", call_id) if name == "messages" else call_id


@pytest.mark.parametrize(("name", "stream"), WAYS)
@pytest.mark.parametrize("arguments", ["", None, "null", {}, "{}"])
async def test_native_call_without_arguments_has_an_empty_object(arguments, name, stream):
    read = await ask(name, Server([Written(TEXT, [native_call(arguments)])], stream=stream), stream=stream, native=True)
    assert ([("weather", {})], "calls") == (read.calls, read.finish)


INVALID = {
    **{f"native: {given}": Written("", [native_call(given)]) for given in ("[1]", "42", "Rome", '"Rome"', [1])},
    "native: no name": Written("", [{"id": "c0", "type": "function", "function": {"arguments": ARGUMENTS}}]),
    "text": Written('```tool_call\n{"name": "weather", "arguments": [1]}\n```'),
}


@pytest.mark.parametrize(("name", "stream"), WAYS)
@pytest.mark.parametrize("case", INVALID)
async def test_call_without_an_object_is_asked_for_again(case, name, stream):
    native = case != "text"
    server = Server([INVALID[case], written(ROME, native=native, text="")], stream=stream)
    read = await ask(name, server, stream=stream, native=native)
    assert ([ROME], "calls", 2) == (read.calls, read.finish, len(server.asked))
    assert "not a JSON object" in server.asked[1]["messages"][-1]["content"]


@pytest.mark.parametrize(("name", "stream"), WAYS)
@pytest.mark.parametrize("case", INVALID)
async def test_call_that_stays_without_an_object_is_an_error(case, name, stream):
    server = Server([INVALID[case]], stream=stream)
    read = await ask(name, server, stream=stream, native=case != "text")
    assert ([], "error", 3) == (read.calls, read.finish, len(server.asked))


BROKEN = {
    "native": Written("", [native_call('{"city": "Ro')]),
    "a fence without a quote": Written('```tool_call\n{"name": "weather", "arguments": {"city": "Rome}}\n```'),
    "tags without a quote": Written('<tool_call>{"name": "weather", "arguments": {"city": "Rome}}</tool_call>'),
}


@pytest.mark.parametrize(("name", "stream"), WAYS)
@pytest.mark.parametrize("case", BROKEN)
async def test_call_that_breaks_off_is_asked_for_again_unless_its_beginning_was_sent(case, name, stream):
    native = case == "native"
    server = Server([BROKEN[case], written(ROME, native=native, text="")], stream=stream)
    read = await ask(name, server, stream=stream, native=native)
    if stream and name in ("chat", "responses"):
        assert ([], "error", 1) == (read.calls, read.finish, len(server.asked))
    else:
        assert ([ROME], "calls", 2) == (read.calls, read.finish, len(server.asked))


@pytest.mark.parametrize(("name", "stream"), WAYS)
@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
async def test_call_that_the_token_limit_cuts_off_is_no_call(native, name, stream):
    cut = Written(f'{TEXT}\n\n```tool_call\n{{"name": "weather", "arguments": {{"city": "Ro', finish="length")
    if native:
        cut = Written(TEXT, [native_call('{"city": "Ro')], finish="length")
    read = await ask(name, Server([cut], stream=stream), stream=stream, native=native)
    assert (TEXT, [], "length") == (read.text.strip(), read.calls, read.finish)


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_what_came_before_an_error_in_mid_stream_is_delivered(name):
    failure = b'data: {"error": {"message": "CUDA OOM"}}\n\n'
    events = Written(TEXT).stream().split(b"\n\n")
    server = Server([b"\n\n".join(events[:3]) + b"\n\n" + failure], stream=True, cut=0)
    read = await ask(name, server, stream=True, native=True)
    assert (TEXT, "error") == (read.text, read.finish)
