"""Defects 8, 9, 10, 16: what looks like a call and is none, and calls next to fences that are odd."""

from __future__ import annotations

import pytest

import patchbay

from .reading import ROME, ROME_CALL, TOOLS, Read, block, calls, words

PACKAGE = '{\n  "name": "my-app",\n  "version": "1.0.0",\n  "dependencies": {"left-pad": "1"}\n}'


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "any"])
@pytest.mark.parametrize("label", ["json", ""])
@pytest.mark.parametrize("record", ['{"name":"Alice","age":30}', PACKAGE, '[{"name":"Alice","age":30}]', '{"name": "Alice"}'])
def test_d08_a_record_with_a_name_in_a_fence_is_prose(read: Read, record: str, label: str, tools: object) -> None:
    text = f"The record:\n\n{block(record, label=label)}\n\nAnything else?"
    reply = read(text, tools=tools)
    assert [] == calls(reply)
    assert text == reply.content


def test_d08_a_record_named_like_a_tool_in_a_json_fence_is_prose(read: Read) -> None:
    text = block('{"name": "get_weather", "version": "2.1", "description": "a function"}', label="json")
    reply = read(text, tools=TOOLS)
    assert [] == calls(reply)
    assert text == reply.content


@pytest.mark.parametrize("label", ["json", ""])
def test_d08_a_json_fence_with_more_than_calls_in_it_is_prose(read: Read, label: str) -> None:
    for body in (f"For example:\n{ROME}", f"{ROME}\nwould be a call", f'[{ROME}, {{"name": "Alice"}}]', f'{{"example": {ROME}}}'):
        text = f"See:\n{block(body, label=label)}\nOK?"
        reply = read(text, tools=TOOLS)
        assert [] == calls(reply), body
        assert text == reply.content


@pytest.mark.parametrize("label", ["tool_call", "json", ""])
def test_d08_a_name_that_is_no_tool_is_prose(read: Read, label: str) -> None:
    text = "Hm.\n" + block('{"name": "delete_everything", "arguments": {"sure": true}}', label=label) + "\nBye"
    reply = read(text, tools=TOOLS)
    assert [] == calls(reply)
    assert text == reply.content


def test_d08_unknown_names_pass_in_tagged_blocks_only_when_asked_for(read: Read) -> None:
    body = '{"name": "delete_everything", "arguments": {"sure": true}}'
    reply = read(block(body), tools=TOOLS, unknown_tools="keep")
    assert [("delete_everything", {"sure": True})] == calls(reply)
    quoted = block(body, label="json")
    assert quoted == read(quoted, tools=TOOLS, unknown_tools="keep").content


def test_d08_a_known_call_survives_an_unknown_one_in_the_same_text(read: Read) -> None:
    unknown = block('{"name": "delete_everything", "arguments": {}}')
    reply = read(f"{unknown}\n{block(ROME)}\n", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert unknown in (reply.content or "")


UNKNOWN = '{"name": "delete_everything", "arguments": {"sure": [1, 2]}}'


@pytest.mark.parametrize(
    "body",
    [f"{ROME}\n{UNKNOWN}", f"{UNKNOWN}\n{ROME}", f"[{ROME}, {UNKNOWN}]", f"[{UNKNOWN}, {ROME}]"],
    ids=["lines, known first", "lines, unknown first", "array, known first", "array, unknown first"],
)
def test_d08_a_known_and_an_unknown_name_in_one_block_are_a_call_and_prose(read: Read, body: str) -> None:
    reply = read(f"{block(body)}\nBye", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert UNKNOWN in (reply.content or "")
    assert "get_weather" not in (reply.content or "")


def test_d08_with_no_tools_given_a_well_formed_call_counts(read: Read) -> None:
    for label in ("tool_call", "json", ""):
        assert [ROME_CALL] == calls(read(block(ROME, label=label), tools=None))


def test_d08_the_contract_repeated_by_a_model_is_no_call(read: Read) -> None:
    for options in ({"include_examples": False}, {"include_examples": True}):
        contract = patchbay.render_contract([*TOOLS[1:]], **options)
        names = [call.name for call in read(contract, tools=None).tool_calls]
        assert not [name for name in names if "<" in name or " " in name]
    contract = patchbay.render_contract(TOOLS, include_examples=False)
    reply = read(contract, tools=TOOLS)
    assert [] == calls(reply)
    assert contract == reply.content


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


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "any"])
@pytest.mark.parametrize("text", QUOTED.values(), ids=QUOTED)
def test_d09_a_block_quoted_in_another_fence_is_text(read: Read, text: str, tools: object) -> None:
    reply = read(text, tools=tools)
    assert [] == calls(reply)
    assert text == reply.content


def test_d09_a_call_after_the_quoting_fence_is_a_call(read: Read) -> None:
    quoted = f"````markdown\n{block(ROME)}\n````"
    reply = read(f"{quoted}\n\n{block(ROME.replace('Rome', 'Oslo'))}\n", tools=TOOLS)
    assert [("get_weather", {"city": "Oslo"})] == calls(reply)
    assert quoted == (reply.content or "").strip()


@pytest.mark.parametrize(
    "text", [f"Call `{ROME}` next.", f"`tool_call` blocks look like `{ROME}`.", ROME.join(("I wrote ", "."))]
)
def test_d09_a_call_written_inline_is_prose(read: Read, text: str) -> None:
    reply = read(text, tools=TOOLS)
    assert [] == calls(reply)
    assert text == reply.content


ODD = {
    "empty fence": "```js\n```\nThen",
    "unclosed code fence": "```bash\nls -l\n",
    "closer glued to text": "```js\nlet a = 1;\n```Then",
    "inline triple ticks at a line start": "```x``` is inline",
    "closed fence before": "```python\nprint(1)\n```\nThen",
    "tilde fence before": "~~~\nx\n~~~\nThen",
    "lone ticks": "Use ``` to open a fence.",
    "inline code": "Use `x` and ``y``.",
}


@pytest.mark.parametrize("before", ODD.values(), ids=ODD)
def test_d10_a_call_after_an_odd_fence_is_found(read: Read, before: str) -> None:
    reply = read(f"{before}\n{block(ROME)}\nBye", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert [*words(before), "Bye"] == words(reply.content)


def test_d10_an_empty_block_before_the_real_one_hides_nothing(read: Read) -> None:
    for empty in ("```tool_call\n```", "```tool_call\n\n```"):
        reply = read(f"{empty}\n{block(ROME)}\nBye", tools=TOOLS)
        assert [ROME_CALL] == calls(reply)
        assert [*words(empty), "Bye"] == words(reply.content)


def test_d16_a_fence_inside_a_tag_is_never_two_calls(read: Read) -> None:
    reply = read(f"<get_weather>\n{block(ROME)}\n</get_weather>", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)


@pytest.mark.parametrize(
    "text",
    [
        "<get_weather>\nRome and everything after it",
        'Here:\n<get_weather>\n{"city": "Ro\nmore prose\n\nand more',
        f"```xml\n<get_weather>\n{ROME}\n</get_weather>\n```\n",
        "Use <get_weather city='Rome'/> or <get_weather><city>Rome</city></get_weather> as you like.",
    ],
)
def test_d16_tags_that_are_no_calls_lose_no_text(read: Read, text: str) -> None:
    reply = read(text, tools=TOOLS)
    assert [] == calls(reply)
    kept = (reply.content or "") + "".join(cut.raw for cut in reply.incomplete)
    assert words(text) == words(kept)
