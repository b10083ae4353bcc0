"""``python -m console.load`` in ``tests`` (``make console-load``): the console's pages under load, in Chromium with a real server.

Traffic: requests through a proxy, of which each is two events of the list of turns. A session: 10,000 calls of a tool server.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect

from console.browser import BOUND, running_browser, why_no_chromium
from console.proxied import MODEL, running_proxy
from patchbay.models.options import TextOptions
from patchbay.server.app import create_tools_app
from patchbay.server.settings import ChatSettings
from patchbay.testing import ScriptedUpstream
from patchbay.testing.script import Answer
from support.http_server import serving

CALLS_OF_A_ROUND = 50

# Counts the events and the frames of a page, from before its first script on.
_COUNT = """
window.load = {events: 0, dropped: 0, frames: 0, late: 0, longest: 0};
window.EventSource = class extends EventSource {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", (message) => {
      load.events += 1;
      if (message.data.includes('"kind":"stream.dropped"')) load.dropped += 1;
    });
  }
};
let last = performance.now();
requestAnimationFrame(function count(now) {
  load.frames += 1;
  load.late += now - last > 50;
  load.longest = Math.max(load.longest, now - last);
  last = now;
  requestAnimationFrame(count);
});
"""


# Notes when the list first has a row, as the frame that shows it begins.
_FIRST_ROW = """
new MutationObserver((_, observer) => {
  if (!document.querySelector('[role="row"][aria-selected]')) return;
  observer.disconnect();
  requestAnimationFrame(() => window.shown = performance.now());
}).observe(document, {childList: true, subtree: true});
"""
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


@dataclass
class FirstViews:
    """Milliseconds from the navigation's begin to the first paint with content, and to the list with its turns: one for each load."""

    painted: list[float]
    listed: list[float]


@dataclass
class Traffic:
    """What a page did while requests ran; times in milliseconds, memory in bytes."""

    requests: int
    events: int
    dropped: int
    frames: int
    late: int
    longest: float
    heap: int


@dataclass
class Opened:
    """How long a session and one of its turns took to show, in milliseconds since the navigation began."""

    calls: int
    session: float
    turn: float
    calls_of_turn: int


@contextlib.contextmanager
def _counting(browser: Browser) -> Iterator[Page]:
    with contextlib.closing(browser.new_context(viewport={"width": 1440, "height": 900})) as context:
        context.set_default_timeout(BOUND)
        context.add_init_script(_COUNT)
        yield context.new_page()


def open_console(browser: Browser, *, loads: int) -> FirstViews:
    """Open ``/console`` with fifty turns, each time with empty caches."""
    found = FirstViews([], [])
    with running_proxy() as proxied:
        for number in range(50):
            proxied.chat(f"request {number}")
        for _ in range(loads):
            with contextlib.closing(browser.new_context(viewport={"width": 1440, "height": 900})) as context:
                context.set_default_timeout(BOUND)
                context.add_init_script(_FIRST_ROW)
                page = context.new_page()
                page.goto(proxied.page())
                page.wait_for_function(f"() => window.shown && {_PAINTED}")
                found.painted.append(page.evaluate(_PAINTED))
                found.listed.append(page.evaluate("shown"))
    return found


def follow_traffic(browser: Browser, *, seconds: float, events_per_minute: float) -> Traffic:
    """Show the list of turns while requests run at an even rate."""
    with running_proxy() as proxied, _counting(browser) as page:
        page.goto(proxied.page("/turns"))
        expect(page.get_by_role("status")).to_have_text("Live")
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable")
        sender = _Sender(proxied.origin, seconds=seconds, interval=2 * 60 / events_per_minute)
        sender.start()
        heap = 0
        while sender.is_alive():
            sender.join(timeout=5)
            metrics = {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}
            heap = max(heap, int(metrics["JSHeapUsedSize"]))
        expect(page.get_by_text(f"request {sender.sent}", exact=True)).to_be_visible()
        page.wait_for_function("expected => load.events >= expected", arg=2 * sender.sent)
        return Traffic(requests=sender.sent, heap=heap, **page.evaluate("load"))


class _Sender(threading.Thread):
    """Sends a request at each interval."""

    def __init__(self, origin: str, *, seconds: float, interval: float) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self._netloc = urlsplit(origin).netloc
        self._seconds = seconds
        self._interval = interval

    def run(self) -> None:
        with contextlib.closing(http.client.HTTPConnection(self._netloc, timeout=30)) as connection:
            began = time.monotonic()
            for number in itertools.count(1):
                due = began + number * self._interval
                if due > began + self._seconds:
                    return
                time.sleep(max(0.0, due - time.monotonic()))
                body = {"model": MODEL, "messages": [{"role": "user", "content": f"request {number}"}]}
                connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
                connection.getresponse().read()
                self.sent = number


def note(number: int) -> str:
    """Note a number."""
    return f"{number} is noted"


def _answer(body: dict[str, Any]) -> Answer:
    """Call the tool fifty times, as long as the request wants further rounds."""
    wanted = int(next(each["content"] for each in body["messages"] if each["role"] == "user").split()[-1])
    done = json.dumps(body["messages"]).count("is noted")
    if done >= wanted:
        return "Done."
    calls = [f'{{"name": "note", "arguments": {{"number": {done + each}}}}}' for each in range(CALLS_OF_A_ROUND)]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def open_session(browser: Browser, *, turns: int, calls_of_turn: int) -> Opened:
    """Make a session of ``turns``, the first of which has ``calls_of_turn`` calls, the others fifty; open it, and that turn."""
    with ScriptedUpstream(_answer, model=MODEL) as upstream:
        options = ChatSettings(options=TextOptions(tools="text"), max_iterations=100)
        app = create_tools_app(("load",), upstream=upstream.url, chat=options)
        app.managers["load"].register_tool(note)
        with serving(app) as port, contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            headers = {"content-type": "application/json", "x-patchbay-session": "load"}
            ids = []
            for number in range(turns):
                wanted = CALLS_OF_A_ROUND if number else calls_of_turn
                body = {"model": MODEL, "messages": [{"role": "user", "content": f"Note numbers: {wanted}"}]}
                connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
                response = connection.getresponse()
                answer = response.read()
                assert 200 == response.status, answer[:500]
                ids.append(response.headers["x-request-id"])
            with _counting(browser) as page:
                page.goto(f"http://127.0.0.1:{port}/console/turns?session=load")
                expect(page.get_by_text("Note numbers: 50", exact=True).first).to_be_visible()
                session = page.evaluate("performance.now()")
                page.goto(f"http://127.0.0.1:{port}/console/turns/{ids[0]}?session=load")
                expect(page.get_by_role("tablist", name="Parts of the turn").get_by_role("tab").nth(2)).to_be_visible()
                turn = page.evaluate("performance.now()")
                page.get_by_role("tablist", name="Parts of the turn").get_by_role("tab").last.click()
                expect(page.get_by_role("tabpanel").first).to_contain_text("Done.")
            return Opened(calls_of_turn + (turns - 1) * CALLS_OF_A_ROUND, session, turn, calls_of_turn)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m console.load", description="Load the console's pages, and say what it took.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long requests run (default: 10)")
    parser.add_argument("--events", type=float, default=5000.0, metavar="N", help="events a minute (default: 5000)")
    options = parser.parse_args()
    if (reason := why_no_chromium()) is not None:
        sys.exit(reason)
    expect.set_options(timeout=BOUND)
    with running_browser() as browser:
        views = open_console(browser, loads=20)
        for what, times in (("painted", views.painted), ("showed the turns", views.listed)):
            median, most = statistics.median(times), statistics.quantiles(times, n=10)[-1]
            sys.stdout.write(
                f"/console, {len(times)} loads with empty caches: {what} after {median:.0f} ms (median), {most:.0f} ms (p90)\n"
            )
        opened = open_session(browser, turns=181, calls_of_turn=1000)
        sys.stdout.write(
            f"a session of {opened.calls:,} calls: shown after {opened.session:.0f} ms; its turn of {opened.calls_of_turn:,} calls: "
            f"after {opened.turn:.0f} ms\n"
        )
        found = follow_traffic(browser, seconds=60 * options.minutes, events_per_minute=options.events)
        sys.stdout.write(
            f"{options.minutes:g} minutes: {found.requests:,} requests, {found.events:,} events, {found.dropped} dropped; "
            f"{found.frames:,} frames, {found.late} after more than 50 ms, the longest {found.longest:.0f} ms; "
            f"at most {found.heap / 1e6:.0f} MB of JavaScript's memory\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
