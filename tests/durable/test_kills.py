"""A run whose process is killed at every step: what was recorded is not done again."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path

from support.processes import run_process

from .children import clean_environment

CHILD = Path(__file__).with_name("child.py")


def begin(url: str, log: Path, moment: str = "") -> tuple[int, str]:
    """Run the child until it kills itself at the moment, or to its end."""
    command = [sys.executable, str(CHILD), url, str(log), moment]
    done = run_process(command, capture_output=True, text=True, timeout=90, env=clean_environment())
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, done.stdout


def test_a_run_killed_at_each_of_its_steps_repeats_no_finished_one(url, tmp_path):
    log = tmp_path / "log"
    for moment in ("model 1", "tool pay", "model 2", "tool fetch", "model 3"):
        assert (-signal.SIGKILL, "") == begin(url, log, moment), moment
    status, printed = begin(url, log)
    assert 0 == status
    run = json.loads(printed)
    # Killed in its body: a model is asked again, an idempotent tool is run again under its key, and another one is not.
    lines = Counter(log.read_text().splitlines())
    assert 6 == len(lines)
    key = next(line for line in lines if line.startswith("tool fetch"))
    assert {"model 1": 2, "tool look": 1, "tool pay": 1, "model 2": 2, key: 2, "model 3": 2} == lines
    seen, paid, fetched = run["text"].split(" | ")
    assert ("seen", "fetched", "completed", 6) == (seen, fetched, run["status"], run["attempts"])
    assert "it may have run, in part or to its end" in paid
    assert (["go"], ["fetch", "look", "pay"]) == (run["asked"], run["results"])
