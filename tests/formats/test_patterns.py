"""Patterns of others: matched as Python's ``re`` would, but in linear time and over any border of a chunk."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.errors import ConfigurationError
from patchbay.formats.checkpoint.declarations import MAX_MATCH, Match, Verdict, compile_pattern

ALPHABET = "ab<> \n"

_characters = st.sampled_from(["a", "b", "<", ">", ".", "[ab]", "[^<]", r"\w", r"\s", " ", r"\n", r"[\w<]", "[a-b ]"])
_quantifiers = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}?"])
_items = st.builds(str.__add__, _characters, _quantifiers)
_runs = st.lists(_items, min_size=1, max_size=4).map("".join)
_groups = st.builds(lambda name, run: f"(?P<{name}>{run})", st.sampled_from(["x", "y"]), _runs)
_optional = st.builds(lambda inner: f"(?:{inner})?", st.lists(_characters, min_size=1, max_size=3).map("".join))
_choices = st.builds(lambda one, two: f"(?:{one}|{two})", _runs, _runs)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """A pattern of what the compiler takes, with a literal at its beginning."""
    parts = draw(st.lists(st.one_of(_items, _choices, _optional), max_size=4))
    group = draw(st.one_of(st.just(""), _groups))
    return draw(st.sampled_from(["a", "<", "b<"])) + "".join(parts) + group + draw(st.sampled_from(["", ">", r"\Z"]))


@given(patterns(), st.text(ALPHABET, max_size=12))
def test_a_match_is_the_one_that_re_finds(pattern: str, text: str) -> None:
    found = compile_pattern(pattern, "p").match(text)
    expected = re.compile(pattern, re.DOTALL).match(text)
    if expected is None:
        assert Verdict.NONE is found
    else:
        groups = {name: value for name, value in expected.groupdict().items() if value is not None}
        assert Match(expected.end(), groups) == found


@given(patterns(), st.text(ALPHABET, max_size=12), st.integers(0, 12))
def test_what_is_decided_early_is_what_the_whole_text_decides(pattern: str, text: str, cut: int) -> None:
    compiled = compile_pattern(pattern, "p")
    early = compiled.match(text[:cut], ended=False)
    if early is not Verdict.MORE:
        assert compiled.match(text) == early


@given(patterns(), st.text(ALPHABET, max_size=12), st.text(ALPHABET, max_size=3))
def test_a_match_begins_with_one_of_the_starts(pattern: str, text: str, before: str) -> None:
    compiled = compile_pattern(pattern, "p")
    whole = before + text
    if isinstance(compiled.match(whole, len(before)), Match):
        assert text.startswith(compiled.starts)


@pytest.mark.parametrize(
    ("pattern", "starts"),
    [
        (r"<\|tool_call>call:(?P<name>\w+)", ("<|tool_call>call:",)),
        (r"(?:^|<think>\s*)", ("<think>",)),
        (r"\n?</response>", ("</response>", "\n</response>")),
        (r"(?:<\|message\|>)?[^<]*<\|text\|>", ("<|message|>", "<|text|>")),
        (r"<(?:a|bc)>", ("<a>", "<bc>")),
        (r"^x", ("x",)),
    ],
)
def test_the_texts_that_a_match_begins_with_are_known(pattern: str, starts: tuple[str, ...]) -> None:
    assert set(starts) == set(compile_pattern(pattern, "p").starts)


def test_a_name_waits_for_the_character_that_ends_it() -> None:
    pattern = compile_pattern(r"<call:(?P<name>\w+)", "p")
    assert Verdict.MORE is pattern.match("<call:get", ended=False)
    assert Match(9, {"name": "get"}) == pattern.match("<call:get{", ended=False)
    assert Match(9, {"name": "get"}) == pattern.match("<call:get")
    assert Verdict.NONE is pattern.match("<call ", ended=False)


def test_the_beginning_is_where_the_text_begins_and_nowhere_else() -> None:
    pattern = compile_pattern(r"(?:^|<think>)", "p")
    assert Match(0, {}) == pattern.match("abc", first=True, ended=False)
    assert Verdict.NONE is pattern.match("abc", ended=False)
    assert Match(7, {}) == pattern.match("<think>", first=False)


def test_the_end_is_where_the_text_ends_and_nowhere_else() -> None:
    pattern = compile_pattern(r"<a\Z", "p")
    assert Verdict.MORE is pattern.match("<a", ended=False)
    assert Match(2, {}) == pattern.match("<a")
    assert Verdict.NONE is pattern.match("<ab")


def test_a_match_has_a_greatest_length() -> None:
    pattern = compile_pattern(r"<a.*?>", "p")
    assert isinstance(pattern.match("<a" + "x" * (MAX_MATCH - 3) + ">"), Match)
    assert Verdict.NONE is pattern.match("<a" + "x" * MAX_MATCH + ">")
    assert Verdict.NONE is pattern.match("<a" + "x" * MAX_MATCH, ended=False)


class Counted(str):
    """A text that counts how often a character of it is looked at."""

    __slots__ = ()
    looks = 0

    def __getitem__(self, key):
        Counted.looks += 1
        return super().__getitem__(key)


def test_a_hostile_pattern_looks_at_each_character_once() -> None:
    # A backtracking matcher takes cubic time for this one.
    pattern = compile_pattern(r"<a.*?.*?.*?b", "p")
    Counted.looks = 0
    assert Verdict.NONE is pattern.match(Counted("<a" + "c" * 1000))
    assert Counted.looks <= MAX_MATCH


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"<(a+)+>", "quantifier inside a quantified group"),
        (r"<(?:a?b)*>", "quantifier inside a quantified group"),
        (r"<(?:aa|bb)*>", "alternatives in a repeated group"),
        (r"<a(?=b)", "a look-around"),
        (r"<a(?<!b)", "a look-around"),
        (r"<(a)\1", "a reference to a group"),
        (r"<(a)?(?(1)b|c)", "a condition on a group"),
        (r"<a++", "a possessive quantifier"),
        (r"<(?>a)", "an atomic group"),
        (r"<a\b", "a word boundary"),
        (r"(?i)<a", "sets flags"),
        (r"<(?i:a)", "sets flags"),
        (r"<[a", "is no regular expression"),
        (r"<a{4000}b{4000}", "too large"),
        (r"\w+>", "must begin with literal text"),
        (r"", "must begin with literal text"),
    ],
)
def test_what_cannot_be_read_in_a_stream_is_refused_by_its_path(pattern: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        compile_pattern(pattern, "fields.tool_calls.open_pattern")
    assert str(refused.value).startswith("fields.tool_calls.open_pattern ")
