"""Defect 1: a tagged block that is hard or impossible to read. Its call is found or its text is kept, in both modes."""

from __future__ import annotations

import pytest

from .reading import OSLO_CALL, ROME, ROME_CALL, TOOLS, Read, block, calls, words

UNREADABLE = {
    "value that is no JSON": '{"name": a}',
    "object that is no call": '{"foo":1}',
    "empty object": "{}",
    "only prose": "I would call the weather tool here.",
    "empty string name": '{"name": "", "arguments": {}}',
    "name that is no string": '{"name": 7, "arguments": {}}',
    "scalar": "42",
    "array of scalars": "[1, 2]",
}

READABLE = {
    "single quotes": "{'name': 'get_weather', 'arguments': {'city': 'Rome'}}",
    "one brace missing": '{"name": "get_weather", "arguments": {"city": "Rome"}',
    "one brace too many": '{"name": "get_weather", "arguments": {"city": "Rome"}}}',
    "trailing commas": '{"name": "get_weather", "arguments": {"city": "Rome",},}',
    "comments": '{"name": "get_weather", // the tool\n "arguments": {/* where */ "city": "Rome"}}',
    "tool for name": '{"tool": "get_weather", "arguments": {"city": "Rome"}}',
    "OpenAI envelope": '{"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}',
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
    "array": f"[{ROME}]",
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
def test_d01_a_block_that_holds_no_call_stays_in_the_content_verbatim(read: Read, body: str) -> None:
    text = f"Hello\n{block(body)}\nBye"
    reply = read(text, tools=TOOLS)
    assert [] == calls(reply)
    assert text == reply.content


def test_d01_an_empty_block_stays_in_the_content_verbatim(read: Read) -> None:
    for text in ("Hello\n```tool_call\n```\nBye", "Hello\n```tool_call\n\n```\nBye", "```tool_call\n```"):
        reply = read(text, tools=TOOLS)
        assert [] == calls(reply)
        assert text == reply.content


@pytest.mark.parametrize("body", READABLE.values(), ids=READABLE)
def test_d01_a_block_with_a_readable_call_is_that_call(read: Read, body: str) -> None:
    reply = read(f"Hello\n{block(body)}\nBye", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert ["Hello", "Bye"] == words(reply.content)


@pytest.mark.parametrize("body", ["Here is the call:\n" + ROME, ROME + "\nThat was the call.", "First:\n" + ROME + "\nThere."])
def test_d01_prose_around_the_json_in_a_block_is_content(read: Read, body: str) -> None:
    reply = read(f"Hello\n{block(body)}\nBye", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert ["Hello", *words(body.replace(ROME, "")), "Bye"] == words(reply.content)


def test_d01_python_literals_are_read(read: Read) -> None:
    body = '{"name": "set_opts", "arguments": {"a": True, "b": False, "c": None}}'
    reply = read(block(body), tools=TOOLS)
    assert [("set_opts", {"a": True, "b": False, "c": None})] == calls(reply)


def test_d01_a_raw_newline_inside_a_string_is_read(read: Read) -> None:
    body = '{"name": "write_file", "arguments": {"path": "a.txt", "content": "one\ntwo\n\tthree"}}'
    reply = read(block(body), tools=TOOLS)
    assert [("write_file", {"path": "a.txt", "content": "one\ntwo\n\tthree"})] == calls(reply)


@pytest.mark.parametrize("glue", ["\n", "\n\n", ",\n", "; ", " ", ""], ids=repr)
def test_d01_json_lines_in_one_block_are_several_calls(read: Read, glue: str) -> None:
    body = ROME + glue + ROME.replace("Rome", "Oslo")
    reply = read(f"Hello\n{block(body)}\nBye", tools=TOOLS)
    assert [ROME_CALL, OSLO_CALL] == calls(reply)
    assert ["Hello", "Bye"] == words(reply.content)


def test_d01_an_array_gives_one_call_for_each_item(read: Read) -> None:
    body = f"[{ROME}, {ROME.replace('Rome', 'Oslo')}]"
    assert [ROME_CALL, OSLO_CALL] == calls(read(block(body), tools=TOOLS))


@pytest.mark.parametrize(
    "text",
    [
        'Let me look.\n```tool_call\n{"name": "get_weather", "arguments": {"city":"Ro',
        'Let me look.\n```tool_call\n{"name": "get_weather", "arguments": {"city"',
        'Let me look.\n```tool_call\n{"name": "get_weather", "arguments": {',
        'Let me look.\n```tool_call\n{"name": "get_weather", "argum',
    ],
)
def test_d01_a_call_that_was_cut_off_is_incomplete_and_its_raw_text_is_kept(read: Read, text: str) -> None:
    reply = read(text, tools=TOOLS)
    assert [] == calls(reply)
    assert "Let me look." == (reply.content or "").strip()
    (cut,) = reply.incomplete
    assert cut.name in ("get_weather", "")
    assert cut.raw == text[text.index("```") :]


def test_d01_a_cut_off_call_after_a_complete_one_spares_the_complete_one(read: Read) -> None:
    reply = read(f'{block(ROME)}\n```tool_call\n{{"name": "search", "arguments": {{"q": "cut o', tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert ["search"] == [cut.name for cut in reply.incomplete]
    assert '"q": "cut o' in reply.incomplete[0].raw


def test_d01_a_block_whose_closer_is_missing_at_the_end_is_a_complete_call(read: Read) -> None:
    for tail in ("", "\n", "\n``", "\n`"):
        reply = read(f"```tool_call\n{ROME}{tail}", tools=TOOLS)
        assert [ROME_CALL] == calls(reply), tail
        assert not (reply.content or "").strip(" \n`"), tail


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
def test_d01_words_after_a_call_that_lacks_a_bracket_are_kept_and_the_call_is_not_shown(
    read: Read, body: str, closer: str
) -> None:
    reply = read(f"Hello\n```tool_call\n{body}{closer}", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert "I will now wait." in (reply.content or "")
    assert "get_weather" not in (reply.content or "")


def test_d01_arguments_with_quotes_that_are_not_escaped_are_read_or_shown_never_both(read: Read) -> None:
    text = block('{"name": "get_weather", "arguments": "{"city": "Rome"}"}')
    reply = read(text, tools=TOOLS)
    assert ([ROME_CALL], None) == (calls(reply), reply.content) or ([], text) == (calls(reply), reply.content)


@pytest.mark.parametrize("words_after", ["and then: a, b; {c} ] } x", "Costs [5, 10), {sic}; see (a).", '{"note": "x, y"}, ok?'])
def test_d01_words_after_a_call_in_its_block_keep_their_punctuation(read: Read, words_after: str) -> None:
    reply = read(f"Hello\n{block(ROME + chr(10) + words_after)}\nBye", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert words_after in (reply.content or "")


@pytest.mark.parametrize("value", ['[{"x": 1}, {"y": 2}]', '[{"x": 1]}}', "[1, 2]", '{"x": {"y": [1]}}'])
def test_d01_a_value_before_a_call_in_its_block_is_content_once_and_verbatim(read: Read, value: str) -> None:
    reply = read(f"Hello\n{block(value + chr(10) + ROME)}\nBye", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert ["Hello", *words(value), "Bye"] == words(reply.content)
