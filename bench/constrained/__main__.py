"""``python -m bench.constrained``: ask the requests in every row's way, print the tables, write the raw figures if requested."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.constrained import tables
from bench.constrained.measure import ROWS, SAMPLING, Outcome, measure, versions
from bench.constrained.requests import Request, load, load_bfcl
from bench.places import PROJECT, UnavailableError, say

PAGE = PROJECT / "benchmarks.md"
BFCL = "bfcl"

_EXAMPLES = """\
examples:
  python -m bench.constrained                              every row: about a second a request on a quiet core
  python -m bench.constrained --only copy --fails 10       one row, and its first wrong answers
  python -m bench.constrained --sets everyday --limit 5    the first requests of one set (while tuning)
  python -m bench.constrained --write --json figures.json  renew docs/project/benchmarks.md; keep every answer
  python -m bench.constrained --write --json figures.json --resume   go on after an interruption
"""


class _Options(argparse.Namespace):
    only: list[str]
    sets: list[str]
    limit: int | None
    fails: int
    json: Path | None
    write: bool
    resume: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, 2 where the model cannot be run or the arguments are wrong, 130 if interrupted."""
    requests, chats = load()
    skipped = ""
    try:
        requests[BFCL] = load_bfcl()
    except UnavailableError as error:
        skipped = f"{BFCL}: skipped, {error}"
    options = _arguments(argv, [*requests])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that every server is stopped
    asked = {name: found[: options.limit] for name, found in requests.items() if not options.sets or name in options.sets}
    rows = [row for name, row in ROWS.items() if not options.only or name in options.only]
    began = time.monotonic()
    try:
        known = versions()
        figures = {"machine": report.machine(), "versions": known, "sampling": SAMPLING}
        outcomes = _resumed(options.json, figures) if options.resume else []
        for outcome in measure(rows, asked, {name: found[: options.limit] for name, found in chats.items()}, outcomes[:]):
            outcomes.append(outcome)
            if options.json:  # after each, so that an interruption loses only one
                raw = [outcome.raw(_asked(outcome, requests)) for outcome in outcomes]
                text = json.dumps({**figures, "rows": raw}, indent=1, ensure_ascii=False)
                options.json.write_text(text + "\n", encoding="utf-8")
    except UnavailableError as error:
        say(f"not measured: {error}")
        return 2
    except KeyboardInterrupt:
        say("\ninterrupted")
        return 130
    commits = dict.fromkeys(f"`{outcome.commit}`" for outcome in outcomes)
    notes = [
        f"Commit {', then '.join(commits)}. {report.machine()}.",
        ", ".join(f"{name} {value}" for name, value in known.items()) + ".",
        *([skipped] if skipped else []),
    ]
    text = "\n\n".join([" ".join(notes), *tables.render(outcomes)])
    print(text)
    for outcome in outcomes:
        for line in _fails(outcome, _asked(outcome, requests))[: options.fails]:
            print(line)
    if options.write:
        report.write_between(PAGE, "constrained", text)
    say(f"done in {time.monotonic() - began:.0f} s")
    return 0


def _asked(outcome: Outcome, requests: Mapping[str, Sequence[Request]]) -> Sequence[Request]:
    return requests[outcome.set][: len(outcome.answers)]


def _resumed(file: Path | None, figures: dict[str, Any]) -> list[Outcome]:
    """Return the outcomes in ``file``, none if it does not exist. Raises UnavailableError if another model or server made them."""
    if file is None or not file.exists():
        return []
    raw = json.loads(file.read_text(encoding="utf-8"))
    if {name: raw[name] for name in figures} != figures:
        raise UnavailableError(f"{file} has figures of other versions or of another machine: give another file")
    return [Outcome.of_raw(each) for each in raw["rows"]]


def _fails(outcome: Outcome, requests: Sequence[Request]) -> list[str]:
    judged = zip(requests, outcome.answers, outcome.verdicts, strict=True)
    return [
        f"\n{outcome.row.name}: {request.text}\n  got {list(answer.calls) or answer.error or answer.text}\n"
        f"  expected {request.name} {json.dumps(dict(request.accepted), ensure_ascii=False)}"
        for request, answer, verdict in judged
        if not verdict.exact
    ]


def _arguments(argv: Sequence[str] | None, sets: Sequence[str]) -> _Options:
    parser = argparse.ArgumentParser(
        prog="python -m bench.constrained",
        description="Count the valid and the exact calls of a real small model, with and without a constraint.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    only = f"only this row: {', '.join(ROWS)} (may be repeated)"
    add("--only", action="append", default=[], choices=ROWS, metavar="ROW", help=only)
    add("--sets", action="append", default=[], choices=sets, metavar="SET", help=f"only these requests: {', '.join(sets)}")
    add("--limit", type=int, metavar="N", help="the first N requests and chats of each set")
    add("--fails", type=int, default=0, metavar="N", help="print the first N wrong answers of each row")
    add("--json", type=Path, metavar="FILE", help="write every answer with its verdict")
    add("--resume", action="store_true", help="go on where the run that wrote --json FILE was interrupted")
    add("--write", action="store_true", help="renew docs/project/benchmarks.md; the tree must be committed")
    options = parser.parse_args(argv, namespace=_Options())
    if options.resume and options.json is None:
        parser.error("--resume needs --json FILE")
    if options.write:
        try:
            report.check_writable(partial=bool(options.only or options.sets or options.limit))
        except UnavailableError as error:
            parser.error(f"--write: {error}")
    return options


if __name__ == "__main__":
    sys.exit(main())
