"""Calls of offered tools without markers: where they count, what introduces them, and where they are only quoted."""

from __future__ import annotations

import pytest

from patchbay import StreamParser
from patchbay.formats import TextDelta
from patchbay.types import Reply

from .cuts import read
from .tools import tool

STRING = {"type": "string"}


TOOLS = [
    tool("tide.table", harbour=STRING, days={"type": "integer"}),
    tool("clock_now", zone=STRING),
]
TAMPA = '{"harbour": "Tampa"}'


def calls(reply: Reply) -> list[str]:
    """The calls, a line each."""
    return [f"{call.name} {call.raw_arguments}" for call in reply.tool_calls]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('tide.table(harbour="Tampa")', None),
        ('Here\'s the call: [tide.table(harbour="Tampa")]', "Here's the call: "),
        ('Calls:\n[tide.table(harbour="Tampa")]', "Calls:"),
        ('`tide.table(harbour="Tampa")`', None),
        ("[\"tide.table(harbour='Tampa')\"]", None),
        ("['tide.table', {'harbour': 'Tampa'}]", None),
        ("[{'tide.table(harbour=\"Tampa\")'}]", None),
        ('```\n[{\'tide.table(harbour="Tampa")}]\n```', None),
        ('table(harbour="Tampa")', None),
        ('{"name": "table", "arguments": {"harbour": "Tampa"}}', None),
        ("['tide.table', {'harbour': 'Tampa'})]", None),
        ("[[{'tide.table': {'harbour': 'Tampa'}}]]", None),
        ("```json\n[[{'tide.table': {'harbour': 'Tampa'}}]\n```", None),
        ("[tide.table({'harbour': 'Tampa')}]", None),
        ("\\[tide.table(harbour='Tampa')\\]", None),
        ('[{"name": "tide.table", "arguments": {"harbour": "Tampa"}}]]', None),
        ('{"name": "functions.tide.table", "parameters": {"harbour": "Tampa"}}', None),
        ("['tide.table'(harbour='Tampa')]", None),
        ('```python\nprint(tide.table(harbour="Tampa"))\n```', None),
        ('```python\nimport tides\nplace = {"harbour": "Tampa"}\nfound = tide.table(**place)\nprint(found)\n```', None),
    ],
)
def test_unmarked_call_on_its_own_is_read(text: str, content: str | None) -> None:
    reply = read(text, TOOLS)
    assert [f"tide.table {TAMPA}"] == calls(reply)
    assert (content, ()) == (reply.content, reply.incomplete)


@pytest.mark.parametrize(
    "text",
    [
        'You could write tide.table(harbour="Tampa") there.',
        'For example: tide.table(harbour="Tampa")',
        "The format: ['tide.table', {'harbour': 'Tampa'}]",
        "tide.table is what you want.",
        'tides.table(harbour="Tampa")',
        '```json\n[{"name": "tide.table", "arguments": {"harbour": "Tampa"}}, {"name": "Alice"}]\n```',
        "```python\nfor place in places:\n    tide.table(harbour=place)\n```",
        '```python\nif late:\n    tide.table(harbour="Tampa")\n```',
        '{"name": "tide.table", "parameters": {"type": "object", "properties": {"harbour": {"type": "string"}}}}',
        "['tide.table', 'clock_now']",
        "['tide.table', '(see below)']",
        "\\[ x = tide + 1 \\]",
        '> tide.table(harbour="Tampa")',
        "[]",
        'table{"harbour": "Tampa"}',
        "['tide.table', 'harbour=Tampa']",
        "[tide.table, harbour='Tampa')]",
        '[\'{"name": "tide.table", "arguments": {"harbour": "Tampa"}}\']',
        "['tide.table(harbour=\"Tampa\")', 'tides(west, east)']",
        '1. tide.table(harbour="Tampa")',
        'answer = tide.table(harbour="Tampa")',
    ],
)
def test_quoted_call_is_prose(text: str) -> None:
    reply = read(text, TOOLS)
    assert ([], text, ()) == (calls(reply), reply.content, reply.incomplete)


@pytest.mark.parametrize("text", ["Hi", "Hello ", "I", "The", "Result: ", "answer ", "- item", "Let me see"])
def test_text_that_cannot_be_a_call_is_emitted_at_once(text: str) -> None:
    assert [TextDelta(text.rstrip("\n"))] == StreamParser(TOOLS).feed(text)


@pytest.mark.parametrize(
    ("text", "expected", "cut", "content"),
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
    text: str, expected: list[str], cut: list[tuple[str, str | None]], content: str | None
) -> None:
    reply = read(text, TOOLS)
    assert (expected, content) == (calls(reply), reply.content)
    assert [name for name, _ in cut] == [call.name for call in reply.incomplete]
    assert all(raw in (None, call.raw) for (_, raw), call in zip(cut, reply.incomplete, strict=True))


@pytest.mark.parametrize(
    "after",
    [
        'This calls the tool:\n\ntide.table(harbour="Tampa")',
        '### Response:\ntide.table(harbour="Miami")',
        "User: and in Miami?\nAssistant:\ntide.table(harbour='Miami')",
        'def test():\n    pass\n\ntide.table(harbour="Miami")',
    ],
)
def test_text_after_the_calls_holds_no_further_call(after: str) -> None:
    reply = read(f'tide.table(harbour="Tampa")\n\n{after}', TOOLS)
    assert [f"tide.table {TAMPA}"] == calls(reply)
    assert after == reply.content


def test_each_line_of_a_program_can_be_a_call() -> None:
    reply = read('```python\na = tide.table(harbour="Tampa")\nb = clock_now(zone="EST")\n```', TOOLS)
    assert [f"tide.table {TAMPA}", 'clock_now {"zone": "EST"}'] == calls(reply)


@pytest.mark.parametrize(
    "program",
    [
        "days = 2 * 3\ntide.table(days=days)",  # its value is known only where it runs
        "days = tide.table(harbour='Tampa')\ntide.table(days=days)",
        "place = 'x'\ntide.table(harbour=f'{place}')",
        "tide.table(*places)",
        "x = 1\nlen(tide.table(harbour='Tampa'))",
        "x = 1\nsleep(x)\ntide.table(harbour='Tampa')",
        "x = 1\nx += len('Tampa')\ntide.table(days=x)",
        "x = '\\d'\ntide.table(harbour=x)",
        "x = (1\ntide.table(days=x)",
    ],
)
def test_program_that_would_have_to_run_is_prose(program: str) -> None:
    text = f"```python\n{program}\n```"
    reply = read(text, TOOLS)
    assert ([], text, ()) == (calls(reply), reply.content, reply.incomplete)


def test_values_of_variables_are_arguments_in_later_fences_too() -> None:
    program = "```python\nplace: str = 'Tam' + 'pa'\nclock_now(zone=place)\n```\nNow:\n```python\ntide.table(harbour=place)\n```"
    assert ['clock_now {"zone": "Tampa"}', f"tide.table {TAMPA}"] == calls(read(program, TOOLS))


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("[tide.table(harbour='Tampa), tide.table(harbour='Brest')]", []),
        ("[tide.table(harbour='Tampa), clock_now(zone='EST')]", []),
        ("[tide.table(harbour='Tampa, days='3')]", []),
        ("[tide.table(harbour='a, b='c' d')]", ['{"harbour": "a, b=\'c\' d"}']),
        ("['tide.table(harbour=Land\\'s End)']", ['{"harbour": "Land\'s End"}']),
        ("tide.table(harbour=94110, days=3)", ['{"harbour": "94110", "days": 3}']),
        ("[{'name': 'tide.table', 'arguments': {'days': 2 * 3, 'harbour': 'Tampa'}}]", ['{"days": "2 * 3", "harbour": "Tampa"}']),
        ("[{'name': 'tide.table', 'arguments': {'days': 2 * (found[0]['days'])}}]", ['{"days": "2 * (found[0][\'days\'])"}']),
        ("[{'name': 'tide.table', 'arguments': {'days': 2 // two\n}}]", ['{"days": 2 \n}']),
    ],
)
def test_malformed_writing_invents_no_member(text: str, arguments: list[str]) -> None:
    assert arguments == [call.raw_arguments for call in read(text, TOOLS).tool_calls]


LISTS = [
    tool("plot", kind=STRING, labels={"type": "array", "items": STRING}, points={"type": "array", "items": {"type": "number"}})
]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("plot(labels=names)", '{"labels": "names"}'),
        ("plot(kind='bar', labels=names)", '{"kind": "bar", "labels": "names"}'),
        ("plot(labels='Rome, Oslo')", '{"labels": "Rome, Oslo"}'),
        ("plot(points=['1', '2.5'])", '{"points": [1, 2.5]}'),
        ("plot(points=['1', 'two'])", '{"points": [1, "two"]}'),
        ("plot(labels=['1', '2'])", '{"labels": ["1", "2"]}'),
    ],
)
def test_lists_are_typed_by_the_schema(text: str, arguments: str) -> None:
    assert [arguments] == [call.raw_arguments for call in read(text, LISTS).tool_calls]


def test_call_repeated_in_json_and_python_counts_once() -> None:
    json_call = f'<tool_call>\n{{"name": "tide.table", "arguments": {TAMPA}}}\n</tool_call>\n'
    python_call = "<tool_call>\n{'name': 'tide.table', 'arguments': {'harbour': 'Tampa'}}\n</tool_call>"
    assert [f"tide.table {TAMPA}"] == calls(read(json_call + python_call, TOOLS))
    assert [f"tide.table {TAMPA}"] * 2 == calls(read(json_call + json_call, TOOLS))
    assert [f"tide.table {TAMPA}"] * 2 == calls(read(f"{python_call}\n{python_call}", TOOLS))


@pytest.mark.parametrize("tag", ["functioncall", "function"])
def test_the_tags_of_glaive_mark_a_call(tag: str) -> None:
    text = f'<{tag}>\n{{"name": "tide.table", "arguments": {TAMPA}}}\n</{tag}>'
    assert [f"tide.table {TAMPA}"] == calls(read(text, TOOLS))
    assert [f"tide.table {TAMPA}"] == calls(read(f"Now:\n\n```xml\n{text}\n```\n", TOOLS))
    assert f"A <{tag}> of time." == read(f"A <{tag}> of time.", TOOLS).content


def test_escaped_underscore_does_not_end_a_name_in_any_split() -> None:
    assert ['sort_list {"a": 1}'] == calls(read("[sort\\_list(a=1)]", [tool("sort_list", a={})]))
