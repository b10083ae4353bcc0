"""The page of turns, in Chromium: the list follows the server, and one turn explains how its calls were read."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path

import pytest
from playwright.sync_api import expect

from console.browser import BOUND, open_page
from console.proxied import WEATHER, hermes, running_proxy
from patchbay.testing.script import Text, error
from ports import kept_port

CALL = hermes("get_weather", '{"place": "Oslo", "days": 3}')
UNFIT = hermes("get_weather", '{"place": "Oslo", "days": "many"}')

expect.set_options(timeout=BOUND)


@pytest.fixture
def mark():
    """A word that no other turn has."""
    return f"w{uuid.uuid4().hex[:12]}"


def row(page, text: str):
    return page.get_by_role("row").filter(has_text=text)


def test_a_turn_appears_while_it_runs_and_its_end_is_shown(browser, proxied, mark):
    release = threading.Event()

    def answer(body):
        release.wait(BOUND / 1000)
        return "Hello."

    proxied.answer = answer
    with open_page(browser, proxied.page()) as page:
        expect(page.get_by_role("status")).to_have_text("Live")
        proxied.chat(mark, wait=False)
        try:
            expect(row(page, mark).get_by_label("running")).to_be_visible()
        finally:
            release.set()
        expect(row(page, mark).get_by_label("done")).to_be_visible()


def test_the_row_with_the_focus_stays_where_it_is_when_turns_arrive(browser, proxied, mark):
    proxied.chat(f"{mark} first")
    with open_page(browser, proxied.page()) as page:
        expect(row(page, f"{mark} first")).to_be_visible()
        expect(page.get_by_role("status")).to_have_text("Live")
        page.keyboard.press("j")
        focused = page.locator(":focus")
        expect(focused).to_contain_text(f"{mark} first")
        before = focused.bounding_box()
        for number in range(3):
            proxied.chat(f"{mark} later {number}")
        expect(page.get_by_role("button", name="3 new turns")).to_be_visible()
        expect(focused).to_contain_text(f"{mark} first")
        assert before == focused.bounding_box()
        page.get_by_role("button", name="3 new turns").click()
        expect(row(page, f"{mark} later 2")).to_be_in_viewport()


def test_filters_are_in_the_url_and_applied_by_the_server(browser, proxied, mark):
    proxied.chat(f"{mark} wanted")
    proxied.chat(f"{mark} other", model="another-model")
    with open_page(browser, proxied.page()) as page:
        expect(row(page, f"{mark} other")).to_be_visible()
        page.get_by_label("Model").fill("another-model")
        expect(row(page, f"{mark} wanted")).to_have_count(0)
        expect(row(page, f"{mark} other")).to_be_visible()
        assert page.url.endswith("?model=another-model")
        page.get_by_role("button", name="Clear").click()
        page.get_by_label("Search").fill(f"{mark} wanted")
        expect(row(page, f"{mark} other")).to_have_count(0)
        expect(row(page, f"{mark} wanted")).to_be_visible()
        page.get_by_label("Search").fill("found nowhere")
        expect(page.get_by_text("No turn matches")).to_be_visible()


def test_older_turns_are_loaded_when_the_list_is_scrolled(browser, proxied, mark):
    for number in range(70):
        proxied.chat(f"{mark} {number:02}")
    with open_page(browser, proxied.page(f"/turns?q={mark}")) as page:
        grid = page.get_by_role("grid")
        expect(grid).to_have_attribute("aria-rowcount", "51")
        expect(row(page, f"{mark} 69")).to_be_visible()
        assert page.get_by_role("row").count() < 50  # the others are not in the document
        page.keyboard.press("j")
        expect(page.locator(":focus")).to_contain_text(f"{mark} 69")
        page.keyboard.press("End")
        expect(grid).to_have_attribute("aria-rowcount", "71")
        page.keyboard.press("End")
        expect(row(page, f"{mark} 00")).to_be_in_viewport()


def test_a_turn_shows_the_raw_text_with_the_parts_that_its_calls_were_read_from(browser, proxied, mark):
    proxied.answer = lambda body: f"😀 I look. <think>Norway</think>\n{CALL}\n{CALL.replace('Oslo', 'Bergen')}"
    turn = proxied.chat(mark, tools=[WEATHER])
    with open_page(browser, proxied.page(f"/turns/{turn}")) as page:
        raw = page.get_by_role("region", name="Raw text", exact=True)
        marked = raw.locator("mark")
        expect(marked).to_have_count(2)
        expect(marked.nth(0)).to_have_text(f"1{CALL}")
        expect(marked.nth(1)).to_have_text(f"2{CALL.replace('Oslo', 'Bergen')}")
        read = page.get_by_role("region", name="What was read", exact=True)
        expect(read.get_by_label("Arguments of get_weather").first).to_have_text('{\n  "place": "Oslo",\n  "days": 3\n}')
        expect(page.get_by_text("2 calls were read in the format hermes")).to_be_visible()
        read.get_by_role("button", name="show in the text").nth(1).click()
        expect(marked.nth(1)).to_have_class("lit")
        page.get_by_role("tab", name="Messages").click()
        expect(page.get_by_label("system message")).to_contain_text("get_weather")  # as the model saw it
        assert page.url.endswith("?tab=messages")


def test_why_a_model_was_asked_again_is_said_in_words(browser, proxied, mark):
    answers = iter([UNFIT, CALL])
    proxied.answer = lambda body: next(answers)
    turn = proxied.chat(mark, tools=[WEATHER])
    with open_page(browser, proxied.page(f"/turns/{turn}")) as page:
        parts = page.get_by_role("tablist", name="Parts of the turn").get_by_role("tab")
        asked = parts.filter(has_text="asked again")
        expect(asked).to_have_count(1)
        expect(asked).to_contain_text("the arguments do not fit the schema")
        expect(asked).to_have_attribute("aria-selected", "true")
        parts.last.click()
        expect(page.get_by_label("Arguments of get_weather")).to_have_text('{\n  "place": "Oslo",\n  "days": 3\n}')
        page.get_by_role("tab", name="Messages").click()
        expect(page.get_by_role("listitem").filter(has_text="new").last).to_contain_text("days")  # what the model was told
        page.reload()  # the part is in the URL
        expect(parts.last).to_have_attribute("aria-selected", "true")


def test_a_failure_is_shown_with_its_reason(browser, proxied, mark):
    proxied.answer = lambda body: error(503, "The model is being loaded.")
    turn = proxied.chat(mark)
    with open_page(browser, proxied.page("/turns?outcome=failed")) as page:
        expect(row(page, turn).or_(row(page, "503")).first).to_be_visible()
        page.goto(proxied.page(f"/turns/{turn}"))
        expect(page.get_by_role("heading", level=1)).to_have_text(mark)
        expect(page.get_by_text("HTTP 503").first).to_be_visible()


def test_an_edited_request_is_sent_and_both_answers_are_shown(browser, proxied, mark):
    proxied.answer = lambda body: "Rain." if "Oslo" in json.dumps(body) else "Sun."
    turn = proxied.chat(f"{mark} Oslo?", seed=2**53 + 1)
    with open_page(browser, proxied.page(f"/turns/{turn}?at=request")) as page:
        page.get_by_role("button", name="Edit and resend").click()
        messages = page.get_by_label("Messages")
        send = page.get_by_role("button", name="Send")
        messages.fill('[{"role": "user"')
        expect(page.get_by_text("This is not JSON")).to_be_visible()
        expect(send).to_be_disabled()
        messages.fill("[]")
        expect(page.get_by_text("Messages are a list of objects")).to_be_visible()
        messages.fill(json.dumps([{"role": "user", "content": f"{mark} Rome?"}]))
        messages.press("Control+Enter")
        expect(page.get_by_role("region", name="Before")).to_contain_text("Rain.")
        after = page.get_by_role("region", name="After", exact=True)
        expect(after).to_contain_text("Sun.")
        after.get_by_role("button", name="Open this turn").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"{mark} Rome?")
        assert f"/{turn}?" not in f"{page.url}?"
        page.get_by_role("tab", name="JSON").click()
        expect(page.get_by_label("Request as JSON")).to_contain_text('"seed": 9007199254740993')


def test_a_turn_is_exported_as_json(browser, proxied, mark):
    proxied.answer = lambda body: CALL
    turn = proxied.chat(mark, tools=[WEATHER])
    with open_page(browser, proxied.page(f"/turns/{turn}")) as page:
        with page.expect_download() as download:
            page.get_by_role("link", name="Export").click()
        exported = json.loads(Path(download.value.path()).read_text())
        assert CALL == exported["attempts"][0]["text"]


def test_a_turn_that_is_not_kept_says_so_and_leads_back(browser, proxied):
    with open_page(browser, proxied.page("/turns/no-such-turn")) as page:
        expect(page.get_by_role("alert")).to_contain_text("The server keeps the last 200 turns")
        page.get_by_role("button", name="Back to the list").click()
        assert page.url.endswith("/console/turns")


def test_a_lost_connection_is_shown_and_made_again(browser):
    port = str(kept_port())
    with running_proxy("--port", port) as proxied, open_page(browser, proxied.page()) as page:
        expect(page.get_by_role("status")).to_have_text("Live")
        proxied.stop()
        expect(page.get_by_role("status")).to_have_text("Connection lost, reconnecting")
        with running_proxy("--port", port) as again:
            expect(page.get_by_role("status")).to_have_text("Live")
            again.chat("Are you back?")
            expect(row(page, "Are you back?")).to_be_visible()


def test_a_page_whose_sign_in_has_ended_asks_for_another_one(browser):
    port = str(kept_port())
    with running_proxy("--port", port, "--api-key", "the-first-key-of-it") as proxied, open_page(browser, proxied.page()) as page:
        page.get_by_label("Token of the server").fill("the-first-key-of-it")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text("Live")
        proxied.stop()
        expect(page.get_by_role("status")).to_have_text("Connection lost, reconnecting")
        with running_proxy("--port", port, "--api-key", "the-second-key-of-it"):
            page.get_by_label("Token of the server").fill("the-second-key-of-it")
            page.keyboard.press("Enter")
            expect(page.get_by_role("status")).to_have_text("Live")


def test_list_of_running_turns_leaves_out_those_that_have_ended(browser, proxied, mark):
    proxied.answer = lambda body: Text("word " * (10 if "short" in json.dumps(body) else 30), piece=5, gap=0.25)
    with open_page(browser, proxied.page("/turns?outcome=running")) as page:
        expect(page.get_by_role("status")).to_have_text("Live")
        for length in ("short", "long"):
            proxied.chat(f"{mark} {length}", wait=False, stream=True)
            expect(row(page, f"{mark} {length}")).to_be_visible()
        expect(row(page, f"{mark} short")).to_have_count(0)
        expect(row(page, f"{mark} long")).to_be_visible()
        expect(row(page, f"{mark} long")).to_have_count(0)


@pytest.mark.parametrize("path", ["/v1", "/openai/v1"])
def test_the_first_page_says_how_to_send_a_request(browser, path):
    with running_proxy("--base-path", path) as proxied, open_page(browser, proxied.origin) as page:
        expect(page.get_by_text(f"{proxied.origin}{path}", exact=True)).to_be_visible()
        expect(page.get_by_label("An example")).to_contain_text(f"curl {proxied.origin}{path}/chat/completions")
        proxied.chat("Hello?")
        expect(row(page, "Hello?")).to_be_visible()


def test_a_server_with_a_key_asks_for_it_and_then_shows_its_turns(browser):
    with running_proxy("--api-key", "the-key-of-this-proxy") as proxied, open_page(browser, proxied.page()) as page:
        field = page.get_by_label("Token of the server")
        field.fill("another one")
        field.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("The server has another token.")
        field.fill("the-key-of-this-proxy")
        field.press("Enter")
        expect(page.get_by_text("No turns yet")).to_be_visible()
        expect(page.get_by_role("status")).to_have_text("Live")
        page.keyboard.press("?")
        page.get_by_role("button", name="Sign out").click()
        expect(field).to_be_visible()
        page.reload()
        expect(field).to_be_visible()
