"""kill -9 at random moments: of the server, of the plugins' host, of a plugin."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict

import pytest

from faults.rig import PATIENCE
from faults.rounds import Rounds

ROUNDS = int(os.environ.get("PATCHBAY_FAULT_ROUNDS", "6"))
"""``PATCHBAY_FAULT_ROUNDS=300`` takes some ten minutes; ``-s`` shows its figures."""
SEED = int(os.environ.get("PATCHBAY_FAULT_SEED", "20260501"))


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")


@pytest.mark.timeout((120 + 20 * ROUNDS) * PATIENCE)
def test_random_kills_lose_and_repeat_no_call_and_tools_return(tmp_path):
    rounds = Rounds(tmp_path, seed=SEED)
    began = time.monotonic()
    rounds.run(ROUNDS)
    text = [answer.said for answer in rounds.answers]
    lost = sum(each is None for each in text)
    done = sum(bool(each and each["ok"]) for each in text)
    tell(f"\n{ROUNDS} rounds, seed {SEED}, {time.monotonic() - began:.0f} s; kills: {dict(rounds.kills)}")
    tell(
        f"{len(text)} calls: {done} results, {len(text) - done - lost} errors, {lost} connections that ended; {rounds.seen} runs"
    )
    took = defaultdict(list)
    for what, seconds in rounds.back:
        took[what].append(seconds)
    late = [seconds for _, seconds in rounds.back if seconds > 5.0]
    tell(f"back {len(rounds.back)} times, {len(late)} of them later than 5 s; the load: {os.getloadavg()}")
    for what, each in sorted(took.items()):
        tell(f"back after {what}: {len(each)} times, median {sorted(each)[len(each) // 2]:.2f} s, longest {max(each):.2f} s")
    assert ROUNDS <= sum(rounds.kills.values())
    assert done > 0
