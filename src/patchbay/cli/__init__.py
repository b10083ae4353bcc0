"""The command line: ``patchbay COMMAND``, one module per command. Nothing is imported until it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 usage error."""
    try:
        from patchbay.cli.commands import run

        run(arguments)
    except KeyboardInterrupt:  # during imports
        sys.exit(130)
