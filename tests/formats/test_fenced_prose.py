"""Texts that resemble fenced calls but are prose: the content is verbatim, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest

import patchbay
from support.fenced_texts import OSLO, OSLO_CALL, ROME, ROME_CALL, TOOLS, block, calls, words

from .cuts import read

UNKNOWN = '{"name": "delete_everything", "arguments": {"sure": [1, 2]}}'
PACKAGE = '{\n  "name": "my-app",\n  "version": "1.0.0",\n  "dependencies": {"left-pad": "1"}\n}'

PLAIN = {
    "indented": "    indented = 1\n    more = 2\n",
    "blank lines around": "\n\n  leading and trailing  \n\n",
    "tab and CRLF": "\ttab\r\nCRLF\r\n",
    "trailing blanks": "ends with blanks   ",
    "only blanks": "   ",
    "only a line end": "\n",
    "blank lines inside": "a\n\n\n\nb",
    "odd blanks": "\u00a0\u2003odd blanks\u3000",
    "NUL and a lone surrogate": "\x00NUL and \ud800 a lone surrogate",
    "code fence": "```python\n  x\n```\n",
    "tilde fence": "~~~\n~~~",
    "two ticks": "``",
    "three ticks": "```",
    "half a label": "```tool_cal",
    "half a tag": "<thin",
    "half a quoted fence": "> > > ```",
}
"""Text without anything that could be a call."""

QUOTED = {
    "4-tick markdown fence": f"Write this:\n\n````markdown\n{block(ROME)}\n````\n\nDone.",
    "4-tick anonymous fence": f"Write this:\n\n````\n{block(ROME)}\n````\n\nDone.",
    "3-tick md fence": f"Write this:\n\n```md\nAsk so:\n{block(ROME)}\n```\n\nDone.",
    "html fence": f"The page said:\n\n```html\n<p>hi</p>\n{block(ROME)}\n</p>\n```\n",
    "tilde markdown fence": f"Write this:\n\n~~~markdown\n{block(ROME)}\n~~~\n\nDone.",
    "tilde text fence around tildes": f"Write this:\n\n~~~~text\n{block(ROME, fence='~~~')}\n~~~~\n\nDone.",
    "anonymous fence of 5 ticks with a json block": f"`````\n{block(ROME, label='json')}\n`````",
    "unclosed 4-tick fence": f"````markdown\n{block(ROME)}\n",
}
"""A call in a fence that quotes it."""

RECORDS = {
    f"{name} in {label or 'no'} fence": f"The record:\n\n{block(record, label=label)}\n\nAnything else?"
    for label in ("json", "")
    for name, record in {
        "person": '{"name":"Alice","age":30}',
        "package": PACKAGE,
        "list": '[{"name":"Alice","age":30}]',
        "name": '{"name": "Alice"}',
    }.items()
}
"""A record with a name that is not the name of a tool."""

NOT_CALLS = {
    "record named like a tool": block('{"name": "get_weather", "version": "2.1", "description": "a function"}', label="json"),
    **{
        f"{name} in {label or 'no'} fence": f"See:\n{block(body, label=label)}\nOK?"
        for label in ("json", "")
        for name, body in {
            "words before a call": f"For example:\n{ROME}",
            "words after a call": f"{ROME}\nwould be a call",
            "call and record": f'[{ROME}, {{"name": "Alice"}}]',
            "call inside an object": f'{{"example": {ROME}}}',
        }.items()
    },
    **{
        f"unknown tool in {label or 'no'} fence": f"Hm.\n{block(UNKNOWN, label=label)}\nBye"
        for label in ("tool_call", "json", "")
    },
    **{
        f"tool_call block with {name}": f"Hello\n{block(body)}\nBye"
        for name, body in {
            "invalid JSON": '{"name": a}',
            "another object": '{"foo":1}',
            "an empty object": "{}",
            "prose": "I would call the weather tool here.",
            "an empty name": '{"name": "", "arguments": {}}',
            "a number for a name": '{"name": 7, "arguments": {}}',
            "a scalar": "42",
            "an array of scalars": "[1, 2]",
            "a blank line": "",
        }.items()
    },
    "empty block": "Hello\n```tool_call\n```\nBye",
    "only an empty block": "```tool_call\n```",
    "call in inline code": f"Call `{ROME}` next.",
    "call in inline code after a label": f"`tool_call` blocks look like `{ROME}`.",
    "call in a sentence": f"I wrote {ROME}.",
}


@pytest.mark.parametrize("text", (PLAIN | QUOTED | RECORDS | NOT_CALLS).values(), ids=PLAIN | QUOTED | RECORDS | NOT_CALLS)
def test_text_without_a_call_is_content_verbatim(text: str) -> None:
    reply = read(text, tools=TOOLS)
    assert (text, None, (), ()) == (reply.content, reply.reasoning, reply.tool_calls, reply.incomplete)


@pytest.mark.parametrize("text", (QUOTED | RECORDS).values(), ids=QUOTED | RECORDS)
def test_quotes_and_records_are_content_without_known_tools(text: str) -> None:
    reply = read(text, tools=None)
    assert ([], text) == (calls(reply), reply.content)


def test_empty_text_has_no_content() -> None:
    assert read("", tools=TOOLS).content is None


def test_unknown_tools_are_kept_in_labelled_blocks_on_request() -> None:
    reply = read(block(UNKNOWN), tools=TOOLS, unknown_tools="keep")
    assert [("delete_everything", {"sure": [1, 2]})] == calls(reply)
    quoted = block(UNKNOWN, label="json")
    assert quoted == read(quoted, tools=TOOLS, unknown_tools="keep").content


@pytest.mark.parametrize(
    "text",
    [
        f"{block(UNKNOWN)}\n{block(ROME)}\nBye",
        *(f"{block(body)}\nBye" for body in (f"{ROME}\n{UNKNOWN}", f"{UNKNOWN}\n{ROME}", f"[{ROME}, {UNKNOWN}]", f"[{UNKNOWN}, {ROME}]")),
    ],
    ids=["blocks", "lines, known first", "lines, unknown first", "array, known first", "array, unknown first"],
)  # fmt: skip
def test_unknown_call_beside_a_known_one_is_content(text: str) -> None:
    reply = read(text, tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert UNKNOWN in (reply.content or "")
    assert "get_weather" not in (reply.content or "")


@pytest.mark.parametrize("label", ["tool_call", "json", ""])
def test_any_well_formed_call_counts_without_known_tools(label: str) -> None:
    assert [ROME_CALL] == calls(read(block(ROME, label=label), tools=None))


def test_repeated_contract_holds_no_call() -> None:
    for options in ({"include_examples": False}, {"include_examples": True}):
        contract = patchbay.render_contract([*TOOLS[1:]], **options)
        names = [call.name for call in read(contract, tools=None).tool_calls]
        assert not [name for name in names if "<" in name or " " in name]
    contract = patchbay.render_contract(TOOLS, include_examples=False)
    reply = read(contract, tools=TOOLS)
    assert ([], contract) == (calls(reply), reply.content)


BEFORE = {
    "quoted call": f"````markdown\n{block(ROME)}\n````\n",
    "empty fence": "```js\n```\nThen",
    "unclosed code fence": "```bash\nls -l\n",
    "closer glued to text": "```js\nlet a = 1;\n```Then",
    "inline triple ticks at a line start": "```x``` is inline",
    "closed fence": "```python\nprint(1)\n```\nThen",
    "tilde fence": "~~~\nx\n~~~\nThen",
    "lone ticks": "Use ``` to open a fence.",
    "inline code": "Use `x` and ``y``.",
    "empty block": "```tool_call\n```",
    "block with a blank line": "```tool_call\n\n```",
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_call_after_another_fence_is_found(before: str) -> None:
    reply = read(f"{before}\n{block(OSLO)}\nBye", tools=TOOLS)
    assert [OSLO_CALL] == calls(reply)
    assert [*words(before), "Bye"] == words(reply.content)


def test_fence_inside_a_tag_is_one_call() -> None:
    assert [ROME_CALL] == calls(read(f"<get_weather>\n{block(ROME)}\n</get_weather>", tools=TOOLS))


@pytest.mark.parametrize(
    "text",
    [
        "<get_weather>\nRome and everything after it",
        'Here:\n<get_weather>\n{"city": "Ro\nmore prose\n\nand more',
        f"```xml\n<get_weather>\n{ROME}\n</get_weather>\n```\n",
        "Use <get_weather city='Rome'/> or <get_weather><city>Rome</city></get_weather> as you like.",
    ],
)
def test_tags_without_a_call_lose_no_text(text: str) -> None:
    reply = read(text, tools=TOOLS)
    assert [] == calls(reply)
    assert words(text) == words((reply.content or "") + "".join(cut.raw for cut in reply.incomplete))


def test_prose_is_streamed_at_once() -> None:
    parser = patchbay.StreamParser(tools=TOOLS)
    deltas: list[Any] = parser.feed("Hello there, this is prose")
    assert ["Hello", "there,", "this", "is"] == words("".join(delta.text for delta in deltas))[:4]
