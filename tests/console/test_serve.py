"""A turn of a server with tools: its rounds, hooks, approvals and tools on one time axis."""

from __future__ import annotations

import asyncio

from playwright.sync_api import expect

from console.browser import BOUND, open_page
from console.travel import running_agency
from patchbay.hooks import Modify
from patchbay.server.app import create_tools_app
from support.http_server import serving

expect.set_options(timeout=BOUND)


class Caution:
    """Takes its time to ask for the weather of fewer days."""

    async def before_tool(self, call):
        await asyncio.sleep(0.1)
        return Modify({"arguments": {**call.arguments, "days": 2}})


def test_a_turn_shows_its_attempts_hooks_approvals_and_tools_in_the_order_of_time(browser, tmp_path):
    with (
        running_agency(
            tmp_path, earlier=0, prepare=lambda app: app.governance.hooks.mount("caution", Caution(), tools=("get_weather",))
        ) as (agency, turn),
        open_page(browser, f"{agency.origin}/console/turns/{turn}") as page,
    ):
        parts = page.get_by_role("tablist", name="Parts of the turn").get_by_role("tab")
        expect(parts).to_have_count(8)
        kinds = parts.locator(".kind").all_inner_texts()
        assert ["request", "model", "model"] == kinds[:3]
        assert ["approval", "hook", "tool", "tool"] == sorted(kinds[3:7])
        assert "model" == kinds[7]
        hook = parts.filter(has_text="caution")
        expect(hook.locator(".note")).to_have_text("before_tool: changed")
        assert hook.locator(".bar-box").bounding_box()["width"] > 3  # the least that a bar has
        hook.click()
        expect(page.get_by_role("tabpanel", name="hook caution")).to_contain_text("get_weather")
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
