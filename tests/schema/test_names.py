"""Tool names that a provider does not allow get a valid, unique and reversible alias."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.schema.dialects import GEMINI_NAMES, OPENAI_NAMES, Aliases

RULES = {"openai": (OPENAI_NAMES, r"[a-zA-Z0-9_-]{1,64}"), "gemini": (GEMINI_NAMES, r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}")}


@pytest.mark.parametrize("rule", list(RULES))
@given(names=st.lists(st.text(min_size=1, max_size=90), max_size=8, unique=True))
def test_every_alias_is_valid_unique_and_reversible(rule, names):
    names_rule, pattern = RULES[rule]
    aliases = Aliases(names, names_rule)
    wire = [aliases.wire(name) for name in names]
    assert all(re.fullmatch(pattern, name) for name in wire)
    assert len(set(wire)) == len(names)
    assert names == [aliases.own(name) for name in wire]


def test_a_name_that_is_allowed_stays():
    assert "get-weather_2" == Aliases(["get-weather_2"], OPENAI_NAMES).wire("get-weather_2")
    assert "shop.buy" == Aliases(["shop.buy"], GEMINI_NAMES).wire("shop.buy")
    assert {} == Aliases(["get"], OPENAI_NAMES).changed


def test_alias_is_close_to_the_name_and_independent_of_other_tools():
    alone = Aliases(["shop.buy"], OPENAI_NAMES).wire("shop.buy")
    assert re.fullmatch("shop_buy_[0-9a-f]{8}", alone)
    assert alone == Aliases(["shop_buy", "shop:buy", "shop.buy"], OPENAI_NAMES).wire("shop.buy")
    assert re.fullmatch("tool_[0-9a-f]{8}", Aliases(["天气"], OPENAI_NAMES).wire("天气"))


def test_alias_equal_to_another_tools_name_is_changed():
    taken = OPENAI_NAMES.alias("a.b")
    aliases = Aliases(["a.b", taken], OPENAI_NAMES)
    assert taken == aliases.wire(taken) == aliases.own(taken)
    assert taken != aliases.wire("a.b")
    assert "a.b" == aliases.own(aliases.wire("a.b"))


def test_a_tool_of_an_earlier_turn_has_an_allowed_name_too():
    assert re.fullmatch("gone_tool_[0-9a-f]{8}", Aliases([], OPENAI_NAMES).wire("gone.tool"))
    assert "unheard_of" == Aliases([], OPENAI_NAMES).own("unheard_of")


def test_fixed_names_are_sent_unchanged_and_never_used_as_aliases():
    taken = OPENAI_NAMES.alias("a.b")
    aliases = Aliases(["a.b", "天气", "c"], OPENAI_NAMES, fixed=[taken, "天气", "c"])
    assert ["天气", "c", taken] == [aliases.wire(name) for name in ("天气", "c", taken)]
    assert aliases.wire("a.b") not in (taken, "a.b")
    assert ["a.b", taken] == [aliases.own(aliases.wire("a.b")), aliases.own(taken)]


def test_trailing_line_end_is_not_an_allowed_name():
    assert not OPENAI_NAMES.allows("name\n")
    assert not GEMINI_NAMES.allows("2nd")
