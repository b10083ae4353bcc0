"""How a command says that it failed: one line on stderr, and an exit status."""

from __future__ import annotations

import sys
from typing import NoReturn

USAGE_ERROR = 2
"""The status of a command that was called wrongly."""


def fail(message: str, status: int) -> NoReturn:
    """Say what is wrong, on one line, and exit."""
    print(f"patchbay: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)
