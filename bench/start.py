"""How long it takes to begin: the import, the command line, the proxy. Median of fresh processes.

The bars are about wall time, which a busy machine stretches; the CPU time beside it tells whether it was the machine.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.places import BUILD, UnavailableError, say
from bench.processes import free_port, server

_LIMIT = 60.0

_IMPORT = """
import json, sys, time
before = set(sys.modules)
start, used = time.perf_counter(), time.process_time()
{statement}
wall, cpu = time.perf_counter() - start, time.process_time() - used
roots = {{name.partition(".")[0] for name in set(sys.modules) - before}}
foreign = sorted(root for root in roots if root != "patchbay" and root not in sys.stdlib_module_names)
print(json.dumps({{"wall": wall * 1e3, "cpu": cpu * 1e3, "foreign": foreign}}))
"""

IMPORT = "import patchbay"
PARSING = "from patchbay import parse, StreamParser"
RUNNING = "from patchbay import wrap, ToolRunner, tool"


@dataclass(frozen=True)
class Reading:
    """Milliseconds of one beginning."""

    wall: float
    cpu: float


@dataclass
class Outcome:
    """Medians by what was started; ``foreign`` maps an import to the third-party packages that it loaded."""

    readings: dict[str, Reading] = field(default_factory=dict)
    foreign: dict[str, list[str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


HELP = "patchbay --help"
READY = "patchbay proxy, spawn to the first 200 on /health"


def measure(*, quick: bool) -> Outcome:
    """Start everything afresh, several times; the first start of each is thrown away (it writes the byte code)."""
    outcome = Outcome()
    times = 5 if quick else 11
    for statement in (IMPORT, PARSING, RUNNING):
        _try(outcome, statement, times, partial(_import, statement, outcome))
    script = Path(sys.executable).with_name("patchbay")
    _try(outcome, HELP, times, lambda: _run([str(script), "--help"])[0])
    _try(outcome, READY, 3 if quick else 5, lambda: _ready(script))
    return outcome


def _try(outcome: Outcome, what: str, times: int, once: Callable[[], Reading]) -> None:
    say(f"start: {what} ...")
    try:
        once()
        readings = [once() for _ in range(times)]
        outcome.readings[what] = Reading(
            statistics.median(reading.wall for reading in readings),
            statistics.median(reading.cpu for reading in readings),
        )
    except (UnavailableError, OSError) as error:
        outcome.skipped[what] = str(error)


def _import(statement: str, outcome: Outcome) -> Reading:
    _, printed = _run([sys.executable, "-c", _IMPORT.format(statement=statement)])
    found = json.loads(printed)
    outcome.foreign[statement] = found["foreign"]
    return Reading(found["wall"], found["cpu"])


def _run(argv: list[str]) -> tuple[Reading, str]:
    """From spawn to exit, and what was printed."""
    start, used = time.perf_counter(), _children_cpu()
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT, check=False)
    reading = Reading((time.perf_counter() - start) * 1e3, (_children_cpu() - used) * 1e3)
    if done.returncode != 0:
        raise UnavailableError((done.stderr.strip().splitlines() or ["failed and said nothing"])[-1])
    return reading, done.stdout


def _children_cpu() -> float:
    """Seconds of CPU time that children used which have ended and been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _ready(script: Path) -> Reading:
    folder = BUILD / "run"
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    # Nothing listens at the upstream: being ready must not depend on it.
    argv = [str(script), "proxy", "--upstream", f"http://127.0.0.1:{free_port()}/v1", "--port", str(port)]
    with server(argv, port=port, ready_path="/health", log=folder / "ready.log", limit=_LIMIT) as running:
        return Reading(running.ready_seconds * 1e3, running.cpu_seconds() * 1e3)


def raw(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON."""
    return {
        "milliseconds": {what: asdict(reading) for what, reading in outcome.readings.items()},
        "foreign": outcome.foreign,
        "skipped": outcome.skipped,
    }
