"""Golden cases: hand-written texts with the expected reading and the source of each.

They stand in ``cases/*.toml``, one file for each group of the catalogue; README.md beside this file says what the keys mean.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from patchbay.types import Reply

FOLDER = Path(__file__).parent / "cases"

_KEYS = {"id", "format", "provenance", "text", "tools", "calls", "content", "reasoning", "incomplete", "prose", "auto"} | {
    "any_content",
    "any_reasoning",
    "reasoning_prefilled",
    "unknown_tools",
}


@dataclass(frozen=True)
class Case:
    """One text. ``content`` and ``reasoning`` are None where any will do; ``prose``: nothing is in it, and it comes out as it went in."""

    id: str
    group: str
    format: str
    provenance: str
    text: str
    tools: list[dict[str, Any]]
    calls: list[tuple[str, str]]
    content: str | None
    reasoning: str | None
    incomplete: list[str]
    prose: bool
    auto: bool
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def ways(self) -> list[str]:
        """The formats to read it with: its own, and "auto" where the text tells which it is."""
        return list(dict.fromkeys([self.format, *(["auto"] if self.auto else [])]))

    def check(self, reply: Reply) -> None:
        """Hold a reply against what is in the text."""
        assert self.calls == [(call.name, _json(call.raw_arguments)) for call in reply.tool_calls]
        assert self.incomplete == [call.name for call in reply.incomplete]
        assert [] == [call.raw for call in reply.incomplete if not self.text.endswith(call.raw)], "cut at the end"
        if self.prose:
            assert (self.text, None) == (reply.content, reply.reasoning)
            return
        if self.content is not None:
            assert _words(self.content) == _words(reply.content)
        if self.reasoning is not None:
            assert _words(self.reasoning) == _words(reply.reasoning)


def _words(text: str | None) -> list[str]:
    """The laws (tests/laws) hold the white space; here the words of a case shall be easy to write down."""
    return (text or "").split()


@cache
def _offered() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "tools.toml").read_text(encoding="utf-8"))


def tool_named(name: str) -> dict[str, Any]:
    """A tool of tools.toml."""
    return tool(name, _offered()["tools"][name])


@cache
def cases() -> list[Case]:
    """All cases, by group, in the order they are written. Raises ValueError naming the case that cannot be read."""
    offered = _offered()
    found = []
    for file in sorted(FOLDER.glob("*.toml")):
        for row in tomllib.loads(file.read_text(encoding="utf-8")).get("case", []):
            try:
                found.append(_case(row, file.stem, offered))
            except (KeyError, ValueError) as error:
                raise ValueError(f"{file.name}: {row.get('id')}: {error!r}") from error
    return found


def _case(row: dict[str, Any], group: str, offered: dict[str, Any]) -> Case:
    if unknown := row.keys() - _KEYS:
        raise ValueError(f"what is {', '.join(sorted(unknown))}?")
    options = {key: row[key] for key in ("reasoning_prefilled", "unknown_tools") if key in row}
    return Case(
        id=row["id"],
        group=group,
        format=row["format"],
        provenance=row["provenance"],
        text=row["text"],
        tools=[tool_named(name) for name in row.get("tools", offered["default"])],
        calls=[_call(written) for written in row.get("calls", [])],
        content=None if row.get("any_content") else row.get("content", ""),
        reasoning=None if row.get("any_reasoning") else row.get("reasoning", ""),
        incomplete=row.get("incomplete", []),
        prose=row.get("prose", False),
        auto=row.get("auto", True),
        options=options,
    )


def _call(written: str) -> tuple[str, str]:
    name, _, arguments = written.partition(" ")
    return name, _json(arguments)


def _json(text: str) -> str:
    """Spelt in one way: 1, 1.0 and true are equal in Python, and not the same argument."""
    return json.dumps(json.loads(text))


def tool(name: str, written: dict[str, Any]) -> dict[str, Any]:
    """One element of OpenAI's ``tools`` from a table of tools.toml."""
    schema = {"type": "object", "properties": written.get("properties", {}), "required": written.get("required", [])}
    return {"type": "function", "function": {"name": name, "description": written["description"], "parameters": schema}}
