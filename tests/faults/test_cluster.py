"""Several servers on one PostgreSQL, killed, stopped and cut off at random: nothing acknowledged is lost, and nothing is doubled."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from agents.databases import why_no_postgres
from faults.cluster import FAULTS, Cluster
from faults.rig import PATIENCE

ROUNDS = int(os.environ.get("PATCHBAY_CLUSTER_ROUNDS", "20"))
"""``PATCHBAY_CLUSTER_ROUNDS=300`` takes an hour, as each stopped server is stopped for 30 s then; ``-s`` shows its figures."""
SEED = int(os.environ.get("PATCHBAY_FAULT_SEED", "20261129"))

pytestmark = pytest.mark.skipif(why_no_postgres() is not None, reason=str(why_no_postgres()))


@pytest.mark.timeout((120 + 60 * ROUNDS) * PATIENCE)
def test_faults_of_a_cluster_lose_and_double_nothing(tmp_path: Path) -> None:
    random.seed(SEED)
    began = time.monotonic()
    with Cluster(tmp_path, stopped=1.0 if ROUNDS <= 20 else 30.0) as cluster:
        for number in range(ROUNDS):
            kind = FAULTS[number % len(FAULTS)] if ROUNDS <= 20 else random.choice(FAULTS)
            try:
                cluster.round(kind)
            except BaseException as error:
                error.add_note(f"in round {number}, {kind}, seed {SEED}")
                raise
    late = sorted((seconds, kind) for kind, seconds in cluster.back if seconds > 5.0)
    sys.stdout.write(
        f"\n{ROUNDS} rounds, seed {SEED}, {time.monotonic() - began:.0f} s, {dict(cluster.faults)}, {dict(cluster.totals)}; "
        f"back later than 5 s: {late}; longest {max(seconds for _, seconds in cluster.back):.2f} s\n"
    )
    assert all(cluster.totals[what] > ROUNDS for what in ("calls", "approved runs", "changes"))
    assert cluster.totals["denied"]
