"""The page of models, in Chromium: what was counted, why a model has its tools in the prompt, and what doctor finds."""

from __future__ import annotations

import re
import threading

import pytest
from playwright.sync_api import expect

from console.browser import BOUND, check_views, needs_axe, open_page
from console.proxied import MODEL, WEATHER, hermes
from patchbay.testing.script import error

expect.set_options(timeout=BOUND)

CALL = hermes("get_weather", '{"place": "Oslo", "days": 3}')
HOSTILE = "<img src=x onerror=alert(1)>/../m-1.5 \u202e"


@pytest.fixture
def counted(proxied):
    """Requests of two models: one called a tool, one failed."""
    proxied.answer = lambda body: error(500, "It broke.") if body["model"] == "other/m-0.1" else CALL
    proxied.chat("How is the weather in Oslo?", tools=[WEATHER])
    proxied.chat("And here?", model="other/m-0.1")
    return proxied


def models_of(page):
    return page.get_by_role("table", name="Models", exact=True)


def is_ready(page):
    expect(page.get_by_role("status").first).to_have_text("Live")
    expect(models_of(page)).to_be_visible()


def test_requests_are_counted_while_the_page_is_open(browser, counted):
    with open_page(browser, counted.page("/models")) as page:
        is_ready(page)
        expect(models_of(page).get_by_role("row").filter(has_text="other/m-0.1")).to_contain_text("1")
        expect(page.get_by_role("table", name="Tools")).to_contain_text("get_weather")
        expect(page.get_by_role("img", name=re.compile(r"^Models: Requests\. "))).to_be_visible()
        counted.answer = lambda body: "Hello."
        counted.chat("Hello.", model="a-third-one")
        expect(models_of(page)).to_contain_text("a-third-one")


def test_the_numbers_of_the_charts_are_a_table(browser, counted):
    with open_page(browser, counted.page("/models")) as page:
        is_ready(page)
        page.keyboard.press("n")
        numbers = page.get_by_role("region", name="Models: Requests, numbers")
        expect(numbers.get_by_role("columnheader", name=MODEL)).to_be_visible()
        expect(numbers.get_by_role("row").nth(1)).to_contain_text(re.compile(r"\d"))
        page.keyboard.press("w")
        expect(page.get_by_role("button", name="Last day")).to_have_attribute("aria-pressed", "true")
        assert {"view=table", "window=day"} == set(page.url.partition("?")[2].split("&"))
        page.keyboard.press("n")
        expect(page.locator("canvas").first).to_be_visible()


def test_a_model_opens_by_keyboard_and_gives_the_focus_back(browser, counted):
    with open_page(browser, counted.page("/models")) as page:
        is_ready(page)
        page.keyboard.press("j")
        focused = page.locator(":focus")
        name = focused.inner_text()
        page.keyboard.press("Enter")
        about = page.get_by_role("region", name="Model", exact=True)
        expect(about.get_by_role("heading", level=1)).to_have_text(name)
        expect(about).to_contain_text("--tools text was chosen")
        page.keyboard.press("Escape")
        expect(about).to_have_count(0)
        expect(focused).to_have_text(name)
        link = page.url + "?model=" + MODEL
        page.goto(link)
        expect(about).to_contain_text("hermes")


def test_a_chart_shows_the_point_under_the_pointer(browser, counted):
    with open_page(browser, counted.page("/models")) as page:
        is_ready(page)
        chart = page.get_by_role("figure").filter(has=page.get_by_role("heading", name="Requests"))
        box = chart.get_by_role("img").bounding_box()
        page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 40)
        expect(chart.locator(".readout")).to_contain_text(re.compile(r"\d\d:\d\d"))


def test_the_longest_label_of_an_axis_is_not_cut(browser, counted):
    def slow(route):
        found = route.fetch().json()
        for row in found["models"]:
            row["series"]["p95"] = [value and 1600.0 for value in row["series"]["p95"]]
        route.fulfill(json=found)

    with open_page(browser, counted.page("/")) as page:
        page.route("**/api/usage?*", slow)
        page.get_by_role("link", name="Models").click()
        chart = page.get_by_role("figure").filter(has=page.get_by_role("img", name=re.compile("at most 26 m 40 s")))
        expect(chart.locator("canvas")).to_be_visible()
        pixels = "canvas => [...canvas.getContext('2d').getImageData(0, 0, {}, canvas.height).data].filter(Boolean).length"
        assert 0 == chart.locator("canvas").evaluate(pixels.format(1))
        assert 0 < chart.locator("canvas").evaluate(pixels.format(64))


def test_names_of_models_are_only_text(browser, counted):
    counted.answer = lambda body: "Hello."
    counted.chat("Hello.", model=HOSTILE)
    with open_page(browser, counted.page("/models")) as page:
        is_ready(page)
        link = models_of(page).get_by_role("link").filter(has_text="onerror")
        link.click()
        expect(page.get_by_role("region", name="Model", exact=True).get_by_role("heading", level=1)).to_contain_text(
            "<img src=x onerror="
        )
        expect(page.locator("main img:not([role])")).to_have_count(0)
        page.reload()
        expect(page.get_by_role("region", name="Model", exact=True).get_by_role("heading", level=1)).to_contain_text("/../m-1.5")


def test_doctor_examines_the_upstream_and_its_findings_stay(browser, counted):
    counted.answer = lambda body: CALL if "get_weather" in str(body) else "Hello."
    with open_page(browser, counted.page("/models")) as page:
        is_ready(page)
        page.keyboard.press("d")
        page.get_by_role("button", name="Examine").click()
        findings = page.get_by_role("list", name="Findings")
        expect(findings.get_by_role("listitem").filter(has_text="connection")).to_contain_text("answers HTTP 200")
        expect(page.get_by_text(re.compile(r"\d+ findings, .* in .*just now"))).to_be_visible()
        page.reload()
        expect(findings.get_by_role("listitem").filter(has_text="connection")).to_be_visible()
        expect(page.get_by_role("button", name="Examine again")).to_be_visible()


def test_an_examination_shows_what_it_checks_and_is_cancelled(browser, counted):
    release = threading.Event()
    counted.answer = lambda body: release.wait(BOUND / 1000) and "Hello."
    try:
        with open_page(browser, counted.page(f"/models?model={MODEL}")) as page:
            page.get_by_role("button", name="Examine").click()
            expect(page.get_by_text("Checking chat")).to_be_visible()
            page.get_by_role("button", name="Cancel").click()
            expect(page.get_by_text(re.compile("^Cancelled"))).to_be_visible()
            expect(page.get_by_role("button", name="Examine again")).to_be_enabled()
    finally:
        release.set()


@needs_axe
def test_axe_finds_nothing_and_nothing_scrolls_sideways_on_a_small_screen(browser, counted):
    with open_page(browser, counted.page("/models")) as page:
        is_ready(page)
        views = ("", "?view=table", "?window=day&view=table", f"?model={MODEL}", "?doctor=1", "?model=none")
        check_views(page, *(f"/models{view}" for view in views))
