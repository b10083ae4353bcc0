"""Reads a text whole and in pieces, and asserts that both give the same reply."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from patchbay import StreamParser
from patchbay.types import Reply
from support.repeated import sampled


def pieces_of(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def cuts_at_many_places(text: str, count: int, apart: int = 32) -> Iterator[list[str]]:
    """Cut the text at ``count`` of ``apart`` places, and in nightly runs at each: in pieces of ``apart`` characters from there on.

    A marker is cut once or twice by that, as by a single cut, but a text of any length takes only ``apart`` readings.
    """
    for first in sampled(range(1, min(apart + 1, len(text))), count):
        yield [text[:first], *pieces_of(text[first:], apart)]


def streamed(pieces: list[str], tools: Any, *, last: str = "", **options: Any) -> Reply:
    parser = StreamParser(tools, generate_id="call_{}".format, **options)
    for piece in pieces:
        parser.feed(piece)
    parser.close(last)
    return parser.reply


def read(text: str, tools: Any, **options: Any) -> Reply:
    """The reply, which is the same at the end of a stream, by the character, and in larger pieces."""
    reply = streamed([text], tools, **options)
    assert reply == streamed([], tools, last=text, **options)
    for pieces in (list(text), *cuts_at_many_places(text, 2, 12)):
        *before, last = pieces or [""]
        assert reply == streamed(before, tools, last=last, **options), pieces
    return reply


def calls_of(reply: Reply) -> list[tuple[str, Any]]:
    """Names and arguments, which are valid JSON."""
    return [(call.name, json.loads(call.raw_arguments)) for call in reply.tool_calls]
