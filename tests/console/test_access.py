"""The console for everyone: by keyboard alone, in both themes, on a small screen."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from console.browser import BOUND, check_axe, check_views, is_ready, needs_axe, open_page
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


@needs_axe
def test_axe_finds_nothing_and_nothing_scrolls_sideways_on_a_small_screen(browser, proxied, turn):
    proxied.answer = lambda body: error(500, "It broke.")
    failed = proxied.chat("What breaks?")
    with open_page(browser, proxied.page()) as page:
        is_ready(page)
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        check_axe(page)
        page.keyboard.press("Escape")
        views = [f"/turns/{turn}{view}" for view in VIEWS]
        check_views(page, "/turns", *views, f"/turns/{failed}", "/turns/none", "/turns?q=nowhere", "/other")


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
