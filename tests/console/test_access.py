"""The console for everyone: by keyboard alone, in both themes, on a small screen."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from console.browser import AXE, BOUND, open_page
from console.proxied import WEATHER, hermes
from patchbay.testing.script import error

expect.set_options(timeout=BOUND)

CALLS = "I look.\n" + hermes("get_weather", '{"place": "Oslo", "days": 3}')
VIEWS = ["", "?tab=messages", "?at=request&tab=tools", "?at=request&tab=json", "?edit=request"]


@pytest.fixture
def turn(proxied):
    """A turn with a call."""
    proxied.answer = lambda body: CALLS
    return proxied.chat("How is the weather in Oslo?", tools=[WEATHER])


RUN_AXE = """
    theme => axe.run(theme === "dark" ? {runOnly: ["color-contrast"]} : {}).then(
        ({violations}) => violations.map((each) => [each.id, each.nodes.map((node) => node.html.slice(0, 200))]))
"""
"""Only the colours differ in the dark theme."""


def is_ready(page):
    expect(page.get_by_role("status")).to_have_text("Live")
    expect(page.get_by_text("Loading…")).to_have_count(0)


@pytest.mark.skipif(not AXE.exists(), reason="console/node_modules is missing: make test installs it")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(browser, proxied, turn, theme):
    proxied.answer = lambda body: error(500, "It broke.")
    failed = proxied.chat("What breaks?")
    pages = [
        "/turns",
        *(f"/turns/{turn}{view}" for view in VIEWS),
        f"/turns/{failed}",
        "/turns/none",
        "/turns?q=nowhere",
        "/other",
    ]
    with open_page(browser, proxied.page(), theme=theme) as page:
        is_ready(page)
        page.evaluate(f"{AXE.read_text()}; 0")  # by the browser's debugger: the page's policy forbids scripts of others
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        assert [] == page.evaluate(RUN_AXE, theme)
        page.keyboard.press("Escape")
        for path in pages:
            # The page reads its path as after "back": the document stays, and axe in it.
            page.evaluate(
                "path => { history.pushState(null, '', path); dispatchEvent(new Event('popstate')); }", f"/console{path}"
            )
            expect(page.get_by_role("heading", level=1)).to_have_count(1)
            expect(page.get_by_text("Loading…")).to_have_count(0)
            assert [] == page.evaluate(RUN_AXE, theme), path


@pytest.mark.parametrize("path", ["/turns", *(f"/turns/TURN{view}" for view in VIEWS)])
def test_nothing_scrolls_sideways_on_a_small_screen(browser, proxied, turn, path):
    with open_page(browser, proxied.page(path.replace("TURN", turn)), width=400, height=800) as page:
        is_ready(page)
        wide = """
            [document.documentElement, ...document.querySelectorAll("main, .list, .detail, .scroller")]
                .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.className)
        """
        assert [] == page.evaluate(wide)


def test_everything_is_reached_by_keyboard(browser, proxied, turn):
    proxied.chat("And about zebras?", tools=[WEATHER])
    with open_page(browser, proxied.page()) as page:
        is_ready(page)
        expect(page.get_by_role("row").filter(has_text="And about zebras?")).to_be_visible()
        focused = page.locator(":focus")
        keys = page.keyboard
        keys.press("j")
        expect(focused).to_contain_text("And about zebras?")
        keys.press("ArrowDown")
        expect(focused).to_contain_text("How is the weather in Oslo?")
        keys.press("k")
        keys.press("j")
        keys.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("How is the weather in Oslo?")
        expect(page).to_have_url(re.compile(turn))
        expect(focused).to_contain_text("How is the weather in Oslo?")  # the row keeps it
        keys.press("[")
        expect(page.get_by_role("tab", name="chat")).to_have_attribute("aria-selected", "true")
        keys.press("]")
        keys.press("Enter")
        expect(focused).to_have_id("detail")
        keys.press("e")
        expect(focused).to_have_id("draft-messages")
        keys.press("Escape")
        expect(page.get_by_role("button", name="Edit and resend")).to_be_visible()
        keys.press("Escape")
        expect(page).to_have_url(proxied.page("/turns"))
        expect(focused).to_contain_text("How is the weather in Oslo?")
        keys.press("/")
        expect(focused).to_have_attribute("type", "search")
        keys.type("zebras")
        expect(page.get_by_role("row")).to_have_count(2)  # with the head
        keys.press("Escape")
        expect(focused).to_contain_text("And about zebras?")
        keys.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        keys.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(focused).to_contain_text("And about zebras?")


def test_the_theme_is_remembered(browser, proxied):
    with open_page(browser, proxied.page(), theme="light") as page:
        is_ready(page)
        background = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(background)
        page.keyboard.press("t")
        page.keyboard.press("t")
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        dark = page.evaluate(background)
        assert light != dark
        page.reload()
        is_ready(page)
        assert dark == page.evaluate(background)
