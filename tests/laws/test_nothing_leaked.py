"""Law 4: calls in the contract's syntax are read back exactly, and the prose around them is content."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import patchbay

from .texts import TOOLS, arguments, read_in, read_whole, solid, splits

# What may stand on a line of prose: marks that are markers elsewhere, never a fence or a tag at the start of a line.
_inline = st.sampled_from(
    ["word", "It is", "`x`", "``y``", "a ~~gone~~ b", '{"name": "f"}', "{", "}", "[1, 2]", '"', "\\", "// no comment", "/* */", "1 < 2", "<b>",
     "caf\u00e9", "\U0001f600", "> not at the start", "tool_call", "```tool_call``` inline", "(a <think> tag)", "100 %", "\ud800", "\x00"]
)  # fmt: skip
_line = st.lists(_inline, min_size=1, max_size=4).map(" ".join).map(lambda line: "So: " + line)
_fence = st.sampled_from(
    [
        "```python\nprint(1)\n```",
        "```\nplain\n```",
        "~~~\nplain\n~~~",
        '```json\n{"name": "Alice", "age": 30}\n```',
        "> quoted",
        "- item",
    ]
)
prose = st.lists(_line | _fence, max_size=3).map("\n".join)
"""Prose of whole lines."""

calls = st.tuples(st.sampled_from(["f", "get_weather"]), arguments)


def write(name: str, given_arguments: dict[str, Any], style: str) -> str:
    """A call as a model writes it."""
    indent = 2 if style == "indented" else None
    ascii_only = style == "ascii"
    body = json.dumps({"name": name, "arguments": given_arguments}, ensure_ascii=ascii_only, indent=indent)
    return f"```tool_call\n{body}\n```"


@st.composite
def replies(draw: st.DrawFn) -> tuple[str, list[tuple[str, dict[str, Any]]], list[str]]:
    """A text, its calls, and its pieces of prose."""
    items = draw(st.lists(prose | calls, max_size=6))
    style = draw(st.sampled_from(["plain", "indented", "ascii"]))
    made = [item for item in items if isinstance(item, tuple)]
    spoken = [item for item in items if isinstance(item, str) and item]
    gap = draw(st.sampled_from(["\n", "\n\n", "\r\n"]))
    text = gap.join(write(*item, style) if isinstance(item, tuple) else item for item in items if item)
    return text, made, spoken


def same(value: Any) -> Any:
    """A value as JSON reads it back (lone surrogates and all), for comparing."""
    return json.loads(json.dumps(value))


@given(st.data(), replies())
def test_written_calls_and_prose_are_read_back_exactly(
    data: st.DataObject, made: tuple[str, list[tuple[str, dict[str, Any]]], list[str]]
) -> None:
    text, expected, spoken = made
    for reply in (read_whole(text, tools=TOOLS), read_in(data.draw(splits(text)), tools=TOOLS)[0]):
        assert [(name, same(given_arguments)) for name, given_arguments in expected] == [
            (call.name, same(call.arguments)) for call in reply.tool_calls
        ]
        assert solid("".join(spoken)) == solid(reply.content)
        assert (None, ()) == (reply.reasoning, reply.incomplete)


@given(prose.filter(bool), calls, prose.filter(bool))
def test_prose_on_both_sides_of_a_call_is_kept_verbatim(before: str, call: tuple[str, dict[str, Any]], after: str) -> None:
    content = read_whole(f"{before}\n{write(*call, 'plain')}\n{after}", tools=TOOLS).content or ""
    assert content.startswith(before)
    assert content.endswith(after)
    assert "" == content[len(before) : len(content) - len(after)].strip("\r\n")
    assert "\n" in content[len(before) : len(content) - len(after)], "lines stay lines"


@given(calls, st.booleans())
def test_raw_arguments_are_the_characters_that_were_written(call: tuple[str, dict[str, Any]], compact: bool) -> None:
    name, given_arguments = call
    written = json.dumps(given_arguments, ensure_ascii=False, separators=(",", ":") if compact else (" ,  ", " : "))
    reply = read_whole(f'```tool_call\n{{"name": "{name}", "arguments": {written}}}\n```', tools=TOOLS)
    assert [written] == [made.raw_arguments for made in reply.tool_calls]


@given(
    st.lists(calls, min_size=1, max_size=3),
    st.text(max_size=20).map(
        lambda text: "I look. " + "".join(each for each in text if each not in "`~<>")
    ),  # > before markup is a quotation's
)
def test_rendered_history_of_a_turn_reads_back_as_that_turn(made: list[tuple[str, dict[str, Any]]], said: str) -> None:
    """A model copies the shape of its own past turns: that shape must be one which is understood."""
    written = [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(given_arguments)}}
        for number, (name, given_arguments) in enumerate(made)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in written]
    history = [{"role": "user", "content": "?"}, {"role": "assistant", "content": said, "tool_calls": written}, *results]
    shown = patchbay.flatten_messages(history)[1]
    assert "assistant" == shown["role"]
    reply = read_whole(shown["content"], tools=TOOLS)
    assert [(name, json.dumps(given_arguments)) for name, given_arguments in made] == [
        (call.name, call.raw_arguments) for call in reply.tool_calls
    ]
    assert solid(said) == solid(reply.content)
