"""llama.cpp's server as a process, with the model of ``tests/real_model`` or a model's file."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from support.scripted_server import PATIENCE

_SCRIPT: Final = Path(__file__).parents[1] / "real_model" / "serve.py"


@contextmanager
def running_llama(model: Path | None = None) -> Iterator[str]:
    """Run the server during the block; its URL, without /v1."""
    command = [sys.executable, _SCRIPT, *([] if model is None else [model])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        stopped = threading.Timer(PATIENCE, process.kill)
        stopped.start()
        try:
            url = process.stdout.readline().strip()
            stopped.cancel()
            assert url, "llama.cpp's server did not start"
            yield url
        finally:
            process.kill()
