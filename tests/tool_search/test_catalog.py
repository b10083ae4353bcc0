"""Search results by words of names, descriptions and parameters, patterns and exact names; when search is offered."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from patchbay.errors import ConfigurationError
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


def test_name_with_a_star_is_a_pattern_of_names():
    assert ["send_mail", "list_mails"] == [tool.name for tool in SOME.search("*_MAIL*")]
    assert "convertCurrency" == SOME.search("convert*")[0].name
    assert [] == SOME.search("^(z|z)*$") == SOME.search("[z-a]*(")


HOSTILE = """
import json, sys
from patchbay.testing import ScriptedModel
from patchbay import ToolRunner, ToolSearch
from patchbay.tools import ToolDefinition
from patchbay.types import ToolCall
tools = [ToolDefinition(name, description="a" * 1_000_000, handler=print) for name in ("ab_" * 20 + "c", "long")]
arguments = [{"query": query, "regex": True} for query in ("a{100000}", "(a+)+$", "*a*b" * 250, "?" * 1000)]
calls = [ToolCall(str(n), "tool_search", json.dumps(each)) for n, each in enumerate(arguments)]
result = ToolRunner(ScriptedModel([calls, "done"]), tools, tool_search=ToolSearch(limit=1)).run_sync("hi")
print(*[json.loads(each.content)["tools"] for each in result.tool_executions])
"""


def test_query_is_never_a_regular_expression():
    """As one, ``a{100000}`` took minutes over a long description."""
    done = subprocess.run([sys.executable, "-c", HOSTILE], capture_output=True, text=True, timeout=60, check=True)
    assert "[] [] [] []\n" == done.stdout


def test_description_is_searched_to_a_limit():
    assert [] == catalog(("long", "x " * 3000 + "forecast")).search("forecast")
    schema = {"type": "object", "properties": {f"p{n}": {"description": "x " * 3000} for n in range(2)} | {"forecast": {}}}
    assert [] == ToolCatalog({"long": Named("long", "", parameters=schema)}).search("forecast")


def test_source_does_not_push_out_the_tools_of_others():
    stuffed = {f"send_mail_{n}": Named(f"send_mail_{n}", "Send mail, send e-mail, mail a message. " * 20) for n in range(30)}
    for each in stuffed.values():
        each.source = "mcp:stuffed"
    own = {name: Named(name, "Sends a message as an e-mail to an address.") for name in ("post", "deliver")}
    found = [tool.name for tool in ToolCatalog({**stuffed, **own}).search("send mail")]
    assert (5, ["post", "deliver"]) == (len(found), [name for name in found if name in own])
    assert 3 == len([name for name in found if name in stuffed])
    assert 5 == len(ToolCatalog(stuffed).search("send mail"))
    assert 3 == len([tool for tool in ToolCatalog({**stuffed, **own}).search("send_mail*") if tool.source])


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
