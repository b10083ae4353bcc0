"""The ``xml_tools`` option: tags that the caller maps to tools are calls."""

from __future__ import annotations

from typing import Any

import pytest

from patchbay import StreamParser
from patchbay.errors import ConfigurationError
from patchbay.models.options import TextOptions
from patchbay.proxy import create_app
from patchbay.types import Reply

from .cuts import read

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "run_shell",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}},
                "required": ["command"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "clock", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}},
    },
]
XML_TOOLS = {"bash": "run_shell", "time": "clock", "rm": "not_offered"}


def read_tags(text: str) -> Reply:
    return read(text, TOOLS, xml_tools=XML_TOOLS)


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ("<bash>ls -la</bash>", ['run_shell {"command": "ls -la"}'], None),
        ("Look.\n<bash>\nls -la\n</bash>\nSo.", ['run_shell {"command": "ls -la"}'], "Look.\nSo."),
        ("<bash>007</bash>", ['run_shell {"command": "007"}'], None),
        (
            "<bash>if a < b; then\n  echo '</bash> is text'\nfi</bash>",
            ['run_shell {"command": "if a < b; then\\n  echo \'</bash> is text\'\\nfi"}'],
            None,
        ),
        ("<bash><command>ls</command>\n<timeout>5</timeout></bash>", ['run_shell {"command": "ls", "timeout": 5}'], None),
        (
            '<bash>{"command": "ls", "timeout": 12345678901234567890}</bash>',
            ['run_shell {"command": "ls", "timeout": 12345678901234567890}'],
            None,
        ),
        ('<bash>{"name": "sh", "arguments": {"command": "ls"}}</bash>', ['run_shell {"command": "ls"}'], None),
        ("<time></time>\n<time>UTC</time>", ["clock {}", 'clock {"zone": "UTC"}'], None),
    ],
)
def test_tag_named_like_a_tool_is_its_call(text: str, calls: list[str], content: str | None) -> None:
    reply = read_tags(text)
    assert calls == [f"{call.name} {call.raw_arguments}" for call in reply.tool_calls]
    assert content == reply.content


@pytest.mark.parametrize(
    "text",
    [
        "Write <bash>ls</bash> in a line.",
        "`<bash>ls</bash>`",
        "```\n<bash>ls</bash>\n```",
        "> <bash>ls</bash>",
        "<rm>all</rm>",
        "<ls>all</ls>",
        "<bash>ls</bash> lists files.",
        "<bash>ls</bash> or <bash>pwd</bash>",
    ],
)
def test_tag_elsewhere_or_of_another_tool_is_prose(text: str) -> None:
    reply = read_tags(text)
    assert () == reply.tool_calls
    assert text == reply.content


def test_a_tag_that_is_not_closed_is_incomplete() -> None:
    reply = read_tags("Look.\n<bash>ls")
    assert [("run_shell", "<bash>ls")] == [(call.name, call.raw) for call in reply.incomplete]
    assert "Look." == reply.content


@pytest.mark.parametrize("xml_tools", [{"a b": "run_shell"}, {"bash": ""}, {"bash": None}, "bash"])
def test_invalid_tag_is_refused(xml_tools: Any) -> None:
    for make in (
        lambda: StreamParser(TOOLS, xml_tools=xml_tools),
        lambda: TextOptions(xml_tools=xml_tools),
        lambda: create_app("http://127.0.0.1:9/v1", xml_tools=xml_tools),
    ):
        with pytest.raises(ConfigurationError, match="xml_tools"):
            make()
