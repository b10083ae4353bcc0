"""Every family that writes calls in tags: two calls after reasoning and prose, and calls of unoffered tools."""

from __future__ import annotations

import pytest

from . import test_keyvalues, test_xml
from .cuts import calls_of, read
from .test_xml import BOAT, TOOLS

THOUGHTS = test_keyvalues.THOUGHTS | test_xml.THOUGHTS
FAMILIES = {name: text.lstrip("\n") for name, text in (test_keyvalues.FAMILIES | test_xml.FAMILIES).items()}


@pytest.mark.parametrize("way", ["named", "auto"])
@pytest.mark.parametrize("name", FAMILIES)
def test_two_calls_are_read_after_reasoning_and_prose(name: str, way: str) -> None:
    thought = THOUGHTS.get(name, "<think>A boat.</think>")
    reply = read(f"{thought}I book it.\n{FAMILIES[name]}", TOOLS, format=name if way == "named" else "auto")
    assert (BOAT, "I book it.") == (calls_of(reply), reply.content)
    assert ("A boat." if thought else None, ()) == (reply.reasoning, reply.incomplete)


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_of_unoffered_tools_are_prose_verbatim(name: str) -> None:
    text = "Before.\n" + FAMILIES[name].replace("book_boat", "sink_boat").replace("moor", "drift") + " And after."
    reply = read(text, TOOLS, format=name)
    assert (text, (), ()) == (reply.content, reply.tool_calls, reply.incomplete)
