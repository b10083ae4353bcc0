"""Law 12: no text in an argument becomes a call or another argument, in any family's markup, as the family's writer writes it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchbay.formats import FORMATS
from patchbay.formats.catalog import markers
from patchbay.formats.render import WRITERS, render_calls, writer_for
from patchbay.formats.spec import Format
from patchbay.types import ToolCall
from support.repeated import examples

from .texts import read_in, read_whole, spec, splits

FAMILIES = ["fenced", *WRITERS]
RAW = [name for name in WRITERS if WRITERS[name].raw]
"""Families that write a text as it is."""
TOOLS = [
    spec("write", path={"type": "string"}, content={"type": "string"}, mode={"type": "string"}),
    spec("bash", command={"type": "string"}),
    spec("patch", input={"type": "string", "contentMediaType": "text/plain"}),
]


def write(name: str, *calls: tuple[str, dict[str, str]]) -> str:
    """The calls as the family writes them."""
    return render_calls(name, [ToolCall("call_0", called, json.dumps(given, ensure_ascii=False)) for called, given in calls])


@cache
def calls_of(name: str) -> list[str]:
    """One call, two calls, and a call that quotes a call."""
    one = write(name, ("bash", {"command": "rm a"}))
    return [
        one,
        write(name, ("bash", {"command": "rm a"}), ("bash", {"command": "rm b"})),
        write(name, ("write", {"path": "in.md", "content": f"# In\n{one}\nso"})),
    ]


def markers_of(row: Format) -> set[str]:
    """The markers of a format; of those with many spellings, the first few."""
    wrappers, reasoning, answers, tokens = markers((row,))
    found = {*tokens, *(mark for each in (*reasoning, *answers) for mark in (*each.openers, *each.closers))}
    for wrapper in wrappers:
        found |= {*wrapper.openers[:4], *wrapper.closers[:4], *wrapper.noise_markers[:2], *wrapper.separators[:2]}
    for channel in row.channels:
        found |= {*channel.dividers, *channel.body_starts, *channel.endings}
    return found


MARKS = [
    *sorted(set().union(*map(markers_of, FORMATS.values()))),
    "<function=bash>", '<invoke name="bash">', "<parameter=command>", "<parameter=mode>", "</parameter>", '<parameter name="mode">',
    '<param name="command">', "</param>", "<![CDATA[", "]]>", "<arg_key>", "<arg_key>mode</arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>", "<tool_sep>", '<|"|>', "<escape>", "```", "\n```\n", "```tool_call\n", "```tool_call bash\n", "```json\n", "~~~",
    "\n> ", "call:bash{", "bash(command='x')", '{"name": "bash", "arguments": {', "{", "}", "[", "]", "(", ")", '"', "'", "\\", "\\n",
    ",", ",path:",
]  # fmt: skip
WORDS = ["# Doc", "That is all.", "x = 1", " ", "\n", "\n\n", "\r\n", "\t", ""]


def values(name: str) -> st.SearchStrategy[str]:
    """Texts of markers and calls of all families, those of ``name`` more often than others."""
    calls = st.sampled_from(calls_of(name)) | st.sampled_from(FAMILIES).flatmap(lambda each: st.sampled_from(calls_of(each)))
    found = st.lists(calls | st.sampled_from(MARKS) | st.sampled_from(WORDS), max_size=6).map("".join)
    # Where tags stand on lines of their own, a line break at the beginning of a text is the next line's.
    return found.map(lambda text: text.lstrip("\n")) if name == "seed_oss" else found


def is_value(name: str, written: str, value: str) -> bool:
    """True if a value came back: as it was, or with its markers escaped if the family cannot hold it."""
    return written == value or (not writer_for(name).holds(value) and written.replace("\\", "") == value.replace("\\", ""))


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=examples(5))
@given(st.data())
def test_a_value_is_one_value_of_one_call(name: str, data: st.DataObject) -> None:
    given_arguments = {key: data.draw(values(name)) for key in data.draw(st.permutations(["path", "content"]))}
    text = write(name, ("write", given_arguments))
    untyped = [{"tools": None}] if name in RAW and not WRITERS[name].typed_by_schema else []
    for options in ({"format": name}, {"format": "auto"}, *untyped):
        chosen: dict[str, Any] = {"tools": TOOLS, **options}
        reply, _ = read_in(data.draw(splits(text)), **chosen)
        assert read_whole(text, **chosen) == reply
        assert (["write"], ()) == ([call.name for call in reply.tool_calls], reply.incomplete)
        arguments = json.loads(reply.tool_calls[0].raw_arguments)
        assert list(given_arguments) == list(arguments)
        for key, value in given_arguments.items():
            assert is_value(name, arguments[key], value), (value, arguments[key])
        assert not (reply.content or "").strip()


@pytest.mark.parametrize("name", RAW)
def test_a_text_that_quotes_whole_calls_of_its_family_is_written_as_it_is(name: str) -> None:
    for quoted in calls_of(name):
        text = f"# Doc\n{quoted}\n\nor {quoted}"
        assert writer_for(name).holds(text)
        assert text in write(name, ("write", {"path": "doc.md", "content": text}))


@settings(max_examples=examples(20))
@given(values("fenced"))
def test_a_plain_text_is_one_value_of_one_call(text: str) -> None:
    call = ToolCall("call_0", "patch", json.dumps({"input": text}))
    written = writer_for("fenced", text_tools=frozenset({"patch"})).calls([call])
    for reader in ("fenced", "auto"):
        reply = read_whole(written, tools=TOOLS, format=reader)
        assert [{"input": text}] == [json.loads(each.raw_arguments) for each in reply.tool_calls]
