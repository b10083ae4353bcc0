"""The benchmark's clocks, counts and verdicts. Measured figures are not asserted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench import function_calls, grammars, hooks, processes, proxies, report
from bench.places import UnavailableError
from bench.programs import LITELLM, ORIGINAL, OURS
from bench.proxies import REQUEST, SCENARIOS, Figures

from ports import kept_port

SERVER = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "sum(range(3_000_000)); print('done', flush=True); input()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
class Ok(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ok).serve_forever()
"""


def test_server_memory_includes_its_children_and_it_is_stopped(tmp_path: Path) -> None:
    port = kept_port()
    argv = [sys.executable, "-c", SERVER, str(port)]
    with processes.server(argv, port=port, ready_path="/", log=tmp_path / "log") as running:
        family = processes.tree(running.pid)
        alone = processes.cpu_clock(running.pid)
        assert 2 == len(family)
        assert running.cpu_seconds() > alone > 0
        assert running.rss_megabytes() > processes.rss_bytes(running.pid) / 1e6
    assert not Path(f"/proc/{running.pid}").exists()


def test_last_output_of_a_server_that_exits_early_is_reported(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "raise SystemExit('no such flag')"]
    with (
        pytest.raises(UnavailableError, match="no such flag"),
        processes.server(argv, port=kept_port(), ready_path="/", log=tmp_path / "log"),
    ):
        pass


def outcome(**cpu: float) -> proxies.Outcome:
    names = {"ours": OURS, "original": ORIGINAL, "litellm": LITELLM}
    return proxies.Outcome([Figures(names[name], REQUEST.name, [value] * 3, [50.0] * 3) for name, value in cpu.items()])


def test_ratio_is_compared_with_its_bar() -> None:
    met, missed, *_ = proxies.verdicts(outcome(ours=80.0, original=200.0, litellm=3_960.0), (REQUEST,))
    assert ("0.40", True, "met") == (met.measured, met.met, met.word)
    assert ("1/49.5", False, "**MISSED**") == (missed.measured, missed.met, missed.word)
    first, second, *_ = proxies.verdicts(outcome(ours=80.0, original=200.0), (REQUEST,))
    assert (True, None, "no figures to compare with") == (first.met, second.met, second.measured)


def test_wrong_answers_leave_no_figures() -> None:
    measured = outcome(ours=80.0, original=200.0)
    measured.figures[0].problem = "3 of 32 answers were wrong"
    assert measured.find(OURS, REQUEST) is None
    assert "3 of 32 answers were wrong" in proxies.table(measured, [], [REQUEST], 3)


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        ("before\n<!-- bench: begin -->\nold\n<!-- bench: end -->\nafter\n", "before\n<!-- bench: begin -->\nnew\n<!-- bench: end -->\nafter\n"),
        ("before\n<!-- bench: begin -->\nold\n", "before\n<!-- bench: begin -->\nold\n"),
    ],
    ids=["markers", "no end marker"],
)  # fmt: skip
def test_only_text_between_markers_is_replaced(old: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text(old)
    report.write_between(file, "bench", "new")
    assert expected == file.read_text()


def test_both_kinds_of_hook_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "TIMES", {True: (1, 5)})
    measured = hooks.section(quick=True)
    assert ["≤ 15 µs", "≤ 350 µs"] == [verdict.bar for verdict in measured.verdicts]
    assert hooks.POINT in measured.tables[0]


def test_calls_of_functions_are_counted() -> None:
    def called() -> None:
        pass

    def work() -> None:
        for _ in range(3):
            called()

    assert 1 + 3 == function_calls.count_calls(work)


@pytest.mark.parametrize("name", ["parse a word", "run a tool"])
def test_a_piece_of_work_calls_functions(name: str) -> None:
    assert 0 < function_calls.count(name)


@pytest.mark.parametrize("name", [name for name in function_calls.CALLS if name.startswith("grammar")])
def test_a_grammar_of_many_tools_calls_no_more_functions_than_noted(name: str) -> None:
    assert function_calls.ROOM * function_calls.CALLS[name] >= function_calls.count(name)


def test_first_and_further_grammars_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "ROUNDS", {True: 1})
    measured = grammars.section(quick=True)
    assert ["≤ 5 ms", "≤ 1 ms"] == [verdict.bar for verdict in measured.verdicts]
    assert all(way in measured.tables[0] for way in grammars.WAYS)


def test_the_help_names_every_part_and_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--help"],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for name in ("proxy", "turns", "clients", "calls", "hooks", "grammars", "functions", *SCENARIOS, OURS, ORIGINAL, LITELLM):
        assert name in done.stdout
