"""Does a tool search find the function that is meant, among all functions of BFCL, and what does it save?

The questions of BFCL are no part of the recorded rows. A query is what a model could write of a function that it needs: the words of
its name, or every other word of its description.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from bench.bars import Verdict
from bench.fidelity import corpora
from bench.fidelity.section import Section, at_least
from bench.table import markdown
from patchbay.tools import Tool, ToolSearch
from patchbay.tools.search import SearchTools, ToolCatalog
from patchbay.types import ToolSpec

_DEPTHS = (1, 3, 5, 10)
_LARGE = 5000
_OFFERED = 2000


class _Function(Tool):
    async def run(self, arguments: dict[str, Any], context: Any) -> None:
        """Never called."""


def measure() -> Section:
    """Raises UnavailableError without the corpus."""
    tools, wanted = _functions()
    catalog = ToolCatalog(tools)
    described = {name: tools[name].spec.description.split() for name in wanted}
    queries = {
        "the words of its name": {name: name.replace("_", " ") for name in wanted},
        "every other word of its description": {name: " ".join(words[::2]) for name, words in described.items()},
        "the words between": {name: " ".join(words[1::2]) for name, words in described.items()},
    }
    found = {kind: _recall(catalog, asked) for kind, asked in queries.items()}
    at_5 = {kind: recall[5] for kind, recall in found.items()}
    mean = sum(at_5.values()) / len(at_5)
    copies = _copies(tools, _LARGE)
    cost = _query_ms(copies, [words for asked in queries.values() for words in asked.values()])
    share = _share(_copies(tools, _OFFERED))
    verdicts = [
        at_least("Tool search, recall@5, mean of three kinds of queries", 95, mean),
        Verdict(f"Tool search, a query in {_LARGE:,} tools: CPU", "≤ 2 ms", f"{cost:.2f} ms", cost <= 2),
        Verdict(
            f"Tool search, tokens of tools in a request, beside offering {_OFFERED:,}", "≤ 5 %", f"{share:.2f} %", share <= 5
        ),
    ]
    rows = [[kind, *(f"{recall[depth]:.1f}" for depth in _DEPTHS)] for kind, recall in found.items()]
    table = markdown(["Query of a function", *(f"recall@{depth}, %" for depth in _DEPTHS)], rows)
    title = f"Tool search: {len(wanted)} functions that are called, among {len(tools)}."
    return Section(verdicts, details=[f"{title}\n\n{table}"], raw={"search": {"recall": found, "query_ms": cost, "share": share}})


def _functions() -> tuple[dict[str, Tool], list[str]]:
    """All functions by name, and the names of those that an answer calls."""
    tools: dict[str, Tool] = {}
    called: dict[str, None] = {}
    for row in corpora.rows(corpora.BFCL):
        for tool in row["tools"]:
            spec = ToolSpec.from_openai(tool)
            name = spec.name.replace(".", "_")
            tools.setdefault(name, _Function(name, spec.description, parameters=spec.parameters))
        called.update((answer["name"].replace(".", "_"), None) for answer in row["possible_answers"])
    return tools, [name for name in called if name in tools]


def _recall(catalog: ToolCatalog, queries: Mapping[str, str]) -> dict[int, float]:
    """Percent of the functions that are among the first so many."""
    found = {name: [tool.name for tool in catalog.search(query, max(_DEPTHS))] for name, query in queries.items()}
    return {depth: 100 * sum(name in names[:depth] for name, names in found.items()) / len(found) for depth in _DEPTHS}


def _copies(tools: Mapping[str, Tool], count: int) -> dict[str, Tool]:
    """So many tools: the functions, again and again under other names."""
    made: dict[str, Tool] = {}
    for number in range(count // len(tools) + 1):
        for name, tool in tools.items():
            copy = f"{name}_{number}" if number else name
            made[copy] = _Function(copy, tool.spec.description, parameters=tool.parameters)
    return dict(list(made.items())[:count])


def _query_ms(tools: Mapping[str, Tool], queries: list[str]) -> float:
    catalog = ToolCatalog(tools)
    catalog.search("warm up")
    began = time.process_time()
    for query in queries:
        catalog.search(query)
    return (time.process_time() - began) / len(queries) * 1000


def _share(tools: Mapping[str, Tool]) -> float:
    """Percent of the tokens of all tools that the search and five found ones take."""
    catalog = ToolSearch().catalog(tools)
    assert catalog is not None
    first = [SearchTools(catalog, lambda _: None), *list(tools.values())[:5]]
    return 100 * _size(first) / _size(tools.values())


def _size(tools: Iterable[Tool]) -> int:
    return sum(len(json.dumps(tool.spec.to_openai(), default=dict)) for tool in tools)
