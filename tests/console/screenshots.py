"""``python -m console.screenshots`` in ``tests`` (``make screenshots``): take the pictures of the console for the documentation."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

from playwright.sync_api import Page, expect

from console.browser import BOUND, open_page, running_browser, why_no_chromium
from console.history import remember_a_day
from console.travel import QUESTION, running_agency
from console.waiting import Desk, running_desk
from console.workshop import running_workshop

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
MAX_BYTES = 200_000
TRIP = """{
  "traveller": "Ann Berg",
  "stops": [
    {"place": "Oslo", "nights": 2},
    {"place": "Bergen"}
  ],
  "by": {"kind": "ferry", "cabin": "outside"}
}"""


def main() -> int:
    if (reason := why_no_chromium()) is not None:
        sys.exit(reason)
    expect.set_options(timeout=BOUND)
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_agency(Path(folder), prepare=remember_a_day) as (agency, turn),
        running_browser() as browser,
    ):
        for name, path, theme, width, height in (
            ("turns", "/turns", "light", 1200, 680),
            ("turn", f"/turns/{turn}", "dark", 1200, 720),
            ("resend", f"/turns/{turn}?edit=a0", "light", 1200, 800),
            ("models", "/models?window=day&model=qwen3-8b-instruct", "dark", 1200, 760),
        ):
            with open_page(browser, f"{agency.origin}/console{path}", theme=theme, width=width, height=height) as page:
                expect(page.get_by_role("status")).to_have_text("Live")
                expect(page.get_by_text("Loading…")).to_have_count(0)
                if name == "resend":
                    page.get_by_label("Constrain").select_option("off")
                    approval = threading.Thread(target=agency.approve)
                    approval.start()
                    page.get_by_role("button", name="Send").click()
                    approval.join()
                    expect(page.get_by_role("button", name="Open this turn")).to_be_visible()
                if name == "models":
                    page.get_by_role("button", name="Examine").click()
                    expect(page.get_by_text("findings,")).to_be_visible()
                _take(page, name)
        with open_page(browser, f"{agency.origin}/console/chat?model=qwen3-8b-instruct", width=1200, height=680) as page:
            expect(page.get_by_role("status")).to_have_text("Live")
            page.get_by_label("Message", exact=True).fill(QUESTION)
            page.keyboard.press("Enter")
            waiting = page.get_by_role("group", name="search_flights waits for approval")
            expect(waiting).to_be_visible()
            expect(page.locator("details.call").get_by_role("img", name="done")).to_be_visible()
            _take(page, "chat")
            waiting.get_by_role("button", name="Approve").click()
            expect(page.get_by_role("button", name="Ask again")).to_be_visible()
    with tempfile.TemporaryDirectory() as folder, running_desk(Path(folder)) as desk, running_browser() as browser:
        _fill(desk)
        with open_page(browser, desk.page(), width=1200, height=720) as page:
            page.get_by_role("button", name="Edit").click()
            page.get_by_label("text").fill("The harbour is closed on Friday and Saturday.")
            page.get_by_label("path").focus()
            _take(page, "approvals")
    with tempfile.TemporaryDirectory() as folder, running_workshop(Path(folder)) as workshop, running_browser() as browser:
        workshop.fill()
        with open_page(browser, f"{workshop.origin}/console/tools", width=1200, height=680) as page:
            expect(page.get_by_text("is_holiday")).to_be_visible()
            _take(page, "tools")
        with open_page(browser, f"{workshop.origin}/console/tools?tool=plan_trip", theme="dark", width=1200, height=980) as page:
            page.get_by_role("textbox", name="As JSON").fill(TRIP)
            page.get_by_role("button", name="Call Ctrl Enter").click()
            expect(page.get_by_label("Result as data")).to_be_visible()
            page.get_by_role("textbox", name="traveller").focus()
            _take(page, "bench")
    return 0


def _take(page: Page, name: str) -> None:
    picture = page.screenshot(animations="disabled", caret="hide")
    assert len(picture) <= MAX_BYTES, f"{name} has {len(picture)} bytes"
    (IMAGES / f"console-{name}.png").write_bytes(picture)


def _fill(desk: Desk) -> None:
    """Make calls that wait, and some that are decided."""
    log = desk.call("write_file", session="night", path="/var/log/desk/friday.log", text="Nothing happened.", mode="append")
    desk.decide(log, "approve_always", permission={"arguments": {"path": {"below": "/var/log/desk"}, "text": {"any": True}}})
    desk.decide(desk.call("pay", to="Nordlicht Reisen", euros=1890), "deny", reason="The invoice is of last year.")
    desk.decide(
        desk.call("write_file", session="tom", path="/srv/desk/rooms.csv", text="room,nights"), "approve_session", by="tom"
    )
    desk.call("write_file", path="/srv/desk/notices/harbour.md", text="The harbour is closed on Friday.", lines=1)
    desk.call("pay", session="maria", to="Havnekontoret", euros=89.5)


if __name__ == "__main__":
    sys.exit(main())
