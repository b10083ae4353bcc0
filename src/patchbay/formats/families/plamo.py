"""PLaMo 3: every part of a call between tokens of its own."""

from __future__ import annotations

from patchbay.formats.families.common import TURNS
from patchbay.formats.rows import Format, Thought, Wrapper, first_part


def _token(name: str) -> tuple[str, ...]:
    return (f"<|plamo:{name}:plamo|>",)


PLAMO3 = Format(
    "plamo3",
    families=("PLaMo 3",),
    wrappers=(
        Wrapper(openers=_token("begin_tool_requests"), closers=_token("end_tool_requests")),
        Wrapper(
            openers=(*_token("begin_tool_request"), *_token("begin_tool_name")),  # the first is sometimes left out
            closers=_token("end_tool_request"),
            leads=(*_token("begin_tool_name"), *_token("end_tool_arguments")),
            separators=(*_token("end_tool_name"), *_token("begin_tool_arguments"), "<|plamo:constrain|>", "<|plamo:msg|>"),
            name=first_part,
        ),
    ),
    thoughts=(Thought(openers=_token("begin_think"), closers=_token("end_think"), loud=True),),
    leaks=(*TURNS, "<|plamo:tag|>"),
)
