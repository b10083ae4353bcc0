"""A minute of many chats and live sessions on three servers with faults; ``make soak`` does the same for ten, with more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agents.databases import why_no_postgres
from faults.rig import PATIENCE
from faults.soak import soak

pytestmark = pytest.mark.skipif(why_no_postgres() is not None, reason=str(why_no_postgres()))


@pytest.mark.timeout(300 * PATIENCE)
def test_a_minute_of_load_with_faults_loses_and_doubles_nothing(tmp_path: Path) -> None:
    random.seed(20261129)
    found = soak(tmp_path, minutes=1.0, chats=40, sessions=9, pause=0.4)
    assert found["done"] > 100
    assert found["turns of sessions"] > 9
