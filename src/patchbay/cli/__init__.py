"""The command line: ``patchbay COMMAND``. One file per command.

What lives here: the entry point, which imports nothing until it runs. What does not: the list of commands (``commands``), and
anything that works. A process that serves is a module of this package too, and does without the parser of flags.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 called wrongly."""
    try:
        from patchbay.cli.commands import run

        run(arguments)
    except KeyboardInterrupt:  # while all of it was loaded
        sys.exit(130)
