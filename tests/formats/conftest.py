"""Make the texts of ``bench.fidelity`` importable; the benchmark is not part of the package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
