"""Building blocks for users' own pipelines on whole texts: fences, reasoning, lenient JSON. The parser does not use them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from patchbay.formats.source import MalformedCall, Truncated, whole_text
from patchbay.formats.values.json_stream import JsonReader

_OPENER = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([^\n`]*)$", re.MULTILINE)


@dataclass(frozen=True)
class FencedBlock:
    """One fenced block. ``start`` and ``end`` delimit it in the text, from its opener's line to behind its closer."""

    info: str
    content: str
    start: int
    end: int


def extract_fenced_blocks(text: str) -> list[FencedBlock]:
    """Return the fenced blocks of a text by CommonMark's rules; a block that is never closed runs to the end."""
    blocks = []
    position = 0
    while opener := _OPENER.search(text, position):
        char, length = opener.group(1)[0], len(opener.group(1))
        body = min(opener.end() + 1, len(text))
        closer = re.compile(rf"^[ \t]*{char}{{{length},}}[ \t\r]*$", re.MULTILINE).search(text, body)
        end = closer.end() if closer else len(text)
        content = text[body : closer.start() if closer else len(text)]
        blocks.append(FencedBlock(opener.group(2).strip(), content.removesuffix("\n"), opener.start(), end))
        position = end
    return blocks


def extract_reasoning(text: str, *, reasoning_tag: str = "think") -> tuple[str | None, str]:
    """Split ``<tag>…</tag>`` pairs out of a text: (reasoning or None, the rest). An opener without a closer stays in the rest."""
    opener, closer = f"<{reasoning_tag}>", f"</{reasoning_tag}>"
    found, rest, position = [], [], 0
    while (start := text.find(opener, position)) >= 0:
        end = text.find(closer, start + len(opener))
        if end < 0:
            break
        found.append(text[start + len(opener) : end].strip())
        rest.append(text[position:start])
        position = end + len(closer)
    if not found:
        return None, text
    rest.append(text[position:])
    return "\n\n".join(filter(None, found)) or None, "".join(rest).strip()


def parse_json(text: str) -> Any:
    """Read JSON as models write it (comments, trailing commas, other quotes, Python's constants). Raises ValueError."""
    text = text.strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    source = whole_text(text)
    sink: list[str] = []
    try:
        reader = JsonReader(source, lambda _kind: None)
        for _ in reader.space():
            pass
        if source.buf[source.pos : source.pos + 1] not in ("{", "["):
            raise ValueError("Not JSON: it does not begin with an object or an array.")
        for _ in reader.value(sink):
            pass
        for _ in reader.space():
            pass
        if source.pos < len(source.buf):
            raise ValueError(f"Not JSON: text follows the value at character {source.pos}.")
        return json.loads("".join(sink))
    except Truncated:
        raise ValueError("Not JSON: the text ends inside a value.") from None
    except MalformedCall:
        raise ValueError(f"Not JSON: a key or a value is missing at character {source.pos}.") from None
    except RecursionError:
        raise ValueError("Not JSON: nested too deeply.") from None
