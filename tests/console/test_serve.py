"""A turn of a server with tools: its rounds, approvals and tools on one time axis."""

from __future__ import annotations

from playwright.sync_api import expect

from console.browser import BOUND, open_page
from console.travel import running_agency
from patchbay.server.app import create_tools_app
from support.http_server import serving

expect.set_options(timeout=BOUND)


def test_a_turn_shows_its_attempts_approvals_and_tools_in_the_order_of_time(browser, tmp_path):
    with (
        running_agency(tmp_path, earlier=0) as (agency, turn),
        open_page(browser, f"{agency.origin}/console/turns/{turn}") as page,
    ):
        parts = page.get_by_role("tablist", name="Parts of the turn").get_by_role("tab")
        expect(parts).to_have_count(7)
        kinds = parts.locator(".kind").all_inner_texts()
        assert ["request", "model", "model"] == kinds[:3]
        assert ["approval", "tool", "tool"] == sorted(kinds[3:6])
        assert "model" == kinds[6]
        parts.filter(has_text="approved, by maria").click()
        expect(page.get_by_text("prices are asked for once")).to_be_visible()
        parts.filter(has_text="tool").filter(has_text="search_flights").click()
        expect(page.get_by_label("Arguments")).to_contain_text('"day": "2026-12-04"')
        expect(page.get_by_role("tabpanel")).to_contain_text("SK 4425")  # the result, as the model got it


def test_a_server_without_an_upstream_offers_nothing_that_needs_one(browser):
    asked = []
    with serving(create_tools_app(("ann",))) as port, open_page(browser, f"http://127.0.0.1:{port}/console") as page:
        page.on("request", lambda request: asked.append(request.url))
        expect(page.get_by_text("it was started without --upstream")).to_be_visible()
        expect(page.get_by_text("curl")).to_have_count(0)
        page.goto(f"http://127.0.0.1:{port}/console/models?doctor=1")
        expect(page.get_by_text("No requests yet")).to_be_visible()
        expect(page.get_by_text("Doctor")).to_have_count(0)
    assert not [url for url in asked if url.endswith("/api/doctor")]
