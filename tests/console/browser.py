"""Chromium for the tests of the console: Debian's package, driven by Playwright."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

AXE = Path(__file__).resolve().parents[2] / "console" / "node_modules" / "axe-core" / "axe.min.js"

BOUND = 30_000.0
"""Milliseconds; no wait is longer."""

_CHROMIUM = shutil.which("chromium")

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
    return "Chromium is not installed (Debian: chromium)" if _CHROMIUM is None else None


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """Run Chromium without a window."""
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
