"""The texts that the measuring makes (``bench.fidelity``) are read here too; the bench is no part of the package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
