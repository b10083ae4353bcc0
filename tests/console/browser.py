"""Chromium for the tests of the console: Debian's package of it without windows, driven by Playwright."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

_AXE = Path(__file__).resolve().parents[2] / "console" / "node_modules" / "axe-core" / "axe.min.js"

needs_axe = pytest.mark.skipif(not _AXE.exists(), reason="console/node_modules is missing: make test installs it")

BOUND = 30_000.0
"""Milliseconds; no wait is longer."""

_CHROMIUM = shutil.which("chromium-headless-shell")

# Counts what a page must never do, from before its first script on.
_WATCH = """
window.watched = [];
addEventListener("securitypolicyviolation", (event) => watched.push(`CSP: ${event.violatedDirective} ${event.blockedURI}`));
addEventListener("error", (event) => watched.push(`error: ${event.message}`));
addEventListener("unhandledrejection", (event) => watched.push(`rejection: ${event.reason}`));
"""


def why_no_chromium() -> str | None:
    """The reason to skip; never in CI."""
    if os.environ.get("CI") == "true":
        return None
    return "Chromium is not installed (Debian: chromium-headless-shell)" if _CHROMIUM is None else None


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """Run Chromium."""
    assert _CHROMIUM is not None, "Chromium is not installed"
    # As root, which CI is, Chromium has no sandbox. Text without coloured edges makes smaller pictures.
    arguments = ["--disable-lcd-text", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=arguments, timeout=BOUND)
        yield browser
        browser.close()


@contextlib.contextmanager
def open_page(
    browser: Browser, url: str, *, width: int = 1440, height: int = 900, theme: str = "light", scale: float = 1.0
) -> Iterator[Page]:
    """Open a page in a profile of its own; fail at the end where it broke its policy, raised an error, or opened a dialog."""
    with contextlib.closing(
        browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if theme == "dark" else "light",
            device_scale_factor=scale,
            reduced_motion="reduce",
        )
    ) as context:
        context.set_default_timeout(BOUND)
        context.add_init_script(_WATCH)
        page = context.new_page()
        dialogs: list[str] = []

        def note(dialog: object) -> None:
            dialogs.append(str(dialog))
            dialog.dismiss()  # type: ignore[attr-defined]

        page.on("dialog", note)
        page.goto(url)
        yield page
        watched = page.evaluate("watched")
        assert [] == watched, watched
        assert [] == dialogs


def is_ready(page: Page) -> None:
    """Wait until the page follows the server and shows what it has asked for."""
    expect(page.get_by_role("status").first).to_have_text("Live")
    expect(page.get_by_text("Loading…")).to_have_count(0)


def show(page: Page, path: str) -> None:
    """Let the page read this path of the console as after "back": the document stays, and axe in it."""
    page.evaluate("path => { history.pushState(null, '', path); dispatchEvent(new Event('popstate')); }", f"/console{path}")


def check_axe(page: Page) -> None:
    """Check the page with axe in both themes. Only the colours differ in the dark one."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"{_AXE.read_text()}; 0")  # by the browser's debugger: the page's policy forbids scripts of others
    for theme, rules in (("dark", {"runOnly": ["color-contrast"]}), ("light", {})):
        page.emulate_media(color_scheme=theme)
        found = page.evaluate(
            "async rules => (await axe.run(rules)).violations.map((each) => [each.id, each.nodes.map((node) => node.html)])",
            rules,
        )
        assert [] == found, (page.url, theme)


def check_views(page: Page, *paths: str) -> None:
    """Check the views with axe, and that nothing of them is wider than its place on a small screen."""
    for width, height in ((1440, 900), (400, 800)):
        page.set_viewport_size({"width": width, "height": height})
        for path in paths:
            show(page, path)
            expect(page.get_by_role("heading", level=1)).to_have_count(1)
            is_ready(page)
            if width == 400:
                check_width(page)
            else:
                check_axe(page)


def check_width(page: Page) -> None:
    """Check that nothing is wider than its place."""
    assert [] == page.evaluate("""
        [document.documentElement, ...document.querySelectorAll(
            "main, .bar nav, .list, .lists, .detail, .scroller, .overview, .about, .table")]
            .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.className)
    """), page.url
