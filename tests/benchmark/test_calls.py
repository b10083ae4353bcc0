"""The benchmark of calls: every row makes its calls and leaves nothing behind. Measured figures are not asserted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench import __main__ as bench
from bench import install
from bench.calls import bars, cases, many, measure, process, rows, same_process, table
from bench.calls.many import Many
from bench.calls.measure import ONE_BY_ONE, TOGETHER, Effort, Figures, Outcome
from bench.calls.plugin_folder import DECLARED, INFERRED, KINDS
from bench.places import ROOT, UnavailableError

LITTLE = Effort(processes=1, warm=4, one_by_one=5, together=32, registrations=20, many=0)
OURS = [row for row in (*rows.rows(), rows.registering()) if row.name not in (rows.MCP_STDIO, rows.MCP_HTTP)]


@pytest.fixture
def run_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(measure, "BUILD", tmp_path)
    return tmp_path


def left_in(folder: Path) -> list[str]:
    """The processes that work in a folder: all that the rows start do."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(folder):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # ended meanwhile, or of another user
            continue
    return found


def figures(one_by_one: dict[str, float], together: dict[str, float] | None = None) -> Figures:
    made = Figures("1.0")
    for way, cpu in ((ONE_BY_ONE, one_by_one), (TOGETHER, together or one_by_one)):
        made.add({way: {"cpu": cpu, "p50": 1000.0, "p99": 2000.0, "seconds": 0.5}})
    return made


def outcome_of(plugin: float, callback: float, first: float, mounted: float | None = None) -> Outcome:
    rows_ = {
        rows.SAME_PROCESS: figures({"caller": 20.0}),
        rows.PLUGIN: figures({"caller": 20.0, "plugin": plugin}),
        rows.CALLBACK: figures({"caller": 50.0, "callback": callback - 50.0}),
    }
    if mounted is not None:
        rows_[rows.MCP_MOUNTED] = figures({"caller": mounted - 600.0, "server": 600.0})
        rows_[rows.MCP_STDIO] = figures({"caller": 400.0, "server": 600.0})
    found = [Many(first, 1.0, {"server": 1.0, "host and plugins": 8.0})]
    return Outcome(rows_, figures({"caller": 100.0, "server": 900.0}), dict.fromkeys(KINDS, found))


@pytest.mark.parametrize("row", OURS, ids=lambda row: row.module.rpartition(".")[2])
def test_each_own_row_is_measured_and_leaves_nothing_behind(row: rows.Row, run_folder: Path) -> None:
    measured = figures({})
    measured.found.clear()
    measured.add(measure.run_process(row.python(False), row.module, (0, 5, 32)))
    for way in (ONE_BY_ONE, TOGETHER):
        assert all(spent > 0 for spent in measured.parts(way).values())
        assert 0 < measured.latency(way, "p50") <= measured.latency(way, "p99")
    assert [] == left_in(run_folder)


def test_tools_of_many_plugins_register_and_reregister(run_folder: Path) -> None:
    found = many.measure(run_folder, INFERRED, plugins=2, tools=3)
    assert found.first > 0
    assert found.again > 0
    assert {"server", "host and plugins"} == set(found.cpu)
    assert [] == left_in(run_folder)


def test_ended_host_is_reported_with_its_last_output(monkeypatch: pytest.MonkeyPatch, run_folder: Path) -> None:
    monkeypatch.setattr(many.plugin_folder, "MANIFEST", "[plugin]\nid = 5\n")
    with pytest.raises(UnavailableError, match=r"the host of plugins ended: .*no plugin of"):
        many.measure(run_folder, DECLARED, plugins=1, tools=1)
    assert [] == left_in(run_folder)


class WrongAnswers:
    """A row whose calls are answered with those of others."""

    UVLOOP = False

    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncIterator[cases.Opened]:
        async def call(number: int) -> object:
            return cases.expected(number + (number == 7))

        yield cases.Opened(call)


@pytest.mark.parametrize("counts", [{"one_by_one": 8, "together": 0}, {"one_by_one": 0, "together": 16}])
def test_call_with_a_wrong_result_has_no_figure(counts: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="call 7 came to '8: some words'"):
        asyncio.run(process.measure(WrongAnswers(), tmp_path, warm=0, **counts))


class Counting:
    """A row that counts its calls, and how many there are at once."""

    UVLOOP = False

    def __init__(self) -> None:
        self.made: list[int] = []
        self.now = self.most = 0

    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncIterator[cases.Opened]:
        async def call(number: int) -> object:
            self.made.append(number)
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0)
            self.now -= 1
            return cases.expected(number)

        yield cases.Opened(call)


@pytest.mark.parametrize(("counts", "at_once"), [((0, 10, 0), 1), ((0, 0, 40), 16), ((10, 7, 0), 16), ((10, 0, 21), 16)])
def test_benchmark_makes_the_requested_number_of_calls(counts: tuple[int, int, int], at_once: int, tmp_path: Path) -> None:
    row = Counting()
    warm, one_by_one, together = counts
    found = asyncio.run(process.measure(row, tmp_path, warm=warm, one_by_one=one_by_one, together=together))
    assert list(range(sum(counts))) == row.made
    assert (at_once if warm == 0 else min(at_once, max(warm // 2, together))) == row.most
    assert (one_by_one > 0, together > 0) == ("one_by_one" in found, "together" in found)


def test_a_call_of_the_same_process_is_checked_and_read_by_its_own_clock(tmp_path: Path) -> None:
    found = asyncio.run(process.measure(same_process, tmp_path, warm=2, one_by_one=3, together=20))
    assert [["caller"], ["caller"]] == [list(block["cpu"]) for block in found.values()]


def test_percentile_is_one_of_the_values() -> None:
    assert 50 == process.percentile(range(1, 101), 50)
    assert 99 == process.percentile(range(1, 101), 99)
    assert 7 == process.percentile([7], 99)
    assert 3 == process.percentile([3, 1, 2], 99)


def test_a_row_that_fails_is_absent_with_its_last_words_and_the_others_are_measured(run_folder: Path) -> None:
    broken = rows.Row("broken", "bench.calls.nowhere", "1.0", rows.this_python)
    same = next(row for row in rows.rows() if row.name == rows.SAME_PROCESS)
    outcome = measure.measure([broken, same], None, LITTLE, allowed=False)
    assert [rows.SAME_PROCESS] == list(outcome.figures)
    assert {"broken": "ModuleNotFoundError: No module named 'bench.calls.nowhere'"} == outcome.skipped


def test_registering_that_fails_is_absent_too(run_folder: Path) -> None:
    broken = rows.Row(rows.REGISTERING, "bench.calls.nowhere", "1.0", rows.this_python)
    outcome = measure.measure([], broken, LITTLE, allowed=False)
    assert outcome.registering is None
    assert [rows.REGISTERING] == list(outcome.skipped)


def test_missing_peer_is_shown_as_absent(monkeypatch: pytest.MonkeyPatch, run_folder: Path) -> None:
    monkeypatch.setattr(install, "BUILD", run_folder)
    peers = [row for row in rows.rows() if row.name in (rows.MCP_STDIO, rows.MCP_HTTP)]
    outcome = measure.measure(peers, None, LITTLE, allowed=False)
    assert dict.fromkeys((rows.MCP_STDIO, rows.MCP_HTTP), "not installed (--no-install)") == outcome.skipped
    shown = table.of_calls(outcome, LITTLE)
    assert f"{rows.MCP_STDIO}: absent, not installed (--no-install)" in shown


def test_hanging_process_is_stopped(monkeypatch: pytest.MonkeyPatch, run_folder: Path) -> None:
    sleeper = run_folder / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 100\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(measure, "LIMIT", 0.05)
    with pytest.raises(UnavailableError, match="did not end within"):
        measure.run_process(sleeper, "bench.calls.same_process", (0, 1, 0))
    assert [] == left_in(run_folder)


def test_failing_plugins_are_absent_and_others_measured(monkeypatch: pytest.MonkeyPatch, run_folder: Path) -> None:
    def come(folder: Path, kind: str) -> Many:
        if kind == DECLARED:
            raise UnavailableError("3 of 1000 tools were there after 120 s")
        return Many(1.0, 2.0, {})

    monkeypatch.setattr(many, "measure", come)
    outcome = measure.measure([], None, replace(LITTLE, many=2), allowed=False)
    assert {INFERRED: [Many(1.0, 2.0, {})] * 2} == outcome.many
    assert {"50 plugins of 20 tools, declared": "3 of 1000 tools were there after 120 s"} == outcome.skipped


def test_every_row_has_its_module_and_the_peer_its_pins() -> None:
    for row in (*rows.rows(), rows.registering()):
        assert (ROOT / row.module.replace(".", "/")).with_suffix(".py").exists()
    assert install.pinned(rows.PEER)[0].isdigit()


def test_plugin_and_callback_calls_have_their_own_bars() -> None:
    plugin, callback, mcp, first, _ = bars.of_calls(outcome_of(plugin=200.0, callback=600.0, first=4.9, mounted=1150.0))
    assert ("≤ 0.2 ms", "0.200 ms, 16 at once 0.200 ms", True) == (plugin.bar, plugin.measured, plugin.met)
    assert ("≤ 0.6 ms", "0.600 ms, 16 at once 0.600 ms", True) == (callback.bar, callback.measured, callback.met)
    assert ("≤ 1.15", "1.15", True) == (mcp.bar, mcp.measured, mcp.met)
    assert ("< 5 s", "4.9 s", True) == (first.bar, first.measured, first.met)
    missed = bars.of_calls(outcome_of(plugin=201.0, callback=601.0, first=5.0, mounted=1160.0))
    assert ["**MISSED**"] * 5 == [verdict.word for verdict in missed]


def test_bar_applies_to_serial_and_concurrent_calls() -> None:
    outcome = outcome_of(plugin=100.0, callback=100.0, first=1.0)
    outcome.figures[rows.CALLBACK] = figures({"caller": 100.0}, {"caller": 700.0})
    assert [True, False, None, True, True] == [verdict.met for verdict in bars.of_calls(outcome)]


def test_every_bar_is_listed_when_nothing_could_be_measured() -> None:
    verdicts = list(bars.of_calls(Outcome()))
    assert [None] * 5 == [verdict.met for verdict in verdicts]
    without = outcome_of(plugin=100.0, callback=100.0, first=1.0)
    del without.figures[rows.SAME_PROCESS]
    assert "no figures of the same process" == next(iter(bars.of_calls(without))).measured


def test_figure_is_the_median_over_processes_of_their_sum() -> None:
    made = figures({"caller": 10.0, "server": 1.0})
    for caller in (20.0, 90.0):
        made.add({ONE_BY_ONE: {"cpu": {"caller": caller, "server": 5.0}, "p50": 500.0, "p99": 9.0, "seconds": 1.0}})
    assert 25.0 == made.cpu(ONE_BY_ONE)
    assert {"caller": 20.0, "server": 5.0} == made.parts(ONE_BY_ONE)
    assert (500.0, 1.0) == (made.latency(ONE_BY_ONE, "p50"), made.seconds(ONE_BY_ONE))


def test_table_has_a_row_per_transport_with_the_cpu_of_each_process() -> None:
    shown = table.of_calls(outcome_of(plugin=100.0, callback=150.0, first=4.0), LITTLE)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if line.startswith("|")]
    assert ["an HTTP callback 1.0", "150 [150–150]", "caller 50, callback 100", "1,000", "2,000"] == lines[4][:5]
    assert ["50 plugins of 20 tools, declared, from the start of their host", "4.00 s [4.00–4.00]"] == lines[9][:2]
    assert "1,000 µs each (caller 100, server 900)" == lines[7][2]


def test_calls_can_be_selected_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_folder: Path
) -> None:
    def same() -> tuple[rows.Row, ...]:
        return (rows.Row(rows.SAME_PROCESS, "bench.calls.same_process", "1.0", rows.this_python),)

    def nothing() -> Any:
        return None

    monkeypatch.setattr(bench, "calls_rows", same)
    monkeypatch.setattr(bench, "registering", nothing)
    monkeypatch.setattr(measure, "QUICK", LITTLE)
    monkeypatch.setattr(bench.signal, "signal", lambda *_: None)  # this process keeps its own handlers
    assert 0 == bench.main(["--only", "calls", "--quick", "--no-install"])
    printed = capsys.readouterr()
    assert f"no figures of {rows.PLUGIN}" in printed.out
    assert f"calls: {rows.SAME_PROCESS} (1 of 1) ..." in printed.err
