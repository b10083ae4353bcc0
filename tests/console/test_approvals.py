"""The page of approvals, in Chromium: calls that wait are decided there, and it follows what others decide."""

from __future__ import annotations

import json
import re
import threading

import pytest
from playwright.sync_api import expect

from console.browser import BOUND, check_axe, check_width, needs_axe, open_page, show
from console.proxied import running_proxy
from console.test_hostile_text import HOSTILE, SHOWN, check_elements
from console.waiting import running_desk
from support.cli import run_cli

expect.set_options(timeout=BOUND)


@pytest.fixture
def desk(browser, tmp_path):
    with running_desk(tmp_path) as running:
        yield running


def row(page, request):
    return page.locator(f"#request-{request['id']}")


def detail(page):
    return page.get_by_role("region", name="Request", exact=True)


def in_terminal(*arguments):
    """Run ``patchbay approvals`` in a thread; its end is appended to the list."""
    done = []
    thread = threading.Thread(target=lambda: done.append(run_cli("approvals", *arguments)))
    thread.start()
    return thread, done


def test_every_page_counts_the_calls_that_wait_and_one_key_approves_the_shown_one(browser, desk):
    with open_page(browser, desk.page("/turns")) as page:
        link = page.get_by_role("navigation").get_by_role("link", name="Approvals")
        expect(page.get_by_role("status")).to_have_text("Live")
        expect(link).to_have_text("Approvals")
        request = desk.call("write_file", path="/srv/a", text="Hello")
        expect(link).to_have_text("Approvals1")
        link.click()
        expect(detail(page)).to_contain_text("write_file")
        expect(page.get_by_label("Argument path")).to_have_text("/srv/a")
        for fact in ("Agentdesk", "Sessionann", "Ruledefault"):
            expect(detail(page)).to_contain_text(fact)
        expect(detail(page)).to_contain_text(re.compile(r"(10:00|9:\d\d) until it is denied"))
        page.get_by_label("You are").fill("ann")
        detail(page).focus()
        page.keyboard.press("a")
        expect(detail(page)).to_contain_text("approved by ann")
        expect(page.get_by_role("list", name="Decided")).to_contain_text("approved by ann")
        expect(link).to_have_text("Approvals")
    assert ["wrote 'Hello' into /srv/a (new, 0)" in each for each in desk.ended()] == [True]
    assert ["ann"] == [each["by"] for each in desk.requests(all="1") if each["id"] == request["id"]]


def test_a_call_is_denied_with_a_reason_that_the_model_gets(browser, desk):
    desk.call("write_file", path="/etc/passwd", text="x")
    with open_page(browser, desk.page()) as page:
        expect(page.get_by_label("Argument path")).to_be_visible()
        page.keyboard.press("d")
        expect(page.locator(":focus")).to_have_id("deny-reason")
        page.keyboard.type("a, not that folder")
        page.keyboard.press("Enter")
        expect(detail(page)).to_contain_text("denied by console: a, not that folder")
    assert "a, not that folder" in desk.ended()[0]


def test_an_edit_is_shown_as_a_difference_and_runs_with_all_other_values_as_they_were(browser, desk):
    big = 2**53 + 1  # no number of JavaScript
    desk.call("write_file", path="/srv/a", text="old\nlines", lines=big)
    with open_page(browser, desk.page()) as page:
        expect(page.get_by_label("Argument lines")).to_have_text(str(big))
        page.keyboard.press("e")
        page.get_by_label("lines").fill("many")
        expect(page.get_by_role("alert")).to_have_text("The value of lines is no JSON.")
        expect(page.get_by_role("button", name="Approve as edited")).to_be_disabled()
        page.get_by_label("lines").fill(str(big))
        page.get_by_label("text").fill("new\nlines")
        changes = page.get_by_role("region", name="What the edit changes")
        expect(changes.locator(".old")).to_have_text('−   "text": "old\\nlines",')
        expect(changes.locator(".new")).to_have_text('+   "text": "new\\nlines",')
        page.get_by_role("button", name="JSON").click()
        expect(page.get_by_label("Arguments as JSON")).to_have_value(re.compile(f'"lines": {big}'))
        page.get_by_role("button", name="Approve as edited").click()
        expect(detail(page)).to_contain_text("approved with other arguments by console")
    assert f"wrote 'new\\nlines' into /srv/a (new, {big})" in desk.ended()[0]


def test_an_edit_that_does_not_fit_the_tool_is_refused_with_the_reason(browser, desk):
    desk.call("write_file", path="/srv/a", text="x")
    with open_page(browser, desk.page()) as page:
        page.get_by_role("button", name="Edit").click()
        page.get_by_role("button", name="JSON").click()
        page.get_by_label("Arguments as JSON").fill('{"path": 7}')
        page.get_by_role("button", name="Approve as edited").click()
        expect(page.get_by_role("alert")).to_contain_text("do not fit 'write_file'")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Approve for this session").click()
        expect(detail(page)).to_contain_text("every call of this tool runs in this session without a question")
        desk.ended()
        desk.start("write_file", path="/srv/b", text="y")
        assert 2 == len(desk.ended())
        page.get_by_role("button", name="Revoke").click()
        expect(page.get_by_role("list", name="Approved for a session")).to_have_count(0)
        assert desk.call("write_file", path="/srv/c", text="z")


def test_a_permission_is_shown_before_it_is_written_then_listed_and_revoked(browser, desk):
    request = desk.call("write_file", path="/srv/data/a.txt", text="x")
    with open_page(browser, desk.page()) as page:
        page.get_by_role("button", name="Always allow…").click()
        dialog = page.get_by_role("dialog")
        rule = dialog.get_by_role("group", name="The rule")
        for narrow in (
            "toolwrite_file",
            "sourcethis server",
            "agentdesk",
            "asked by the ruledefault",
            'path"/srv/data/a.txt"',
            "lines0",
        ):
            expect(rule).to_contain_text(narrow)
        dialog.get_by_label("path").select_option("any path below /srv/data")
        dialog.get_by_label("text").select_option("any value, or none")
        expect(rule).to_contain_text("pathany path below /srv/data")
        expect(dialog).to_contain_text("it ends with the server, or when it is revoked")
        dialog.get_by_role("button", name="Approve, and write the rule").click()
        expect(detail(page)).to_contain_text("approved and always allowed by console")
        desk.ended()
        desk.start("write_file", session="bob", path="/srv/data/b.txt", text="y")
        assert 2 == len(desk.ended())  # nobody was asked
        other = desk.call("write_file", path="/srv/b.txt", text="y")
        row(page, other).click()
        allowed = page.get_by_role("list", name="Always allowed")
        expect(allowed).to_contain_text("path: any path below /srv/data; text: any value, or none")
        allowed.get_by_role("link").click()
        expect(page).to_have_url(f"{desk.page()}/{request['id']}")
        page.get_by_role("button", name="Revoke").click()
        expect(allowed).to_have_count(0)
        assert desk.call("write_file", path="/srv/data/b.txt", text="y")


def test_a_secret_is_not_written_out_in_a_rule_and_a_rule_may_forbid_permissions(browser, tmp_path):
    policy = '[approvals]\ndefault = "ask"\n[[approvals.rules]]\ntools = ["write_file"]\noutcome = "ask"\nsession = "never"\n'
    with running_desk(tmp_path, policy) as desk:
        desk.call("pay", to="ACME", euros=1, token="hunter2")
        with open_page(browser, desk.page()) as page:
            page.get_by_role("button", name="Always allow…").click()
            expect(page.get_by_role("group", name="The rule")).to_contain_text("tokenthe same value as here")
            expect(page.get_by_role("dialog")).not_to_contain_text("hunter2")
            page.keyboard.press("Escape")
            page.keyboard.press("a")
            expect(row(page, desk.call("write_file", path="/a", text="x"))).to_be_visible()
            page.keyboard.press("j")
            expect(page.get_by_label("Argument path")).to_be_visible()
            expect(page.get_by_role("button", name="Always allow…")).to_have_count(0)


def test_several_calls_are_decided_at_once_by_keyboard(browser, desk):
    first, second, third = [desk.call("write_file", path=f"/srv/{name}", text="x") for name in "abc"]
    with open_page(browser, desk.page()) as page:
        expect(row(page, first)).to_have_attribute("aria-current", "true")
        for key in "xjx":
            page.keyboard.press(key)
        expect(page.locator(":focus")).to_have_id(f"request-{second['id']}")
        expect(page.get_by_role("button", name="Approve 2")).to_be_visible()
        page.keyboard.press("a")
        waiting = page.get_by_role("list", name="Waiting")
        expect(waiting.get_by_role("listitem")).to_have_count(1)
        page.keyboard.press("j")
        page.keyboard.press("x")
        page.keyboard.press("d")
        expect(page.locator(":focus")).to_have_id("deny-reason")
        page.keyboard.press("Enter")
        expect(page.get_by_text("No call waits.")).to_be_visible()
    desk.ended()
    states = {each["id"]: each["state"] for each in desk.requests(all="1")}
    assert {first["id"]: "approved", second["id"]: "approved", third["id"]: "denied"} == states


def test_a_click_anywhere_on_a_box_selects_its_call(browser, desk):
    desk.call("write_file", path="/srv/a", text="x")
    with open_page(browser, desk.page()) as page:
        box = page.get_by_role("checkbox")
        for is_checked, place in enumerate([(1, 8), (8, 1), (8, 8), (8, 15), (15, 8)], 1):
            box.click(position=dict(zip("xy", place, strict=True)), force=True)
            expect(box).to_be_checked(checked=is_checked % 2 == 1)


def test_a_key_that_is_held_or_pressed_again_decides_the_selected_calls_once(browser, desk):
    first, second, third = [desk.call("write_file", path=f"/srv/{name}", text="x") for name in "abc"]
    decided = []

    def follow(route):
        if route.request.method == "POST":
            decided.append(route.request.url.rpartition("/")[2])
            if len(decided) == 1:
                page.keyboard.up("a")
                page.keyboard.down("a")
                assert 200 == desk.decide(second, "approve")[0]
        route.continue_()

    with open_page(browser, desk.page()) as page:
        expect(row(page, first)).to_have_attribute("aria-current", "true")
        for number in (1, 2):
            page.get_by_role("checkbox").nth(number).check()
        page.route("**/api/approvals/*", follow)
        page.keyboard.down("a")
        expect(page.get_by_role("alert")).to_contain_text("approved by maria already")
        expect(page.get_by_role("list", name="Waiting").get_by_role("listitem")).to_have_count(1)
        page.keyboard.down("a")  # the shown call is not approved
        page.keyboard.up("a")
        page.keyboard.press("x")
        expect(page.get_by_role("alert")).to_have_count(0)
        page.keyboard.press("d")
        expect(page.locator(":focus")).to_have_id("deny-reason")
        page.keyboard.press("Enter")
        expect(detail(page)).to_contain_text("denied by console")
    assert [each["id"] for each in (second, third, first)] == decided


def test_the_shown_call_stays_when_others_come_and_go(browser, desk):
    first, second = desk.call("write_file", path="/srv/a", text="x"), desk.call("write_file", path="/srv/b", text="x")
    with open_page(browser, desk.page()) as page:
        page.keyboard.press("j")
        expect(row(page, first)).to_have_attribute("aria-current", "true")
        page.keyboard.press("j")
        expect(page.locator(":focus")).to_have_id(f"request-{second['id']}")
        desk.call("pay", to="ACME", euros=1)
        expect(page.get_by_role("list", name="Waiting").get_by_role("listitem")).to_have_count(3)
        assert 200 == desk.decide(first, "approve")[0]
        expect(page.get_by_role("list", name="Waiting").get_by_role("listitem")).to_have_count(2)
        expect(page.locator(":focus")).to_have_id(f"request-{second['id']}")
        expect(page.get_by_label("Argument path")).to_have_text("/srv/b")
        assert 200 == desk.decide(second, "deny", reason="no")[0]
        expect(detail(page)).to_contain_text("denied by maria: no")
        expect(page.get_by_role("button", name="Approve", exact=False)).to_have_count(0)
        expect(page.get_by_label("Argument path")).to_have_text("/srv/b")  # the next one waits for a key


def test_of_two_deciders_at_once_one_wins_and_both_show_the_outcome(browser, desk):
    with open_page(browser, desk.page()) as one, open_page(browser, desk.page()) as other:
        for number in range(4):
            request = desk.call("write_file", path=f"/srv/{number}", text="x")
            for page in (one, other):
                row(page, request).click()
                expect(page.get_by_label("Argument path")).to_have_text(f"/srv/{number}")
            terminal, done = in_terminal("deny", request["id"], "--by", "tom", "--server", desk.url)
            one.get_by_role("button", name="Approve a").click()
            terminal.join(BOUND)
            expect(detail(one)).to_contain_text(re.compile("(approved by console|denied by tom)"))
            (found,) = [each for each in desk.requests(all="1") if each["id"] == request["id"]]
            assert (found["state"], found["by"]) in {("approved", "console"), ("denied", "tom")}
            assert (0 if found["by"] == "tom" else 1) == done[0].returncode
            for page in (one, other):
                expect(detail(page)).to_contain_text(f"{found['state']} by {found['by']}")
            if found["by"] == "tom":
                expect(one.get_by_role("alert")).to_contain_text("Decided elsewhere first")
    assert 4 == len(desk.ended())


def test_a_card_leads_to_its_turn_and_a_waiting_approval_of_a_turn_to_its_card(browser, desk):
    request = desk.call("write_file", path="/srv/a", text="x")
    with open_page(browser, desk.page()) as page:
        detail(page).get_by_role("link", name="Show it").click()
        expect(page).to_have_url(f"{desk.page('/turns')}/{request['turn']}?at=p{request['id']}")
        part = page.get_by_role("tab", name="approval")
        expect(part).to_have_attribute("aria-selected", "true")
        expect(part).to_contain_text("waits for approval")
        page.get_by_role("link", name="Decide about it").click()
        expect(page).to_have_url(f"{desk.page()}/{request['id']}")
        expect(page.get_by_label("Argument path")).to_have_text("/srv/a")


NOTICES = """
window.notices = [];
window.Notification = class {
  static permission = "default";
  static asked = 0;
  static async requestPermission() { this.asked++; return (this.permission = "granted"); }
  constructor(title, options) { notices.push([title, options.body]); }
};
document.hasFocus = () => false;
"""


def test_a_notification_comes_only_after_a_person_asked_for_them(browser, desk):
    with open_page(browser, "about:blank") as page:
        page.add_init_script(NOTICES)
        page.goto(desk.page())
        expect(page.get_by_role("status")).to_have_text("Live")
        desk.call("pay", to="ACME", euros=1)
        expect(page.get_by_role("button", name="Approve a")).to_be_visible()
        assert [[], 0] == page.evaluate("[notices, Notification.asked]")
        page.get_by_role("button", name="Notify me").click()
        expect(page.get_by_role("button", name="Notifications are on")).to_be_visible()
        desk.call("write_file", path="/srv/a", text="x")
        expect(page.get_by_role("list", name="Waiting").get_by_role("listitem")).to_have_count(2)
        assert [["write_file waits for approval", "desk, ann"]] == page.evaluate("notices")
        page.get_by_role("button", name="Notifications are on").click()
        expect(page.get_by_role("button", name="Notify me")).to_be_visible()


def test_hostile_text_in_arguments_stays_text(browser, desk, subtests):
    with open_page(browser, desk.page(), width=400) as page:
        for number, (kind, text) in enumerate(HOSTILE.items(), 1):
            with subtests.test(kind):
                request = desk.call("write_file", path=f"/srv/{text}", text=text)
                show(page, f"/approvals/{request['id']}")
                expect(page.get_by_label("Argument text")).to_contain_text(SHOWN.get(kind, text))
                check_elements(page)
                page.get_by_role("button", name="Always allow…").click()
                expect(page.get_by_role("group", name="The rule")).to_contain_text("tool")
                check_elements(page)
                page.keyboard.press("Escape")
                page.get_by_role("button", name="JSON").click()
                check_elements(page)
                page.keyboard.press("e")
                page.get_by_label("Arguments as JSON").fill(json.dumps({"path": text, "text": text[::-1]}))
                expect(page.get_by_role("region", name="What the edit changes")).to_be_visible()
                check_elements(page)
                assert 200 == desk.decide(request, "deny", reason=text[:500])[0]
                expect(page.get_by_role("list", name="Decided").get_by_text("denied")).to_have_count(number)
                check_elements(page)
                assert page.evaluate("document.documentElement.scrollWidth") <= 400


@needs_axe
def test_axe_finds_nothing_on_the_page_of_approvals(browser, desk):
    desk.decide(desk.call("write_file", session="bob", path="/srv/b", text="x"), "approve_session")
    desk.decide(desk.call("pay", to="ACME", euros=2), "deny", reason="no")
    desk.decide(desk.call("write_file", path="/srv/b", text="x"), "approve_always")
    desk.call("write_file", path="/srv/a", text="x")
    with open_page(browser, desk.page()) as page:
        expect(page.get_by_role("button", name="Approve a")).to_be_visible()
        page.get_by_role("button", name="Always allow…").click()
        expect(page.get_by_role("group", name="The rule")).to_be_visible()
        check_axe(page)
        page.keyboard.press("Escape")
        check_axe(page)
        page.keyboard.press("x")
        check_axe(page)
        page.keyboard.press("e")
        page.get_by_label("text").fill("y")
        check_axe(page)
        page.get_by_label("text").press("Escape")
        page.get_by_role("button", name="Deny…").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        check_axe(page)


def test_nothing_of_the_approvals_scrolls_sideways_on_a_small_screen(browser, desk):
    desk.call("write_file", path="/srv/" + "long" * 100, text="x" * 500)
    with open_page(browser, desk.page(), width=400, height=800) as page:
        page.get_by_role("button", name="Edit").click()
        page.get_by_label("text").fill("y" * 500)
        check_width(page)


def test_a_server_that_asks_nobody_says_how_calls_come_to_wait(browser, tmp_path):
    with running_proxy() as proxied, open_page(browser, proxied.page("/approvals")) as page:
        expect(page.get_by_text("patchbay proxy --config patchbay.toml")).to_be_visible()
    with running_desk(tmp_path, "") as desk, open_page(browser, desk.page()) as page:
        expect(page.get_by_text("No rule of this server asks a person")).to_be_visible()
        expect(page.get_by_label("An example")).to_contain_text("approvals.rules")


def test_the_page_is_that_of_a_proxy_with_a_configuration_too(browser, tmp_path):
    policy = tmp_path / "patchbay.toml"
    policy.write_text('[approvals]\ndefault = "ask"\n')
    flags = ("--config", str(policy), "--store", "memory")
    with running_proxy(*flags) as proxied, open_page(browser, proxied.page("/approvals")) as page:
        expect(page.get_by_text("No call has waited yet")).to_be_visible()
        expect(page.get_by_role("status")).to_have_text("Live")


def test_seven_pages_of_one_browser_share_a_connection_and_leave_others_for_requests(browser, desk):
    with open_page(browser, "about:blank") as last:
        pages = [*(last.context.new_page() for _ in range(6)), last]
        for page in pages:
            page.goto(desk.page("/approvals"))
            expect(page.get_by_role("status")).to_have_text("Live")
        request = desk.call("write_file", path="/srv/a", text="Hello")
        for page in pages:
            expect(page.get_by_role("navigation").get_by_role("link", name="Approvals")).to_have_text("Approvals1")
        pages[0].close()  # which had the connection
        desk.decide(request, "approve")
        expect(last.get_by_role("navigation").get_by_role("link", name="Approvals")).to_have_text("Approvals")


def test_call_that_begins_an_answer_is_approved_in_the_chat_and_where_it_is_sent_again(browser, desk):
    with open_page(browser, desk.page("/chat?model=qwen3-8b")) as page:
        page.get_by_label("Message", exact=True).fill('["pay", {"to": "ann", "euros": 2}]')
        page.keyboard.press("Enter")
        waiting = page.get_by_role("group", name="pay waits for approval")
        waiting.get_by_role("button", name="Approve").click()
        answer = page.locator("li.said-by").last
        expect(answer).to_contain_text("Done.")
        answer.get_by_role("link", name="Turn").click()
        page.get_by_role("button", name="Edit and resend").click()
        page.get_by_role("button", name="Send").click()
        waiting.get_by_role("button", name="Approve").click()
        expect(page.get_by_role("region", name="After", exact=True)).to_contain_text("Done.")
        assert 2 == len(desk.results)
