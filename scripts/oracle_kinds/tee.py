"""Relay between a host and its hook process that records the lines of both: ``python tee.py LOG COMMAND...``.

The log has a line for each line that passed: ``>`` from the host, ``<`` from the hook.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import IO


def main() -> int:
    with (
        Path(sys.argv[1]).open("ab", buffering=0) as log,
        subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        inwards = threading.Thread(target=passed, args=(sys.stdin.buffer, child.stdin, log, b"> "), daemon=True)
        inwards.start()
        passed(child.stdout, sys.stdout.buffer, log, b"< ")
        return child.wait()


def passed(source: IO[bytes], sink: IO[bytes], log: IO[bytes], mark: bytes) -> None:
    for line in source:
        log.write(mark + line)
        sink.write(line)
        sink.flush()
    if mark == b"> ":
        sink.close()


if __name__ == "__main__":
    sys.exit(main())
