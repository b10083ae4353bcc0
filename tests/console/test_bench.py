"""The bench of the page of tools: a form made of a schema, in step with JSON, and calls that pass hooks and approvals."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from console.browser import BOUND, check_axe, is_ready, needs_axe, open_page, show
from console.test_hostile_text import HOSTILE, check_elements
from console.workshop import running_workshop
from support.served import wait_for

expect.set_options(timeout=BOUND)


@pytest.fixture(scope="module")
def workshop(browser, tmp_path_factory):
    with running_workshop(tmp_path_factory.mktemp("bench")) as running:
        yield running


def opened(browser, workshop, tool: str, **options):
    return open_page(browser, f"{workshop.origin}/console/tools?tool={tool}", **options)


def box(page, name: str):
    return page.get_by_role("textbox", name=name, exact=True)


def call_button(page):
    return page.get_by_role("button", name="Call Ctrl Enter")


def arguments(page) -> object:
    return json.loads(box(page, "As JSON").input_value())


def test_a_form_of_nested_objects_lists_unions_and_numbers_is_in_step_with_json(browser, workshop):
    with opened(browser, workshop, "plan_trip") as page:
        box(page, "traveller *").fill("Ann")
        page.get_by_role("button", name="Add to stops").click()
        first, second = page.get_by_role("group", name="1"), page.get_by_role("group", name="2")
        first.get_by_role("textbox").fill("Oslo")
        second.get_by_role("textbox").fill("Bergen")
        second.get_by_role("button", name="Set nights").click()
        box(page, "nights").fill("2")
        page.get_by_label("Kind of by").select_option("kind: ferry")
        page.get_by_label("cabin").select_option("outside")
        page.get_by_role("button", name="Set budget").click()
        page.get_by_label("Kind of budget").select_option("number")
        box(page, "budget").fill("1200.50")
        expect(box(page, "budget")).to_have_value("1200.50")  # as it was typed
        wanted = {
            "traveller": "Ann",
            "stops": [{"place": "Oslo"}, {"place": "Bergen", "nights": 2}],
            "by": {"kind": "ferry", "cabin": "outside"},
            "budget": 1200.5,
        }
        assert wanted == arguments(page)
        first.get_by_role("button", name="Remove 1").click()
        assert [{"place": "Bergen", "nights": 2}] == arguments(page)["stops"]
        box(page, "As JSON").fill(json.dumps({**wanted, "by": {"kind": "train", "sleeper": True}, "budget": None}))
        expect(page.get_by_label("Kind of by")).to_have_value("0")
        expect(page.get_by_label("sleeper", exact=True)).to_have_value("0")  # true
        expect(page.get_by_role("group", name="2").get_by_role("textbox").first).to_have_value("Bergen")
        page.keyboard.press("Control+Enter")
        result = page.get_by_label("Result as data")
        expect(result).to_contain_text('"by": "train"')
        expect(result).to_contain_text('"budget": null')


def test_a_long_form_begins_at_its_top_and_its_result_comes_into_view(browser, workshop):
    with opened(browser, workshop, "plan_trip", width=400, height=800) as page:
        expect(call_button(page)).to_be_visible()
        expect(box(page, "traveller *")).to_be_in_viewport()
        call_button(page).click()
        expect(page.get_by_text("the tool did not run", exact=True)).to_be_in_viewport()


def test_faults_stand_at_their_fields(browser, workshop):
    with opened(browser, workshop, "plan_trip") as page:
        box(page, "traveller *").fill("A")
        expect(box(page, "traveller *")).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_text("must have at least 2 characters")).to_be_visible()
        box(page, "traveller *").fill("Ann")
        expect(page.get_by_text("must have at least 2 characters")).to_have_count(0)
        page.get_by_role("button", name="Set nights").click()
        box(page, "nights").fill("many")
        expect(page.get_by_text("must be an integer")).to_be_visible()
        box(page, "nights").fill("31")
        expect(page.get_by_text("must be at most 30")).to_be_visible()
        box(page, "nights").fill("3")
        page.get_by_label("Kind of by").select_option("kind: ferry")
        call_button(page).click()
        # What the page leaves to the server is shown at its field, too; the other part of the union is not meant.
        expect(page.get_by_label("cabin")).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_text("is required", exact=True)).to_be_visible()
        expect(page.get_by_label("kind", exact=False).last).to_have_attribute("aria-invalid", "false")
        expect(page.get_by_text("the tool did not run", exact=True)).to_be_visible()
        page.get_by_label("cabin").select_option("none")
        expect(page.get_by_text("is required", exact=True)).to_have_count(0)


def test_a_part_without_a_control_is_edited_as_json(browser, workshop):
    schema = {"type": "object", "properties": {"filter": {}, "pair": {"type": "array", "prefixItems": [{"type": "integer"}]}}}
    workshop.register("odd", parameters=schema)
    with opened(browser, workshop, "odd") as page:
        page.get_by_role("button", name="Set filter").click()
        box(page, "filter").fill('{"a": [1,')
        expect(page.get_by_text("This is not JSON.")).to_be_visible()
        expect(call_button(page)).to_be_disabled()
        box(page, "filter").fill('{"a": [1, 2]}')
        page.get_by_role("button", name="Set pair").click()
        box(page, "pair").fill("[1]")
        assert {"filter": {"a": [1, 2]}, "pair": [1]} == arguments(page)
        call_button(page).click()
        expect(page.get_by_label("Result as data")).to_contain_text('"pair"')


def test_what_is_written_as_json_is_what_runs(browser, workshop):
    """A number that JavaScript cannot hold reaches the tool as it was written."""
    workshop.register("exact", parameters={"type": "object", "properties": {"n": {"type": "integer"}}})
    with opened(browser, workshop, "exact") as page:
        box(page, "As JSON").fill('{"n": 12345678901234567890}')
        page.keyboard.press("Control+Enter")
        expect(page.get_by_label("Result as data")).to_contain_text("12345678901234567890")


def test_arguments_are_kept_for_another_call(browser, workshop):
    with opened(browser, workshop, "berth_of") as page:
        for ship in ("MS Nord", "MS Sol"):
            box(page, "ship *").fill(ship)
            page.keyboard.press("Control+Enter")
            expect(page.get_by_label("Result as data")).to_contain_text(ship)
        page.reload()
        page.get_by_role("button", name='{"ship":"MS Nord"}').click()
        expect(box(page, "ship *")).to_have_value("MS Nord")
        page.goto(f"{workshop.origin}/console/tools?tool=draw_map")
        expect(box(page, "place *")).to_be_visible()
        expect(page.get_by_text("Used before")).to_have_count(0)


def test_a_call_that_waits_for_a_person_says_so_and_runs_when_it_is_approved(browser, workshop):
    with opened(browser, workshop, "refund") as page:
        is_ready(page)
        box(page, "booking *").fill("B-17")
        box(page, "euros *").fill("20")
        call_button(page).click()
        expect(page.get_by_text("waits for a person, by the rule money needs a person")).to_be_visible()
        (request,) = workshop.get("/api/approvals")["approvals"]
        link = page.get_by_role("link", name="decide in a new tab")
        expect(link).to_have_attribute("href", f"/console/approvals/{request['id']}")
        workshop.post(f"/api/approvals/{request['id']}", decision="approve")
        expect(page.get_by_label("Result as a model gets it")).to_contain_text("20 € are on their way for B-17.")


def test_a_call_is_cancelled_and_its_tool_stopped(browser, workshop):
    workshop.started.clear()
    workshop.stopped.clear()
    with opened(browser, workshop, "wait_for_crane") as page:
        call_button(page).click()
        expect(page.get_by_text("Running for")).to_be_visible()
        assert workshop.started.wait(BOUND / 1000)
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("alert")).to_contain_text("Cancelled.")
        assert workshop.stopped.wait(BOUND / 1000)
        expect(call_button(page)).to_be_enabled()


def test_an_image_of_a_result_is_shown(browser, workshop):
    with opened(browser, workshop, "draw_map") as page:
        box(page, "place *").fill("Oslo")
        page.keyboard.press("Control+Enter")
        image = page.get_by_role("img", name="map.png")
        expect(image).to_be_visible()
        assert 40 == image.evaluate("async (each) => { await each.decode(); return each.naturalWidth; }")


def test_a_tool_that_fails_says_why(browser, workshop):
    with opened(browser, workshop, "export_archive") as page:
        box(page, "year *").fill("2020")
        page.keyboard.press("Control+Enter")
        expect(page.get_by_label("Result as a model gets it")).to_contain_text("on a disk that is not there")
        expect(page.get_by_text("tool_error").first).to_be_visible()


def test_tools_that_run_elsewhere_cannot_be_called(browser, workshop):
    workshop.chat("Is it a holiday?")
    with opened(browser, workshop, "is_holiday") as page:
        expect(page.get_by_text("This tool exists during the turns of a model only")).to_be_visible()
        expect(call_button(page)).to_have_count(0)


def test_a_hostile_schema_and_result_stay_text_in_the_bench(browser, workshop, subtests):
    with open_page(browser, f"{workshop.origin}/console/tools") as page:
        for kind, text in HOSTILE.items():
            schema = {
                "type": "object",
                "title": text,
                "properties": {
                    text: {"type": "string", "title": text, "description": text, "default": text},
                    "constructor": {"anyOf": [{"title": text, "enum": [text]}, {"type": "null"}]},
                    "__proto__": {"type": "string", "description": text},
                },
                "required": [text, "constructor", "__proto__"],
            }
            with subtests.test(kind), workshop.registered(f"evil_{kind}", text, schema):
                show(page, f"/tools?tool=evil_{kind}")
                page.get_by_role("button", name="Set constructor").click()
                check_elements(page)
                page.get_by_label("constructor", exact=True).last.select_option(index=1)
                box(page, "__proto__ *").fill(text)
                typed = text.replace("\r", "\n")  # as in any field of a browser
                assert {text: text, "constructor": text, "__proto__": typed} == arguments(page)
                call_button(page).click()
                expect(page.get_by_label("Result as data")).to_be_visible()
                check_elements(page)
                assert "undefined" == page.evaluate("typeof ({}).polluted")


def test_a_schema_without_end_does_not_stop_the_page(browser, workshop):
    names = [f"p{number}" for number in range(40)]
    node = {"anyOf": [{"type": "object", "properties": {name: {"$ref": "#/$defs/n"} for name in names}, "required": names}] * 20}
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/b"}, "c": {"type": "string", "pattern": "^(a+)+$"}},
        "required": ["a", "b", "c"],
        "$defs": {"n": node, "b": {"$ref": "#/$defs/b"}},
    }
    workshop.register("endless", parameters=schema)
    with opened(browser, workshop, "endless") as page:
        box(page, "c *").fill("a" * 60 + "!")
        expect(box(page, "c *")).to_have_value("a" * 60 + "!")
        assert page.locator(".argument").count() < 1000


@needs_axe
def test_axe_finds_nothing_in_the_bench(browser, workshop):
    with opened(browser, workshop, "plan_trip") as page:
        is_ready(page)
        page.get_by_role("button", name="Set nights").click()
        box(page, "nights").fill("many")
        page.get_by_role("button", name="Set budget").click()
        call_button(page).click()
        expect(page.get_by_text("the tool did not run", exact=True)).to_be_visible()
        check_axe(page)


def test_the_bench_works_by_keyboard_alone_and_keeps_the_focus_over_updates(browser, workshop):
    with opened(browser, workshop, "get_weather", width=400, height=800) as page:
        is_ready(page)
        page.get_by_role("tab", name="Try").focus()
        focused, keys = page.locator(":focus"), page.keyboard
        keys.press("Tab")
        keys.type("Oslo")
        keys.press("Tab")
        keys.type("3")
        before = workshop.get("/api/console/tools/definition?name=get_weather")["calls"]
        workshop.call("get_weather", place="Bergen", days=1)
        expect(page.locator(".facts").filter(has_text="Calls")).to_contain_text(f"Calls{before + 1}")
        expect(focused).to_have_value("3")
        keys.press("Control+Enter")
        expect(page.get_by_label("Result as data")).to_contain_text('"place": "Oslo"')
        expect(focused).to_have_value("3")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        wait_for(lambda: workshop.get("/api/console/tools/definition?name=get_weather")["calls"] == before + 2)
