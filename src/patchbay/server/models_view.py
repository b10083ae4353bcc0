"""What a server knows of its models, for the console: how they take tools and why, and what their requests came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from patchbay.models.capabilities import Capabilities, ModelCapabilities
from patchbay.models.options import TextOptions
from patchbay.server.usage import OTHER, Tally, UsageCounters

_MOST_WAYS: Final = 10
"""Maximum combinations of mode, format and constraint of a model."""


@dataclass(frozen=True)
class LearntModels:
    """What is known of the models of an upstream, and the options that decide where nothing has to be learnt."""

    capabilities: Capabilities
    options: TextOptions


def view_models(usage: UsageCounters, learnt: LearntModels | None) -> list[dict[str, Any]]:
    """Return each model with its counts since the start, the busiest first, as JSON.

    ``mode`` is how it gets its tools, "" where that is not known yet, and ``why`` says what decided it. ``ways`` are the modes,
    formats and constraints of its requests with tools, the most frequent first. ``limits`` is what its server does not take.
    """
    totals: dict[str, Tally] = {}
    ways: dict[str, dict[tuple[str, str, str], int]] = {}
    for (model, _, _, mode, form, constraint), tally in usage.requests.items():
        totals.setdefault(model, Tally()).add(tally)
        if mode:
            counts = ways.setdefault(model, {})
            counts[mode, form, constraint] = counts.get((mode, form, constraint), 0) + tally.count
    known: dict[str, ModelCapabilities] = {}
    if learnt is not None:
        known = {usage.label_of(str(name)): each for name, each in learnt.capabilities.models}
        known.pop(OTHER, None)
    rows = []
    for name, total in totals.items():
        found = sorted(ways.get(name, {}).items(), key=lambda item: -item[1])[:_MOST_WAYS]
        mode, why = _mode_of(known.get(name), learnt, has_tools=bool(found))
        rows.append({
            "name": name,
            "mode": mode,
            "why": why,
            "limits": known[name].limits if name in known else [],
            "ways": [{"mode": way[0], "format": way[1], "constraint": way[2], "count": count} for way, count in found],
            "requests": total.count,
            "errors": total.errors,
            "calls": total.calls,
            "rounds": total.rounds,
            "asked_again": total.again,
            "repairs": total.repairs,
            "prompt_tokens": total.prompt,
            "completion_tokens": total.completion,
            "cached_tokens": total.cached,
        })  # fmt: skip
    return sorted(rows, key=lambda row: (-row["requests"], row["name"]))


def _mode_of(known: ModelCapabilities | None, learnt: LearntModels | None, *, has_tools: bool) -> tuple[str, str]:
    """Return how a model gets its tools, and why; "" and what is missing where it is not known yet."""
    if learnt is None:
        return "", "this server has no upstream"
    if learnt.options.tools != "auto":
        return learnt.options.tools, f"--tools {learnt.options.tools} was chosen"
    if known is not None and known.mode is not None:
        return known.mode, known.why
    if not has_tools:
        return "", "no request had tools yet"
    number = known.open_answers if known is not None else 0
    return "", f"no call yet in {number} answer{'' if number == 1 else 's'} that could have one: tools are passed on natively"
