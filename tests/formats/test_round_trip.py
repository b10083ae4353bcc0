"""Round trip of each format: the same calls, content and reasoning are read back, for any split of the text.

Random turns are rendered by the format's writer, then read with the format named and with ``auto``. ``LIMITS`` lists what a format
cannot write and its turns leave out, and why.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, cycle, pairwise, takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchbay.formats.render import WRITERS, render_calls, writer_for
from patchbay.types import ToolCall, ToolSpec
from support.repeated import examples, sampled

from .cuts import calls_of, read, streamed

SETTINGS = settings(max_examples=examples(3))
FAMILIES = ["fenced", *WRITERS]

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "other_text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "on": {"type": "boolean"},
        "nothing": {"type": "null"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "kind": {"enum": ["a", "b c", "d"]},
        "texts": {"type": "array", "items": {"type": "string"}},
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "place": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "size": {"type": "integer"},
                "open": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
        },
        "free": {"type": "object"},
    },
}
NAMES = ["get_weather", "set_opts2", "fs.read", "note-it"]


@dataclass(frozen=True)
class Limits:
    """Restrictions on a format's turns. The defaults restrict nothing."""

    repeated: bool = True
    """The same call twice: a call that nothing marks counts once, for models show a call and then make it."""
    words: str = ""
    """Words that mean something only where the format is known: a turn that holds them is not read with auto."""
    end: str = ""
    """An ending of prose that would run together with the following marker."""
    first_break: bool = True
    """A line break at the beginning of a text: between tags on lines of their own it is the next line's."""
    free: bool = True
    """Values that the schema does not know: elements have no types of their own."""
    any_key: bool = True
    """Keys of all kinds: they stand bare."""
    marks_inside: bool = True
    """The family's marks in the texts of lists and objects: there they have no escapes either."""


_UNMARKED = Limits(repeated=False)
_GEMMA = Limits(any_key=False, marks_inside=False)
LIMITS: dict[str, Limits] = {
    **dict.fromkeys(("llama3_json", "bare_json", "bare_json_list", "json_array_required", "xlam", "openai_dict"), _UNMARKED),
    **dict.fromkeys(("pythonic", "tool_code"), _UNMARKED),
    "ernie45": Limits(words="<response>"),
    "hunyuan_a13b": Limits(words="<answer>"),
    "apriel": Limits(words="[BEGIN FINAL RESPONSE]"),
    "functionary_v32": Limits(words="all\n", end=">"),
    "react": Limits(words="Final Answer:"),
    **dict.fromkeys(("gemma4", "functiongemma"), _GEMMA),
    "seed_oss": Limits(first_break=False),
    "minimax_m3": Limits(free=False, marks_inside=False),
}

_PIECES = [
    "\n", "\n\n", " ", "\t", "\r\n", '"', "'", "\\", "\\n", "\\u0041", "<", ">", "</", "/>", "<b>", "</b>", "&", "&amp;", "{", "}", "[", "]",
    "(", ")", "`", "```", "~~~", "|", ":", ",", ";", "#", "null", "true", "None", "1", "-0.5", "é", "日本", "🌍", "\u2028", "<tool_call>",
    "<think>", "</think>", "```json\n", '{"name": "get_weather", "arguments": {}}', "word", "code",
]  # fmt: skip
_CLOSER = "</tool_call>"
"""Never raw in a text: with ``auto`` it may end the call that contains the text."""


@lru_cache
def texts(name: str, *, inside: bool = False) -> st.SearchStrategy[str]:
    """Texts of arguments: anything, the family's own marks among it as far as it can hold them. ``inside`` a list or an object."""
    writer, limits = WRITERS.get(name), limits_of(name)
    unmarked = inside and not limits.marks_inside
    own = [] if writer is None or unmarked else [*writer.markers, *writer.inner_markers]
    closer = [] if writer is not None and writer.raw else [_CLOSER]
    parts = st.one_of(
        st.sampled_from([*_PIECES, *closer]),
        st.sampled_from([*own, "```tool_call"]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    )
    found = st.lists(parts, max_size=6).map("".join)
    if not limits.first_break:
        found = found.map(lambda text: text.lstrip("\n"))
    return found if inside and not unmarked else found.filter(writer_for(name).holds)


def values(name: str, schema: dict[str, Any], *, inside: bool = True) -> st.SearchStrategy[Any]:
    """Values that fit the schema."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*(values(name, each) for each in schema["anyOf"]))
    match schema["type"]:
        case "string":
            return texts(name, inside=inside)
        case "integer":
            return st.integers(-(10**20), 10**20)
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "array":
            return st.lists(values(name, schema["items"]), max_size=3)
    return members(name, schema) if "properties" in schema else free(name)


def members(name: str, schema: dict[str, Any], *, inside: bool = True) -> st.SearchStrategy[Any]:
    """Objects with some of the schema's properties."""
    known = (
        schema["properties"]
        if limits_of(name).free
        else {key: each for key, each in schema["properties"].items() if key != "free"}
    )
    return st.fixed_dictionaries({}, optional={key: values(name, each, inside=inside) for key, each in known.items()})


def free(name: str) -> st.SearchStrategy[Any]:
    """Objects with arbitrary members."""
    keys = st.sampled_from(["a", "b2", "the_key", *(["x-y", "k k", "é", "", "a.b", '"', "<"] if limits_of(name).any_key else [])])
    leaves = st.one_of(st.none(), st.booleans(), st.integers(), texts(name, inside=True))
    inside = st.recursive(
        leaves, lambda deeper: st.lists(deeper, max_size=2) | st.dictionaries(keys, deeper, max_size=2), max_leaves=5
    )
    return st.dictionaries(keys, inside, max_size=3)


def limits_of(name: str) -> Limits:
    """The restrictions of a format."""
    return LIMITS.get(name, Limits())


def calls(name: str) -> st.SearchStrategy[list[tuple[str, dict[str, Any]]]]:
    """The calls of one turn."""
    most = 3 if getattr(writer_for(name), "parallel", True) else 1
    one = st.tuples(st.sampled_from(NAMES), members(name, SCHEMA, inside=False))
    return st.lists(one, max_size=most, unique_by=None if limits_of(name).repeated else repr)


_WORDS = st.sampled_from([
    "Let", "me", "see", "word", "naïve", "日本語", "🌍", "x", "a < b", "b > a", "<b>bold</b>", "**so**", "`code`", "f(x)", "[1]", "(two)", "{x}",
    '"said"', "it's", "3.14", "1,000", "50%", "e.g.", "and/or", "C:\\dir", "$5", "#7", "@me", "--", "…", "what?", "Yes!", "end.",
    "`get_weather`", "name:", "key=value", "| a | b |", "a\nb", "first,\n\nsecond", "- item\n- item", "\\n",
])  # fmt: skip
SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=5)
PROSE = st.lists(_WORDS, max_size=8).map(" ".join)


@dataclass(frozen=True)
class Turn:
    """A model's turn. ``sizes``: the lengths of its pieces, cyclic."""

    calls: list[tuple[str, dict[str, Any]]]
    content: str
    reasoning: str
    after: str
    sizes: list[int]
    ascii: bool

    def text(self, name: str) -> str:
        """The turn as the format writes it, and prose behind its calls."""
        written = [ToolCall("call_0", called, json.dumps(given, ensure_ascii=self.ascii)) for called, given in self.calls]
        return render_calls(name, written, self.content, self.reasoning) + (self.after if self.calls else "")


@lru_cache
def turns(name: str) -> st.SearchStrategy[Turn]:
    """Turns that the format can hold."""
    writer, limits = WRITERS.get(name), limits_of(name)
    silent = writer is not None and writer.layout.reasoning is None
    return st.builds(
        Turn,
        calls=calls(name),
        content=PROSE.filter(lambda prose: not limits.end or not prose.endswith(limits.end)),
        reasoning=st.just("") if silent else PROSE,
        after=st.just("") | PROSE.map("\n\n{} Done.".format),
        sizes=SIZES,
        ascii=st.booleans(),
    )


TOOLS = [ToolSpec(name, "", SCHEMA) for name in NAMES]


def in_pieces(text: str, sizes: list[int]) -> list[str]:
    """The text in pieces of these sizes, again and again."""
    ends = takewhile(lambda end: end < len(text), accumulate(cycle(sizes)))
    return [text[begin:end] for begin, end in pairwise([0, *ends, len(text)])]


def same(value: Any) -> Any:
    """A value such that 1 and 1.0 are equal, and 1 and true are not."""
    match value:
        case bool() | None | str():
            return repr(value)
        case dict():
            return {key: same(item) for key, item in value.items()}
        case list():
            return [same(item) for item in value]
    return float(value) if isinstance(value, float) or abs(value) < 2**53 else value


def check(name: str, turn: Turn, reader: str) -> None:
    """Assert that the turn is read back."""
    reply = streamed(in_pieces(turn.text(name), turn.sizes), TOOLS, format=reader)
    expected = [(called, same(given)) for called, given in turn.calls]
    assert expected == [(call.name, same(json.loads(call.raw_arguments))) for call in reply.tool_calls]
    after = turn.after if turn.calls else ""
    assert f"{turn.content} {after}".split() == (reply.content or "").split()
    assert turn.reasoning.split() == (reply.reasoning or "").split()
    assert () == reply.incomplete


@pytest.mark.parametrize("name", FAMILIES)
@SETTINGS
@given(st.data())
def test_rendered_calls_are_read_back_in_any_split(name: str, data: st.DataObject) -> None:
    turn = data.draw(turns(name))
    check(name, turn, name)
    if not limits_of(name).words or limits_of(name).words not in turn.text(name):
        check(name, turn, "auto")


@pytest.mark.parametrize("name", FAMILIES)
def test_beginning_of_a_call_is_never_another_call(name: str) -> None:
    whole = {"text": "of words", "count": 12, "texts": ["a", "b c"]}
    writer = writer_for(name)
    written = writer.calls([ToolCall(writer.call_id(0, "get_weather", "call_0"), "get_weather", json.dumps(whole))])
    tools = [ToolSpec("get_weather", "", {**SCHEMA, "required": list(whole)})]
    for end in sampled(range(len(written) + 1), 20):
        reply = streamed([written[:end]], tools, format=name)
        assert calls_of(reply) in ([], [("get_weather", whole)]), written[:end]


PATCH = ToolSpec(
    "apply_patch", "", {"type": "object", "properties": {"input": {"type": "string", "contentMediaType": "text/plain"}}}
)


JSON_CALLS = {
    "of another tool": ('{"name": "get_weather", "arguments": {"city": "Rome"}}', None),
    "of another tool, pretty": ('{\n  "name": "get_weather",\n  "arguments": {}\n}', None),
    "of no tool": ('{"name": "patchbay", "version": "1"}', None),
    "of the tool": ('{"name": "apply_patch", "arguments": {"input": "+a"}}', "+a"),
}


@pytest.mark.parametrize("case", JSON_CALLS)
def test_plain_text_that_is_json_is_data_unless_it_calls_the_tool_itself(case: str) -> None:
    text, meant = JSON_CALLS[case]
    specs = [PATCH, ToolSpec("get_weather", "", SCHEMA)]
    assert [("apply_patch", {"input": meant or text})] == calls_of(read(f"```tool_call apply_patch\n{text}\n```", specs))
    writer = writer_for("fenced", text_tools=frozenset({"apply_patch"}))
    call = ToolCall("c", "apply_patch", json.dumps({"input": text}))
    assert [("apply_patch", {"input": text})] == calls_of(read(writer.calls([call]), specs))


@SETTINGS
@given(
    texts("fenced", inside=True).filter(lambda text: not re.match(r'\s*\{\s*"name"\s*:', text)),  # a call itself
    PROSE,
    SIZES,
)
def test_plain_text_is_rendered_verbatim_and_read_back_in_any_split(text: str, after: str, sizes: list[int]) -> None:
    writer = writer_for("fenced", text_tools=frozenset({"apply_patch"}))
    written = writer.calls([ToolCall("c", "apply_patch", json.dumps({"input": text})), ToolCall("d", "get_weather", "{}")])
    assert text in written
    for reader in ("fenced", "auto"):
        pieces = in_pieces(f"{written}\n\n{after}", sizes)
        reply = streamed(pieces, [PATCH, ToolSpec("get_weather", "", SCHEMA)], format=reader)
        assert [("apply_patch", {"input": text}), ("get_weather", {})] == calls_of(reply)
        assert after.split() == (reply.content or "").split()
