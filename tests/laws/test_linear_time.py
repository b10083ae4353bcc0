"""Law 5: reading takes linear time and memory, whatever the text is."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable

import pytest

import patchbay
from support.repeated import sampled

from .texts import CALL, TOOLS

SMALL = {"whole": 15_000, "in_pieces": 2_500}
"""Scans by the interpreter's C code are fast: only a long text shows that there is one too many."""

UNITS = {
    "open brackets": ("", "["),
    "open objects": ("", '{"a":'),
    "open brackets in a block": ("```tool_call\n", "["),
    "open objects in a block": ("```tool_call\n", '{"a":'),
    "open arguments": ('```tool_call\n{"name": "f", "arguments": ', '{"a":'),
    "open arrays in arguments": ('```tool_call\n{"name": "f", "arguments": {"a": ', "["),
    "quotes": ("```tool_call\n{", '"'),
    "single quotes": ("```tool_call\n{", "'"),
    "backslashes in a string": ('```tool_call\n{"name": "f", "arguments": {"a": "', "\\"),
    "escapes in a string": ('```tool_call\n{"name": "f", "arguments": {"a": "', "\\u00e9"),
    "newlines in a string": ('```tool_call\n{"name": "f", "arguments": {"a": "', "\n"),
    "fences in a string": ('```tool_call\n{"name": "f", "arguments": {"a": "', "\n```\n"),
    "quote and comma in a string": ('```tool_call\n{"name": "f", "arguments": {"a": "', '", '),
    "quote and fence in a string": ('```tool_call\n{"name": "f", "arguments": {"a": "', '"\n```'),
    "comment openers": ("", "/* "),
    "comment openers in a block": ("```tool_call\n{", "/* "),
    "comments in a block": ("```tool_call\n{", "/**/"),
    "line comments in a block": ("```tool_call\n{", "//\n"),
    "commas in a block": ("```tool_call\n[", ","),
    "unfinished blocks with comments": ("", "```tool_call\n{/* "),
    "openers": ("", "```tool_call\n"),
    "lines of plain text": ("```tool_call patch\n", "x\n"),
    "fences in plain text": ("```tool_call patch\n", "\n``` x"),
    "longer fences than ticks in plain text": ("`````tool_call patch\n", "\n````"),
    "openers of plain text": ("", "```tool_call patch\n```\n"),
    "blanks after an opener of plain text": ("```tool_call patch", " "),
    "openers without a line break": ("", "```tool_call "),
    "text behind JSON on the opener's line": (f"```tool_call {CALL[:-1]}", "x"),
    "a string on the opener's line": ('```tool_call {"name": "f", "arguments": {"a": "', "x"),
    "lines of code in a string": ('```tool_call\n{"name": "f", "arguments": {"a": "', "print('hello')\\n"),
    "newlines inside a block": ("```tool_call\n", "\n"),
    "blanks inside a block": ("```tool_call\n", " "),
    "json openers": ("", "```json\n"),
    "json openers with a call": ("", f"```json\n{CALL}\n"),
    "code openers": ("", "```bash\n"),
    "code openers and blocks": ("", "```bash\n```tool_call\n{\n"),
    "unreadable blocks": ("", "```tool_call\n{}\n```\n"),
    "blocks of unknown tools": ("", '```tool_call\n{"name": "g", "arguments": {}}\n```\n'),
    "json fences that are prose": ("", '```json\n{"name": "Alice"}\n```\n'),
    "fences that open and never close": ("````md\n", "```tool_call\n{}\n```\n"),
    "longer and longer fences": ("", "`" * 50 + "\n"),
    "ticks": ("", "`"),
    "tildes": ("", "~"),
    "tick lines": ("", "`\n"),
    "quote marks": ("", "> "),
    "quote mark lines": ("", "> ```tool_call\n"),
    "fences in reasoning": ("<think>\n", "````\n"),
    "inline fences in reasoning": ("<think>\n", " ```"),
    "brackets and words in a block": ("```tool_call\n", "}]tool_call{"),
    "ticks and values behind a call": (f"```tool_call\n{CALL}\n", '`{"tool_calls": []}'),
    "thoughts in arguments": ('```tool_call\n{"name": "f", "arguments": {"a": [', "<think>```"),
    "blanks": ("", " "),
    "blank lines": ("", "\n"),
    "blanks after an opener": ("```tool_call", " "),
    "blanks before a closer": (f"```tool_call\n{CALL}\n", " "),
    "CRLF": ("", "\r\n"),
    "thinking openers": ("", "<think>"),
    "thinking openers on lines": ("", "x\n<think>\n"),
    "thinking closers": ("", "</think>"),
    "thinking and blocks": ("<think>", "\n```tool_call\n"),
    "thoughts": ("", "<think>x</think>\n"),
    "half tags": ("", "<thin"),
    "angle brackets": ("", "<"),
    "calls": ("", f"```tool_call\n{CALL}\n```\n"),
    "calls and prose": ("", f"Some prose.\n```tool_call\n{CALL}\n```\n"),
    "calls in one block": ("```tool_call\n[", CALL + ","),
    "json lines": ("```tool_call\n", CALL + "\n"),
    "prose after the JSON": (f"```tool_call\n{CALL}\n", "words and words\n"),
    "prose before the JSON": ("```tool_call\n", "words { and [ words\n"),
    "keys": ('```tool_call\n{"name": "f", ', '"a": 1, '),
    "nested string arguments": ('```tool_call\n{"name": "f", "arguments": "', '{\\"a\\": '),
    "digits": ('```tool_call\n{"name": "f", "arguments": {"a": ', "9"),
    "name that does not end": ('```tool_call\n{"name": "', "f"),
    "surrogates and NULs": ("", "\ud800\x00"),
}


def text_of(unit: tuple[str, str], size: int) -> str:
    """A head and its unit again and again, ``size`` characters in all."""
    head, repeated = unit
    return head + repeated * (size // len(repeated))


def whole(text: str) -> None:
    patchbay.parse(text, tools=TOOLS)


def in_pieces(text: str) -> None:
    parser = patchbay.StreamParser(tools=TOOLS)
    for at in range(0, len(text), 5):
        parser.feed(text[at : at + 5])
    parser.close()


def cpu_seconds(run: Callable[[str], None], text: str, tries: int) -> float:
    """The CPU time of the fastest try."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(tries):
            begun = time.process_time()
            run(text)
            best = min(best, time.process_time() - begun)
    finally:
        gc.enable()
    return best


def costs_what_its_length_costs(run: Callable[[str], None], unit: tuple[str, str], size: int) -> None:
    """Linear is 10, quadratic is 100; the bound of 25 leaves room for the machine. Below 3 ms nothing can be told."""
    large = cpu_seconds(run, text_of(unit, 10 * size), 1)
    if large > 25 * 0.003:
        small = max(0.003, cpu_seconds(run, text_of(unit, size), 2))
        if large > 25 * small:
            large = min(large, cpu_seconds(run, text_of(unit, 10 * size), 2))
        assert large <= 25 * small


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_ten_times_the_text_costs_ten_times_the_cpu(unit: tuple[str, str]) -> None:
    for run in sampled((whole, in_pieces), 1):
        costs_what_its_length_costs(run, unit, SMALL[run.__name__])


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_memory_is_linear_in_the_text(unit: tuple[str, str]) -> None:
    text = text_of(unit, 4_000)
    in_pieces(text[:400])  # what is made once and kept does not count
    tracemalloc.start()
    try:
        parser = patchbay.StreamParser(tools=TOOLS)
        for at in range(0, len(text), 250):
            parser.feed(text[at : at + 250])
        parser.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 400 * len(text)


@pytest.mark.parametrize(
    "unit",
    [
        "`",
        "~",
        "` ",
        "/* ",
        "```\n",
        "~~~\n",
        "> ",
        "</think>",
        "\n",
        "```tool_result",
        "```tool_result\n",
        "```tool_result name=\n",
    ],
)
def test_showing_a_conversation_to_a_text_model_costs_ten_times_for_ten_times_the_text(unit: str) -> None:
    def flatten(text: str) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        asked = {"role": "assistant", "content": text, "tool_calls": [call]}
        patchbay.flatten_messages(
            [{"role": "user", "content": text}, asked, {"role": "tool", "tool_call_id": "c", "content": text}]
        )

    costs_what_its_length_costs(flatten, ("", unit), SMALL["whole"])


@pytest.mark.parametrize("head", ["", '{"a": '])
def test_validating_arguments_costs_ten_times_for_ten_times_the_text(head: str) -> None:
    validator = patchbay.ToolValidator(TOOLS)
    costs_what_its_length_costs(lambda text: validator.validate("f", text), (head, "/* "), SMALL["whole"])
