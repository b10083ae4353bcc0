"""The corpus of formats: texts and expectations of other projects' tests, with the format named and detected, whole and in pieces.

A row keeps its own project's view, so it is read with the matching options: whether reasoning is separated, whether the prompt
opened it, and how calls of tools that were not offered are read. The last is our default, prose, unless the row expects such
a call: then ``unknown_tools="keep"``. The figure with the default throughout is reported too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.fidelity import corpora
from bench.fidelity.corpora import count_at_most, no_slow_text, percent, share_at_least
from bench.fidelity.readings import Cut, Reading, milliseconds, read
from bench.report import Failure, Section, markdown
from patchbay.formats.values.tool_names import UnknownTools

PIECES: tuple[Cut, ...] = (1, 3, 7)
WAYS = ("named", "auto")
CLEAN = {"named": 98.5, "auto": 97.0}
EVERY = {"named": 97.0, "auto": 95.0}
ALL_THREE = 92.0


@dataclass(frozen=True)
class Result:
    """One row read in one way. ``right``: its calls; ``all_right``: content and reasoning too.

    ``by_default``: the same two with the default for tools that were not offered, whatever the row's project does with them.
    """

    row: str
    format: str
    cls: str
    way: str
    right: bool
    by_default: tuple[bool, bool]
    all_right: bool
    leak: bool
    why: str
    differs: tuple[Cut, ...]
    errors: tuple[str, ...]
    milliseconds: float
    text: str
    got: tuple[list[tuple[str, str]], str, str]
    expected: tuple[Any, Any, Any]


def judge(line: str) -> list[Result]:
    """Read a row in every way and score the whole text; runs in a worker."""
    row = json.loads(line)
    return [_judge(row, way) for way in WAYS]


def _judge(row: corpora.Row, way: str) -> Result:
    options = {
        "format": row["format"] if way == "named" else "auto",
        "reasoning": row["extract_reasoning"],
        "reasoning_prefilled": row["reasoning_prefilled"],
        "unknown_tools": _policy(row),
    }
    whole = read(row["text"], row["tools"], 0, **options)
    cut = {size: read(row["text"], row["tools"], size, **options) for size in PIECES}
    got = _got(whole)
    judged = corpora.scorer(corpora.FORMATS.parent).judge
    verdict = judged(row, *got)
    if whole.error:
        verdict |= {"calls": False, "all": False, "why": "exception"}
    by_default, leak = verdict, verdict["leak"]
    if options["unknown_tools"] == "keep":
        by_default = judged(row, *_got(read(row["text"], row["tools"], 0, **(options | {"unknown_tools": "text"}))))
    elif leak:  # the text of a call that was left in the prose is none: is it there without such calls?
        leak = judged(row, *_got(read(row["text"], row["tools"], 0, **(options | {"unknown_tools": "drop"}))))["leak"]
    return Result(
        row=row["id"],
        format=row["format"],
        cls=row["cls"],
        way=way,
        right=verdict["calls"],
        by_default=(by_default["calls"], by_default["all"]),
        all_right=verdict["all"],
        leak=leak,
        why=verdict["why"] or "",
        differs=tuple(size for size, reading in cut.items() if reading.reply != whole.reply),
        errors=tuple(filter(None, [whole.error, *(reading.error for reading in cut.values())])),
        milliseconds=milliseconds(whole, row["text"], row["tools"], **options),
        text=row["text"],
        got=got,
        expected=(row["expected_calls"], row["expected_content"], row["expected_reasoning"]),
    )


def _policy(row: corpora.Row) -> UnknownTools:
    """What the row's project does with calls of tools that were not offered, as far as the row tells."""
    offered = {tool.get("function", tool)["name"] for tool in row["tools"] or ()}
    return "text" if all(call["name"] in offered for call in row["expected_calls"]) else "keep"


def _got(reading: Reading) -> tuple[list[tuple[str, str]], str, str]:
    reply = reading.reply
    calls = [(call.name, call.raw_arguments) for call in reply.tool_calls]
    return calls, reply.content or "", reply.reasoning or ""


def measure(*, jobs: int, sample: int, only: str) -> Section:
    """All rows, in both ways. ``only`` is a part of a row's id, format or class."""
    both = corpora.judged(judge, corpora.FORMATS, _label, jobs=jobs, sample=sample, only=only)
    results = [result for pair in both for result in pair]
    table = f"Formats, {len(both)} texts: calls right (and content and reasoning too) by format.\n\n{_table(results)}"
    raw = {way: _figures([result for result in results if result.way == way]) for way in WAYS}
    return Section(list(_verdicts(results)), [table], {"formats": raw}, _failures(results))


def _label(row: corpora.Row) -> str:
    return f"{row['id']} {row['format']} {row['cls']}"


def _verdicts(results: Sequence[Result]) -> Iterable[Any]:
    for way, title in (("named", "Formats, named"), ("auto", "Formats, auto")):
        of_way = [result for result in results if result.way == way]
        clean = [result for result in of_way if result.cls == "clean"]
        yield share_at_least(f"{title}: calls right, clean texts", CLEAN[way], _share(clean), detail=_detail(clean, 0))
        yield share_at_least(f"{title}: calls right, all texts", EVERY[way], _share(of_way), detail=_detail(of_way, 0))
        if way == "named":
            share = percent(sum(result.all_right for result in of_way), len(of_way))
            yield share_at_least(f"{title}: calls, content and reasoning right", ALL_THREE, share, detail=_detail(of_way, 1))
        for size in PIECES:
            differing = sum(size in result.differs for result in of_way)
            yield count_at_most(f"{title}: texts that read otherwise in pieces of {size}", 0, differing, of=len(of_way))
        yield count_at_most(f"{title}: invalid JSON", 0, sum(result.why == "invalid_json" for result in of_way))
        yield count_at_most(f"{title}: markup leaked", 0, sum(result.leak for result in of_way))
        yield count_at_most(f"{title}: exceptions", 0, sum(bool(result.errors) for result in of_way))
    yield no_slow_text("Formats", [result.milliseconds for result in results])


def _detail(results: Sequence[Result], which: int) -> str:
    """Of how many, and what the figure is by our own policy throughout, where that is another one."""
    count = len(results)
    share = percent(sum(result.by_default[which] for result in results), count)
    differs = any(result.by_default != (result.right, result.all_right) for result in results)
    return f" of {count}" + (f" ({int(share * 100) / 100:.2f} % with unknown tools left in the text)" if differs else "")


def _share(results: Sequence[Result]) -> float:
    return percent(sum(result.right for result in results), len(results))


def _table(results: Sequence[Result]) -> str:
    groups: dict[str, list[Result]] = {}
    for cls in ("clean", "damaged", "none"):
        groups[f"*{cls}*"] = [result for result in results if result.cls == cls]
    for name in sorted({result.format for result in results}):
        groups[f"`{name}`"] = [result for result in results if result.format == name]

    def cells(chosen: list[Result]) -> list[str]:
        shown = []
        for way in WAYS:
            of_way = [result for result in chosen if result.way == way]
            shown.append(f"{sum(result.right for result in of_way)} ({sum(result.all_right for result in of_way)})")
        return [str(len(chosen) // len(WAYS)), *shown, str(sum(bool(result.differs) for result in chosen))]

    return markdown(
        ["format", "texts", "named", "auto", "differs in pieces"],
        [[name, *cells(chosen)] for name, chosen in groups.items() if chosen],
    )


def _failures(results: Sequence[Result]) -> list[Failure]:
    failures = []
    for result in results:
        why = "; ".join(
            [
                *dict.fromkeys(result.errors),
                *(f"differs in pieces of {size}" for size in result.differs),
                *(["leak"] if result.leak else []),
                *([result.why] if not result.all_right else []),
            ]
        )
        if why:
            row = f"{result.row} {result.format} {result.cls}"
            failures.append(Failure(f"formats/{result.way}", row, why, result.text, result.got, result.expected))
    return failures


def _figures(results: Sequence[Result]) -> dict[str, int]:
    return {
        "rows": len(results),
        "calls": sum(result.right for result in results),
        "all": sum(result.all_right for result in results),
        "leak": sum(result.leak for result in results),
        "differs": sum(bool(result.differs) for result in results),
    }
