"""Patterns and formats: what a grammar lets a model write matches, in the engine that validates it."""

from __future__ import annotations

import random
from typing import Any

import jsonschema_rs
import pytest

from patchbay.constraints.patterns import FORMATS, read_pattern
from patchbay.formats import parse
from patchbay.types import ToolSpec

from .drawn_tools import MATCHING, PATTERNS
from .matchers import Matcher, grammar_of

SOME = [
    *PATTERNS,
    "a.c",
    "^x{2,3}y?$",
    "^(ab|c)+$",
    r"^[^\s,]+$",
    r"^\S{3}$",
    r"^[\w.-]+$",
    "^a|b$",
    r"^\$\d$",
    "^[^a-y]$",
    "^(?:a|(?:b|c)d)$",
    "^é[à-ü]$",
    "",
]


def spec(schema: dict[str, Any]) -> ToolSpec:
    return ToolSpec("lookup", "Look it up.", {"type": "object", "properties": {"a": schema}, "required": ["a"]})


def check_samples(name: str, schema: dict[str, Any], count: int) -> None:
    """Each sampled call of a tool with this argument is valid."""
    tool, rng = spec(schema), random.Random(random.random())
    matcher = Matcher(grammar_of(name, [tool]))
    validator = jsonschema_rs.validator_for(dict(tool.parameters), validate_formats=True)
    replies = [reply for reply in (matcher.sample(rng) for _ in range(count)) if reply is not None]
    for reply in replies:
        calls = parse(reply, [tool], format=name).tool_calls
        assert calls
        assert [] == [error.message for call in calls for error in validator.iter_errors(call.arguments)], reply


WHOLE = [pattern for pattern in SOME if pattern[:1] == "^" and pattern[-1:] == "$" and pattern != "^a|b$"]
"""Those that bound their texts: a sample of any other without quotes is long."""


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        *(("hermes", pattern) for pattern in SOME),
        *((name, pattern) for name in ("pythonic", "qwen3_coder", "gemma4") for pattern in WHOLE),
    ],
)
def test_sampled_text_matches_its_pattern(name: str, pattern: str) -> None:
    check_samples(name, {"type": "string", "pattern": pattern}, 2)


@pytest.mark.parametrize("name", FORMATS)
def test_sampled_text_has_its_format(name: str) -> None:
    check_samples("hermes", {"type": "string", "format": name}, 20)


@pytest.mark.parametrize("pattern", MATCHING)
def test_matching_text_may_be_written(pattern: str) -> None:
    matcher = Matcher(grammar_of("bare_json", [spec({"type": "string", "pattern": pattern})]))
    for text in MATCHING[pattern]:
        written = text.replace("\\", "\\\\").replace('"', '\\"')
        assert matcher.accepts(f'{{"name": "lookup", "arguments": {{"a": "{written}"}}}}')


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        r"\bword\b",
        r"(a)\1",
        "(?i)a",
        "a{,3}",
        "[",
        r"\p{L}",
        "a**",
        "(^a$)",
        r"a\Z",
        "[a&&b]",
        "a{300,}",
        "(?x) a",
    ],
)
def test_pattern_that_is_no_regular_language_or_means_something_else_elsewhere_is_not_read(pattern: str) -> None:
    assert read_pattern(pattern) is None
