"""Lists of Python calls inside a line are calls if the format is named and has no other marker."""

from __future__ import annotations

import pytest

from patchbay.types import ToolSpec

from .cuts import calls_of, read

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}
TOOLS = [ToolSpec("get_weather", parameters=SCHEMA), ToolSpec("allow")]
ROME = ("get_weather", {"city": "Rome"})


@pytest.mark.parametrize("format", ["pythonic", "llama4_pythonic"])
@pytest.mark.parametrize("prose", ["Some words before ", "I'd say so: ", "Rain? ", "First.\nThen "])
def test_list_after_words_is_calls(prose: str, format: str) -> None:  # noqa: A002 - the option's name
    reply = read(f"{prose}[get_weather(city='Rome'), allow()] and after", TOOLS, format=format)
    assert [ROME, ("allow", {})] == calls_of(reply)
    assert f"{prose.rstrip()} and after".split() == (reply.content or "").split()


def test_a_list_with_brackets_in_it_is_read_to_its_own() -> None:
    reply = read("Well, see [get_weather(city='[Rome]', days=[1, [2]])]", TOOLS, format="pythonic")
    assert [("get_weather", {"city": "[Rome]", "days": [1, [2]]})] == calls_of(reply)


@pytest.mark.parametrize(
    "text",
    [
        "In any other format a list in a line is prose: see [get_weather(city='Rome')]",
        "Well ![get_weather](city)",
    ],
)
def test_without_the_format_named_a_list_in_a_line_is_prose(text: str) -> None:
    assert ([], text) == (calls_of(reply := read(text, TOOLS)), reply.content)


@pytest.mark.parametrize(
    "text",
    [
        "The list [1, 2] and items[get_weather(city='Rome')]",
        "Write \"[get_weather(city='Rome')]\" for it",
        "Write `[get_weather(city='Rome')]` for it",
        "Another tool: [get_time(city='Rome')]",
        "A name alone [get_weather] and [get_weather, allow]",
        "A bracket at the end: [",
        "> quoted [\n> [get_weather(city='Rome')]",
    ],
)
def test_list_without_calls_stays_prose(text: str) -> None:
    assert ([], text) == (calls_of(reply := read(text, TOOLS, format="pythonic")), reply.content)


def test_truncated_list_gives_only_its_complete_calls() -> None:
    reply = read("See [allow(), get_weather(city='Ro", TOOLS, format="pythonic")
    assert [("allow", {})] == calls_of(reply)
    assert ["get_weather"] == [cut.name for cut in reply.incomplete]
    assert "See" == (reply.content or "").strip()
