"""Tool search: where there are many tools, a model is offered a few, and a tool that finds the others.

Found tools are appended to those that are offered, in the order in which they were found, so that what a model was sent stays a
prefix of what it is sent. What was found is read back from the conversation, so it lasts as long as that does.
"""

from __future__ import annotations

import fnmatch
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from patchbay.errors import ConfigurationError
from patchbay.tools.context import ToolContext
from patchbay.tools.tool import Tool, checked_count
from patchbay.types import Message, ToolSpec

SEARCH_NAME: Final = "tool_search"
MOST_FOUND: Final = 20
"""The most tools that one search finds."""

_DEFAULT_FOUND: Final = 5
_MOST_QUERY_CHARS: Final = 1000
_MOST_SOURCES: Final = 20
_SUMMARY_CHARS: Final = 200
_READ_CHARS: Final = 4000
"""Of a tool's description, and of those of its parameters, so much is searched."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_COMMON: Final = frozenset([
    "an", "and", "are", "as", "by", "do", "for", "how", "if", "in", "is", "it", "me", "my", "of", "on", "or", "the", "this", "to",
])  # fmt: skip
_ENDING: Final = re.compile(r"(?<=\w{3})(?:ations?|ators?|ings?|[st]?ions?|at(?:e|es|ed)|[oe]rs?|ed|e?(?<!s)s|e)$")
_NAME_WEIGHT: Final = 3
_SATURATION: Final = 1.2
"""BM25's k1."""

_LENGTH_SHARE: Final = 0.6
"""BM25's b."""


@dataclass(frozen=True)
class ToolSearch:
    """When tools are searched for instead of being offered all at once.

    With more than ``limit`` tools (None: any number), or more than ``max_tokens`` tokens of them (estimated: four bytes of JSON
    each; None: any), only those whose names match a pattern of ``pinned`` (as of a shell: ``get_*``) are offered from the start.
    Raises ConfigurationError for an invalid limit.
    """

    limit: int | None = 40
    max_tokens: int | None = None
    pinned: Collection[str] = ()

    def __post_init__(self) -> None:
        checked_count(self.limit, "limit of a tool search")
        checked_count(self.max_tokens, "max_tokens of a tool search")
        if isinstance(self.pinned, str):
            raise ConfigurationError("pinned must be a list of names, not a single string.")

    def catalog(self, tools: Mapping[str, Tool]) -> ToolCatalog | None:
        """Return the catalog of ``tools``; None where all of them are offered."""
        if not (_exceeds(len(tools), self.limit) or self.max_tokens):
            return None
        offered = [tool for tool in tools.values() if tool.offered]
        if not (_exceeds(len(offered), self.limit) or (self.max_tokens and _exceeds(_tokens(offered), self.max_tokens))):
            return None
        return ToolCatalog(tools, self.pinned)


def _exceeds(count: int, limit: int | None) -> bool:
    return limit is not None and count > limit


def _tokens(tools: Iterable[Tool]) -> int:
    return sum(len(json.dumps(tool.spec.to_openai(), default=dict)) for tool in tools) // 4


class ToolCatalog:
    """Tools that can be searched. ``pinned`` are those that are offered from the start, and those that no model is offered."""

    def __init__(self, tools: Mapping[str, Tool], pinned: Collection[str] = ()) -> None:
        self.tools = tools
        patterns = [re.compile(fnmatch.translate(pattern)) for pattern in pinned]
        self.pinned = {
            name: tool
            for name, tool in tools.items()
            if not tool.offered or any(pattern.match(name) is not None for pattern in patterns)
        }
        self._hidden = [tool for name, tool in tools.items() if name not in self.pinned]

    def search(self, query: str, most: int = _DEFAULT_FOUND) -> list[Tool]:
        """Return the tools that match best: those of just this name, or whose names match a pattern with ``*``, then by words.

        No source gets more than half of the places while others have tools that match.
        """
        query = query[:_MOST_QUERY_CHARS].strip()
        matches = re.compile(fnmatch.translate(query), re.IGNORECASE).match if "*" in query else query.__eq__
        named = [tool for tool in self._hidden if matches(tool.name)]
        found = dict.fromkeys((*named, *(self._hidden[place] for place in self._index.best(_terms(query)))))
        counted: Counter[str] = Counter()
        fair: list[Tool] = []
        surplus: list[Tool] = []
        for tool in found:
            counted[tool.source] += 1
            (fair if counted[tool.source] <= (most + 1) // 2 else surplus).append(tool)
            if len(fair) == most:
                break
        chosen = {*fair, *surplus[: most - len(fair)]}
        return [tool for tool in found if tool in chosen]

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The sources of the tools that are not offered from the start."""
        return tuple(sorted({tool.source for tool in self._hidden if tool.source}))

    @cached_property
    def _index(self) -> _Index:
        return _Index([_spec_terms(tool.spec) for tool in self._hidden])


class _Index:
    """BM25 over an inverted index: each term's documents, with what the term adds to their score."""

    def __init__(self, documents: Sequence[Counter[str]]) -> None:
        mean = sum(sum(each.values()) for each in documents) / max(len(documents), 1)
        frequency = Counter(term for each in documents for term in each)
        self._postings: dict[str, list[tuple[int, float]]] = {term: [] for term in frequency}
        for place, document in enumerate(documents):
            norm = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * sum(document.values()) / mean)
            for term, count in document.items():
                inverse = math.log(1 + (len(documents) - frequency[term] + 0.5) / (frequency[term] + 0.5))
                self._postings[term].append((place, inverse * count * (_SATURATION + 1) / (count + norm)))

    def best(self, terms: Iterable[str]) -> list[int]:
        """Return the places of the documents with one of the terms, the best first."""
        scores: dict[int, float] = {}
        for term in dict.fromkeys(terms):
            for place, score in self._postings.get(term, ()):
                scores[place] = scores.get(place, 0.0) + score
        return sorted(scores, key=lambda place: (-scores[place], place))


def _spec_terms(spec: ToolSpec) -> Counter[str]:
    counted: Counter[str] = Counter()
    for term in _terms(spec.name):
        counted[term] += _NAME_WEIGHT
    counted.update(_terms(spec.description[:_READ_CHARS]))
    properties = spec.parameters.get("properties")
    left = _READ_CHARS
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        about = schema.get("description") if isinstance(schema, Mapping) else None
        text = f"{name} {about if isinstance(about, str) else ''}"[:left]
        counted.update(_terms(text))
        left -= len(text)
    return counted


def _terms(text: str) -> Iterator[str]:
    """Yield the words of a text or a name, in lower case, without their endings; of Chinese pairs of characters."""
    for word in _WORD.findall(text):
        term = word.lower()
        if len(term) > 2 and "\u3040" <= term[0] <= "\uffef":  # Chinese, Japanese, Korean
            yield from map("".join, pairwise(term))
        elif (len(term) > 1 or not term.isascii() or term.isdigit()) and term not in _COMMON:
            yield _stem(term)


def _stem(word: str) -> str:
    """Return a word without the common endings of English, so that "conversion" finds "converting"."""
    return _ENDING.sub("", word[:-3] + "y" if word.endswith("ies") else word)


class SearchTools(Tool):
    """Finds tools of a catalog; ``offer`` gets those that were found. ``taken`` are names that it must not have."""

    acts = False

    def __init__(self, catalog: ToolCatalog, offer: Callable[[Sequence[Tool]], None], taken: Collection[str] = ()) -> None:
        self._catalog = catalog
        self._offer = offer
        name = SEARCH_NAME
        while name in catalog.tools or name in taken:
            name += "_"
        description = (
            "Find tools by what they do. Only some of the tools are shown; those that this finds can be called from the next"
            " step on."
        )
        if sources := catalog.sources:
            description += (
                f" There are tools of: {', '.join(sources[:_MOST_SOURCES])}{' ...' if sources[_MOST_SOURCES:] else ''}."
            )
        parameters = {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What the tool does, in a few words; or its name, as get_*."},
                "limit": {"type": "integer", "minimum": 1, "maximum": MOST_FOUND, "description": f"Default: {_DEFAULT_FOUND}."},
            },
            "required": ["query"],
        }
        super().__init__(name, description, parameters=parameters)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:  # noqa: ARG002  (a Tool's signature)
        """Return the tools that match, and offer them."""
        query, limit = str(arguments.get("query", "")), arguments.get("limit")
        most = min(max(limit, 1), MOST_FOUND) if isinstance(limit, int) else _DEFAULT_FOUND
        found = self._catalog.search(query, most)
        if not found:
            return {"tools": [], "note": "No tool matches this query. Try other words for what the tool does."}
        self._offer(found)
        return {"tools": [{"name": tool.name, "description": tool.spec.description[:_SUMMARY_CHARS]} for tool in found]}

    def found_in(self, messages: Iterable[Message]) -> list[Tool]:
        """Return the tools that were found or called in a conversation, in that order."""
        names: dict[str, None] = {}
        searches: set[str] = set()
        for message in messages:
            for call in _calls(message):
                function = call.get("function")
                name = function.get("name") if isinstance(function, Mapping) else None
                if name == self.name:
                    searches.add(str(call.get("id")))
                elif isinstance(name, str):
                    names.setdefault(name)
            if message.get("role") == "tool" and message.get("tool_call_id") in searches:
                names.update(dict.fromkeys(_listed(message.get("content"))))
        tools, pinned = self._catalog.tools, self._catalog.pinned
        return [tools[name] for name in names if name in tools and name not in pinned]


def _calls(message: Message) -> Iterator[Mapping[str, Any]]:
    calls = message.get("tool_calls") if message.get("role") == "assistant" else None
    return (call for call in calls if isinstance(call, Mapping)) if isinstance(calls, list) else iter(())


def _listed(content: Any) -> list[str]:
    """The names in a search's result."""
    try:
        return [name for tool in json.loads(content)["tools"] if isinstance(name := tool["name"], str)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
