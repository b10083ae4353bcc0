"""The servers that rows stand on, each a process of its own that ends with the block. Standard library only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.places import ROOT
from bench.processes import Running, free_port, server, started


@contextmanager
def starlette(folder: Path) -> Iterator[Running]:
    """The callback, and the floor of HTTP: uvicorn at its quickest, one worker."""
    port = free_port()
    argv = [
        *(sys.executable, "-m", "uvicorn", "bench.calls.starlette_server:app", "--app-dir", str(ROOT), "--port", str(port)),
        *("--no-access-log", "--log-level", "warning", "--loop", "uvloop", "--http", "httptools", "--ws", "none"),
    ]
    with server(argv, port=port, ready_path="/ready", log=folder / "callback.log") as running:
        yield running


@contextmanager
def patchbay_serve(folder: Path, *, store: str, port: int = 0) -> Iterator[Running]:
    """``patchbay serve``, its registrations kept in ``store``."""
    port = port or free_port()
    argv = [sys.executable, "-m", "patchbay", "serve", "--port", str(port), "--store", store]
    with server(argv, port=port, ready_path="/api/tools", log=folder / "serve.log") as running:
        yield running


@contextmanager
def patchbay_plugins(plugins: Path, folder: Path, *, server_port: int) -> Iterator[subprocess.Popen[bytes]]:
    """``patchbay plugins run`` on a folder of plugins; it registers their tools when it can, so there is nothing to wait for."""
    argv = [
        *(sys.executable, "-m", "patchbay", "plugins", "run", str(plugins)),
        *("--server", f"http://127.0.0.1:{server_port}", "--port", str(free_port())),
    ]
    with started(argv, log=folder / "plugins.log") as process:
        yield process
