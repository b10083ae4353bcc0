"""``python -m bench``: measure the requested parts, print the tables, write the raw figures if requested."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import bars, building, frontends, install, parsers, proxies, start, table
from bench.calls import bars as calls_bars
from bench.calls import measure as calls
from bench.calls import table as calls_table
from bench.calls.rows import registering
from bench.calls.rows import rows as calls_rows
from bench.hooks import idle
from bench.hooks import process as hook_process
from bench.places import PAGES, UnavailableError, check_writable, say, write_between, write_tables
from bench.programs import OURS_AUTO, ROWS, Program
from bench.realtime import call as realtime
from bench.turns import measure as turns
from bench.turns.rows import client_rows
from bench.turns.rows import rows as turns_rows

_PARTS = ("proxy", "frontends", "parser", "start", "tools", "turns", "clients", "calls", "hooks", "realtime")
_SCENARIOS = {scenario.name: scenario for scenario in proxies.SCENARIOS}

_EXAMPLES = """\
examples:
  python -m bench                                      everything: 9 minutes on 2 quiet cores, 13 on busy ones
  python -m bench --quick                              a look, about two minutes: fewer rounds, shorter turns
  python -m bench --only parser --only start           parts
  python -m bench --only frontends --write             the front-ends alone, whose tables stand by themselves
  python -m bench --only stream --programs patchbay,nginx   one scenario, two programs (while tuning)
  python -m bench --write --json figures.json          renew docs/project/benchmarks.md and README.md; keep every round
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 also when a bar is missed: the table says it. 2: wrong arguments."""
    options = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that every server is stopped
    began = time.monotonic()
    sections: list[str] = []
    verdicts: list[bars.Verdict] = []
    raw: dict[str, Any] = {"machine": table.machine(), "quick": options.quick}
    if chosen := tuple(scenario for name, scenario in _SCENARIOS.items() if options.wants("proxy", name)):
        _proxies(options, chosen, sections, verdicts, raw)
    over_protocols = _frontends(options, raw) if options.wants("frontends") else ""
    if options.wants("parser"):
        parser_outcome = parsers.measure(parsers.cases(quick=options.quick), _node_modules(options))
        sections.append(table.of_parsers(parser_outcome))
        verdicts += bars.of_parsers(parser_outcome)
        raw["parser"] = parsers.raw(parser_outcome)
    if options.wants("start"):
        start_outcome = start.measure(quick=options.quick)
        sections.append(table.of_start(start_outcome))
        verdicts += bars.of_start(start_outcome)
        raw["start"] = start.raw(start_outcome)
    if options.wants("tools"):
        building_outcome = building.measure(quick=options.quick)
        sections.append(table.of_building(building_outcome))
        verdicts += bars.of_building(building_outcome)
        raw["tools"] = building.raw(building_outcome)
    if options.wants("turns"):
        effort = turns.QUICK if options.quick else turns.Effort()
        turns_outcome = turns.measure(turns_rows(), effort, allowed=not options.no_install)
        sections.append(table.of_turns(turns_outcome, effort))
        verdicts += bars.of_turns(turns_outcome)
        raw["turns"] = turns.raw(turns_outcome)
    if options.wants("clients"):
        effort = turns.QUICK_CLIENT if options.quick else turns.CLIENT
        clients_outcome = turns.measure(client_rows(), effort, allowed=not options.no_install)
        sections.append(table.of_clients(clients_outcome, effort))
        verdicts += bars.of_clients(clients_outcome)
        raw["clients"] = turns.raw(clients_outcome)
    if options.wants("calls"):
        _calls(options, sections, verdicts, raw)
    if options.wants("hooks"):
        idle_outcome, process_outcome = idle.measure(quick=options.quick), hook_process.measure(quick=options.quick)
        sections.append(table.of_hooks(idle_outcome, process_outcome))
        verdicts += bars.of_hooks(idle_outcome, process_outcome)
        raw["hooks"] = {"idle": _raw(idle_outcome), "process": _raw(process_outcome)}
    if options.wants("realtime"):
        realtime_outcome = realtime.measure(quick=options.quick)
        sections.append(table.of_realtime(realtime_outcome))
        verdicts += bars.of_realtime(realtime_outcome)
        raw["realtime"] = _raw(realtime_outcome)
    text = "\n\n".join([table.of_verdicts(verdicts, quick=options.quick), *sections]) if sections else ""
    print("\n\n".join(part for part in (text, over_protocols) if part))
    raw["bars"] = [{"what": v.what, "bar": v.bar, "measured": v.measured, "met": v.met} for v in verdicts]
    if options.json:
        options.json.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    if options.write and over_protocols:
        write_between(PAGES["bench"], "bench frontends", over_protocols)
    if options.write and text:
        write_tables("bench", text, table.headlines(verdicts, bars.HEADLINES))
    say(f"done in {time.monotonic() - began:.0f} s")
    return 0


class _Options(argparse.Namespace):
    only: list[str]
    programs: list[str]
    rounds: int | None
    quick: bool
    no_install: bool
    json: Path | None
    write: bool

    def wants(self, *names: str) -> bool:
        """Whether one of the names was asked for; nothing asked for is everything."""
        return not self.only or any(name in self.only for name in names)


def _arguments(argv: Sequence[str] | None) -> _Options:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure Patchbay beside its peers, in one run: "
        "proxies, front-ends, parser, start, tools, turns, clients, calls, hooks, realtime. bench/README.md says how to read it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*_PARTS, *_SCENARIOS]
    add = parser.add_argument
    add(
        "--only",
        action="append",
        default=[],
        choices=names,
        metavar="NAME",
        help=f"only this part: {', '.join(names)} (may be repeated)",
    )
    add("--programs", type=_programs, default=list(ROWS), metavar="A,B", help=f"only these proxies: {', '.join(ROWS)}")
    add("--quick", action="store_true", help="fewer rounds and shorter turns; LiteLLM not in the paced scenario, no 2 KB texts")
    add("--rounds", type=int, metavar="N", help="rounds of the proxies (default 5; 3 with --quick)")
    add("--no-install", action="store_true", help="fetch nothing: skip the peers that are not in .build/bench yet")
    add("--json", type=Path, metavar="FILE", help="write every figure of every round")
    add(
        "--write",
        action="store_true",
        help="renew the tables of docs/project/benchmarks.md and README.md; the tree must be committed",
    )
    options = parser.parse_args(argv, namespace=_Options())
    if options.write:
        try:
            part = bool(options.only) and options.only != ["frontends"]  # its tables stand by themselves
            check_writable(partial=bool(part or options.quick or options.rounds or len(options.programs) < len(ROWS)))
        except UnavailableError as error:
            parser.error(f"--write: {error}")
    return options


def _programs(value: str) -> list[str]:
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in ROWS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(ROWS)}")
    return names


def _proxies(
    options: _Options,
    chosen: tuple[proxies.Scenario, ...],
    sections: list[str],
    verdicts: list[bars.Verdict],
    raw: dict[str, Any],
) -> None:
    try:
        tools = install.load_tools()
    except UnavailableError as error:
        sections.append(f"Proxies: skipped, {error}")
        verdicts += bars.of_proxies(proxies.Outcome(), chosen)
        return
    programs, skipped = _made(options)
    effort = _effort(options)
    outcome = proxies.measure(programs, chosen, tools, effort)
    outcome.skipped.update(skipped)
    sections.append(table.of_proxies(outcome, programs, chosen, effort.rounds))
    verdicts += bars.of_proxies(outcome, chosen)
    raw["proxy"] = {"rounds": effort.rounds, **proxies.raw(outcome)}
    raw["programs"] = {program.name: program.version for program in programs}


def _frontends(options: _Options, raw: dict[str, Any]) -> str:
    """Measure the front-ends; their bars and their table, which stand by themselves."""
    outcome, programs, effort = proxies.Outcome(), list[Program](), _effort(options)
    try:
        tools = install.load_tools()
    except UnavailableError as error:
        outcome.skipped["Front-ends"] = str(error)
    else:
        programs, skipped = _made(options, frontends.PROGRAMS)
        outcome = frontends.measure(programs, tools, effort)
        outcome.skipped.update(skipped)
    verdicts = list(frontends.bars(outcome))
    raw["frontends"] = {
        "rounds": effort.rounds,
        **proxies.raw(outcome),
        "bars": [{"what": v.what, "bar": v.bar, "measured": v.measured, "met": v.met} for v in verdicts],
    }
    return "\n\n".join([table.of_verdicts(verdicts, quick=options.quick), frontends.table(outcome, programs, effort.rounds)])


def _made(options: _Options, names: Sequence[str] = tuple(ROWS)) -> tuple[list[Program], dict[str, str]]:
    """The programs of these that were asked for, and why others are not here."""
    programs, skipped = [], {}
    for name in (name for name in options.programs if name in names):
        if options.quick and name == OURS_AUTO and len(options.programs) == len(ROWS):
            continue  # it costs what text mode costs once the mode is learnt; a quick look does without
        try:
            programs.append(ROWS[name](allowed=not options.no_install))
        except UnavailableError as error:
            skipped[name] = str(error)
            say(f"{name}: skipped, {error}")
    return programs, skipped


def _effort(options: _Options) -> proxies.Effort:
    return proxies.Effort(
        rounds=options.rounds or (3 if options.quick else 5),
        warm_seconds=2.0 if options.quick else 2.5,
        turn_seconds=0.3 if options.quick else 0.6,
        slow_paced=not options.quick,
    )


def _calls(options: _Options, sections: list[str], verdicts: list[bars.Verdict], raw: dict[str, Any]) -> None:
    effort = calls.QUICK if options.quick else calls.Effort()
    outcome = calls.measure(calls_rows(), registering(), effort, allowed=not options.no_install)
    sections.append(calls_table.of_calls(outcome, effort))
    verdicts += calls_bars.of_calls(outcome)
    raw["calls"] = calls.raw(outcome)


def _raw(outcome: idle.Outcome | hook_process.Outcome | realtime.Outcome) -> dict[str, Any]:
    return {str(what): asdict(cost) for what, cost in outcome.costs.items()}


def _node_modules(options: _Options) -> Path | str:
    try:
        return install.node_peers(allowed=not options.no_install)
    except UnavailableError as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
