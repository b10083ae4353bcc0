"""Strategies for model text: fragments that matter to the parser, in any mixture."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

import patchbay
from patchbay.formats import FORMATS
from patchbay.types import Reply


def spec(name: str, **properties: Any) -> dict[str, Any]:
    """One element of OpenAI's ``tools``."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


TOOLS = [
    spec("f", a={"type": "string"}),
    spec("get_weather", city={"type": "string"}),
    spec("patch", input={"type": "string", "contentMediaType": "text/plain"}),
]

CALL = '{"name": "f", "arguments": {"a": "b"}}'

FRAGMENTS = [
    # fences and their labels
    "```", "````", "`", "``", "~~~", "~~~~", "tool_call", "tool_calls", "TOOL-CALL", "```tool_call", "```tool_call\n",
    "````tool_call\n", "~~~tool_call\n", "```json\n", "```\n", "\n```", "\n```\n", "\n~~~\n", "```md\n", "````markdown\n", "```bash\n",
    "```python", "```x```", "tool_call:json", "> ", "\n> ", "> ```tool_call\n> ", "   ```", "```tool_call patch\n", "\n                ```",
    # JSON, whole and in pieces
    CALL, f"[{CALL}]", f"```tool_call\n{CALL}\n```", f"```tool_call\n{CALL}\n```\n", f"```json\n{CALL}\n```\n", f"```\n{CALL}\n```\n",
    f"```tool_call {CALL}```", '{"name": "f", "arguments": {', '{"name": "f"', '"arguments": ', '{"name": ', '"f"', "{", "}", "[", "]",
    "}}", '"', "'", "\\", '\\"', ":", ",", "//", "/*", "*/", "# ", "True", "None", "null", "1.0", "12345678901234567890", "\\u00e9",
    "\\ud83d", '{"name": "g", "arguments": {}}', '{"name":"Alice","age":30}', "{'name': 'f', 'arguments': {'a': 'b'}}", "{}", "a",
    '{"tool_calls": [', '{"function": ', '{"name": "f", "arguments": "', '{"arguments": {"a": 1}, "name": "f"}', '{"name": "f", "a": 1}',
    # reasoning
    "<think>", "</think>", "<thi", "</", "<", "think>", "<think>\n", "\n</think>\n\n", "<think>x</think>",
    # white space, line ends, odd characters
    " ", "\n", "\n\n", "\r\n", "\r", "\t", "    ", "\u2028", "\x85", "\x0b", "\x00", "\ud800", "\udc00", "\ufeff", "caf\u00e9", "\U0001f600",
    "word", "Some prose. ", "Hello,\n", "`code` ",
]  # fmt: skip
"""What the parser may take for a marker or a part of one, and what stands around."""

_TOKENS = frozenset(token for row in FORMATS.values() for token in row.control_tokens)


def _is_text(mixture: str) -> bool:
    return not any(token in mixture for token in _TOKENS)


texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=14).map("".join).filter(_is_text)
"""Any mixture of fragments, but for those that happen to be a special token: such a one is no text."""


@st.composite
def splits(draw: st.DrawFn, text: str) -> list[str]:
    """The text in pieces, cut anywhere."""
    places = draw(st.lists(st.integers(0, len(text)), max_size=12))
    marks = [0, *sorted(places), len(text)]
    return [text[begin:end] for begin, end in pairwise(marks)]


options = st.fixed_dictionaries(
    {"tools": st.sampled_from([TOOLS, None])},
    optional={
        "lenient_fences": st.booleans(),
        "reasoning": st.booleans(),
        "reasoning_prefilled": st.sampled_from([None, True, False]),
        "unknown_tools": st.sampled_from(["text", "keep"]),
    },
)
"""Options of the parser."""


def number_id(index: int) -> str:
    """Ids that two readings of one text share."""
    return f"call_{index}"


def read_in(pieces: list[str], **kwargs: Any) -> tuple[Reply, list[Any]]:
    """Stream ``pieces``; the reply and all events."""
    parser = patchbay.StreamParser(generate_id=number_id, **kwargs)
    seen: list[Any] = []
    for piece in pieces:
        seen += parser.feed(piece)
    seen += parser.close()
    return parser.reply, seen


def read_whole(text: str, **kwargs: Any) -> Reply:
    """Read a whole text."""
    return patchbay.parse(text, generate_id=number_id, **kwargs)


def solid(text: str | None) -> str:
    """A text without its white space."""
    return "".join((text or "").split())


hostile_strings = st.text(max_size=6) | st.lists(st.sampled_from(FRAGMENTS), max_size=4).map("".join)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | hostile_strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile_strings, inner, max_size=3),
    max_leaves=6,
)

arguments = st.dictionaries(hostile_strings, json_values, max_size=4)
"""Arguments of a call, with everything in their strings that could end a block."""


def dump(value: Any, *, ascii_only: bool) -> str:
    """JSON on one line."""
    return json.dumps(value, ensure_ascii=ascii_only)
