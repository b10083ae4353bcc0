"""Calls of offered tools that nothing marks: where they count, what leads to them, and what is only shown."""

from __future__ import annotations

from typing import Any

import pytest

from patchbay import StreamParser
from patchbay.formats import TextDelta
from patchbay.types import Reply

STRING = {"type": "string"}


def _tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = [
    _tool("tide.table", harbour=STRING, days={"type": "integer"}),
    _tool("clock_now", zone=STRING),
]
TAMPA = '{"harbour": "Tampa"}'


def read(text: str, size: int = 0, **options: Any) -> Reply:
    """Read in pieces of ``size`` characters; 0: at one blow."""
    parser = StreamParser(TOOLS, generate_id=str, **options)
    for at in range(0, len(text), size or len(text)):
        parser.feed(text[at : at + (size or len(text))])
    parser.close()
    return parser.reply


def calls(reply: Reply) -> list[str]:
    """The calls, a line each."""
    return [f"{call.name} {call.raw_arguments}" for call in reply.tool_calls]


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('tide.table(harbour="Tampa")', None),
        ('[tide.table(harbour="Tampa")]', None),
        ('return [tide.table(harbour="Tampa")]', None),
        ('print(tide.table(harbour="Tampa"))', None),
        ('1. tide.table(harbour="Tampa")', None),
        ('answer = tide.table(harbour="Tampa")', "answer = "),
        ('Here\'s the call: [tide.table(harbour="Tampa")]', "Here's the call: "),
        ('Calls:\n[tide.table(harbour="Tampa")]', "Calls:"),
        ('`tide.table(harbour="Tampa")`', None),
        ("[\"tide.table(harbour='Tampa')\"]", None),
        ("['tide.table', {'harbour': 'Tampa'}]", None),
        ("[{'tide.table(harbour=\"Tampa\")'}]", None),
        ('```\n[{\'tide.table(harbour="Tampa")}]\n```', None),
        ('table(harbour="Tampa")', None),
        ('table{"harbour": "Tampa"}', None),
        ('{"name": "table", "arguments": {"harbour": "Tampa"}}', None),
        ("['tide.table', 'harbour=Tampa']", None),
        ('tide_table{"harbour": "Tampa"}', None),
        ('[{"name": "tide.table", "arguments": {"harbour": "Tampa"}}]]', None),
        ('{"name": "functions.tide.table", "parameters": {"harbour": "Tampa"}}', None),
        ('```json\n{"name": "tide.table", "arguments": {"harbour": "Tampa"}}\n```', None),
        ('```tool_code\nprint(tide.table(harbour="Tampa"))\n```', None),
        ('```python\nimport tides\nplace = {"harbour": "Tampa"}\nfound = tide.table(**place)\nprint(found)\n```', None),
    ],
)
def test_a_call_that_nothing_marks_is_one_where_it_stands_for_itself(text: str, content: str | None, size: int) -> None:
    reply = read(text, size)
    assert [f"tide.table {TAMPA}"] == calls(reply)
    assert (content, ()) == (reply.content, reply.incomplete)


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize(
    "text",
    [
        'You could write tide.table(harbour="Tampa") there.',
        'For example: tide.table(harbour="Tampa")',
        "The format: ['tide.table', {'harbour': 'Tampa'}]",
        "tide.table is what you want.",
        'tides.table(harbour="Tampa")',
        '```tool_result\n{"name": "tide.table", "arguments": {"harbour": "Tampa"}}\n```',
        '```json\n[{"name": "tide.table", "arguments": {"harbour": "Tampa"}}, {"name": "Alice"}]\n```',
        "```python\nfor place in places:\n    tide.table(harbour=place)\n```",
        '```python\nif late:\n    tide.table(harbour="Tampa")\n```',
        '{"name": "tide.table", "parameters": {"type": "object", "properties": {"harbour": {"type": "string"}}}}',
        "['tide.table', 'clock_now']",
        '> tide.table(harbour="Tampa")',
        "[]",
    ],
)
def test_a_call_that_is_only_shown_is_prose(text: str, size: int) -> None:
    reply = read(text, size)
    assert ([], text, ()) == (calls(reply), reply.content, reply.incomplete)


@pytest.mark.parametrize("text", ["Hi", "Hello ", "I", "The", "Result: ", "answer ", "- item", "Let me see"])
def test_what_can_be_no_call_is_told_at_once(text: str) -> None:
    assert [TextDelta(text.rstrip("\n"))] == StreamParser(TOOLS).feed(text)


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize(
    ("text", "told", "cut", "content"),
    [
        ('tide.table(harbour="Ta', [], [("tide.table", 'tide.table(harbour="Ta')], None),
        ('{"name": "tide.table", "arguments": {"harbour": "Ta', [], [("tide.table", None)], None),
        (
            'tide.table(harbour="Tampa")\nclock_now(zone="E',
            [f"tide.table {TAMPA}"],
            [("clock_now", 'clock_now(zone="E')],
            None,
        ),
        ('[tide.table(harbour="Tampa"), clock_now(zone="E', [f"tide.table {TAMPA}"], [("clock_now", None)], None),
        ('[tide.table(harbour="Tampa"), clock', [f"tide.table {TAMPA}"], [("", None)], None),
        ('tide.table(harbour="Tampa")\nclock_now', [f"tide.table {TAMPA}"], [], "clock_now"),
        ('```python\ntide.table(harbour="Ta', [], [("tide.table", None)], None),
    ],
)
def test_a_call_that_is_cut_off_is_incomplete_and_no_call(
    text: str, told: list[str], cut: list[tuple[str, str | None]], content: str | None, size: int
) -> None:
    reply = read(text, size)
    assert (told, content) == (calls(reply), reply.content)
    assert [name for name, _ in cut] == [call.name for call in reply.incomplete]
    assert all(raw in (None, call.raw) for (_, raw), call in zip(cut, reply.incomplete, strict=True))


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize(
    "after",
    [
        'This calls the tool:\n\ntide.table(harbour="Tampa")',
        '### Response:\ntide.table(harbour="Miami")',
        "User: and in Miami?\nAssistant:\ntide.table(harbour='Miami')",
        'def test():\n    pass\n\ntide.table(harbour="Miami")',
    ],
)
def test_what_a_model_writes_after_its_calls_is_no_call_of_the_answer(after: str, size: int) -> None:
    reply = read(f'tide.table(harbour="Tampa")\n\n{after}', size)
    assert [f"tide.table {TAMPA}"] == calls(reply)
    assert after == reply.content


@pytest.mark.parametrize("size", [0, 1, 3])
def test_the_lines_of_a_program_may_each_lead_to_a_call(size: int) -> None:
    reply = read('a = tide.table(harbour="Tampa")\nb = clock_now(zone="EST")\n', size)
    assert [f"tide.table {TAMPA}", 'clock_now {"zone": "EST"}'] == calls(reply)
