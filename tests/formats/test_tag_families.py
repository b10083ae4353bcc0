"""Calls of unoffered tools, in every family that writes calls in tags."""

from __future__ import annotations

import pytest

from . import test_keyvalues, test_xml
from .cuts import read
from .test_xml import TOOLS

FAMILIES = {name: text.lstrip("\n") for name, text in (test_keyvalues.FAMILIES | test_xml.FAMILIES).items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_of_unoffered_tools_are_prose_verbatim(name: str) -> None:
    text = "Before.\n" + FAMILIES[name].replace("book_boat", "sink_boat").replace("moor", "drift") + " And after."
    reply = read(text, TOOLS, format=name)
    assert (text, (), ()) == (reply.content, reply.tool_calls, reply.incomplete)
