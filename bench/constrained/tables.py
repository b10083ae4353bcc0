"""The tables of the benchmark: calls per set of requests, and calls against chats where the model chooses."""

from __future__ import annotations

from collections.abc import Sequence

from bench.constrained.measure import Outcome
from bench.report import NOT_MEASURED, markdown


def render(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the tables with their headings, as Markdown."""
    sets = list(dict.fromkeys(outcome.set for outcome in outcomes))
    found = [_calls(name, [outcome for outcome in outcomes if outcome.set == name]) for name in sets]
    free = [outcome for outcome in outcomes if outcome.chats]
    return [*found, _choices(free)] if free else found


def _calls(name: str, outcomes: Sequence[Outcome]) -> str:
    header = ["", "well-formed", "right tool", "exact", "tokens/s", "s/request"]
    rows = []
    for outcome in outcomes:
        asked = len(outcome.answers)
        counts = [_per_hundred(outcome.count(what), asked) for what in ("well_formed", "right_tool", "exact")]
        speed = outcome.tokens_per_second
        rows.append([outcome.row.title, *counts, NOT_MEASURED if speed is None else f"{speed:.0f}", f"{outcome.seconds:.2f}"])
    heading = f"Calls per 100 requests, {len(outcomes[0].answers)} requests `{name}`, temperature 0."
    return f"{heading}\n\n{markdown(header, rows)}"


def _choices(outcomes: Sequence[Outcome]) -> str:
    header = ["", "requests", "called when needed", "chats", "silent when not"]
    rows = []
    for outcome in outcomes:
        counts = (len(outcome.answers), outcome.count("well_formed"), len(outcome.chats), outcome.silent)
        rows.append([f"{outcome.row.title}, `{outcome.set}`", *map(str, counts)])
    return f"Call or text, where the model chooses (`auto`).\n\n{markdown(header, rows)}"


def _per_hundred(count: int, of: int) -> str:
    return f"{100 * count / of:.0f} ({count})"
