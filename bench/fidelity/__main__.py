"""``python -m bench.fidelity``: measure the requested parts, print the tables, write the raw figures if requested."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import report
from bench.fidelity import bfcl, cost, formats
from bench.places import PROJECT, UnavailableError, say
from bench.report import Failure, Section, Verdict

PAGE = PROJECT / "fidelity.md"
HEADLINES = ("Formats, named: calls right, clean texts", "BFCL, calls right")
"""The bars that README.md shows."""

_EXAMPLES = """\
examples:
  python -m bench.fidelity                                 everything: about five minutes on 2 quiet cores
  python -m bench.fidelity --sample 500                    so many rows of each corpus, to see what a change did
  python -m bench.fidelity --only formats --fails 5        one part, and the first rows that it got wrong
  python -m bench.fidelity --only formats --rows kimi_k2 --fails 50
  python -m bench.fidelity --write --json figures.json      renew docs/project/fidelity.md and README.md
"""


class _Options(argparse.Namespace):
    only: list[str]
    rows: str
    sample: int
    jobs: int
    fails: int
    json: Path | None
    write: bool


def _of_corpus(measure: Callable[..., Section]) -> Callable[[_Options], Section]:
    return lambda options: measure(jobs=options.jobs, sample=options.sample, only=options.rows)


PARTS: dict[str, Callable[[_Options], Section]] = {
    "formats": _of_corpus(formats.measure),
    "bfcl": _of_corpus(bfcl.measure),
    "bfcl-text": _of_corpus(bfcl.measure_text),
    "linear": lambda options: cost.measure_growth(only=options.rows),
    "speed": lambda _: cost.measure_speed(),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 also when a bar is missed: the table says it. 2: wrong arguments, 130: interrupted."""
    options = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that the workers are ended
    try:
        _measure(options)
    except KeyboardInterrupt:
        say("\ninterrupted")
        return 130
    return 0


def _measure(options: _Options) -> None:
    began = time.monotonic()
    total = Section()
    for name, part in PARTS.items():
        if options.only and name not in options.only:
            continue
        try:
            total.add(part(options))
        except UnavailableError as error:
            say(f"{name}: skipped, {error}")
            total.verdicts.append(Verdict(f"{name}: skipped", "–", str(error), None))
    some = " Only some of the rows: to see what a change did, not to quote." if options.sample or options.rows else ""
    heading = f"Fidelity: the parser on recorded texts. {report.tree()}{some}"
    text = f"{heading}\n\n{report.bars(total.verdicts)}"
    print("\n\n".join([text, *total.tables]))
    for failure in total.failures[: options.fails]:
        print(_shown(failure))
    if options.json:
        total.write_raw(options.json, sample=options.sample)
    if options.write:
        report.write_tables("fidelity", PAGE, text, total.verdicts, HEADLINES)
    say(f"done in {time.monotonic() - began:.0f} s")


def _shown(failure: Failure) -> str:
    lines = [f"\n{failure.part}: {failure.row}: {failure.why}"]
    for title, value in (("text", failure.text), ("got", failure.got), ("expected", failure.expected)):
        lines.append(f"  {title:9}{json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def _arguments(argv: Sequence[str] | None) -> _Options:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fidelity",
        description="Measure how the parser reads recorded texts, how its cost grows, and how fast it is.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(PARTS)
    add = parser.add_argument
    add("--only", action="append", default=[], choices=PARTS, metavar="PART", help=f"only this part: {names} (may be repeated)")
    add("--rows", default="", metavar="WORD", help="only the rows with this in their id, format, model or class")
    add("--sample", type=_count, default=0, metavar="N", help="N rows of each corpus, always the same")
    add("--jobs", type=_count, default=2, metavar="N", help="processes for the corpora (default 2); times are measured in one")
    add("--fails", type=_count, default=0, metavar="N", help="print the first N rows that were read wrongly")
    add("--json", type=Path, metavar="FILE", help="write every figure, and every row that was read wrongly")
    written = "renew the bars of docs/project/fidelity.md and README.md; the tree must be committed"
    add("--write", action="store_true", help=written)
    options = parser.parse_args(argv, namespace=_Options())
    if options.write:
        try:
            report.check_writable(partial=bool(options.only or options.rows or options.sample))
        except UnavailableError as error:
            parser.error(f"--write: {error}")
    return options


def _count(value: str) -> int:
    number = int(value) if value.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is no number above 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
