"""What making a grammar of 50 tools costs: for a model's first request with them, and for each request after."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

from bench.places import say
from bench.report import NOT_MEASURED, Section, at_most, machine, markdown
from patchbay.constraints.backends import Backend
from patchbay.constraints.plan import ConstraintPlanner
from patchbay.constraints.replies import ReplyRules
from patchbay.formats.render import writer_for
from patchbay.types import ToolSpec

FIRST = 5.0
AGAIN = 1.0
"""Bars in milliseconds, of the dearest way."""
ROUNDS = {True: 5, False: 30}
"""True: a quick look."""
WAYS = {
    "the fenced contract": ("fenced", Backend.LLAMA_CPP),
    "Hermes": ("hermes", Backend.LLAMA_CPP),
    "Qwen3-Coder's XML": ("qwen3_coder", Backend.LLAMA_CPP),
    "a JSON Schema": ("fenced", Backend.SCHEMA),
}
"""Formats and backends, by what a table calls them."""
_TOPICS = ("order", "city", "user", "file", "page", "mail", "flight", "note", "price", "ticket")
_VERBS = ("find", "list", "create", "change", "send")


def _parameters(topic: str, number: int) -> dict[str, Any]:
    """Return a schema of three to six arguments, of which one to three are required."""
    described = {"description": f"What the {topic} must have, in the words of the user."}
    properties = {
        topic: {"type": "string", **described},
        "order": {"type": "string", "enum": [f"{topic}_newest", f"{topic}_oldest", "any"][: 2 + number % 2], **described},
        "tags": {"type": "array", "items": {"type": "string"}, **described},
        "range": {
            "type": "object",
            "properties": {
                "from": {"type": "string"},
                "until": {"type": "string", "format": "date"},
                "open": {"type": "boolean"},
            },
            "required": ["from"],
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": 10 * (1 + number % 5), **described},
        "distance": {"type": "number", "minimum": 0, **described},
    }
    names = [*properties][: 3 + number % 4]
    required = names[: 1 + number % 3]
    return {"type": "object", "properties": {name: properties[name] for name in names}, "required": required}


SPECS = [
    ToolSpec(f"{verb}_{topic}", f"{verb.capitalize()} each {topic}.", _parameters(topic, number))
    for number, (verb, topic) in enumerate((verb, topic) for verb in _VERBS for topic in _TOPICS)
]


_RULES = ReplyRules(needed=True)
_TEXT = (
    "Please find the newest order of Ada Lovelace in New York, at most 20 tags, open until 2026-12-31, within 3.5 miles of here."
)


def first(way: str) -> ConstraintPlanner:
    """Make the constraint of a first request with the tools; what made it keeps it for the next."""
    name, backend = WAYS[way]
    planner = ConstraintPlanner(SPECS, writer_for(name))
    assert planner.constraint(backend, _RULES).fields
    return planner


def again(planner: ConstraintPlanner, way: str, *, copied: bool = False) -> None:
    """Make the constraint of a further request. ``copied``: its arguments are copied from a text, so that nothing was kept."""
    assert planner.constraint(WAYS[way][1], _RULES, copied_from=_TEXT if copied else None).fields


def section(*, quick: bool) -> Section:
    """Measure every way."""
    say("grammars ...")
    rounds = ROUNDS[quick]
    figures: dict[str, tuple[float, ...]] = {}
    for way, (_, backend) in WAYS.items():
        planner = first(way)
        works: list[Callable[[], object]] = [partial(first, way), partial(again, planner, way)]
        if backend is not Backend.SCHEMA:
            works.append(partial(again, planner, way, copied=True))
        figures[way] = tuple(_least(work, rounds) for work in works)
    rows = [[way, *(f"{value:.3g}" for value in found), *([NOT_MEASURED] * (3 - len(found)))] for way, found in figures.items()]
    heading = f"Grammars of the calls of {len(SPECS)} tools: CPU time, the least of {rounds} rounds. {machine()}."
    table = markdown(["CPU ms", "first request", "each after", "each with `--copy-arguments`"], rows)
    verdicts = [
        at_most(f"Grammar of {len(SPECS)} tools, the first: CPU", max(found[0] for found in figures.values()), FIRST, "ms"),
        at_most(
            f"Grammar of {len(SPECS)} tools, each request after: CPU", max(found[1] for found in figures.values()), AGAIN, "ms"
        ),
    ]
    return Section(verdicts, [f"{heading}\n\n{table}"], {"grammars": figures})


def _least(work: Callable[[], object], rounds: int) -> float:
    """Milliseconds of CPU of one piece of work."""
    found = []
    for _ in range(rounds):
        began = process_time()
        work()
        found.append((process_time() - began) * 1e3)
    return min(found)
