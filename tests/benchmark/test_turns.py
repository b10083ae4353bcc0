"""The benchmark of agents' turns: every row does its work, and the verdicts. Measured figures are not asserted."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from bench import __main__ as bench
from bench import install
from bench.report import Verdict
from bench.turns import measure, process
from bench.turns.cases import CASES, CLIENT_CASES, FOUR, MANY, ONE, SIXTEEN, SMALL, Turns
from bench.turns.measure import AGENT, BARE_CLIENT, BY_HAND, CLIENT_OURS, PEERS, Effort, Figures, Outcome, Row
from bench.turns.own import AgentTurns, ByHandTurns, RunnerTurns

LITTLE = Effort(processes=2, warm=1, turns=3)


def local_row(name: str, module: str) -> Row:
    return Row(name, module, "1.0")


def figures(one: float, sixteen: float, many: float) -> Figures:
    values = {ONE.name: [one], FOUR.name: [one], SIXTEEN.name: [sixteen], MANY.name: [many]}
    return Figures("1.0", values, [100.0])


def outcome_of(ours: Figures) -> Outcome:
    peers = dict(zip(PEERS, (figures(2000, 3500, 3000), figures(1000, 7000, 4000), figures(3000, 4500, 5000)), strict=True))
    return Outcome({AGENT: ours, **peers})


@pytest.mark.parametrize("row", [ByHandTurns, RunnerTurns, AgentTurns])
def test_a_row_makes_every_kind_of_turn(row: type[Turns]) -> None:
    found = process.measure(row, warm=1, turns=2)
    assert [case.name for case in CASES] == list(found["microseconds"])
    assert found["first_answer"] > 0


@pytest.mark.parametrize("name", [BARE_CLIENT, *CLIENT_OURS])
def test_a_row_over_the_real_client_makes_its_turn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = [row for row in measure.client_rows() if row.name == name]
    module, _, kind = row.module.partition(":")
    turns = getattr(importlib.import_module(module), kind)
    assert CLIENT_CASES == turns.measured
    monkeypatch.setattr(turns, "measured", (SMALL,))
    found = process.measure(turns, warm=0, turns=1)
    assert [SMALL.name] == list(found["microseconds"])


def _shown(verdict: Verdict) -> tuple[str, str, bool | None]:
    return verdict.bar, verdict.measured, verdict.met


class OneCallShort(ByHandTurns):
    """Does one call less than it was asked for."""

    async def turn(self) -> object:
        text = await super().turn()
        self.tool_runs -= 1
        return text


class WithoutValidation(ByHandTurns):
    """Says that it checks arguments, and does not."""

    checks = True


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (OneCallShort, "'done' after 2 calls of the model and 0 runs of the tool"),
        (WithoutValidation, "the function was given '0' for an int"),
    ],
)
def test_invalid_turn_has_no_figure(row: type[Turns], why: str) -> None:
    with pytest.raises(RuntimeError, match=why):
        process.measure(row, warm=0, turns=1)


def test_a_row_that_fails_is_absent_with_its_last_words_and_the_others_are_measured() -> None:
    broken = local_row("broken", "bench.turns.nowhere:Row")
    outcome = measure.measure([broken, local_row("floor", "bench.turns.own:ByHandTurns")], LITTLE, allowed=False)
    assert ["floor"] == list(outcome.figures)
    assert {"broken": "ModuleNotFoundError: No module named 'bench.turns.nowhere'"} == outcome.skipped


def test_uninstallable_peer_is_shown_as_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(install, "BUILD", tmp_path)
    peers = [row for row in measure.rows() if row.peer]
    outcome = measure.measure(peers, LITTLE, allowed=False)
    assert dict.fromkeys(PEERS, "not installed (--no-install)") == outcome.skipped
    shown = measure.table(outcome, LITTLE)
    assert all(f"{name}: absent, not installed (--no-install)" in shown for name in PEERS)


def test_turns_are_compared_with_the_best_framework() -> None:
    one, four, sixteen, many, further = measure.verdicts(outcome_of(figures(125, 450, 301)))
    assert "Turn of an agent, 1 call: CPU beside the best framework" == one.what
    assert ("≤ 1/8", "1/8.0 (openai-agents)", True) == _shown(one)
    assert ("1/7.8 (pydantic-ai-slim)", False) == _shown(sixteen)[1:]
    assert "Turn of an agent, each further call: CPU beside the best framework" == further.what
    assert (True, True, False) == (four.met, many.met, further.met)


def test_turns_can_be_selected_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(measure, "rows", lambda: (local_row(BY_HAND, "bench.turns.own:ByHandTurns"),))
    monkeypatch.setattr(measure, "QUICK", LITTLE)
    monkeypatch.setattr(bench.signal, "signal", lambda *_: None)  # this process keeps its own handlers
    assert 0 == bench.main(["--only", "turns", "--quick", "--no-install"])
    printed = capsys.readouterr()
    assert "Turn of an agent, 16 calls: CPU" in printed.out
    assert f"turns: {BY_HAND} (2 of 2) ..." in printed.err
