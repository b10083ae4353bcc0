"""How ``patchbay parse`` shows a reading: a page for people, or one JSON object for programs.

The page is plain text. Characters that a terminal would obey (a model may write any) are shown as their escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from patchbay.cli.parse_why import Marker, Why
from patchbay.types import Reply

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_INDENT = "  "
_NAMES = 5
"""Formats that are named of those that share a marker."""


def as_json(reply: Reply, why: Why | None) -> str:
    """All of a reading. Calls are OpenAI's; a cut call has what was written of it in ``raw``; positions count characters."""
    told: dict[str, Any] = {
        "content": reply.content,
        "reasoning": reply.reasoning,
        "tool_calls": [call.to_openai() for call in reply.tool_calls],
        "incomplete": [asdict(call) for call in reply.incomplete],
        "repairs": [asdict(repair) for repair in reply.repairs],
    }
    if why is not None:
        told["why"] = asdict(why)
    return json.dumps(told, indent=2)


def as_page(text: str, reply: Reply, why: Why | None) -> str:
    """The same for a person: only the parts that there are, each under its name."""
    parts = [*_reading(text, reply), *(_reasons(text, why) if why is not None else ())]
    return "\n\n".join(f"{title}\n{_block(lines)}" for title, lines in parts)


def _reading(text: str, reply: Reply) -> Iterator[tuple[str, list[str]]]:
    if reply.reasoning:
        yield "reasoning", reply.reasoning.splitlines()
    if reply.content:
        yield "content", reply.content.splitlines()
    if reply.tool_calls:
        yield "calls", [f"{call.name} {call.raw_arguments}" for call in reply.tool_calls]
    else:
        yield "calls", ["none"]
    if reply.incomplete:
        yield "cut off at the end", [f"{call.name or 'a call'}: {call.raw}" for call in reply.incomplete]
    if reply.repairs:
        yield "mended", [f"{repair.kind}, at {_place(text, repair.position)}" for repair in reply.repairs]


def _reasons(text: str, why: Why) -> Iterator[tuple[str, list[str]]]:
    if why.markers:
        yield "markers in the text", [_marker(text, marker) for marker in why.markers]
    if why.timings:
        yield (
            "calls in a stream",
            [
                f"{timing.name}: known after {timing.known:,} of {len(text):,} characters, "
                + ("cut off" if timing.complete is None else f"complete after {timing.complete:,}")
                for timing in why.timings
            ],
        )
    if why.unknown:
        names = ", ".join(why.unknown)
        yield "no calls, because no such tool was offered (--unknown-tools keep makes them calls)", [names]
    if not (why.markers or why.timings or why.unknown):
        yield "why", ["no format's marker is in the text, and nothing that looks like a call of an offered tool"]


def _marker(text: str, marker: Marker) -> str:
    times = f", {marker.count} times" if marker.count > 1 else ""
    names = ", ".join(marker.formats[:_NAMES]) + (
        f" and {len(marker.formats) - _NAMES} more" if len(marker.formats) > _NAMES else ""
    )
    return f"{marker.text}  {_place(text, marker.position)}{times} ({names})"


def _block(lines: list[str]) -> str:
    shown = [line for written in lines for line in (written.splitlines() or [""])]
    return "\n".join(f"{_INDENT}{_CONTROL.sub(_escape, line)}".rstrip() for line in shown)


def _escape(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}"


def _place(text: str, position: int) -> str:
    """A position as people count: lines and columns from 1."""
    before = text[:position]
    return f"line {before.count(chr(10)) + 1}, column {position - before.rfind(chr(10))}"
