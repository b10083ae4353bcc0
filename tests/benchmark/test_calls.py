"""The benchmark of calls: every way makes its calls and leaves nothing behind. Measured figures are not asserted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from bench import call_process, calls, install
from bench.call_process import Opened
from bench.calls import MCP_MOUNTED, MCP_SDK, ONE_BY_ONE, PLUGIN, SAME_PROCESS, TITLES, TOGETHER, Effort

LITTLE = Effort(processes=1, warm=0, one_by_one=5, together=32)


@pytest.fixture
def run_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(calls, "BUILD", tmp_path)
    return tmp_path


def left_in(folder: Path) -> list[str]:
    """The processes that work in a folder: all that the ways start do."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(folder):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # ended meanwhile, or of another user
            continue
    return found


@pytest.mark.parametrize("way", [SAME_PROCESS, PLUGIN, MCP_MOUNTED])
def test_each_way_of_this_environment_is_measured_and_leaves_nothing_behind(way: str, run_folder: Path) -> None:
    found = calls.run_process(Path(calls.sys.executable), way, LITTLE)
    assert {ONE_BY_ONE, TOGETHER} == set(found)
    assert all(spent > 0 for block in found.values() for spent in block.values())
    assert [] == left_in(run_folder)


@pytest.mark.parametrize("counts", [{"one_by_one": 8, "together": 1}, {"one_by_one": 1, "together": 16}])
def test_call_with_a_wrong_result_has_no_figure(counts: dict[str, int], tmp_path: Path) -> None:
    @asynccontextmanager
    async def wrong(_folder: Path) -> AsyncIterator[Opened]:
        async def call(number: int) -> object:
            return call_process.expected(number + (number == 7))

        yield Opened(call)

    with pytest.raises(RuntimeError, match="the result of call 7 is '8: some words'"):
        asyncio.run(call_process.measure(wrong, tmp_path, warm=0, **counts))


def test_benchmark_makes_the_requested_number_of_calls_at_most_16_at_once(tmp_path: Path) -> None:
    made, now, most = [], 0, 0

    @asynccontextmanager
    async def counting(_folder: Path) -> AsyncIterator[Opened]:
        async def call(number: int) -> object:
            nonlocal now, most
            made.append(number)
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1
            return call_process.expected(number)

        yield Opened(call)

    asyncio.run(call_process.measure(counting, tmp_path, warm=10, one_by_one=7, together=21))
    assert (list(range(10 + 7 + 21)), 16) == (made, most)


def test_a_way_that_fails_is_absent_with_its_reason_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, run_folder: Path
) -> None:
    monkeypatch.setattr(install, "BUILD", run_folder)
    monkeypatch.setattr(calls, "TITLES", {way: TITLES.get(way, way) for way in ("nowhere", MCP_SDK, SAME_PROCESS)})
    outcome = calls.measure(LITTLE, allowed=False)
    assert [SAME_PROCESS] == list(outcome.found)
    assert {"nowhere": "KeyError: 'nowhere'", MCP_SDK: "not installed (--no-install)"} == outcome.skipped
    assert "absent, not installed (--no-install)" in calls.table(outcome, LITTLE)
