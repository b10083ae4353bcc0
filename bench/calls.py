"""One tool call over each way to a tool: CPU time of all processes that take part, one by one and 16 at once.

Each way runs in processes of its own that alternate, A B C A B C, so that a noisy minute affects all of them.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import install
from bench.call_process import FOUND
from bench.places import BUILD, ROOT, UnavailableError, say
from bench.processes import last_words, started
from bench.report import Section, Verdict, at_most, between, machine, markdown, ratio

SAME_PROCESS, PLUGIN, MCP_MOUNTED, MCP_SDK = "same_process", "plugin", "mcp_mounted", "mcp_sdk"
TITLES = {
    SAME_PROCESS: "the same process",
    PLUGIN: "a plugin, from its host",
    MCP_MOUNTED: "an MCP server over stdio, mounted",
    MCP_SDK: "the same server, by the MCP SDK alone",
}
"""The ways of ``call_process``, in the order of the table. The last runs in an environment with the SDK alone."""
ONE_BY_ONE, TOGETHER = "one_by_one", "together"
PLUGIN_MILLISECONDS = 0.2
"""CPU time of a plugin's call at most, over that of a call in the same process."""
OF_MCP_SDK = 1.3
LIMIT = 180.0
"""Seconds that one process may take; the slowest take ten."""


@dataclass(frozen=True)
class Effort:
    """How much is measured: processes of each way, and calls in each; ``warm`` ones come first and are not counted."""

    processes: int = 5
    warm: int = 600
    one_by_one: int = 1000
    together: int = 1600


QUICK = Effort(processes=2, one_by_one=400, together=640)
Found = dict[str, dict[str, float]]
"""By ONE_BY_ONE or TOGETHER, microseconds of a call in each process that takes part."""


@dataclass
class Outcome:
    """The figures of each way's processes; ``skipped`` has the reason where there are none."""

    found: dict[str, list[Found]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def totals(self, way: str, block: str) -> list[float]:
        """CPU of all processes together, in microseconds a call: one figure from each process of the way."""
        return [sum(found[block].values()) for found in self.found[way]]

    def milliseconds(self, way: str, block: str) -> float | None:
        """The median of them, in milliseconds; None where there are none."""
        return statistics.median(self.totals(way, block)) / 1e3 if way in self.found else None


def section(effort: Effort, *, allowed: bool) -> Section:
    """Measure every way; ``allowed``: whether the MCP SDK may be installed into an environment of its own."""
    outcome = measure(effort, allowed=allowed)
    return Section(list(verdicts(outcome)), [table(outcome, effort)], {"calls": vars(outcome)})


def measure(effort: Effort, *, allowed: bool) -> Outcome:
    outcome = Outcome()
    for number in range(1, effort.processes + 1):
        for way, title in TITLES.items():
            if way in outcome.skipped:
                continue
            say(f"calls: {title} ({number} of {effort.processes}) ...")
            try:
                python = install.environment("mcp", allowed=allowed) / "python" if way == MCP_SDK else Path(sys.executable)
                outcome.found.setdefault(way, []).append(run_process(python, way, effort))
            except UnavailableError as error:
                outcome.found.pop(way, None)
                outcome.skipped[way] = str(error)
                say(f"calls: {title}: skipped, {error}")
    return outcome


def run_process(python: Path, way: str, effort: Effort) -> Found:
    """Run one process of a way; raises UnavailableError with the last line of its log where it fails."""
    folder = BUILD / "run" / "calls" / way
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    counts = map(str, (effort.warm, effort.one_by_one, effort.together))
    argv = [str(python), "-W", "ignore", "-m", "bench.call_process", way, *counts, str(folder)]
    log = folder / "caller.log"
    with started(argv, log=log, env={"PYTHONPATH": str(ROOT)}) as process:
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"did not end within {LIMIT:.0f} s") from None
    if code != 0:
        raise UnavailableError(last_words(log))
    found: Found = json.loads((folder / FOUND).read_text(encoding="utf-8"))
    return found


def verdicts(outcome: Outcome) -> Iterator[Verdict]:
    """The bars: a plugin's call over one of the same process, and a mounted MCP server beside the SDK alone."""
    for block, words in ((ONE_BY_ONE, "one by one"), (TOGETHER, "16 at once")):
        plugin, same = outcome.milliseconds(PLUGIN, block), outcome.milliseconds(SAME_PROCESS, block)
        more = None if plugin is None or same is None else plugin - same
        yield at_most(f"Call of a plugin, over one in the same process, {words}: CPU", more, PLUGIN_MILLISECONDS, "ms")
    mounted, sdk = outcome.milliseconds(MCP_MOUNTED, ONE_BY_ONE), outcome.milliseconds(MCP_SDK, ONE_BY_ONE)
    yield ratio("Call of a mounted MCP server over stdio, beside the SDK's own client: CPU", mounted, sdk, OF_MCP_SDK)


def table(outcome: Outcome, effort: Effort) -> str:
    """CPU time of a call, a row for each way."""
    rows = []
    for way, found in outcome.found.items():
        parts = found[0][ONE_BY_ONE]
        medians = {part: statistics.median(each[ONE_BY_ONE][part] for each in found) for part in parts}
        shares = ", ".join(f"{part} {value:,.0f}" for part, value in medians.items()) if len(parts) > 1 else ""
        rows.append([TITLES[way], between(outcome.totals(way, ONE_BY_ONE)), shares, between(outcome.totals(way, TOGETHER))])
    lines = [
        f"Calls: one after the other, and 16 at once. CPU time of all processes that take part, median of {effort.processes}",
        f"processes of the caller's [least–most], each {effort.one_by_one:,} warm calls and {effort.together:,}. {machine()}.",
        "",
        markdown(["µs", "CPU of all", "of which", "16 at once: CPU of all"], rows),
    ]
    lines += [f"\n{TITLES[way]}: absent, {reason}" for way, reason in outcome.skipped.items()]
    return "\n".join(lines)
