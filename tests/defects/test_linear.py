"""Defects 26, 27, 29: the cost of parsing is linear in the length of the text, whatever is in it (law 5)."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable

import pytest

import patchbay

from .reading import ROME, TOOLS, block

Run = Callable[[int], object]


def cpu_seconds(run: Callable[[], object], tries: int = 3) -> float:
    """The CPU time of the fastest try; collecting garbage is left out, it belongs to the whole process."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(tries):
            begun = time.process_time()
            run()
            best = min(best, time.process_time() - begun)
    finally:
        gc.enable()
    return best


def assert_linear(run: Run, size: int) -> None:
    """Ten times the length may cost 30 times the CPU (linear is 10, quadratic 100); what is below 5 ms is noise."""
    small = cpu_seconds(lambda: run(size))
    large = cpu_seconds(lambda: run(10 * size), tries=2)
    assert large <= 30 * max(small, 0.005), f"{size} characters: {small:.4f} s, {10 * size}: {large:.4f} s"


def stream(text: str, size: int) -> patchbay.Reply:
    """Feed ``text`` in pieces of ``size`` characters."""
    parser = patchbay.StreamParser(tools=TOOLS)
    for at in range(0, len(text), size):
        parser.feed(text[at : at + size])
    parser.close()
    return parser.reply


def big_call(size: int) -> str:
    """One write_file call of about ``size`` characters."""
    return block(json.dumps({"name": "write_file", "arguments": {"path": "a", "content": "print('hello')\n" * (size // 16)}}))


TEXTS: dict[str, Callable[[int], str]] = {
    "one big call": big_call,
    "held opener line": lambda size: "```tool_call " + ROME[:-1] + "x" * size,
    "held opener line with JSON": lambda size: '```tool_call {"name": "write_file", "arguments": {"content": "' + "x" * size,
    "run of blanks": lambda size: " " * size,
    "run of blanks before an opener": lambda size: " " * size + "```tool_call\n" + ROME,
    "blanks inside a block": lambda size: "```tool_call\n" + " " * size,
    "newlines inside a block": lambda size: "```tool_call\n" + "\n" * size,
    "many small calls": lambda size: (block(ROME) + "\n") * (size // 80),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_d26_streaming_in_small_deltas_is_linear(text: Callable[[int], str]) -> None:
    assert_linear(lambda size: stream(text(size), 4), 12_000)


def test_d26_a_call_of_200_kb_in_small_deltas_is_right_and_costs_12_times_one_of_20_kb_at_most() -> None:
    large, small = big_call(200_000), big_call(20_000)
    assert len(json.loads(large[13:-4])["arguments"]["content"]) == len(stream(large, 4).tool_calls[0].arguments["content"])
    ratio = min(cpu_seconds(lambda: stream(large, 4), 1) / cpu_seconds(lambda: stream(small, 4), 3) for _ in range(3))
    assert ratio <= 15


def test_d27_model_text_full_of_comment_openers_is_linear() -> None:
    assert_linear(lambda size: patchbay.parse("```tool_call\n{" + "/* " * (size // 3), tools=TOOLS), 25_000)
    assert_linear(lambda size: patchbay.parse(block("{" + "/* " * (size // 3) + '"name": 1}'), tools=TOOLS), 25_000)
    assert_linear(lambda size: patchbay.parse("/* " * (size // 3), tools=TOOLS), 25_000)


@pytest.mark.parametrize("blocks", [231, 800])
def test_d29_many_blocks_are_taken_out_of_the_text_in_linear_time(blocks: int) -> None:
    unit = f"Some prose.\n{block(ROME)}\n"
    size = blocks * len(unit)
    assert_linear(lambda n: patchbay.parse(unit * (n // len(unit)), tools=TOOLS), size)
    assert blocks == len(patchbay.parse(unit * blocks, tools=TOOLS).tool_calls)
