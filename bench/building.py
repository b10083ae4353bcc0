"""The cost of making a tool of a function: the schema for the model, and the validator of its calls. CPU time, warm.

Every function is a new one, as in a program that makes each of its tools once; pydantic's own
caches stay. The first ten are discarded: they include imports.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from bench.places import say

_WARM = 10


@dataclass(frozen=True)
class Cost:
    """Medians over functions of one kind: ``making`` in microseconds (``@tool``), ``first_use`` in milliseconds."""

    making: float
    first_use: float


@dataclass
class Outcome:
    """Costs by kind of function."""

    costs: dict[str, Cost] = field(default_factory=dict)


TWO = "2 parameters"
FIVE = "5 parameters, one of them a model, documented"


def measure(*, quick: bool) -> Outcome:
    """Make tools of new functions of each kind; each renders its schema and validates one call."""
    return Outcome({what: _cost(what, make, 40 if quick else 200) for what, make in ((TWO, _two), (FIVE, _five()))})


def _cost(what: str, make: Callable[[], tuple[Any, str]], times: int) -> Cost:
    from patchbay.tools import FunctionTool, Validation

    say(f"tools: {what} ...")
    making, using = [], []
    for _ in range(_WARM + times):
        function, arguments = make()
        start = time.process_time()
        item = FunctionTool(function)
        made = time.process_time()
        item.spec.to_openai()
        item.validate(arguments, Validation())
        used = time.process_time()
        making.append((made - start) * 1e6)
        using.append((used - start) * 1e3)
    return Cost(statistics.median(making[_WARM:]), statistics.median(using[_WARM:]))


def _two() -> tuple[Any, str]:
    def get_weather(city: str, unit: str = "C") -> str:
        """Tell the weather of a city."""
        return city + unit

    return get_weather, '{"city": "Rome"}'


def _five() -> Callable[[], tuple[Any, str]]:
    from pydantic import BaseModel

    class Area(BaseModel):
        country: str
        language: str | None = None

    def make() -> tuple[Any, str]:
        async def search(
            query: str,
            limit: int = 5,
            tags: list[str] | None = None,
            order: Literal["new", "best"] = "best",
            area: Area | None = None,
        ) -> list[str]:
            """Search the web.

            Only pages that are still there.

            Args:
                query: what to look for
                limit: how many pages at most
                tags: words that a page must have
                order: which pages come first
                area: where they are from
            """
            return [query, str(limit), str(tags), order, str(area)]

        search.__annotations__["area"] = Area | None  # the name is local to the function around
        return search, '{"query": "tools", "area": {"country": "IT"}}'

    return make


def raw(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON."""
    return {what: asdict(cost) for what, cost in outcome.costs.items()}
