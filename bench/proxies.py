"""The proxies under load: CPU time of the whole process tree per request, per stream and per event, and memory.

The programs take turns within one run (A B C, A B C, ...), so that whatever else the machine does falls on all of them; the figure
is the median of the rounds. How many requests a turn holds follows from what the program costs, found while it warms up: a
turn is to burn about the same CPU time for every program, so that each is long enough to measure. The warm-up
is long because one peer is compiled while it runs: after 400 requests it still costs twice what it costs after 4,000.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import install
from bench.places import BUILD, UnavailableError, say
from bench.processes import Running, free_port, server
from bench.programs import LITELLM, NGINX, ORIGINAL, OURS, ROWS, TRACED, Place, Program
from bench.report import NOT_MEASURED, Section, Verdict, at_most, between, machine, markdown, ratio

_SETTLE = 0.1
"""Seconds between the load's end and the second reading: some programs do their bookkeeping after the answer."""
_MEMORY_EVERY = 0.05


@dataclass(frozen=True)
class Scenario:
    """One kind of load. ``gap_us`` is the time between two events of a stream (0: all at once), ``most`` bounds a turn's answers."""

    name: str
    title: str
    unit: str
    body: str
    connections: int
    gap_us: int
    stream: bool
    most: int

    @property
    def upstream(self) -> str:
        """Which upstream it needs: all the events of a stream in one burst, or one at a time."""
        return "paced" if self.gap_us else "burst"


REQUEST = Scenario(
    name="request",
    title="Request with tools, 16 connections",
    unit="µs/request",
    body="small.json",
    connections=16,
    gap_us=0,
    stream=False,
    most=40_000,
)
STREAM = Scenario(
    name="stream",
    title="200-event stream with a call, burst, 16 connections",
    unit="µs/stream",
    body="small_stream.json",
    connections=16,
    gap_us=0,
    stream=True,
    most=8_000,
)
PACED = Scenario(
    name="paced",
    title="Events 5 ms apart, 64 streams",
    unit="µs/event",
    body="small_stream.json",
    connections=64,
    gap_us=5_000,
    stream=True,
    most=64,
)
SCENARIOS = {scenario.name: scenario for scenario in (REQUEST, STREAM, PACED)}
RATIOS = (
    (REQUEST, ORIGINAL, 0.45),
    (REQUEST, LITELLM, 1 / 50),
    (STREAM, ORIGINAL, 0.5),
    (STREAM, LITELLM, 1 / 100),
    (STREAM, NGINX, 5.0),
    (PACED, ORIGINAL, 0.55),
)
"""Scenario, peer, and how much of the peer's CPU time ours may cost at most."""
TRACES = 1.1
"""How much of the CPU time without them a request with traces (``--otel``) may cost."""
MEGABYTES = 80.0
READY_SECONDS = 1.0


@dataclass
class Figures:
    """What one program showed in one scenario: one entry per round. ``problem`` says why its figures mean nothing."""

    program: str
    scenario: str
    cpu_us: list[float] = field(default_factory=list)
    rss_megabytes: list[float] = field(default_factory=list)
    problem: str = ""

    @property
    def cpu(self) -> float:
        """Median CPU time, in the scenario's unit."""
        return statistics.median(self.cpu_us)

    @property
    def memory(self) -> float:
        """The most resident memory seen in any round, 10^6 bytes."""
        return max(self.rss_megabytes)


@dataclass
class Outcome:
    """Everything the proxies' part found. ``skipped`` maps a program to the reason why it has no figures."""

    figures: list[Figures] = field(default_factory=list)
    ready_seconds: dict[str, list[float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def cpu(self, program: str, scenario: Scenario) -> float | None:
        """The CPU time of one cell; None as ``find``."""
        figures = self.find(program, scenario)
        return None if figures is None else figures.cpu

    def find(self, program: str, scenario: Scenario) -> Figures | None:
        """The figures of one cell; None where it was not measured or its answers were wrong."""
        for figures in self.figures:
            if (figures.program, figures.scenario) == (program, scenario.name):
                return figures if figures.cpu_us and not figures.problem else None
        return None


@dataclass(frozen=True)
class Effort:
    """How much is done. Seconds of CPU time: what a warm-up burns at least, and what one turn should burn."""

    rounds: int = 5
    warm_seconds: float = 2.5
    turn_seconds: float = 0.6


QUICK = Effort(rounds=3, warm_seconds=2.0, turn_seconds=0.3)


def measure(programs: Sequence[Program], scenarios: Sequence[Scenario], tools: Path, effort: Effort) -> Outcome:
    """Measure every program in every scenario; ``tools`` is the folder of ``install.load_tools``."""
    outcome = Outcome()
    for kind in dict.fromkeys(scenario.upstream for scenario in scenarios):
        chosen = [scenario for scenario in scenarios if scenario.upstream == kind]
        with _upstream(kind, chosen[0].gap_us, tools) as port, ExitStack() as started:
            # No bar asks for a slow program in the paced scenario, which would take minutes.
            servers = _start([each for each in programs if kind == "burst" or not each.slow], kind, port, started, outcome)
            for scenario in chosen:
                outcome.figures += _take_turns(servers, scenario, tools, effort)
    return outcome


@contextmanager
def _upstream(kind: str, gap_us: int, tools: Path) -> Iterator[int]:
    """The scripted upstream; yields its port."""
    port = free_port()
    events = tools / "canned" / ("stream_ts.sse" if gap_us else "stream.sse")
    argv = [str(tools / "upstream"), str(port), str(tools / "canned" / "chat.json"), str(events), str(gap_us)]
    with server(argv, port=port, ready_path="/__stats", log=_folder(f"upstream-{kind}") / "log"):
        yield port


def _start(
    programs: Sequence[Program], kind: str, upstream_port: int, started: ExitStack, outcome: Outcome
) -> list[tuple[Program, Running]]:
    servers = []
    for program in programs:
        if program.name in outcome.skipped:
            continue
        folder = _folder(f"{program.name}-{kind}")
        place = Place(upstream_port, free_port(), folder)
        say(f"starting {program.name} {program.version} ({kind}) ...")
        try:
            running = started.enter_context(
                server(
                    program.command(place),
                    port=place.port,
                    ready_path=program.ready_path,
                    log=folder / "log",
                    env=program.env,
                )
            )
        except UnavailableError as error:
            outcome.skipped[program.name] = str(error)
            say(f"  skipped: {error}")
            continue
        outcome.ready_seconds.setdefault(program.name, []).append(running.ready_seconds)
        servers.append((program, running))
    return servers


def _folder(name: str) -> Path:
    folder = BUILD / "run" / name.replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _take_turns(servers: Sequence[tuple[Program, Running]], scenario: Scenario, tools: Path, effort: Effort) -> list[Figures]:
    found = [Figures(program.name, scenario.name) for program, _ in servers]
    counts: dict[str, int] = {}
    for number in range(effort.rounds + 1):
        for (program, running), figures in zip(servers, found, strict=True):
            if figures.problem:
                continue
            try:
                if number == 0:
                    say(f"{scenario.name}: warming up {program.name} ...")
                    counts[program.name] = _warm_up(program, running, scenario, tools, effort)
                    continue
                turn = _turn(program, running, scenario, tools, counts[program.name])
            except UnavailableError as error:
                figures.problem = str(error)
                say(f"  {figures.problem}")
                continue
            figures.cpu_us.append(turn.cpu_us)
            figures.rss_megabytes.append(turn.rss_megabytes)
            say(
                f"{scenario.name} {number}/{effort.rounds} {program.name:16} {turn.cpu_us:10.1f} {scenario.unit}"
                f"  ({turn.answers} answers, {turn.rss_megabytes:.0f} MB)"
            )
    return found


@dataclass(frozen=True)
class _Turn:
    cpu_seconds: float
    cpu_us: float
    rss_megabytes: float
    answers: int


def _warm_up(program: Program, running: Running, scenario: Scenario, tools: Path, effort: Effort) -> int:
    """Let the program compile, pool and cache; returns how many answers one of its turns holds."""
    answers = scenario.connections
    spent = 0.0
    deadline = time.perf_counter() + 1.5 * effort.warm_seconds  # paced streams mostly wait
    while True:
        cost = _turn(program, running, scenario, tools, answers).cpu_seconds
        spent += cost
        wanted = whole_rounds(answers * effort.turn_seconds / cost, scenario)
        if spent >= effort.warm_seconds or time.perf_counter() > deadline:
            return wanted
        answers = min(wanted, answers * 4)


def whole_rounds(answers: float, scenario: Scenario) -> int:
    """At least two per connection (paced: one), at most the scenario's, the same number on each connection."""
    fewest = 1 if scenario.gap_us else 2
    per_connection = max(fewest, min(round(answers), scenario.most) // scenario.connections)
    return per_connection * scenario.connections


def _turn(program: Program, running: Running, scenario: Scenario, tools: Path, answers: int) -> _Turn:
    argv = [
        *(str(tools / "load"), str(running.port), "/v1/chat/completions", str(tools / "canned" / scenario.body)),
        *(str(scenario.connections), str(answers)),
        *(["-s", "-x", "[DONE]"] if scenario.stream else []),
        *(["-x", "tool_calls"] if program.parses else []),
    ]
    before = running.cpu_seconds()
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    memory = running.rss_megabytes()
    try:
        while True:
            try:
                printed, complaints = process.communicate(timeout=_MEMORY_EVERY)
                break
            except subprocess.TimeoutExpired:
                memory = max(memory, running.rss_megabytes())
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    time.sleep(_SETTLE)
    spent = running.cpu_seconds() - before
    if not printed:
        raise UnavailableError(f"the load client failed against {program.name}: {complaints.strip()[-300:]}")
    load = json.loads(printed)
    if load["bad"]:
        # A proxy that answers wrongly may well be quick: its figures would mean nothing.
        raise UnavailableError(f"{load['bad']} of {answers} answers were wrong, the first: {load['first_bad'][:300]}")
    parts = answers * (_events(tools) if scenario.gap_us else 1)
    return _Turn(spent, spent / parts * 1e6, memory, answers)


def _events(tools: Path) -> int:
    """Events in one stream, as the upstream sends them: a proxy that merges events is not charged for fewer."""
    return (tools / "canned" / "stream_ts.sse").read_bytes().count(b"data: ")


def section(names: Sequence[str], scenarios: Sequence[Scenario], effort: Effort, *, allowed: bool) -> Section:
    """Measure the programs of these names; ``allowed``: whether peers may be installed."""
    try:
        tools = install.load_tools()
    except UnavailableError as error:
        return Section(list(verdicts(Outcome(), scenarios)), [f"Proxies: skipped, {error}"])
    programs, skipped = list[Program](), dict[str, str]()
    for name in names:
        try:
            programs.append(ROWS[name](allowed=allowed))
        except UnavailableError as error:
            skipped[name] = str(error)
            say(f"{name}: skipped, {error}")
    outcome = measure(programs, scenarios, tools, effort)
    outcome.skipped.update(skipped)
    raw = {"programs": {program.name: program.version for program in programs}, **asdict(outcome)}
    return Section(list(verdicts(outcome, scenarios)), [table(outcome, programs, scenarios, effort.rounds)], {"proxy": raw})


def verdicts(outcome: Outcome, scenarios: Sequence[Scenario]) -> Iterator[Verdict]:
    """The bars of these scenarios."""
    for scenario, peer, limit in RATIOS:
        if scenario in scenarios:
            what = f"{scenario.title}: CPU beside {peer}"
            yield ratio(what, outcome.cpu(OURS, scenario), outcome.cpu(peer, scenario), limit, fraction=limit < 0.1)
    if REQUEST in scenarios:
        traced, plain = outcome.cpu(TRACED, REQUEST), outcome.cpu(OURS, REQUEST)
        yield ratio(f"{REQUEST.title}: CPU with traces beside none", traced, plain, TRACES)
    if PACED in scenarios:
        paced = outcome.find(OURS, PACED)
        yield at_most("Memory with 64 open streams, one worker", None if paced is None else paced.memory, MEGABYTES, "MB")
    ready = outcome.ready_seconds.get(OURS)
    yield at_most("patchbay proxy, spawn to the first 200 on /health", min(ready) if ready else None, READY_SECONDS, "s")


def table(outcome: Outcome, programs: Sequence[Program], scenarios: Sequence[Scenario], rounds: int) -> str:
    """CPU time and memory, a column for each program."""

    def row(title: str, cell: Callable[[Program], str | None]) -> list[str]:
        return [title, *(cell(program) or NOT_MEASURED for program in programs)]

    def cpu(scenario: Scenario) -> Callable[[Program], str | None]:
        def cell(program: Program) -> str | None:
            figures = outcome.find(program.name, scenario)
            return None if figures is None else between(figures.cpu_us)

        return cell

    def memory(program: Program) -> str | None:
        figures = outcome.find(program.name, PACED)
        return None if figures is None else f"{figures.memory:.0f}"

    def ready(program: Program) -> str | None:
        seconds = outcome.ready_seconds.get(program.name)
        return f"{min(seconds):.2f}" if seconds else None

    rows = [row(f"{scenario.title}: CPU {scenario.unit}", cpu(scenario)) for scenario in scenarios]
    rows += [row("Memory with 64 open streams, MB", memory)] if PACED in scenarios else []
    rows.append(row("Spawn to first 200, s", ready))
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
