"""Text of models, tools and clients is hostile: the page shows it as text, and nothing of it runs, links or moves other text."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect

from console.browser import BOUND, open_page, show
from console.proxied import WEATHER, hermes

expect.set_options(timeout=BOUND)

HOSTILE = {
    "script": "<script>alert('script')</script>",
    "handler": '<img src=x onerror="alert(1)"><svg onload=alert(2)>',
    "link": '<a href="javascript:alert(3)">x</a> [x](javascript:alert(4)) javascript:alert(5)',
    "frame": '<iframe srcdoc="<script>parent.alert(6)</script>"></iframe><base href="http://evil.invalid/">',
    "closing": '"></pre></section></div><h1>Signed out</h1><form action="http://evil.invalid/"><input name="token">',
    "template": "{{constructor.constructor('alert(7)')()}} ${alert(8)}",
    "style": '<style>*{display:none}</style><link rel="stylesheet" href="//evil.invalid/x.css">',
    "ansi": "\x1b[2J\x1b[31mred\x1b]8;;http://evil.invalid\x07link\x1b]8;;\x07\x9b1m",
    "bidi": "safe \u202egnp.exe\u202c \u2066a\u2069 \u200e\u200f\u061c",
    "controls": "a\x00b\x08c\x7f\u200b\ufeffd\r",
    "rtl": "שלום עולם مرحبا بالعالم",
    "zalgo": "Z" + "\u0351\u036b\u0343\u036a" * 500,
}
SHOWN = {"ansi": "ESC[2JESC[31mred", "bidi": "safe U+202Egnp.exeU+202C", "controls": "aNULbBScU+007FU+200BU+FEFFdCR"}
"""How characters that would act, or not be seen, are shown."""

OWN = """
    a b bdi button circle datalist dd del details dialog div dl dt fieldset form h1 h2 h3 header input ins kbd label legend li main mark
    nav ol option p path pre section select span sup summary svg textarea time ul
"""
"""The elements that the console makes."""


def test_hostile_text_of_a_client_a_model_and_a_tool_stays_text(browser, proxied, subtests):
    with open_page(browser, proxied.page()) as page:
        for kind, text in HOSTILE.items():
            with subtests.test(kind):
                call = hermes("get_weather", json.dumps({"place": text, "days": 3}))
                proxied.answer = lambda body, answer=f"{text}\n{call}": answer
                function = {"name": "get_weather", "arguments": json.dumps({"place": text})}
                messages = [
                    {"role": "system", "content": text},
                    {"role": "user", "content": f"{kind} {text}"},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
                    },
                    {"role": "tool", "tool_call_id": "call_1", "content": text},
                    {"role": "user", "content": f"{kind} {text}"},
                ]
                turn = proxied.chat("", messages=messages, tools=[WEATHER], model=f"{proxied.model} {text}")
                show(page, f"/turns/{turn}")
                expect(page.get_by_label("Raw text of the model")).to_contain_text(SHOWN.get(kind, text))
                check_elements(page)
                for tab in ("Messages", "Tools", "JSON"):
                    page.get_by_role("tab", name=tab).click()
                    check_elements(page)
                page.get_by_role("tab", name="chat").click()
                expect(page.get_by_label("tool message")).to_contain_text(SHOWN.get(kind, text))
                check_elements(page)
                page.get_by_role("button", name="Edit and resend").click()
                expect(page.get_by_label("Messages")).to_have_value(re.compile("call_1"))
                check_elements(page)


def test_a_line_of_100_kilobytes_is_cut_and_shown_whole_when_asked(browser, proxied):
    proxied.answer = lambda body: "x" * 100_000 + "end"
    turn = proxied.chat("A long line?")
    with open_page(browser, proxied.page(f"/turns/{turn}"), width=400) as page:
        raw = page.get_by_label("Raw text of the model")
        expect(raw).to_have_text("x" * 50_000)
        page.get_by_role("button", name="Show the other 50,003 characters").first.click()
        expect(raw).to_contain_text("end")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400


def check_elements(page):
    """Check that the page has only elements that the console makes itself, and links to itself."""
    made = page.evaluate("[...new Set([...document.querySelectorAll('#app *')].map((each) => each.localName))]")
    assert set() == set(made) - {*OWN.split()}
    assert 1 == page.evaluate("document.querySelectorAll('script').length")
    links = page.evaluate("[...document.links].map((each) => each.href)")
    assert [] == [link for link in links if not link.startswith(page.evaluate("location.origin") + "/")]
