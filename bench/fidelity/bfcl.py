"""BFCL: what models really wrote for a public benchmark. Are the calls right, is any invented, does a stream read the same?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.fidelity import corpora
from bench.fidelity.pool import spread
from bench.fidelity.readings import Cut, milliseconds, read
from bench.fidelity.section import Failure, Section, at_least, at_most, no_slow_text, percent
from bench.places import UnavailableError
from bench.table import markdown

CUTS: tuple[Cut, ...] = (1, 4, "random")
ACC, ACC_RELAXED, SPURIOUS, MISSED, TEXT_SHARE = 87.0, 87.5, 0, 10, 29.0

_IRRELEVANT = "irrelevance"


@dataclass(frozen=True)
class Result:
    """One row. ``differs`` are the cuts that read otherwise than the whole text, ``errors`` what was raised, by cut."""

    row: str
    model: str
    category: str
    intent: str | None
    right: bool
    relaxed: bool
    why: str
    differs: tuple[Cut, ...]
    errors: tuple[str, ...]
    milliseconds: float
    text: str
    calls: list[tuple[str, str]]
    content: str | None
    reasoning: str | None
    incomplete: int
    expected: Any


@dataclass
class Count:
    """Rows counted: those where a call is due, and those where none is, by what the text holds."""

    due: int = 0
    right: int = 0
    relaxed: int = 0
    silent: int = 0
    quiet: int = 0
    spurious: int = 0
    meant: int = 0
    missed: int = 0
    differs: dict[Cut, int] = field(default_factory=lambda: dict.fromkeys(CUTS, 0))
    errors: int = 0

    def add(self, result: Result) -> None:
        """Count one row."""
        if result.category != _IRRELEVANT:
            self.due += 1
            self.right += result.right
            self.relaxed += result.relaxed
            self.silent += not result.calls
        elif result.intent == "none":
            self.quiet += 1
            self.spurious += bool(result.calls)
        elif result.intent == "known":
            self.meant += 1
            self.missed += not result.calls
        for cut in result.differs:
            self.differs[cut] += 1
        self.errors += bool(result.errors)

    @property
    def acc(self) -> float:
        """Rows with the right calls, in per cent of those where some are due."""
        return percent(self.right, self.due)

    @property
    def acc_relaxed(self) -> float:
        """The same where an integer is a number inside arrays too."""
        return percent(self.relaxed, self.due)


def judge(line: str) -> Result:
    """Read a row in every way and score the whole text; runs in a worker."""
    row = json.loads(line)
    score = corpora.scorer(corpora.BFCL.parent)
    whole = read(row["text"], row["tools"], 0)
    calls = [(call.name, call.raw_arguments) for call in whole.reply.tool_calls]
    told = [{"name": name, "arguments": arguments} for name, arguments in calls]
    right, why = score.score_record(row, told)
    cut = {cut: read(row["text"], row["tools"], cut) for cut in CUTS}
    return Result(
        row=row["id"],
        model=row["model"],
        category=row["category"],
        intent=row.get("call_intent"),
        right=right,
        relaxed=right or score.score_record(row, told, relaxed=True)[0],
        why=why or "",
        differs=tuple(name for name, reading in cut.items() if reading.reply != whole.reply),
        errors=tuple(filter(None, [whole.error, *(reading.error for reading in cut.values())])),
        milliseconds=milliseconds(whole, row["text"], row["tools"]),
        text=row["text"],
        calls=calls,
        content=whole.reply.content,
        reasoning=whole.reply.reasoning,
        incomplete=len(whole.reply.incomplete),
        expected=row["possible_answers"] or row.get("call_intent"),
    )


def measure(*, jobs: int, sample: int, only: str, by: str) -> Section:
    """The development half. ``only`` is a piece of a row's id, model or category; ``by`` what the table is by."""
    results = _results(corpora.BFCL, "bfcl", jobs=jobs, sample=sample, only=only)
    count, groups = _counted(results, by)
    verdicts = [
        at_least("BFCL, calls right", ACC, count.acc),
        at_least("BFCL, calls right, integers for numbers inside arrays", ACC_RELAXED, count.acc_relaxed),
        at_most("BFCL, calls invented where the text holds none", SPURIOUS, count.spurious, of=count.quiet),
        at_most("BFCL, calls missed where the text holds one", MISSED, count.missed, of=count.meant),
        *_stability("BFCL", count, len(results)),
        no_slow_text("BFCL", [result.milliseconds for result in results]),
    ]
    table = f"BFCL by {by}, {len(results):,} texts (acc in % of the rows where calls are due).\n\n{_table(by, groups)}"
    raw = {"bfcl": _raw(results, count, groups)}
    return Section(verdicts, [table], raw=raw, failures=_failures("bfcl", results))


def measure_text(*, jobs: int, sample: int, only: str, by: str) -> Section:
    """The texts of models that have native calls but wrote them into the text."""
    results = _results(corpora.BFCL_TEXT, "bfcl-text", jobs=jobs, sample=sample, only=only)
    count, groups = _counted(results, by)
    verdicts = [
        at_least("BFCL, text beside native calls: calls right where due", TEXT_SHARE, count.acc, detail=f" of {count.due}"),
        *_stability("BFCL, text beside native calls", count, len(results)),
        no_slow_text("BFCL, text beside native calls", [result.milliseconds for result in results]),
    ]
    table = f"BFCL, text beside native calls, by {by}, {len(results):,} texts.\n\n{_table(by, groups)}"
    raw = {"bfcl_text": _raw(results, count, groups)}
    return Section(verdicts, [table], raw=raw, failures=_failures("bfcl-text", results))


def _results(file: Path, title: str, *, jobs: int, sample: int, only: str) -> list[Result]:
    lines = corpora.lines(file, sample=sample)
    if only:
        lines = [line for line in lines if only in _label(json.loads(line))]
    if not lines:
        raise UnavailableError(f"no row has {only!r}")
    corpora.scorer(file.parent)  # absent: say it here, not in a worker
    return list(spread(judge, lines, jobs=jobs, title=title))


def _label(row: dict[str, Any]) -> str:
    return f"{row['id']} {row['model']} {row['family']} {row['category']}"


def _counted(results: Iterable[Result], by: str) -> tuple[Count, dict[str, Count]]:
    total, groups = Count(), dict[str, Count]()
    for result in results:
        total.add(result)
        groups.setdefault(getattr(result, by), Count()).add(result)
    return total, dict(sorted(groups.items()))


def _stability(title: str, count: Count, rows: int) -> list[Any]:
    names = {1: "pieces of 1", 4: "pieces of 4", "random": "pieces of random size"}
    differing = [at_most(f"{title}, rows that read otherwise in {names[cut]}", 0, count.differs[cut], of=rows) for cut in CUTS]
    return [*differing, at_most(f"{title}, exceptions", 0, count.errors, of=rows)]


def _table(by: str, groups: dict[str, Count]) -> str:
    header = [by, "calls due", "acc", "relaxed", "no call read", "invented", "missed", "differs in pieces", "exceptions"]
    return markdown(
        header,
        [
            [
                name,
                f"{count.due:,}",
                f"{count.acc:.1f}" if count.due else "–",
                f"{count.acc_relaxed:.1f}" if count.due else "–",
                str(count.silent),
                f"{count.spurious}/{count.quiet}",
                f"{count.missed}/{count.meant}",
                str(max(count.differs.values())),
                str(count.errors),
            ]
            for name, count in groups.items()
        ],
    )


def _failures(part: str, results: Sequence[Result]) -> list[Failure]:
    failures = []
    for result in results:
        why = "; ".join(
            [
                *result.errors,
                *(f"differs in pieces of {cut}" for cut in result.differs),
                *([result.why] if result.category != _IRRELEVANT and not result.right else []),
                *(["spurious"] if result.intent == "none" and result.calls else []),
                *(["missed_intent"] if result.intent == "known" and not result.calls else []),
            ]
        )
        if why:
            failures.append(Failure(part, f"{result.model} {result.row}", why, result.text, result.calls, result.expected))
    return failures


def _raw(results: Sequence[Result], count: Count, groups: dict[str, Count]) -> dict[str, Any]:
    def figures(one: Count) -> dict[str, Any]:
        return {"acc": one.acc, "acc_relaxed": one.acc_relaxed, **vars(one)}

    slowest = sorted(results, key=lambda result: -result.milliseconds)[:20]
    return {
        "rows": len(results),
        **figures(count),
        "groups": {name: figures(one) for name, one in groups.items()},
        "slowest_ms": {f"{result.model} {result.row}": result.milliseconds for result in slowest},
        "messages": sorted({error for result in results for error in result.errors}),
    }
