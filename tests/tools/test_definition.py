"""Tools defined as data are sendable, or refused at creation."""

from __future__ import annotations

from datetime import date

import pytest

from patchbay.errors import ConfigurationError
from patchbay.tools import ToolDefinition

DEEP: dict = {}
for _ in range(100_000):
    DEEP = {"properties": DEEP}


def schema(**about: object) -> dict:
    return {"type": "object", "properties": {"a": {"type": "string", **about}}}


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        ({"description": "half \ud83d"}, "lone surrogate"),
        ({"name": "half \ud83d"}, "lone surrogate"),
        ({"parameters": schema(description="half \ud83d")}, "lone surrogate"),
        ({"parameters": schema(default=float("nan"))}, "not JSON"),
        ({"parameters": schema(default=date(2026, 1, 1))}, "not JSON: there is a date in it"),
        ({"parameters": schema(examples={1, 2})}, "not JSON: there is a set in it"),
        ({"parameters": DEEP}, "not JSON"),
    ],
    ids=lambda each: each if isinstance(each, str) else next(iter(each)),
)
def test_invalid_tool_definition_is_rejected_at_creation(expected, why):
    with pytest.raises(ConfigurationError, match=why):
        ToolDefinition(**{"name": "odd", "handler": dict, **expected})


def test_unicode_text_and_huge_numbers_are_accepted():
    tool = ToolDefinition("猫", "🐈 \x00", schema(maximum=10**40, default="🐈"), dict)
    assert ("🐈 \x00", 10**40) == (tool.spec.description, tool.spec.parameters["properties"]["a"]["maximum"])
