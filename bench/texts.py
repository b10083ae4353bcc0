"""The texts that the parsers read: four kinds, in three sizes, the same bytes for ours and for the original. ASCII only."""

from __future__ import annotations

import json
from pathlib import Path

KINDS = {
    "prose": "Prose with code fences",
    "prose_then_call": "Prose, then one small call",
    "one_big_call": "One big call (a file to write)",
    "many_calls": "Many small calls",
}
SIZES = (2_000, 20_000, 200_000)

_SENTENCE = (
    "the numbers you asked about are in the second table so that we can compare the two places side by side before you "
    "decide which of them is worth the longer way there and back again on a day when most of the trains are late"
)
_WORDS = _SENTENCE.split()
_CODE = '```python\ndef total(rows):\n    """Add up what was measured."""\n    return sum(row["value"] for row in rows)\n```\n'


def text(kind: str, size: int) -> str:
    """A text of the kind, ``size`` characters long (calls are kept whole: up to a hundred fewer)."""
    return _MAKERS[kind](size)


def write_all(folder: Path, sizes: tuple[int, ...] = SIZES) -> None:
    """Write every text to ``folder``/kind-size.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        for size in sizes:
            (folder / f"{kind}-{size}.txt").write_text(text(kind, size), encoding="ascii", newline="")


def calls_in(kind: str, size: int) -> int:
    """How many calls a parser must find in that text."""
    return text(kind, size).count("```tool_call\n")


def _prose(size: int) -> str:
    lines: list[str] = []
    length = 0
    while length < size:
        number = len(lines)
        start = number * 7 % len(_WORDS)
        line = " ".join((_WORDS + _WORDS)[start : start + 14]).capitalize() + ".\n"
        if number % 8 == 7:
            line = _CODE
        lines.append(line)
        length += len(line)
    return "".join(lines)[:size]


def _call(name: str, arguments: dict[str, object]) -> str:
    return f"```tool_call\n{json.dumps({'name': name, 'arguments': arguments})}\n```\n"


def _prose_then_call(size: int) -> str:
    call = _call("get_weather", {"city": "Paris", "unit": "c", "days": 3})
    # The prose may be cut inside a code block: an open block would swallow the call, so it ends before its last one.
    prose = _prose(size - len(call))
    return prose.rpartition("```python")[0] + call if prose.count("```") % 2 else prose.rpartition("\n")[0] + "\n" + call


def _one_big_call(size: int) -> str:
    def call(lines: int) -> str:
        content = "".join(f"row_{number:05d} = measure('{number:05d}', scale=1.5)  # \"as read\"\n" for number in range(lines))
        return _call("write_file", {"path": "src/rows.py", "content": content})

    per_line = len(call(2)) - len(call(1))
    return call((size - len(call(0))) // per_line)


def _many_calls(size: int) -> str:
    calls: list[str] = []
    length = 0
    while True:
        call = _call("get_weather", {"city": f"Town {len(calls)}", "days": 3})
        if length + len(call) > size:
            return "".join(calls)
        calls.append(call)
        length += len(call)


_MAKERS = {
    "prose": _prose,
    "prose_then_call": _prose_then_call,
    "one_big_call": _one_big_call,
    "many_calls": _many_calls,
}
