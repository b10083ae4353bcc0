"""What the tests of durable runs share."""

from __future__ import annotations

import os


def clean_environment() -> dict[str, str]:
    """Return the environment without settings of Patchbay."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PATCHBAY_")}
