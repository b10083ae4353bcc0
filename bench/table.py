"""The tables: Markdown that is aligned, so that a terminal shows it as well as the README does."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise

from bench import building, parsers, proxies, start, texts
from bench.bars import Verdict
from bench.hooks import idle
from bench.hooks import process as hook_process
from bench.places import commit
from bench.programs import OURS, Program
from bench.realtime import call as realtime
from bench.turns import measure as turns
from bench.turns.cases import CASES, CLIENT_CASES
from bench.turns.rows import CLIENT_FLOOR

NOT_MEASURED = "–"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with its columns padded; all but the first are aligned to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [cells[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))]
        return f"| {' | '.join(padded)} |"

    rule = [f"{'-' * widths[0]}", *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    return "\n".join([line(lines[0]), line(rule), *(line(cells) for cells in lines[1:])])


def machine() -> str:
    """What it ran on, in one line."""
    return f"{os.cpu_count()} cores, Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"


def tree() -> str:
    """Which commit was measured, and on what machine: scripts/check_docs.py reads the commit."""
    return f"Commit `{commit()}`. {machine()}."


def of_proxies(outcome: proxies.Outcome, programs: Sequence[Program], scenarios: Sequence[proxies.Scenario], rounds: int) -> str:
    """CPU time and memory, a column for each program."""
    rows = [
        [
            f"{scenario.title}: CPU {scenario.unit}",
            *(_cpu(outcome.find(program.name, scenario)) for program in programs),
        ]
        for scenario in scenarios
    ]
    if proxies.PACED in scenarios:
        rows.append(
            ["Memory with 64 open streams, MB", *(_memory(outcome.find(program.name, proxies.PACED)) for program in programs)]
        )
    started = [outcome.ready_seconds.get(program.name) for program in programs]
    rows.append(["Spawn to first 200, s", *(f"{min(seconds):.2f}" if seconds else NOT_MEASURED for seconds in started)])
    lines = [
        f"Proxies: CPU time of the whole process tree, median of {rounds} alternating rounds [least–most]. {machine()}.",
        "",
        markdown(["", *(f"{program.name} {program.version}" for program in programs)], rows),
    ]
    lines += [f"\n{name}: skipped, {reason}" for name, reason in outcome.skipped.items()]
    lines += [
        f"\n{figures.program}, {figures.scenario}: left out, {figures.problem}" for figures in outcome.figures if figures.problem
    ]
    return "\n".join(lines)


def _cpu(figures: proxies.Figures | None) -> str:
    if figures is None:
        return NOT_MEASURED
    return between(figures.cpu_us, figures.cpu)


def between(values: Sequence[float], value: float) -> str:
    """A figure with its minimum and maximum."""
    digits = 0 if value >= 100 else 1
    return f"{value:,.{digits}f} [{min(values):,.{digits}f}–{max(values):,.{digits}f}]"


def _memory(figures: proxies.Figures | None) -> str:
    return NOT_MEASURED if figures is None else f"{figures.memory:.0f}"


def of_parsers(outcome: parsers.Outcome) -> str:
    """CPU milliseconds, ours beside the original's, and how each grows."""
    rows = []
    sizes = [size for size in texts.SIZES if any(key[1] == size for key in outcome.ours | outcome.original)]
    for kind, title in texts.KINDS.items():
        for size in sizes:
            cells = [f"{title}, {size // 1000} KB"]
            for chunk in (parsers.WHOLE, parsers.TINY, parsers.SMALL):
                cells += [_milliseconds(times.get((kind, size, chunk)), size) for times in (outcome.ours, outcome.original)]
            rows.append(cells)
    header = ["CPU ms (million characters/s)"]
    for cut in ("whole", "chunks of 4", "chunks of 40"):
        header += [f"{OURS}, {cut}", f"original, {cut}"]
    lines = ["Parser: CPU time, best of several; the original is llm-tool-capability's.", "", markdown(header, rows)]
    growth = _growth(outcome, sizes)
    if growth:
        lines += ["", f"Growth of one big call in chunks of 4, per tenfold length: {growth}."]
    lines += [f"\n{name}: skipped, {reason}" for name, reason in outcome.skipped.items()]
    return "\n".join(lines)


def _milliseconds(value: float | None, size: int) -> str:
    if value is None:
        return NOT_MEASURED
    return f"{_three_figures(value)} ({_three_figures(size / value / 1e3)})"


def _three_figures(value: float) -> str:
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}"


def _growth(outcome: parsers.Outcome, sizes: Sequence[int]) -> str:
    said = []
    for name, times in ((OURS, outcome.ours), ("the original", outcome.original)):
        values = [times.get(("one_big_call", size, parsers.TINY)) for size in sizes]
        steps = [f"×{after / before:.1f}" for before, after in pairwise(values) if before and after]
        if steps:
            said.append(f"{name} {' and '.join(steps)}")
    return ", ".join(said)


def of_start(outcome: start.Outcome) -> str:
    """How long it takes to begin, and what an import loads."""
    rows = []
    for what in (start.IMPORT, start.PARSING, start.RUNNING, start.HELP, start.READY):
        reading = outcome.readings.get(what)
        shown = [NOT_MEASURED] * 2 if reading is None else [f"{reading.wall:,.0f}", f"{reading.cpu:,.0f}"]
        foreign = ", ".join(outcome.foreign.get(what, [])) or ("none" if what in outcome.foreign else "")
        rows.append([f"`{what}`" if what != start.READY else what, *shown, foreign])
    lines = [
        "Start: fresh processes, median.",
        "",
        markdown(["", "ms", "CPU ms", "third-party packages loaded"], rows),
    ]
    lines += [f"\n{what}: not measured, {reason}" for what, reason in outcome.skipped.items()]
    return "\n".join(lines)


def of_building(outcome: building.Outcome) -> str:
    """What it costs to make a tool of a function."""
    rows = [[what, f"{cost.making:.0f}", f"{cost.first_use:.2f}"] for what, cost in outcome.costs.items()]
    return "\n".join(
        [
            "Tools from functions: CPU, median of new functions.",
            "",
            markdown(["", "`@tool`, µs", "with its first telling and first call checked, ms"], rows),
        ]
    )


_PUBLISHED = ("SoulBot 1.0.0 *", "183 [182–188]", "277 [274–291]", "596 [590–651]", "740", "27.5", NOT_MEASURED, "36")
"""A row of the table of turns that is quoted and not measured."""


def of_turns(outcome: turns.Outcome, effort: turns.Effort) -> str:
    """CPU time of an agent's turn, a row for each framework."""
    rows: list[Sequence[str]] = []
    for name, figures in outcome.figures.items():
        cells = [between(figures.microseconds[case.name], figures.cpu(case)) for case in CASES]
        further = figures.further_call
        cells.append(f"{further:.{1 if further < 100 else 0}f}")
        cells.append(f"{statistics.median(figures.first_answer):,.0f}")
        cells.append(f"{statistics.median(figures.megabytes):.0f}")
        rows.append([f"{name} {figures.version}".rstrip(), *cells])
    rows.append(_PUBLISHED)
    header = ["CPU µs", *(case.name for case in CASES), "each further call", "start to first answer, ms", "MB"]
    count = f"median of {effort.processes} processes that take turns [least–most], each its median of {effort.turns} warm turns"
    lines = [
        f"Turns: a model in memory asks for calls that do nothing, and answers. CPU time, {count}. {machine()}.",
        "",
        markdown(header, rows),
        "",
        "\\* As published, from another machine, where a loop by hand took 14 / 26 / 71 µs. It checks no arguments.",
    ]
    lines += [f"\n{name}: absent, {reason}" for name, reason in outcome.skipped.items()]
    return "\n".join(lines)


def of_clients(outcome: turns.Outcome, effort: turns.Effort) -> str:
    """CPU time of a turn over the real client, a row for each framework; in brackets beside the client alone."""
    floor = outcome.figures.get(CLIENT_FLOOR)
    rows: list[Sequence[str]] = []
    for name, figures in outcome.figures.items():
        beside = [f" ({figures.cpu(case) / floor.cpu(case):.2f})" if floor is not None else "" for case in CLIENT_CASES]
        cells = [f"{figures.cpu(case) / 1e3:.2f}{ratio}" for case, ratio in zip(CLIENT_CASES, beside, strict=True)]
        rows.append([f"{name} {figures.version}".rstrip(), *cells])
    lines = [
        "Turns over the real `openai` client, before a server in the same process: one call that does nothing, and the answer.",
        f"CPU time, median of {effort.processes} processes that take turns, each its median of {effort.turns} warm turns; in",
        f"brackets beside the bare client with the same two requests. {machine()}.",
        "",
        markdown(["CPU ms", *(case.name for case in CLIENT_CASES)], rows),
    ]
    lines += [f"\n{name}: absent, {reason}" for name, reason in outcome.skipped.items()]
    return "\n".join(lines)


def of_hooks(in_process: idle.Outcome, other: hook_process.Outcome) -> str:
    """What hooks add: those of this process that have nothing to say, and those that are another one."""
    return "\n".join(
        [
            "Hooks: CPU time beyond the same work without them, median of alternating rounds. An idle hook in the same process:",
            "",
            markdown(idle.HEADER, idle.rows(in_process)),
            "",
            "A hook that is a process, and looks at what it is asked about:",
            "",
            markdown(hook_process.HEADER, hook_process.rows(other)),
        ]
    )


def of_realtime(outcome: realtime.Outcome) -> str:
    """What a call of a realtime session costs its process."""
    head = (
        "Realtime: CPU time of the session's process for each call, median of alternating rounds; the server is another process."
    )
    return f"{head}\n\n{markdown(realtime.HEADER, realtime.rows(outcome))}"


def of_verdicts(verdicts: Sequence[Verdict], *, quick: bool) -> str:
    """The bars under their heading. ``quick``: say that these figures are for a look."""
    caution = " A quick look: the peers are not fully warm, so do not quote it." if quick else ""
    return f"Bars (what the project promises itself; a ratio is ours / theirs).{caution} {tree()}\n\n{bars(verdicts)}"


def headlines(verdicts: Sequence[Verdict], names: Sequence[str]) -> str:
    """The few bars that README.md shows."""
    return f"{tree()}\n\n{bars([verdict for verdict in verdicts if verdict.what in names])}"


def bars(verdicts: Sequence[Verdict]) -> str:
    """The bars, one a line."""
    rows = [[verdict.what, verdict.bar, verdict.measured, verdict.word] for verdict in verdicts]
    return markdown(["", "bar", "measured", ""], rows)
