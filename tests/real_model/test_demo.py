"""``patchbay demo --model small``: the real model calls its tools and answers from their results."""

from __future__ import annotations

import subprocess
import sys

import pytest

from patchbay.cli.demo_small import RATES
from support.scripted_server import PATIENCE

from .conftest import require_packages


@pytest.mark.timeout(600)
def test_small_model_calls_three_tools_and_answers_from_their_results() -> None:
    require_packages()
    command = [sys.executable, "-m", "patchbay", "demo", "--model", "small"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE)
    assert 0 == done.returncode, done
    lines = [line.strip(" │") for line in done.stdout.splitlines()]
    for call in (
        'count_letter {"letter": "r", "word": "strawberry"}',
        'multiply {"a": 1234, "b": 5678}',
        'count_lines {"module": "argparse"}',
    ):
        assert call in lines
    assert "root ::=" in done.stdout
    assert RATES.split()[-2:] == lines[lines.index("What to expect of it") + 3].split()[-2:]
