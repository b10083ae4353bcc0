"""Reads a text whole and in pieces, and asserts that both give the same reply."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from patchbay import StreamParser
from patchbay.types import Reply


def pieces_of(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def cuts_at_every_place(text: str, apart: int = 32) -> Iterator[list[str]]:
    """Cut the text at each of its places once: in pieces of ``apart`` characters, which begin one place later each time.

    A marker is cut once or twice by that, as by a single cut, but a text of any length takes only ``apart`` readings.
    """
    for first in range(1, min(apart + 1, len(text))):
        yield [text[:first], *pieces_of(text[first:], apart)]


def streamed(pieces: list[str], tools: Any, *, last: str = "", **options: Any) -> Reply:
    parser = StreamParser(tools, generate_id="call_{}".format, **options)
    for piece in pieces:
        parser.feed(piece)
    parser.close(last)
    return parser.reply


def read(text: str, tools: Any, **options: Any) -> Reply:
    """The reply, which is the same for pieces of 1, 3 and 7 characters and for any others."""
    reply = streamed([text], tools, **options)
    assert reply == streamed([], tools, last=text, **options)
    for size in (1, 3, 7):
        assert reply == streamed(pieces_of(text, size), tools, **options), size
    dice = random.Random(text.encode("utf-8", "surrogatepass"))
    for _ in range(4):
        marks = [0, *sorted(dice.choices(range(len(text) + 1), k=5)), len(text)]
        *pieces, last = [text[begin:end] for begin, end in pairwise(marks)]
        assert reply == streamed(pieces, tools, last=last, **options), (pieces, last)
    return reply


def calls_of(reply: Reply) -> list[tuple[str, Any]]:
    """Names and arguments, which are valid JSON."""
    return [(call.name, json.loads(call.raw_arguments)) for call in reply.tool_calls]
