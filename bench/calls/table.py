"""How the figures of calls are shown: one table for the calls, one for registering."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from bench.calls.measure import MANY, ONE_BY_ONE, TOGETHER, WAYS, Effort, Figures, Outcome
from bench.calls.plugin_folder import KINDS
from bench.calls.rows import REGISTERING
from bench.table import NOT_MEASURED, between, machine, markdown


def of_calls(outcome: Outcome, effort: Effort) -> str:
    """CPU time and latency of a call, a row for each way."""
    rows = [[f"{name} {figures.version}", *_cells(figures)] for name, figures in outcome.figures.items()]
    header = ["µs", "CPU of all", "of which", "p50", "p99", "16 at once: CPU of all", "p50", "p99"]
    count = f"median of {effort.processes} processes of the caller's that take turns [least–most]"
    each = f"each {effort.one_by_one:,} warm calls and {effort.together:,}"
    lines = [
        f"Calls: one after the other, and 16 at once. CPU time of all processes that take part, {count}, {each}. {machine()}.",
        "",
        markdown(header, rows),
        "",
        _of_registering(outcome, effort),
    ]
    lines += [f"\n{name}: absent, {reason}" for name, reason in outcome.skipped.items()]
    return "\n".join(lines)


def _cells(figures: Figures) -> list[str]:
    cells = []
    for way in WAYS:
        latencies = [f"{figures.latency(way, which):,.0f}" for which in ("p50", "p99")]
        shares = [_shares(figures.parts(way))] if way == ONE_BY_ONE else []
        cells += [between(figures.totals(way), figures.cpu(way)), *shares, *latencies]
    return cells


def _shares(parts: Mapping[str, float]) -> str:
    return "" if len(parts) == 1 else ", ".join(f"{part} {value:,.0f}" for part, value in parts.items())


def _of_registering(outcome: Outcome, effort: Effort) -> str:
    rows: list[Sequence[str]] = []
    if (figures := outcome.registering) is not None:
        for way, how in ((ONE_BY_ONE, "one after the other"), (TOGETHER, "16 at once")):
            cpu = f"{figures.cpu(way):,.0f} µs each ({_shares(figures.parts(way))})"
            latency = f"{figures.latency(way, 'p50'):,.0f} / {figures.latency(way, 'p99'):,.0f} µs"
            what = f"{effort.registrations:,} tools over HTTP, kept in SQLite, {how}"
            rows.append([what, f"{figures.seconds(way):.2f} s", cpu, latency])
    else:
        rows.append([REGISTERING, *[NOT_MEASURED] * 3])
    for kind in KINDS:
        if not (found := outcome.many.get(kind)):
            rows.append([f"{MANY}, {kind}", *[NOT_MEASURED] * 3])
            continue
        parts = {part: statistics.median(each.cpu[part] for each in found) for part in found[0].cpu}
        cpu = f"{sum(parts.values()):.1f} s ({', '.join(f'{part} {value:.1f}' for part, value in parts.items())})"
        rows.append([f"{MANY}, {kind}, from the start of their host", _seconds([each.first for each in found]), cpu, ""])
        rows.append(["the same, after the server was started anew", _seconds([each.again for each in found]), "", ""])
    return markdown(["Registering", "time", "CPU", "p50 / p99"], rows)


def _seconds(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} s [{min(values):.2f}–{max(values):.2f}]"
