"""Arguments of a fenced call reach the caller as the model wrote them, with any content and of any length."""

from __future__ import annotations

import json

import pytest

import patchbay
from support.fenced_texts import TOOLS, block, calls, words

from .cuts import pieces_of, read

FENCE_LINES = [
    "```\ncode\n```",
    "```python\nx = 1\n```\n",
    "~~~\n```",
    "\n```\n",
    "```tool_call\nquoted\n```",
    "one\ntwo\n\tthree",
]


@pytest.mark.parametrize("inner", FENCE_LINES)
def test_lines_of_a_string_do_not_end_the_call(inner: str) -> None:
    body = '{"name": "write_file", "arguments": {"path": "a.md", "content": "' + inner + '"}}'
    reply = read(f"Sure.\n{block(body)}\nBye", tools=TOOLS)
    assert [("write_file", {"path": "a.md", "content": inner})] == calls(reply)
    assert ["Sure.", "Bye"] == words(reply.content)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"p":"src/**/*.ts","q":"lib/**/*.js",}', {"p": "src/**/*.ts", "q": "lib/**/*.js"}),
        ('{"s":"a,]b, }c",}', {"s": "a,]b, }c"}),
        ('{"s":"see http://x.y // not a comment",}', {"s": "see http://x.y // not a comment"}),
        ('{"s":" // ",}', {"s": " // "}),
        ('{"s":"/* kept */", /* gone */ "p":"x"}', {"s": "/* kept */", "p": "x"}),
        ('{"s":"True, None and \'quotes\'","p":True,"q":None,}', {"s": "True, None and 'quotes'", "p": True, "q": None}),
        ('{"s":"{\\"a\\":1,}",}', {"s": '{"a":1,}'}),
        ("{'s':'say \"hi\", it\\'s',}", {"s": 'say "hi", it\'s'}),
    ],
)
def test_repair_keeps_string_contents(written: str, expected: dict[str, object]) -> None:
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
    ids=["triple quotes", "unescaped quotes"],
)
def test_repair_invents_no_arguments(written: str, meant: dict[str, object]) -> None:
    """A call with other arguments than those meant would run: it is read as it was meant, or it is prose."""
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
        '{"name": "Alice"}',
    ],
)
def test_raw_arguments_are_the_text_of_the_model(written: str) -> None:
    for arguments in (written, json.dumps(written)):
        reply = read(block(f'{{"name": "set_opts", "arguments": {arguments}}}'), tools=TOOLS)
        assert [written] == [call.raw_arguments for call in reply.tool_calls]


@pytest.mark.parametrize("end", ["}", ",}", ""])
def test_big_integers_keep_their_digits(end: str) -> None:
    reply = read(block('{"name": "set_opts", "arguments": {"n": 12345678901234567890' + end), tools=TOOLS)
    assert [("set_opts", {"n": 12345678901234567890})] == calls(reply)
    assert "12345678901234567890" in reply.tool_calls[0].raw_arguments


def test_repair_keeps_floats_and_key_order() -> None:
    reply = read(block('{"name": "set_opts", "arguments": {"b":1.0,"10":2.50,"2":1e400,}}'), tools=TOOLS)
    raw = reply.tool_calls[0].raw_arguments
    assert raw.index('"b"') < raw.index("1.0") < raw.index('"10"') < raw.index("2.50") < raw.index('"2"') < raw.index("1e400")


@pytest.mark.parametrize(
    "absent", ['{"name": "set_opts"}', '{"name": "set_opts", "arguments": null}', '{"name": "set_opts", "arguments": ""}']
)
def test_absent_arguments_are_an_empty_object(absent: str) -> None:
    reply = read(block(absent), tools=TOOLS)
    assert [("set_opts", "{}")] == [(call.name, call.raw_arguments) for call in reply.tool_calls]


@pytest.mark.parametrize("size", [4096, 1 << 21])
def test_call_of_more_than_a_mebibyte_is_one_call(size: int) -> None:
    content = "line of text\n" * 90_000
    text = "Writing.\n" + block(json.dumps({"name": "write_file", "arguments": {"path": "a", "content": content}})) + "\nDone."
    assert len(text) > 1_100_000
    parser = patchbay.StreamParser(tools=TOOLS)
    for piece in pieces_of(text, size):
        parser.feed(piece)
    parser.close()
    assert [("write_file", {"path": "a", "content": content})] == calls(parser.reply)
    assert ["Writing.", "Done."] == words(parser.reply.content)


@pytest.mark.parametrize("nest", [("[", "]"), ('{"a":', "}")], ids=["arrays", "objects"])
def test_arguments_nested_5000_deep_are_kept(nest: tuple[str, str]) -> None:
    deep = '{"v": ' + nest[0] * 5000 + "1" + nest[1] * 5000 + "}"
    reply = read(f'Deep:\n{block(f"""{{"name": "set_opts", "arguments": {deep}}}""")}\nDone.', tools=TOOLS)
    assert [("set_opts", deep)] == [(call.name, call.raw_arguments) for call in reply.tool_calls]
    assert ["Deep:", "Done."] == words(reply.content)
    assert isinstance(reply.tool_calls[0].arguments, dict)


def test_deep_nesting_without_an_end_loses_nothing() -> None:
    text = "Deep:\n```tool_call\n" + '{"name": "set_opts", "arguments": {"v": ' + "[" * 5000
    reply = read(text, tools=TOOLS)
    assert [] == calls(reply)
    assert words(text) == words((reply.content or "") + "\n" + "".join(cut.raw for cut in reply.incomplete))


def test_deep_nesting_that_needs_repair_does_not_raise() -> None:
    deep = "[" * 5000 + "1," + "]" * 5000
    text = block(f'{{"name": "set_opts", "arguments": {{"v": {deep}}}}}')
    reply = read(text, tools=TOOLS)
    assert reply.tool_calls or reply.content == text
