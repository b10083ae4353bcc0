"""Fenced calls in all spellings that models use, whole and streamed, with the prose around them kept."""

from __future__ import annotations

import pytest

import patchbay
from patchbay.errors import ConfigurationError
from patchbay.formats import events
from support.fenced_texts import OSLO, OSLO_CALL, ROME, ROME_CALL, TOOLS, block, calls, words

from .cuts import read


@pytest.mark.parametrize(
    ("label", "options"),
    [
        *((label, {}) for label in ("TOOL_CALL", "Tool_Call", "tool_call", "tool_calls", "tool-call", "TOOL-CALLS", "json", "JSON", "")),
        *((label, {"tool_call_tag": tag}) for tag in ("CALL", "call", "Call") for label in ("CALL", "call", "Call")),
        ("call", {"tool_call_tag": "calls"}),
        ("calls", {"tool_call_tag": "call"}),
        ("TOOL_USE", {"tool_call_tag": "tool-use"}),
        ("tool-uses", {"tool_call_tag": "tool_use"}),
    ],
)  # fmt: skip
def test_label_is_read_in_any_case_plural_and_with_dashes(label: str, options: dict[str, str]) -> None:
    reply = read(f"Sure.\n{block(ROME, label=label)}\nBye", tools=TOOLS, **options)
    assert ([ROME_CALL], ["Sure.", "Bye"]) == (calls(reply), words(reply.content))


@pytest.mark.parametrize("tag", ["a.b", "c++", "call(x)", "x|y", "[t]", "\u00e9t\u00e9", "x-y", "_"])
def test_configured_tag_is_literal_or_refused(tag: str) -> None:
    refusal = None
    try:
        reply = read(block(ROME, label=tag), tools=TOOLS, tool_call_tag=tag)
    except ConfigurationError as error:
        refusal = str(error)
    assert (tag in refusal) if refusal else ([ROME_CALL] == calls(reply))


@pytest.mark.parametrize("label", ["json", ""])
def test_lenient_fences_can_be_switched_off(label: str) -> None:
    text = f"Sure.\n{block(ROME, label=label)}\nBye"
    reply = read(text, tools=TOOLS, lenient_fences=False)
    assert ([], text) == (calls(reply), reply.content)


def test_json_fence_after_a_labelled_call_is_prose() -> None:
    quoted = block(OSLO, label="json")
    reply = read(f"{block(ROME)}\n{quoted}\n", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert quoted in (reply.content or "")


FENCES = {
    "closer on the line of the JSON": f"```tool_call\n{ROME}```\nBye",
    "one-line block": f"```tool_call {ROME}```\nBye",
    "JSON on the opener line": f"```tool_call {ROME}\n```\nBye",
    "JSON glued to the label": f"```tool_call{ROME}\n```\nBye",
    "4 ticks open and 3 close": f"````tool_call\n{ROME}\n```\nBye",
    "3 ticks open and 4 close": f"```tool_call\n{ROME}\n````\nBye",
    "tildes": f"~~~tool_call\n{ROME}\n~~~\nBye",
    "blockquote": f"> ```tool_call\n> {ROME}\n> ```\nBye",
    "blockquote over several lines": (
        '> ```tool_call\n> {\n>   "name": "get_weather",\n>   "arguments": {"city": "Rome"}\n> }\n> ```\nBye'
    ),
    "text after the closer": f"```tool_call\n{ROME}\n``` Bye",
    "label with a language": f"```tool_call:json\n{ROME}\n```\nBye",
    "label with an attribute": f"```tool_call{{x}}\n{ROME}\n```\nBye",
    "label with words": f"```tool_call json\n{ROME}\n```\nBye",
    "blank before the label": f"``` tool_call\n{ROME}\n```\nBye",
    "indented block": f"   ```tool_call\n   {ROME}\n   ```\nBye",
    "CRLF": f"```tool_call\r\n{ROME}\r\n```\r\nBye",
    "blank lines inside": f"```tool_call\n\n{ROME}\n\n```\nBye",
    **{f"closer behind {blanks} blanks": f"```tool_call\n{ROME}\n{' ' * blanks}```\nBye" for blanks in (1, 3, 4, 16, 40)},
}

BODIES = {
    "single quotes": "{'name': 'get_weather', 'arguments': {'city': 'Rome'}}",
    "one brace missing": '{"name": "get_weather", "arguments": {"city": "Rome"}',
    "one brace too many": '{"name": "get_weather", "arguments": {"city": "Rome"}}}',
    "comments": '{"name": "get_weather", // the tool\n "arguments": {/* where */ "city": "Rome"}}',
    "tool for name": '{"tool": "get_weather", "arguments": {"city": "Rome"}}',
    "flat": '{"name": "get_weather", "city": "Rome"}',
    "flat, name last": '{"city": "Rome", "name": "get_weather"}',
    "OpenAI envelope with type and string arguments": (
        '{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}}'
    ),
    "tool_calls list": '{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Rome"}}]}',
    "tool_calls list of envelopes": (
        '{"tool_calls": [{"id": "c", "type": "function", "function":'
        ' {"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}}]}'
    ),
    "tool_calls list and other keys": (
        '{"role": "assistant", "content": null, "tool_calls": [{"name": "get_weather", "arguments": {"city": "Rome"}}]}'
    ),
    "tool_calls list and a key behind it": (
        '{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Rome"}}], "content": null}'
    ),
}

ONE_CALL = {
    **{name: f"Sure.\n{text}" for name, text in FENCES.items()},
    "opener after words on a line": f"Sure. ```tool_call\n{ROME}\n```\nBye",
    **{name: f"Sure.\n{block(body)}\nBye" for name, body in BODIES.items()},
}


@pytest.mark.parametrize("text", ONE_CALL.values(), ids=ONE_CALL)
def test_call_is_read_in_any_spelling(text: str) -> None:
    reply = read(text, tools=TOOLS)
    assert ([ROME_CALL], ["Sure.", "Bye"]) == (calls(reply), words(reply.content))


TWO_CALLS = {
    "glued blocks": f"```tool_call\n{ROME}\n``````tool_call\n{OSLO}\n```",
    "blocks glued on one line": f"```tool_call\n{ROME}```\n```tool_call\n{OSLO}```",
    "second opener on the closer's line": f"```tool_call\n{ROME}\n``` ```tool_call\n{OSLO}\n```",
    "second opener without closer": f"```tool_call\n{ROME}\n```tool_call\n{OSLO}\n```",
    "one-line blocks": f"```tool_call {ROME}```\n```tool_call {OSLO}```",
    "blocks in a row": f"{block(ROME)}\n{block(OSLO)}",
    "blank line between blocks": f"{block(ROME)}\n\n{block(OSLO)}\n",
    "CRLF": f"{block(ROME)}\n{block(OSLO)}\n".replace("\n", "\r\n"),
    "quoted blocks": "\n".join("> " + line for line in f"{block(ROME)}\n{block(OSLO)}".split("\n")),
    "array": block(f"[{ROME}, {OSLO}]"),
    "array in a json fence": block(f"[{ROME}, {OSLO}]", label="json"),
    "lines in a json fence": block(f"{ROME}\n{OSLO}", label="json"),
    **{f"joined by {glue!r}": block(ROME + glue + OSLO) for glue in ("\n", "\n\n", ",\n", "; ", " ", "")},
}


@pytest.mark.parametrize("text", TWO_CALLS.values(), ids=TWO_CALLS)
def test_two_calls_are_read_in_any_arrangement(text: str) -> None:
    reply = read(text, tools=TOOLS)
    assert [ROME_CALL, OSLO_CALL] == calls(reply)
    assert [] == words((reply.content or "").replace(">", ""))


@pytest.mark.parametrize(
    "body",
    [
        f"Here is the call:\n{ROME}",
        f"{ROME}\nThat was the call.",
        f"First:\n{ROME}\nThere.",
        *(f"{ROME}\n{words_after}" for words_after in ("and then: a, b; {c} ] } x", "Costs [5, 10), {sic}; see (a).", '{"note": "x, y"}, ok?')),
        *(f"{value}\n{ROME}" for value in ('[{"x": 1}, {"y": 2}]', '[{"x": 1]}}', "[1, 2]", '{"x": {"y": [1]}}')),
    ],
)  # fmt: skip
def test_text_beside_a_call_in_its_block_is_content(body: str) -> None:
    reply = read(f"Hello\n{block(body)}\nBye", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert ["Hello", *words(body.replace(ROME, "")), "Bye"] == words(reply.content)


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "get_weather", "arguments": {"city": "Rome"}\n\nI will now wait.',
        '{"name": "get_weather", "arguments": {"city": "Rome"}, I will now wait.',
        '[{"name": "get_weather", "arguments": {"city": "Rome"}}\n\nI will now wait.',
        '{"name": "get_weather", "arguments": {"city": "Rome"}}]]\n\nI will now wait.',
    ],
)
@pytest.mark.parametrize("closer", ["", "\n```"], ids=["unclosed", "closed"])
def test_words_after_a_call_with_wrong_brackets_are_content(body: str, closer: str) -> None:
    reply = read(f"Hello\n```tool_call\n{body}{closer}", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert "I will now wait." in (reply.content or "")
    assert "get_weather" not in (reply.content or "")


def test_unescaped_quotes_in_arguments_give_a_call_or_text() -> None:
    text = block('{"name": "get_weather", "arguments": "{"city": "Rome"}"}')
    reply = read(text, tools=TOOLS)
    assert (calls(reply), reply.content) in (([ROME_CALL], None), ([], text))


@pytest.mark.parametrize(
    "text",
    [
        'Let me look.\n```tool_call\n{"name": "get_weather", "arguments": {"city":"Ro',
        'Let me look.\n```tool_call\n{"name": "get_weather", "arguments": {"city"',
        'Let me look.\n```tool_call\n{"name": "get_weather", "arguments": {',
        'Let me look.\n```tool_call\n{"name": "get_weather", "argum',
    ],
)
def test_truncated_call_is_incomplete_and_keeps_its_text(text: str) -> None:
    reply = read(text, tools=TOOLS)
    assert ([], "Let me look.") == (calls(reply), (reply.content or "").strip())
    (cut,) = reply.incomplete
    assert cut.name in ("get_weather", "")
    assert cut.raw == text[text.index("```") :]


def test_truncated_call_spares_the_complete_one_before_it() -> None:
    reply = read(f'{block(ROME)}\n```tool_call\n{{"name": "search", "arguments": {{"q": "cut o', tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert ["search"] == [cut.name for cut in reply.incomplete]
    assert '"q": "cut o' in reply.incomplete[0].raw


@pytest.mark.parametrize("tail", ["", "\n", "\n``", "\n`"])
def test_call_without_its_closer_at_the_end_is_complete(tail: str) -> None:
    reply = read(f"```tool_call\n{ROME}{tail}", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert not (reply.content or "").strip(" \n`")


def test_name_comes_before_the_arguments_which_are_streamed_as_written() -> None:
    parser = patchbay.StreamParser(tools=TOOLS)
    head = 'Writing.\n```tool_call\n{"name": "write_file", "arguments": {"path": "a.txt", "content": "'
    seen = parser.feed(head + "x" * 1000)
    assert ["write_file"] == [event.name for event in seen if isinstance(event, events.CallStart)]
    assert "x" * 900 in "".join(event.text for event in seen if isinstance(event, events.CallArguments))
    more = parser.feed("y" * 1000)
    assert "y" * 900 in "".join(event.text for event in more if isinstance(event, events.CallArguments))
    assert not [event for event in seen + more if isinstance(event, events.CallEnd)]


def test_streamed_arguments_are_the_arguments_of_the_call() -> None:
    body = '{"name": "write_file", "arguments": {"path": "a.txt", "content": "one\\ntwo \\u00e9"}}'
    parser = patchbay.StreamParser(tools=TOOLS)
    seen = [event for char in f"Writing.\n```tool_call\n{body}\n```\nBye" for event in parser.feed(char)] + parser.close()
    (call,) = parser.reply.tool_calls
    assert call.raw_arguments == "".join(event.text for event in seen if isinstance(event, events.CallArguments))
    assert [call] == [event.call for event in seen if isinstance(event, events.CallEnd)]
    starts = [(event.index, event.id, event.name) for event in seen if isinstance(event, events.CallStart)]
    assert [(0, call.id, call.name)] == starts
