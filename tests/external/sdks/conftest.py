"""Fixtures for the tests of SDKs, which tests/external/sdks.py runs: the proxies' URLs come in the environment."""

from __future__ import annotations

import base64
import os

import httpx
import pytest

URLS = {"text": os.environ["PATCHBAY_TEXT_URL"], "native": os.environ["PATCHBAY_NATIVE_URL"]}
"""A proxy before a model that only writes text, and one before a model with tool calls."""
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Give the images and documents that the tests of LangChain fetch from public hosts."""
    monkeypatch.setattr(httpx, "get", lambda *_, **__: httpx.Response(200, content=PIXEL))
