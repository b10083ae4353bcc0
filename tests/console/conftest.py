"""Chromium and a real proxy for each module: Playwright's event loop must be closed before the next module's tests."""

from __future__ import annotations

import pytest

from console.browser import running_browser, why_no_chromium
from console.proxied import Proxied, running_proxy


@pytest.fixture(scope="module")
def browser():
    if (reason := why_no_chromium()) is not None:
        pytest.skip(reason)
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def shared_proxy(browser):
    with running_proxy("--tools", "text", "--repair-rounds", "1") as running:
        yield running


@pytest.fixture
def proxied(shared_proxy):
    """The module's proxy, with the turns of the tests before this one."""
    shared_proxy.answer = Proxied().answer
    return shared_proxy
