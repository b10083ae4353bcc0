"""Kimi: a section of calls, each headed by its id (K2), or elements with attributes for all that is said (K3)."""

from __future__ import annotations

import re

from patchbay.formats.channelrows import Body, Channels, Header, Kind
from patchbay.formats.channels.xtml import CLOSE, OPEN, SEP, attributes
from patchbay.formats.families.common import THINK, TURNS
from patchbay.formats.rows import Format, Thought, Wrapper, last_part

_INDEX = re.compile(r":\d{1,9}$")


def _name(header: str) -> str:
    """The name in ``functions.get_weather:0``."""
    return _INDEX.sub("", last_part(header)).removeprefix("functions.")


K2 = Format(
    "kimi_k2",
    families=("Kimi K2, K2-Thinking, K2.5 to K2.7", "Kimi-Linear"),
    wrappers=(
        Wrapper(
            openers=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
            closers=("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
        ),
        Wrapper(
            openers=("<|tool_call_begin|>",),
            closers=("<|tool_call_end|>",),
            separators=("<|tool_call_argument_begin|>",),
            name=_name,
        ),
    ),
    thoughts=(THINK, Thought(openers=("◁think▷",), closers=("◁/think▷",), loud=True)),
    leaks=TURNS,
)


def _reads(header: Header) -> Body | None:
    """What an element of K3's holds."""
    tag = header.text(OPEN) or header.text(CLOSE)
    name = tag.strip().partition(" ")[0]
    if not header.has(OPEN):
        return Body(Kind.NOTHING) if name in _ELEMENTS or not header.begin else None
    if name == "call":
        return Body(Kind.NAMED, attributes(tag).get("tool", ""))
    return Body(_ELEMENTS.get(name, Kind.NOTHING)) if name in _ELEMENTS or not header.begin else None


_ELEMENTS = {
    "message": Kind.NOTHING,
    "think": Kind.REASONING,
    "response": Kind.CONTENT,
    "tools": Kind.NOTHING,
    "call": Kind.NAMED,
    "argument": Kind.NOTHING,
}
_THINK_END = f"{CLOSE}think{SEP}"

K3 = Format(
    "kimi_k3",
    families=("Kimi K3",),
    thoughts=(Thought(openers=(f"{OPEN}think{SEP}",), closers=(_THINK_END,), loud=True),),
    leaks=(*TURNS, "<|end_of_msg|>"),
    loose=False,
    channels=(Channels(_reads, starts=(OPEN, CLOSE), begins=(SEP,), thought_ends=(_THINK_END,)),),
)
