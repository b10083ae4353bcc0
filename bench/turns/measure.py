"""Turns of agents, in memory and over the real ``openai`` client: which rows there are, their figures, bars and tables.

Each row runs in processes of its own that alternate, A B C A B C, so that a noisy minute affects all of them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import openai

import patchbay
from bench import install
from bench.places import ROOT, UnavailableError, say
from bench.report import Section, Verdict, between, machine, markdown, ratio
from bench.turns.cases import CASES, CLIENT_CASES, ONE, SIXTEEN, SMALL, Case

BY_HAND = "a loop by hand"
BARE_CLIENT = "openai, extra_body"
RUNNER = "patchbay ToolRunner"
AGENT = "patchbay LlmAgent"
PEERS = {"pydantic-ai-slim": "pydantic_ai", "openai-agents": "openai_agents", "google-adk": "google_adk"}
"""The frameworks, named as on PyPI and in ``bench/peers``, and their modules."""
CLIENT_OURS = {
    "patchbay.wrap": "Wrapped",
    "patchbay.wrap, text": "WrappedText",
    RUNNER: "Run",
    f"{RUNNER}, text": "RunText",
    AGENT: "Agent",
    f"{AGENT}, text": "AgentText",
}
"""The rows over the real ``openai`` client, and their classes."""

OF_BEST_FRAMEWORK = 1 / 8
SMALL_OF_CLIENT, NATIVE_OF_CLIENT, TEXT_OF_CLIENT = 1.2, 2.0, 2.5
"""What a turn costs beside the bare ``openai`` client with the same two requests, at most."""
LIMIT = 180.0
"""Seconds that one process may take; the slowest take ten."""


@dataclass(frozen=True)
class Row:
    """One row: the module of its turns and their class. ``peer`` is the environment that it runs in; without, it is this one."""

    name: str
    module: str
    version: str
    peer: str = ""

    def python(self, *, allowed: bool) -> Path:
        """The interpreter of the row. Raises UnavailableError."""
        return install.environment(self.peer, allowed=allowed) / "python" if self.peer else Path(sys.executable)


def rows() -> tuple[Row, ...]:
    """The rows in memory, in the order of the table."""
    ours = patchbay.__version__
    return (
        Row(BY_HAND, "bench.turns.own:ByHandTurns", ""),
        Row(RUNNER, "bench.turns.own:RunnerTurns", ours),
        Row(AGENT, "bench.turns.own:AgentTurns", ours),
        *(Row(name, f"bench.turns.peer_{module}:Row", install.pinned(name), name) for name, module in PEERS.items()),
    )


def client_rows() -> tuple[Row, ...]:
    """The rows over the real ``openai`` client."""
    ours = patchbay.__version__
    return (
        Row(BARE_CLIENT, "bench.turns.client:Bare", openai.__version__),
        *(Row(name, f"bench.turns.client:{kind}", ours) for name, kind in CLIENT_OURS.items()),
    )


@dataclass(frozen=True)
class Effort:
    """How much is measured. ``warm`` turns of each case come first and are not counted."""

    processes: int = 5
    warm: int = 40
    turns: int = 200


QUICK = Effort(processes=2, turns=60)
CLIENT = Effort(processes=3, warm=10, turns=30)
QUICK_CLIENT = Effort(processes=1, warm=5, turns=10)


@dataclass
class Figures:
    """The figures of a row's processes: for each, by case, its median of CPU microseconds of a turn.

    ``first_answer``: CPU milliseconds from the start of a process to its first answer.
    """

    version: str
    microseconds: dict[str, list[float]] = field(default_factory=dict)
    first_answer: list[float] = field(default_factory=list)

    def cpu(self, case: Case) -> float:
        """The median of the processes, in microseconds of a turn."""
        return statistics.median(self.microseconds[case.name])

    @property
    def further_call(self) -> float:
        """What each call beyond the first adds, in microseconds."""
        return (self.cpu(SIXTEEN) - self.cpu(ONE)) / (SIXTEEN.calls - ONE.calls)


@dataclass
class Outcome:
    """Figures by row, in the order of the rows; ``skipped`` says why a row has none."""

    figures: dict[str, Figures] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def section(effort: Effort, *, allowed: bool) -> Section:
    """Measure the turns in memory; ``allowed``: whether peers may be installed."""
    outcome = measure(rows(), effort, allowed=allowed)
    return Section(list(verdicts(outcome)), [table(outcome, effort)], {"turns": asdict(outcome)})


def client_section(effort: Effort, *, allowed: bool) -> Section:
    """Measure the turns over the real client."""
    outcome = measure(client_rows(), effort, allowed=allowed)
    return Section(list(client_verdicts(outcome)), [client_table(outcome, effort)], {"clients": asdict(outcome)})


def measure(rows: Sequence[Row], effort: Effort, *, allowed: bool) -> Outcome:
    """Measure every row that can be measured here."""
    outcome = Outcome()
    for number in range(1, effort.processes + 1):
        for row in rows:
            if row.name in outcome.skipped:
                continue
            say(f"turns: {row.name} ({number} of {effort.processes}) ...")
            try:
                found = run_process(row.python(allowed=allowed), row.module, effort)
            except UnavailableError as error:
                outcome.figures.pop(row.name, None)
                outcome.skipped[row.name] = str(error)
                say(f"turns: {row.name}: skipped, {error}")
                continue
            figures = outcome.figures.setdefault(row.name, Figures(row.version))
            for name, microseconds in found["microseconds"].items():
                figures.microseconds.setdefault(name, []).append(microseconds)
            figures.first_answer.append(found["first_answer"])
    return outcome


def run_process(python: Path, module: str, effort: Effort) -> dict[str, Any]:
    """Run one process of a row; raises UnavailableError with the last line of its output where it fails."""
    argv = [str(python), "-W", "ignore", "-m", "bench.turns.process", module, str(effort.warm), str(effort.turns)]
    # Nothing is called with it, but two of the peers want to see a key.
    env = {**os.environ, "OPENAI_API_KEY": "unused", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    try:
        done = subprocess.run(
            argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"did not end within {LIMIT:.0f} s") from None
    if done.returncode != 0:
        raise UnavailableError((done.stderr.strip().splitlines() or ["failed without a message"])[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def verdicts(outcome: Outcome) -> Iterator[Verdict]:
    """The bars of an agent's turn beside the best of the frameworks."""
    ours = outcome.figures.get(AGENT)
    for case in (*CASES, None):
        peers = {name: _microseconds(outcome.figures[name], case) for name in PEERS if name in outcome.figures}
        # A missing one might be the best.
        best = min(peers, key=peers.__getitem__) if len(peers) == len(PEERS) else None
        what = f"Turn of an agent, {case.name if case else 'each further call'}: CPU beside the best framework"
        mine, theirs = ours and _microseconds(ours, case), best and peers[best]
        yield ratio(what, mine, theirs or None, OF_BEST_FRAMEWORK, fraction=True, detail=f" ({best})")


def _microseconds(figures: Figures, case: Case | None) -> float:
    return figures.further_call if case is None else figures.cpu(case)


def client_verdicts(outcome: Outcome) -> Iterator[Verdict]:
    """The bars of a turn over the real client beside the client alone."""
    floor = outcome.figures.get(BARE_CLIENT)
    for name in CLIENT_OURS:
        ours = outcome.figures.get(name)
        for case in CLIENT_CASES:
            limit = SMALL_OF_CLIENT if case is SMALL else TEXT_OF_CLIENT if name.endswith("text") else NATIVE_OF_CLIENT
            what = f"{name}, {case.name}: CPU beside the client alone"
            yield ratio(what, ours and ours.cpu(case), floor and floor.cpu(case), limit)


def table(outcome: Outcome, effort: Effort) -> str:
    """CPU time of an agent's turn, a row for each framework."""
    lines = []
    for name, figures in outcome.figures.items():
        cells = [between(figures.microseconds[case.name]) for case in CASES]
        first = f"{statistics.median(figures.first_answer):,.0f}"
        lines.append([f"{name} {figures.version}".rstrip(), *cells, f"{figures.further_call:.1f}", first])
    header = ["CPU µs", *(case.name for case in CASES), "each further call", "start to first answer, ms"]
    title = (
        "Turns: a model in memory asks for calls that do nothing, and answers. CPU time, median of "
        f"{effort.processes} processes [least–most], each its median of {effort.turns} warm turns. {machine()}."
    )
    return _whole(title, markdown(header, lines), outcome)


def client_table(outcome: Outcome, effort: Effort) -> str:
    """CPU time of a turn over the real client, a row for each way; in brackets beside the client alone."""
    floor = outcome.figures.get(BARE_CLIENT)
    lines = []
    for name, figures in outcome.figures.items():
        cells = [
            f"{figures.cpu(case) / 1e3:.2f}" + (f" ({figures.cpu(case) / floor.cpu(case):.2f})" if floor else "")
            for case in CLIENT_CASES
        ]
        lines.append([f"{name} {figures.version}".rstrip(), *cells])
    title = (
        "Turns over the real `openai` client, before a server in the same process: one call that does nothing, and the answer.\n"
        f"CPU time, median of {effort.processes} processes, each its median of {effort.turns} warm turns; in brackets beside the\n"
        f"bare client with the same two requests. {machine()}."
    )
    return _whole(title, markdown(["CPU ms", *(case.name for case in CLIENT_CASES)], lines), outcome)


def _whole(title: str, shown: str, outcome: Outcome) -> str:
    absent = [f"\n{name}: absent, {reason}" for name, reason in outcome.skipped.items()]
    return "\n".join([title, "", shown, *absent])
