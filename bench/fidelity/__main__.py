"""``python -m bench.fidelity``: measure the requested parts, print the tables, write the raw figures if requested."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import table
from bench.fidelity import bfcl, formats, linear, search, speed
from bench.fidelity.section import Failure, Section, not_measured
from bench.places import UnavailableError, check_writable, say, write_tables

_HEADLINES = ("Formats, named: calls right, clean texts", "BFCL, calls right")
"""The bars that README.md shows."""

_EXAMPLES = """\
examples:
  python -m bench.fidelity                                 everything: about five minutes on 2 quiet cores
  python -m bench.fidelity --sample 500                    so many rows of each corpus, to see what a change did
  python -m bench.fidelity --only formats --fails 5        one part, and the first rows that it got wrong
  python -m bench.fidelity --only formats --rows kimi_k2 --fails 50
  python -m bench.fidelity --only speed --only linear --rows glm --full
  python -m bench.fidelity --write --json figures.json      renew docs/project/fidelity.md and README.md
"""


class _Options(argparse.Namespace):
    only: list[str]
    rows: str
    by: str
    sample: int
    jobs: int
    fails: int
    full: bool
    json: Path | None
    write: bool


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
            total.verdicts.append(not_measured(f"{name}: skipped", "–", str(error)))
    text = "\n\n".join([_heading(options), table.bars(total.verdicts), *total.tables])
    print("\n\n".join([text, *total.details]) if options.full else text)
    for failure in total.failures[: options.fails] if options.fails else []:
        print(_shown(failure))
    if options.json:
        raw = total.raw | {
            "machine": table.machine(),
            "sample": options.sample,
            "bars": [{"what": v.what, "bar": v.bar, "measured": v.measured, "met": v.met} for v in total.verdicts],
            "failures": [vars(failure) for failure in total.failures],
        }
        options.json.write_text(json.dumps(raw, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    if options.write:
        text = "\n\n".join([_heading(options), table.bars(total.verdicts)])
        write_tables("fidelity", text, table.headlines(total.verdicts, _HEADLINES))
    say(f"done in {time.monotonic() - began:.0f} s")


def _bfcl(options: _Options) -> Section:
    return bfcl.measure(jobs=options.jobs, sample=options.sample, only=options.rows, by=options.by)


def _bfcl_text(options: _Options) -> Section:
    return bfcl.measure_text(jobs=options.jobs, sample=options.sample, only=options.rows, by=options.by)


def _formats(options: _Options) -> Section:
    return formats.measure(jobs=options.jobs, sample=options.sample, only=options.rows)


def _linear(options: _Options) -> Section:
    return linear.measure(only=options.rows)


def _speed(options: _Options) -> Section:
    return speed.measure(only=options.rows)


def _search(_options: _Options) -> Section:
    return search.measure()


PARTS: dict[str, Callable[[_Options], Section]] = {
    "formats": _formats,
    "bfcl": _bfcl,
    "bfcl-text": _bfcl_text,
    "linear": _linear,
    "speed": _speed,
    "search": _search,
}


def _heading(options: _Options) -> str:
    caution = ""
    if options.sample or options.rows:
        caution = " Only some of the rows: to see what a change did, not to quote."
    return f"Fidelity: what the parser makes of recorded texts. {table.tree()}{caution}"


def _shown(failure: Failure) -> str:
    lines = [f"\n{failure.part}: {failure.row}: {failure.why}"]
    for title, value in (("text", failure.text), ("got", failure.got), ("expected", failure.expected)):
        lines.append(f"  {title:9}{json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def _arguments(argv: Sequence[str] | None) -> _Options:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fidelity",
        description="Measure what the parser makes of recorded texts, how its cost grows, and how fast it is.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(PARTS)
    add = parser.add_argument
    add("--only", action="append", default=[], choices=PARTS, metavar="PART", help=f"only this part: {names} (may be repeated)")
    add("--rows", default="", metavar="WORD", help="only the rows with this in their id, format, model or class")
    add("--by", default="model", choices=("model", "category"), help="what the tables of BFCL are by")
    add("--sample", type=_count, default=0, metavar="N", help="N rows of each corpus, always the same")
    add("--jobs", type=_count, default=2, metavar="N", help="processes for the corpora (default 2); times are measured in one")
    add("--fails", type=_count, default=0, metavar="N", help="print the first N rows that were read wrongly")
    add("--full", action="store_true", help="the long tables too: time and speed of each format and of each hostile text")
    add("--json", type=Path, metavar="FILE", help="write every figure, and every row that was read wrongly")
    add(
        "--write",
        action="store_true",
        help="renew the bars of docs/project/fidelity.md and README.md; the tree must be committed",
    )
    options = parser.parse_args(argv, namespace=_Options())
    if options.write:
        try:
            check_writable(partial=bool(options.only or options.rows or options.sample))
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
