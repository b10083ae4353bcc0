"""``python -m bench``: measure the requested parts, print the tables, write the raw figures if requested."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import calls, function_calls, grammars, hooks, proxies, report
from bench.places import PROJECT, UnavailableError, say
from bench.programs import LITELLM, ORIGINAL, ROWS
from bench.proxies import REQUEST, SCENARIOS
from bench.report import Section
from bench.turns import measure as turns

PAGE = PROJECT / "benchmarks.md"
HEADLINES = (
    f"{REQUEST.title}: CPU beside {ORIGINAL}",
    f"{REQUEST.title}: CPU beside {LITELLM}",
    "Turn of an agent, 1 call: CPU beside the best framework",
)
"""The bars that README.md shows."""

_EXAMPLES = """\
examples:
  python -m bench                                      everything: five minutes on 2 quiet cores, ten on busy ones
  python -m bench --quick                              a look, about two minutes: fewer rounds, shorter turns
  python -m bench --only turns --only calls            parts
  python -m bench --only stream --programs patchbay,nginx   one scenario, two programs (while tuning)
  python -m bench --write --json figures.json          renew docs/project/benchmarks.md and README.md; keep every round
"""


class _Options(argparse.Namespace):
    only: list[str]
    programs: list[str]
    rounds: int
    quick: bool
    no_install: bool
    json: Path | None
    write: bool


def _proxies(options: _Options) -> Section:
    default = proxies.QUICK if options.quick else proxies.Effort()
    effort = proxies.Effort(options.rounds or default.rounds, default.warm_seconds, default.turn_seconds)
    whole = not options.only or "proxy" in options.only
    chosen = [scenario for name, scenario in SCENARIOS.items() if whole or name in options.only]
    return proxies.section(options.programs, chosen, effort, allowed=not options.no_install)


PARTS: dict[str, Callable[[_Options], Section]] = {
    "proxy": _proxies,
    "turns": lambda options: turns.section(turns.QUICK if options.quick else turns.Effort(), allowed=not options.no_install),
    "clients": lambda options: turns.client_section(
        turns.QUICK_CLIENT if options.quick else turns.CLIENT, allowed=not options.no_install
    ),
    "calls": lambda options: calls.section(calls.QUICK if options.quick else calls.Effort(), allowed=not options.no_install),
    "hooks": lambda options: hooks.section(quick=options.quick),
    "grammars": lambda options: grammars.section(quick=options.quick),
    "functions": lambda _: function_calls.section(),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 also when a bar is missed: the table says it. 2: wrong arguments."""
    options = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that every server is stopped
    began = time.monotonic()
    total = Section()
    for name, part in PARTS.items():
        names = {name, *SCENARIOS} if name == "proxy" else {name}
        if not options.only or names.intersection(options.only):
            total.add(part(options))
    caution = " A quick look: the peers are not fully warm, so do not quote it." if options.quick else ""
    heading = f"Bars (what the project promises itself; a ratio is ours / theirs).{caution} {report.tree()}"
    text = "\n\n".join([heading, report.bars(total.verdicts), *total.tables])
    print(text)
    if options.json:
        total.write_raw(options.json, quick=options.quick)
    if options.write:
        report.write_tables("bench", PAGE, text, total.verdicts, HEADLINES)
    say(f"done in {time.monotonic() - began:.0f} s")
    return 0


def _arguments(argv: Sequence[str] | None) -> _Options:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure Patchbay beside its peers, in one run. bench/README.md says how to read it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*PARTS, *SCENARIOS]
    add = parser.add_argument
    only = f"only this part, or this scenario of the proxies: {', '.join(names)} (may be repeated)"
    add("--only", action="append", default=[], choices=names, metavar="NAME", help=only)
    add("--programs", type=_programs, default=list(ROWS), metavar="A,B", help=f"only these proxies: {', '.join(ROWS)}")
    add("--quick", action="store_true", help="fewer rounds and shorter turns")
    add("--rounds", type=int, default=0, metavar="N", help="rounds of the proxies (default 5; 3 with --quick)")
    add("--no-install", action="store_true", help="fetch nothing: skip the peers that are not in .build/bench yet")
    add("--json", type=Path, metavar="FILE", help="write every figure of every round")
    add("--write", action="store_true", help="renew docs/project/benchmarks.md and README.md; the tree must be committed")
    options = parser.parse_args(argv, namespace=_Options())
    if options.write:
        try:
            report.check_writable(partial=bool(options.only or options.quick or options.rounds or options.programs != list(ROWS)))
        except UnavailableError as error:
            parser.error(f"--write: {error}")
    return options


def _programs(value: str) -> list[str]:
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in ROWS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(ROWS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
