"""The page that tries a role: text as it comes, the calls of the answer and its approvals between, and stopping."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from console.browser import BOUND, check_axe, check_width, needs_axe, open_page
from console.proxied import running_proxy
from console.travel import FINAL, QUESTION, running_agency
from patchbay.testing import Text
from patchbay.testing.script import error

expect.set_options(timeout=BOUND)


def say(page: Page, text: str) -> None:
    expect(page.get_by_text("Live", exact=True)).to_be_attached()  # a turn sends events to those who read when it begins
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def last(page: Page) -> Any:
    return page.locator("li.said-by").last


def test_answer_of_a_role_shows_its_calls_with_what_waits_for_approval_and_what_was_denied(browser, tmp_path):
    with (
        running_agency(tmp_path, earlier=0) as (agency, _),
        open_page(browser, f"{agency.origin}/console/chat?model=qwen3-8b-instruct") as page,
    ):
        say(page, QUESTION)
        waiting = page.get_by_role("group", name="search_flights waits for approval")
        expect(waiting).to_contain_text('"day": "2026-12-04"')
        waiting.get_by_role("button", name="Approve").click()
        expect(waiting).to_have_count(0)
        expect(last(page)).to_contain_text("Take the early flight if you can")
        calls = last(page).locator("details.call")
        expect(calls).to_have_count(2)
        calls.filter(has_text="search_flights").locator("summary").click()
        expect(last(page).get_by_label("Result of search_flights")).to_contain_text("SK 4425")
        expect(last(page).locator("details").first).to_contain_text("Reasoning")
        expect(last(page).locator("p.prose").last).to_contain_text(FINAL.split("\n\n")[0])
        last(page).get_by_role("link", name="Turn").click()
        expect(page.get_by_role("tablist", name="Parts of the turn")).to_be_visible()
        page.go_back()
        expect(last(page)).to_contain_text("Take the early flight")  # the conversation is still there
        page.get_by_role("button", name="New conversation").click()
        say(page, "Hold a seat at the window, please.")
        expect(last(page)).to_contain_text("I have noted it in your trip")
        expect(last(page).locator("details.call")).to_contain_text("hold_seat")
        page.get_by_role("button", name="New conversation").click()
        say(page, QUESTION)
        waiting.get_by_role("button", name="Deny").click()
        denied = page.locator("details.call").filter(has_text="search_flights").first
        expect(denied.get_by_role("img", name="failed")).to_be_visible()
        denied.locator("summary").click()
        expect(denied.get_by_label("Result of search_flights")).to_contain_text("denied by a person")
        page.keyboard.press("Escape")  # the model of this test asks for it again


@pytest.fixture
def page(browser, proxied):
    with open_page(browser, f"{proxied.origin}/console/chat?model=m") as opened:
        yield opened


def test_answer_appears_while_it_comes_and_can_be_stopped(page, proxied):
    proxied.answer = lambda _body: Text("word " * 200, piece=5, gap=0.2)
    say(page, "Count")
    expect(last(page)).to_contain_text("word word")
    page.keyboard.press("Escape")
    expect(last(page)).to_contain_text("stopped")
    proxied.answer = lambda body: Text(f"{len(body['messages'])} messages")
    say(page, "Go on")
    expect(last(page)).to_contain_text("3 messages")
    page.get_by_role("button", name="New conversation").click()
    say(page, "Once more")
    expect(last(page)).to_contain_text("1 messages")


def test_error_of_the_upstream_is_shown_and_asked_again(page, proxied):
    proxied.answer = lambda _body: error(503, "The model is being loaded.")
    say(page, "Hello")
    expect(last(page).get_by_role("alert")).to_contain_text("The model is being loaded")
    proxied.answer = lambda _body: Text("Good morning.")
    last(page).get_by_role("button", name="Ask again").click()
    expect(last(page)).to_contain_text("Good morning.")
    expect(page.locator("li.said-by")).to_have_count(2)


def test_hostile_text_is_shown_as_text(page, proxied):
    hostile = "<img src=x onerror=alert(1)> \u202e\x1b[31m </script><script>watched.push(1)</script>"
    proxied.answer = lambda _body: Text(hostile)
    say(page, hostile)
    expect(last(page)).to_contain_text("<img src=x onerror=alert(1)>")
    expect(last(page)).to_contain_text("U+202E")
    assert 0 == page.locator("main img:not([role])").count()


@needs_axe
def test_axe_finds_nothing_in_a_chat(page, proxied):
    proxied.answer = lambda _body: Text("Good morning.")
    say(page, "Hello")
    expect(last(page)).to_contain_text("Good morning.")
    for width in (1440, 400):
        page.set_viewport_size({"width": width, "height": 900})
        check_axe(page)
        check_width(page)


def test_without_a_list_of_models_one_is_named(browser):
    with running_proxy() as proxied, open_page(browser, f"{proxied.origin}/console/chat") as page:
        expect(page.get_by_label("Model")).to_be_visible()
