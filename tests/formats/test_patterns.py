"""Patterns of declared formats match like ``re`` with possessive quantifiers, across any chunk border."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from patchbay.errors import ConfigurationError
from patchbay.formats.checkpoint.declarations import MAX_MATCH, Match, Pattern, Verdict, compile_pattern

ALPHABET = "ab<> \n"

_characters = st.sampled_from(["a", "b", "<", ">", ".", "[ab]", "[^<]", r"\w", r"\s", " ", r"\n", r"[\w<]", "[a-b ]"])
_items = st.builds(str.__add__, _characters, st.sampled_from(["", "", "", "*", "+", "?"]))
_groups = st.builds(lambda char, run: f"(?P<x>{char}{run})", _characters, st.sampled_from(["", "*", "+"]))
_lazy = st.builds(str.__add__, _characters, st.sampled_from(["*?", "+?", "??"]))
_optional = st.builds("(?:{})?".format, st.text("ab<> ", min_size=1, max_size=3))
_literals = st.text("ab<>", min_size=1, max_size=3)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """A pattern of what the compiler takes, with a literal at its beginning."""
    parts = draw(st.lists(st.one_of(_items, _optional), max_size=3))
    at = draw(st.integers(0, len(parts)))
    parts.insert(at, draw(st.one_of(st.just(""), _lazy)))
    group = draw(st.one_of(st.just(""), _groups))
    other = draw(st.one_of(st.just(""), st.builds("|{}".format, _literals)))
    return draw(st.sampled_from(["a", "<", "b<"])) + "".join(parts) + group + draw(st.sampled_from(["", ">"])) + other


def greedy(pattern: str) -> re.Pattern[str]:
    """The expression for ``re``, where what a part takes is not given back."""
    return re.compile(re.sub(r"(?<!\()([*+?])(?!\?)(?<![*+?]\?)", r"\1+", pattern), re.DOTALL)


def compiled_pattern(pattern: str) -> Pattern:
    """The pattern; one that is refused as too large is another test's."""
    try:
        return compile_pattern(pattern, "p")
    except ConfigurationError:
        reject()


@given(patterns(), st.text(ALPHABET, max_size=12))
def test_a_match_is_the_one_that_re_finds(pattern: str, text: str) -> None:
    found = compiled_pattern(pattern).match(text)
    expected = greedy(pattern).match(text)
    if expected is None:
        assert Verdict.NONE is found
    else:
        groups = {name: value for name, value in expected.groupdict().items() if value is not None}
        assert Match(expected.end(), groups) == found


@given(patterns(), st.text(ALPHABET, max_size=12), st.integers(0, 12))
def test_early_decisions_equal_those_of_the_whole_text(pattern: str, text: str, cut: int) -> None:
    compiled = compiled_pattern(pattern)
    early = compiled.match(text[:cut], ended=False)
    if early is not Verdict.MORE:
        assert compiled.match(text) == early


@given(patterns(), st.text(ALPHABET, max_size=12), st.text(ALPHABET, max_size=3))
def test_match_begins_with_one_of_the_literals(pattern: str, text: str, before: str) -> None:
    compiled = compiled_pattern(pattern)
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
        (r"(?:<a>|<bc>)", ("<a>", "<bc>")),
        (r"^x", ()),
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


def test_match_is_not_searched_before_the_marker() -> None:
    pattern = compile_pattern(r"(?:^|<think>)", "p")
    assert Verdict.NONE is pattern.match("abc", ended=False)
    assert Match(7, {}) == pattern.match("<think>")


def test_a_match_has_a_greatest_length() -> None:
    pattern = compile_pattern(r"<a.*?>", "p")
    assert isinstance(pattern.match("<a" + "x" * (MAX_MATCH - 3) + ">"), Match)
    assert Verdict.NONE is pattern.match("<a" + "x" * MAX_MATCH + ">")
    assert Verdict.NONE is pattern.match("<a" + "x" * MAX_MATCH, ended=False)
    assert Verdict.MORE is pattern.match("<a" + "x" * (MAX_MATCH - 3), ended=False)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"<(a+)+>", r"has \(a\+\)\+>"),
        (r"<(?:aa|bb)>", r"has \(\?:aa\|bb"),
        (r"<(?:aa)*>", r"has \(\?:aa\)\*>"),
        (r"<(?P<x>a|b)>", r"has \(\?P<x>a\|"),
        (r"<(?P<x>ab)>", r"has \(\?P<x>ab"),
        (r"<a.*?b.*?>", r"has \.\*\?,"),
        (r"<a{2}", r"has a\{2\}"),
        (r"<a++", r"has a\+\+"),
        (r"<a(?=b)", r"has \(\?=b"),
        (r"<(a)\1", r"has \(a\)"),
        (r"<a\b", r"has \\b"),
        (r"<a$", r"has \$"),
        (r"(?i)<a", r"has \(\?i"),
        (r"<[a", "is no regular expression"),
        (r"\w+>", "must begin with literal text"),
        (r"", "must begin with literal text"),
    ],
)
def test_unstreamable_pattern_is_refused_with_its_path(pattern: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        compile_pattern(pattern, "fields.tool_calls.open_pattern")
    assert str(refused.value).startswith("fields.tool_calls.open_pattern ")
