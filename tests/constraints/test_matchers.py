"""Grammars of whole replies, by matchers that are not ours: they accept what our writers write, and nothing that is no valid call."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchbay.constraints.replies import ReplyRules
from patchbay.constraints.schemas import compile_schema
from patchbay.formats import parse
from patchbay.formats.render import WRITERS, render_calls, writer_for
from patchbay.formats.render.styles import JsonStyle, PythonStyle
from patchbay.formats.render.writer import FamilyWriter
from patchbay.schema import SchemaValidator
from patchbay.types import ToolCall, ToolSpec
from support.repeated import examples, sampled

from .drawn_tools import ESCAPED, PLAIN, damaged, draw_tools, draw_value
from .matchers import Matcher, grammar_of
from .xgrammar_matcher import XgrammarMatcher, load

NAMES = ["fenced", *WRITERS]
_DAMAGE = '"<>{}[]x0, \n\\'


def letters(name: str) -> str:
    """The characters of texts that a grammar allows as the family's writer writes them.

    It is narrower than the writer: texts without quotes have no blanks at their ends, and Python's stand in one kind of quotes.
    """
    writer = writer_for(name)
    if not isinstance(writer, FamilyWriter) or isinstance(writer.style, JsonStyle):
        return ESCAPED
    return PLAIN.replace(" ", "").replace("'", "")


def written(name: str, spec: ToolSpec, arguments: Any) -> str:
    writer = writer_for(name)
    call_id = writer.call_id(0, spec.name, "call_0") if isinstance(writer, FamilyWriter) else "call_0"
    return render_calls(name, [ToolCall(call_id, spec.name, json.dumps(arguments, ensure_ascii=False))])


def problem(name: str, specs: Sequence[ToolSpec], text: str) -> str:
    """Why a reply is not what was asked for: one or more valid calls of offered tools, and no text."""
    reply = parse(text, specs, format=name)
    validators = {spec.name: SchemaValidator(spec.name, spec.parameters) for spec in specs}
    for call in reply.tool_calls:
        if call.name not in validators:
            return f"there is no tool {call.name}"
        if errors := validators[call.name].validate(call.raw_arguments).errors:
            return f"{call.raw_arguments}: {errors}"
    return "" if reply.tool_calls and not (reply.content or "").strip() else f"no call, or text beside it: {reply.content!r}"


def is_narrower(name: str, text: str) -> bool:
    """Whether the grammar has not all that is written: M3's objects of any keys, ``<`` in JSON between tags, ``"it's"`` in Python."""
    writer = writer_for(name)
    if not isinstance(writer, FamilyWriter):
        return False
    return name == "minimax_m3" or (writer.raw and "a<b" in text) or (isinstance(writer.style, PythonStyle) and '"it\'s"' in text)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(2), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_grammar_has_what_is_written_and_nothing_that_is_invalid(name: str, rng: random.Random) -> None:
    specs = draw_tools(rng)
    matcher = Matcher(grammar_of(name, specs))
    spec = rng.choice(specs)
    compiled = compile_schema(spec.parameters)
    assert () == compiled.unenforced
    arguments = draw_value(rng, compiled.form, letters(name))
    text = written(name, spec, arguments)
    if not is_narrower(name, text):
        assert matcher.accepts(text), matcher.accepted_part(text)
    at = rng.randrange(len(text))
    changed = text[:at] + rng.choice(_DAMAGE) + text[at + rng.randint(0, 2) :]
    for each in (written(name, spec, damaged(rng, arguments)), changed, text[:at]):
        assert not matcher.accepts(each) or not problem(name, specs, each), each


@pytest.mark.parametrize("name", NAMES)
def test_sampled_reply_is_valid_calls(name: str) -> None:
    for seed in sampled(range(20), 1):
        rng = random.Random(f"{name} {seed}")
        specs = draw_tools(rng)
        reply = Matcher(grammar_of(name, specs)).sample(rng, 800)
        assert reply is None or not problem(name, specs, reply), reply


TOOL = ToolSpec(
    "book",
    "Book a room.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 2},
            "nights": {"type": "integer", "minimum": 1, "maximum": 14},
            "kind": {"enum": ["single", "double"]},
            "guests": {
                "type": "array",
                "items": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
            },
        },
        "required": ["city", "nights"],
    },
)
GOOD: dict[str, Any] = {"city": "Rome", "nights": 3, "kind": "double", "guests": [{"age": 7}, {"age": 40}]}
DAMAGED = {
    "a missing member": {"city": "Rome"},
    "a wrong key": {"city": "Rome", "night": 3},
    "one more key": {"city": "Rome", "nights": 3, "pets": 1},
    "an integer out of range": {"city": "Rome", "nights": 15},
    "a fraction": {"city": "Rome", "nights": 3.5},
    "a text in the place of a number": {"city": "Rome", "nights": "three"},
    "a constant of none": {"city": "Rome", "nights": 3, "kind": "twin"},
    "a text that is too short": {"city": "R", "nights": 3},
    "a wrong type inside": {"city": "Rome", "nights": 3, "guests": [{"age": "old"}]},
    "a member missing inside": {"city": "Rome", "nights": 3, "guests": [{}]},
    "an object in the place of an array": {"city": "Rome", "nights": 3, "guests": {"age": 7}},
}


def check_damage(name: str, matcher: Any) -> None:
    assert matcher.accepts(written(name, TOOL, GOOD))
    assert matcher.accepts(written(name, TOOL, {"city": "Rome", "nights": 14}))
    accepted = [why for why, arguments in DAMAGED.items() if matcher.accepts(written(name, TOOL, arguments))]
    assert [] == accepted
    assert not matcher.accepts(written(name, ToolSpec("look", "", TOOL.parameters), GOOD))
    assert not matcher.accepts(written(name, TOOL, GOOD)[:-1])
    assert not matcher.accepts("Which city?")


@pytest.mark.parametrize("name", NAMES)
def test_llguidance_refuses_damaged_calls(name: str) -> None:
    check_damage(name, Matcher(grammar_of(name, [TOOL])))


@pytest.mark.parametrize("name", NAMES)
def test_xgrammar_refuses_damaged_calls(name: str) -> None:
    check_damage(name, XgrammarMatcher(load(), grammar_of(name, [TOOL])))


@pytest.mark.parametrize("name", NAMES)
def test_text_of_an_argument_cannot_end_it_and_begin_another_call(name: str) -> None:
    spec = ToolSpec("look", "", {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    matcher = Matcher(grammar_of(name, [spec], ReplyRules(needed=True, most=1)))
    plain, other = (written(name, spec, {"a": text}) for text in ("here", "there"))
    assert matcher.accepts(plain)
    for inner in (other, other[other.index("there") :] + plain[: plain.index("here")]):
        reply = plain.replace("here", f"x {inner} y")
        assert not matcher.accepts(reply) or 1 == len(parse(reply, [spec], format=name).tool_calls)


_LITERALS = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]')


@pytest.mark.parametrize("name", NAMES)
def test_every_repetition_has_a_bound(name: str) -> None:
    unknown = ToolSpec("any", "", {"type": "object"})
    for rules in (ReplyRules(needed=True), ReplyRules(reasoning=True), ReplyRules(most=1, opened=True)):
        try:
            grammar = grammar_of(name, [*draw_tools(random.Random(name)), unknown], rules)
        except ValueError:
            assert not rules.needed
            continue
        assert [] == re.findall(r"[*+]|\{\d+,\}", _LITERALS.sub("", grammar))


@pytest.mark.parametrize("name", ["minicpm5", "qwen3_coder"])
def test_pattern_of_a_text_between_tags_admits_no_tag(name: str) -> None:
    words = {"type": "array", "items": {"type": "string", "pattern": r"^\S+$"}}
    spec = ToolSpec("f", "", {"type": "object", "properties": {"words": words}, "required": ["words"]})
    matcher = Matcher(grammar_of(name, [spec]))
    text = written(name, spec, {"words": ["abc"]})
    assert matcher.accepts(text)
    assert not matcher.accepts(text.replace("abc", "a<c"))


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": ["array", "null"]}, {}])
@pytest.mark.parametrize("name", ["fenced", "hermes"])
def test_arguments_are_an_object_where_the_schema_is_that_of_none(name: str, schema: dict[str, Any]) -> None:
    spec = ToolSpec("f", "", {"type": "object"})
    matcher = Matcher(grammar_of(name, [replace(spec, parameters=schema)]))
    text = written(name, spec, {"a": 1})
    assert matcher.accepts(text)
    assert not matcher.accepts(text.replace('{"a": 1}', '"a"'))
    assert not matcher.accepts(text.replace('{"a": 1}', "null"))
