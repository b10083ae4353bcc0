"""Search results by words of names, descriptions and parameters, patterns and exact names; when search is offered."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from patchbay.errors import ConfigurationError, ToolRetry
from patchbay.tools import Tool, ToolSearch
from patchbay.tools.search import SearchTools, ToolCatalog


class Named(Tool):
    async def run(self, arguments: Any, context: Any) -> str:
        return "done"


def catalog(*described: tuple[str, str], pinned: tuple[str, ...] = ()) -> ToolCatalog:
    return ToolCatalog({name: Named(name, description) for name, description in described}, pinned)


SOME = catalog(
    ("get_weather", "The forecast for a city."),
    ("convertCurrency", "Converts an amount of money from one currency into another."),
    ("send_mail", "Sends a message to an address."),
    ("tianqi", "查询城市的天气预报。"),
    ("list_mails", "Lists the messages of an inbox, the newest first."),
)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("weather", "get_weather"),
        ("cities forecasts", "get_weather"),
        ("currency conversion", "convertCurrency"),
        ("sending e-mail", "send_mail"),
        ("newest messages", "list_mails"),
        ("list_mails", "list_mails"),
        ("明天天气怎么样", "tianqi"),
    ],
)
def test_words_find_the_tool_that_they_describe(query, first):
    assert first == SOME.search(query)[0].name


def test_unmatched_query_finds_nothing():
    assert [] == SOME.search("astronomy") == SOME.search("")


def test_tool_named_like_the_query_is_first():
    many = catalog(("area", "x " * 50), ("area_of_circle", "The area of a circle: area."), ("area_of_square", "area area"))
    assert "area" == many.search("area", 2)[0].name


def test_parameters_are_searched_too():
    schema = {"type": "object", "properties": {"postcode": {"type": "string", "description": "Of the recipient."}}}
    tools = {"ship": Named("ship", "", parameters=schema), "other": Named("other", "d")}
    assert ["ship"] == [tool.name for tool in ToolCatalog(tools).search("recipient postcodes")]


def test_a_pattern_matches_names_before_descriptions():
    assert ["send_mail", "list_mails"] == [tool.name for tool in SOME.match("_mails?$")]
    assert ["send_mail", "list_mails"] == [tool.name for tool in SOME.match("MESSAGE")]
    with pytest.raises(ToolRetry, match="regular expression"):
        SOME.match("(")


def test_pattern_takes_linear_time():
    long = catalog(("a" * 60 + "!", "a" * 20_000))
    assert [] == long.match("^(a|a)*$" * 3 + "x")  # exponential in a backtracking engine


@pytest.mark.parametrize(
    ("search", "count", "is_searched"),
    [
        (ToolSearch(), 40, False),
        (ToolSearch(), 41, True),
        (ToolSearch(limit=None), 500, False),
        (ToolSearch(limit=2), 3, True),
        (ToolSearch(limit=None, max_tokens=100), 4, True),
        (ToolSearch(limit=None, max_tokens=200), 4, False),
    ],
)
def test_tools_are_searched_beyond_a_number_or_a_size(search, count, is_searched):
    tools = {f"tool_{n}": Named(f"tool_{n}", "d" * 60) for n in range(count)}
    assert is_searched is (search.catalog(tools) is not None)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"max_tokens": -1}, {"pinned": "all"}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigurationError):
        ToolSearch(**wrong)


def test_search_names_sources_and_offers_its_results():
    tools = {name: Named(name, f"About {name}.") for name in ("tool_search", "rome", "paris")}
    tools["rome"].source = "mcp:italy"
    offered: list[str] = []
    search = SearchTools(ToolCatalog(tools), lambda found: offered.extend(tool.name for tool in found))
    assert ("tool_search_", True) == (search.name, "mcp:italy" in search.spec.description)
    result = asyncio.run(search.run({"query": "paris"}, None))  # type: ignore[arg-type]
    assert ({"tools": [{"name": "paris", "description": "About paris."}]}, ["paris"]) == (result, offered)
    assert [] == asyncio.run(search.run({"query": "oslo"}, None))["tools"]  # type: ignore[arg-type]


def test_a_query_costs_as_much_as_its_terms_have_tools():
    """5,000 tools: each word is looked up once, and only the tools that have it are counted."""
    words = [f"w{n}" for n in range(500)]
    big = catalog(*((f"tool_{n}", f"{words[n % 500]}q does {words[n * 7 % 500]}q") for n in range(5000)))
    big.search("w1q")
    events = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal events
        events += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        big.search("w1q w2q")
    finally:
        sys.setprofile(None)
    assert events < 300
