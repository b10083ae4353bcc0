"""The recorded texts and their own scorers: reading them over several processes, and bars of what was read.

They are no part of this repository: what is absent raises UnavailableError.

A corpus is a gzipped file of JSON lines beside a ``score.py``. The scorers are imported by their path, so that the figures here are
the figures that anybody else gets; nothing of them is copied.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import multiprocessing
import random
import signal
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from bench.fidelity.readings import SLOW
from bench.places import ROOT, UnavailableError, say
from bench.report import Verdict

DATA = ROOT.parent / "shared" / "data"
BFCL = DATA / "bfcl" / "dev.jsonl.gz"
BFCL_TEXT = DATA / "bfcl" / "dev_fc_text.jsonl.gz"
FORMATS = DATA / "formats" / "dev.jsonl.gz"

Row = dict[str, Any]
R = TypeVar("R")
_BATCH = 40


def lines(file: Path, *, sample: int = 0) -> list[str]:
    """The rows of a corpus, unread; with ``sample`` so many of them, always the same. Raises UnavailableError where it is absent."""
    if not file.is_file():
        raise UnavailableError(f"{_shown(file)} is not here")
    with gzip.open(file, "rt", encoding="utf-8") as text:
        found = [line for line in text if line.strip()]
    if not 0 < sample < len(found):
        return found
    # Every n-th row would follow the order of the corpus, and see only some of its models.
    return [found[at] for at in sorted(random.Random(0).sample(range(len(found)), sample))]


def judged(judge: Callable[[str], R], file: Path, label: Callable[[Row], str], *, jobs: int, sample: int, only: str) -> list[R]:
    """Each row of a corpus as ``judge`` finds it, in order; with ``only`` the rows whose label contains it.

    ``judge`` is a function of a module, so that the worker processes can import it.
    """
    chosen = [line for line in lines(file, sample=sample) if not only or only in label(json.loads(line))]
    if not chosen:
        raise UnavailableError(f"no row has {only!r}")
    scorer(file.parent)  # absent: say it here, not in a worker
    say(f"fidelity: {len(chosen):,} rows of {file.parent.name}/{file.name} ...")
    if jobs <= 1:
        return [judge(line) for line in chosen]
    # The terminal sends Ctrl-C to every process; the workers leave it to this one, which ends them when it unwinds.
    with multiprocessing.get_context("spawn").Pool(jobs, _ignore_interrupts) as pool:
        return pool.map(judge, chosen, chunksize=_BATCH)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@lru_cache(maxsize=4)
def scorer(folder: Path) -> ModuleType:
    """The ``score.py`` of a corpus's folder. Raises UnavailableError where it is absent."""
    file = folder / "score.py"
    spec = importlib.util.spec_from_file_location(f"patchbay_score_{folder.name}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise UnavailableError(f"{_shown(file)} is not here")
    module = importlib.util.module_from_spec(spec)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # the folder is not ours to write to
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes
    return module


def _shown(file: Path) -> str:
    return "../" + file.relative_to(ROOT.parent).as_posix()


def share_at_least(what: str, bar: float, measured: float, *, detail: str = "") -> Verdict:
    """The bar of a share, met from ``bar`` per cent on. Rounded down, so that a missed bar is never shown as met."""
    return Verdict(what, f"≥ {bar:g} %", f"{int(measured * 100) / 100:.2f} %{detail}", measured >= bar)


def count_at_most(what: str, bar: int, measured: int, *, of: int | None = None) -> Verdict:
    """The bar of a count."""
    share = "" if of is None else f" of {of:,}"
    return Verdict(what, f"≤ {bar}" if bar else "0", f"{measured:,}{share}", measured <= bar)


def no_slow_text(what: str, milliseconds: Sequence[float]) -> Verdict:
    """The bar that no text costs more than SLOW."""
    above = sum(value > SLOW for value in milliseconds)
    measured = f"{above:,} of {len(milliseconds):,} (slowest {max(milliseconds, default=0):.1f} ms)"
    return Verdict(f"{what}, texts above {SLOW:g} ms of CPU", "0", measured, above == 0)


def percent(part: float, whole: float) -> float:
    """A share in per cent; 0 of nothing."""
    return 100 * part / whole if whole else 0.0
