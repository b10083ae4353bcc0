"""Defects 4, 6, 15, 28: arguments reach the caller as the model wrote them, whatever is in them and however long they are."""

from __future__ import annotations

import json

import pytest

import patchbay

from .reading import TOOLS, Read, block, calls, words

GLOBS = '{"p":"src/**/*.ts","q":"lib/**/*.js",}'
COMMAS = '{"s":"a,]b, }c",}'


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (GLOBS, {"p": "src/**/*.ts", "q": "lib/**/*.js"}),
        (COMMAS, {"s": "a,]b, }c"}),
        ('{"s":"see http://x.y // not a comment",}', {"s": "see http://x.y // not a comment"}),
        ('{"s":" // ",}', {"s": " // "}),
        ('{"s":"/* kept */", /* gone */ "p":"x"}', {"s": "/* kept */", "p": "x"}),
        ('{"s":"True, None and \'quotes\'","p":True}', {"s": "True, None and 'quotes'", "p": True}),
        ('{"s":"{\\"a\\":1,}",}', {"s": '{"a":1,}'}),
        ("{'s':'say \"hi\", it\\'s',}", {"s": 'say "hi", it\'s'}),
    ],
)
def test_d04_repair_never_edits_string_contents(read: Read, written: str, expected: dict[str, object]) -> None:
    reply = read(block(f'{{"name": "glob", "arguments": {written}}}'), tools=TOOLS)
    assert [("glob", expected)] == calls(reply)
    assert expected == json.loads(reply.tool_calls[0].raw_arguments)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (
            '{"path": "a.md", "content": """# T\n```python\nx = "1"\n```\n"""}',
            {"path": "a.md", "content": '# T\n```python\nx = "1"\n```\n'},
        ),
        ('{"path": "a.md", "content": "say "hi" now"}', {"path": "a.md", "content": 'say "hi" now'}),
    ],
    ids=["triple quotes", "quotes that are not escaped"],
)
def test_d04_repair_never_makes_up_arguments(read: Read, written: str, meant: dict[str, object]) -> None:
    """A call with other arguments than those meant would run: it is read as it was meant, or it is not a call."""
    reply = read(block(f'{{"name": "write_file", "arguments": {written}}}'), tools=TOOLS)
    assert calls(reply) in ([("write_file", meant)], [])


@pytest.mark.parametrize(
    "written",
    [
        '{"n": 12345678901234567890}',
        '{"n": 1234567890123456789012345678901234567890}',
        '{"f": 1.0}',
        '{"e": 1e400}',
        '{"b":1,"10":2,"2":3}',
        '{"z": 0.10, "e": 1E+2, "m": -0, "u": "\\u00e9\\/"}',
        '{ "spaced" :  [ 1 ,2 ] }',
        '{\n  "city": "Rome",\n  "city": "Oslo"\n}',
        "{}",
        '{"e":"caf\u00e9 \U0001f600"}',
    ],
)
def test_d06_raw_arguments_are_the_bytes_of_the_model(read: Read, written: str) -> None:
    reply = read(block(f'{{"name": "set_opts", "arguments": {written}}}'), tools=TOOLS)
    assert [written] == [call.raw_arguments for call in reply.tool_calls]


def test_d06_big_integers_keep_their_digits_when_read(read: Read) -> None:
    reply = read(block('{"name": "set_opts", "arguments": {"n": 12345678901234567890}}'), tools=TOOLS)
    assert [("set_opts", {"n": 12345678901234567890})] == calls(reply)


@pytest.mark.parametrize("written", ['{"n": 12345678901234567890,}', "{'n': 12345678901234567890}", '{"n": 12345678901234567890'])
def test_d06_repair_keeps_digits_too(read: Read, written: str) -> None:
    reply = read(block(f'{{"name": "set_opts", "arguments": {written}}}'), tools=TOOLS)
    assert [("set_opts", {"n": 12345678901234567890})] == calls(reply)
    assert "12345678901234567890" in reply.tool_calls[0].raw_arguments


def test_d06_repair_keeps_floats_and_key_order(read: Read) -> None:
    reply = read(block('{"name": "set_opts", "arguments": {"b":1.0,"10":2.50,"2":1e400,}}'), tools=TOOLS)
    raw = reply.tool_calls[0].raw_arguments
    assert raw.index('"b"') < raw.index('"10"') < raw.index('"2"')
    assert "1.0" in raw
    assert "2.50" in raw
    assert "1e400" in raw


def test_d06_arguments_given_as_a_json_string_are_its_text(read: Read) -> None:
    inner = '{"b":1.0,"10":12345678901234567890}'
    reply = read(block(json.dumps({"name": "set_opts", "arguments": inner})), tools=TOOLS)
    assert [inner] == [call.raw_arguments for call in reply.tool_calls]


@pytest.mark.parametrize(
    "absent", ['{"name": "set_opts"}', '{"name": "set_opts", "arguments": null}', '{"name": "set_opts", "arguments": ""}']
)
def test_d06_absent_arguments_are_an_empty_object(read: Read, absent: str) -> None:
    reply = read(block(absent), tools=TOOLS)
    assert [("set_opts", "{}")] == [(call.name, call.raw_arguments) for call in reply.tool_calls]


@pytest.mark.parametrize("size", [None, 4096, 1 << 20])
def test_d15_a_call_of_more_than_a_mebibyte_is_one_call(size: int | None) -> None:
    content = "line of text\n" * 90_000
    text = "Writing.\n" + block(json.dumps({"name": "write_file", "arguments": {"path": "a", "content": content}})) + "\nDone."
    assert len(text) > 1_100_000
    if size is None:
        reply = patchbay.parse(text, tools=TOOLS)
    else:
        parser = patchbay.StreamParser(tools=TOOLS)
        for at in range(0, len(text), size):
            parser.feed(text[at : at + size])
        parser.close()
        reply = parser.reply
    assert [("write_file", {"path": "a", "content": content})] == calls(reply)
    assert ["Writing.", "Done."] == (reply.content or "").split()


@pytest.mark.parametrize("nest", [("[", "]"), ('{"a":', "}")], ids=["arrays", "objects"])
def test_d28_arguments_nested_5000_deep_are_kept_and_nothing_raises(read: Read, nest: tuple[str, str]) -> None:
    deep = '{"v": ' + nest[0] * 5000 + "1" + nest[1] * 5000 + "}"
    reply = read(f'Deep:\n{block(f"""{{"name": "set_opts", "arguments": {deep}}}""")}\nDone.', tools=TOOLS)
    assert [("set_opts", deep)] == [(call.name, call.raw_arguments) for call in reply.tool_calls]
    assert ["Deep:", "Done."] == (reply.content or "").split()
    assert isinstance(reply.tool_calls[0].arguments, dict)


def test_d28_deep_nesting_that_is_never_closed_loses_nothing(read: Read) -> None:
    text = "Deep:\n```tool_call\n" + '{"name": "set_opts", "arguments": {"v": ' + "[" * 5000
    reply = read(text, tools=TOOLS)
    assert [] == calls(reply)
    assert words(text) == words((reply.content or "") + "\n" + "".join(cut.raw for cut in reply.incomplete))


def test_d28_deep_nesting_that_needs_repair_does_not_raise(read: Read) -> None:
    deep = "[" * 5000 + "1," + "]" * 5000
    text = block(f'{{"name": "set_opts", "arguments": {{"v": {deep}}}}}')
    reply = read(text, tools=TOOLS)
    assert reply.tool_calls or reply.content == text
