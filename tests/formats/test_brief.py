"""Brief instructions for very small models."""

from __future__ import annotations

from patchbay.formats.render.brief import brief_examples, brief_instructions
from patchbay.types import ToolSpec

WEATHER = ToolSpec(
    "get_weather",
    "Get the weather of a city.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}, "any": True},
        "required": ["city", "days"],
    },
)
PING = ToolSpec("ping_server")


def test_each_tool_is_a_line() -> None:
    lines = brief_instructions([WEATHER, PING], form="{…}", needed=True).splitlines()
    assert '- get_weather(city: string, days: integer, unit?: "C" | "F", any?: any): Get the weather of a city.' in lines
    assert "- ping_server()" in lines
    assert "{…}" == lines[-1]


def test_only_where_a_call_is_needed_text_is_not_offered() -> None:
    assert "plain text" not in brief_instructions([PING], form="", needed=True)
    assert "plain text" in brief_instructions([PING], form="", needed=False)


def test_each_tool_is_shown_by_a_request_made_of_its_description() -> None:
    shown = brief_examples([WEATHER, PING], lambda call: f"{call.name} {call.raw_arguments}", needed=True)
    assert [
        ("user", "Get the weather of a city"),
        ("assistant", 'get_weather {"city": "...", "days": 0}'),
        ("user", "ping server"),
        ("assistant", "ping_server {}"),
    ] == [(message["role"], message["content"]) for message in shown]


def test_answers_without_a_call_are_shown_before_the_calls_where_none_is_needed() -> None:
    shown = brief_examples([PING], lambda call: call.name, needed=False)
    assert ["user", "assistant"] * 4 == [message["role"] for message in shown]
    assert ["ping server", "ping_server"] == [message["content"] for message in shown[-2:]]
