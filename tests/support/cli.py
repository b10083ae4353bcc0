"""Runs the command line in this process, where no test needs a process of its own."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from unittest import mock

from patchbay import database
from patchbay.cli import main

_SETTINGS = ("PATCHBAY_", "UPSTREAM_", "PROXY_", "NEKO_", "MAIN_SERVER_", "PORT", "HOST")


def run_cli(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``patchbay ARGUMENTS`` with no settings but these environment variables; return its exit status and output.

    A command that begins to serve does not return.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    stdout, stderr = io.StringIO(), io.StringIO()
    status = 0
    with (
        _nothing_left_open(),
        _input(stdin),
        mock.patch.dict(os.environ, {**inherited, "COLUMNS": "110", **environment}, clear=True),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        _log_settings_kept(),
        mock.patch.object(database, "_databases", weakref.WeakSet()),  # as in a process of its own
    ):
        try:
            main(arguments)
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
    return subprocess.CompletedProcess(arguments, status, stdout.getvalue(), stderr.getvalue())


@contextlib.contextmanager
def _nothing_left_open() -> Iterator[None]:
    """Close what a command that fails leaves open, as the end of its process would. What this process had before is not looked through."""
    gc.freeze()
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        gc.unfreeze()


@contextlib.contextmanager
def _log_settings_kept() -> Iterator[None]:
    """Undo what a command that serves sets for the log of its process: later tests read the log."""
    loggers = [logging.getLogger(name) for name in ("patchbay", "mcp", "uvicorn.error")]
    before = [(logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    try:
        yield
    finally:
        for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
            logger.setLevel(level)
            logger.propagate = propagate
            logger.handlers[:] = handlers


@contextlib.contextmanager
def _input(text: str) -> Iterator[None]:
    """Replace standard input by a pipe, since commands poll its descriptor."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "w", encoding="utf-8") as pipe, contextlib.suppress(BrokenPipeError):
            pipe.write(text)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with os.fdopen(reading, encoding="utf-8") as pipe, mock.patch.object(sys, "stdin", pipe):
            yield
    finally:
        writer.join()
