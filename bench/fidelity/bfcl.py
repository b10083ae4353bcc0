"""BFCL: what models really wrote for a public benchmark. Are the calls right, is any invented, does a stream read the same?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.fidelity import corpora
from bench.fidelity.corpora import count_at_most, no_slow_text, percent, share_at_least
from bench.fidelity.readings import Cut, milliseconds, read
from bench.report import Failure, Section, Verdict, markdown

CUTS: tuple[Cut, ...] = (1, 4, "random")
ACC, SPURIOUS, MISSED, TEXT_SHARE = 86.5, 0, 30, 29.0

_IRRELEVANT = "irrelevance"


@dataclass(frozen=True)
class Result:
    """One row. ``differs`` are the cuts that read otherwise than the whole text, ``errors`` what was raised, by cut."""

    row: str
    model: str
    category: str
    intent: str | None
    right: bool
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


def judge(line: str) -> Result:
    """Read a row in every way and score the whole text; runs in a worker."""
    row = json.loads(line)
    score = corpora.scorer(corpora.BFCL.parent)
    whole = read(row["text"], row["tools"], 0)
    calls = [(call.name, call.raw_arguments) for call in whole.reply.tool_calls]
    found = [{"name": name, "arguments": arguments} for name, arguments in calls]
    right, why = score.score_record(row, found)
    cut = {cut: read(row["text"], row["tools"], cut) for cut in CUTS}
    return Result(
        row=row["id"],
        model=row["model"],
        category=row["category"],
        intent=row.get("call_intent"),
        right=right,
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


def measure(*, jobs: int, sample: int, only: str) -> Section:
    """The development half. ``only`` is a part of a row's id, model or category."""
    results = corpora.judged(judge, corpora.BFCL, _label, jobs=jobs, sample=sample, only=only)
    count = _counted(results)
    verdicts = [
        share_at_least("BFCL, calls right", ACC, count.acc),
        count_at_most("BFCL, calls invented where the text holds none", SPURIOUS, count.spurious, of=count.quiet),
        count_at_most("BFCL, calls missed where the text holds one", MISSED, count.missed, of=count.meant),
    ]
    return _section("BFCL", "bfcl", verdicts, results, count)


def measure_text(*, jobs: int, sample: int, only: str) -> Section:
    """The texts of models that have native calls but wrote them into the text."""
    results = corpora.judged(judge, corpora.BFCL_TEXT, _label, jobs=jobs, sample=sample, only=only)
    count = _counted(results)
    title = "BFCL, text beside native calls"
    verdicts = [share_at_least(f"{title}: calls right where due", TEXT_SHARE, count.acc, detail=f" of {count.due}")]
    return _section(title, "bfcl-text", verdicts, results, count)


def _section(title: str, part: str, verdicts: list[Verdict], results: Sequence[Result], count: Count) -> Section:
    names = {1: "pieces of 1", 4: "pieces of 4", "random": "pieces of random size"}
    rows = len(results)
    verdicts += [
        count_at_most(f"{title}, rows that read otherwise in {names[cut]}", 0, count.differs[cut], of=rows) for cut in CUTS
    ]
    verdicts.append(count_at_most(f"{title}, exceptions", 0, count.errors, of=rows))
    verdicts.append(no_slow_text(title, [result.milliseconds for result in results]))
    models = {name: _counted(each for each in results if each.model == name) for name in sorted({each.model for each in results})}
    table = f"{title}, by model, {rows:,} texts (acc in % of the rows where calls are due).\n\n{_table(models)}"
    return Section(verdicts, [table], {part: {"rows": rows, "acc": count.acc, **vars(count)}}, _failures(part, results))


def _label(row: dict[str, Any]) -> str:
    return f"{row['id']} {row['model']} {row['family']} {row['category']}"


def _counted(results: Iterable[Result]) -> Count:
    total = Count()
    for result in results:
        total.add(result)
    return total


def _table(models: dict[str, Count]) -> str:
    rows = [
        [
            name,
            f"{count.due:,}",
            f"{count.acc:.1f}" if count.due else "–",
            f"{count.spurious}/{count.quiet}",
            f"{count.missed}/{count.meant}",
            str(max(count.differs.values())),
        ]
        for name, count in models.items()
    ]
    return markdown(["model", "calls due", "acc", "invented", "missed", "differs in pieces"], rows)


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
