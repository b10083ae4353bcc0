r"""Marks: the texts that mean something to a family, and what is done with them where they stand in data.

What a tool returns, what a schema says and what a user writes may hold any of them. There they are defused: in running text a
backslash is put behind the first character (``</tool_response>`` is shown as ``<\/tool_response>``), inside JSON the first
character is written as an escape, so that the value stays the same.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

CHATML = ("<|im_start|>", "<|im_end|>")
LLAMA = ("<|start_header_id|>", "<|eot_id|>", "<|eom_id|>")
"""What ends a turn: data that could write it would be read as somebody else's words."""


@dataclass(frozen=True)
class Marks:
    """Where a family's marks stand. Each of ``texts`` is the beginning of one.

    ``<name`` stands for ``</name`` and for either with white space in it too; case does not matter.
    """

    texts: tuple[str, ...]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(_pattern_of, self.texts)) or r"(?!)", re.IGNORECASE)

    def stand_in(self, text: str) -> bool:
        """Whether one of them is in the text."""
        return self._pattern.search(text) is not None

    def defused(self, text: str) -> str:
        """The text with a backslash behind the first character of each mark; no two texts come out the same."""
        return self._pattern.sub(lambda found: f"{found[0][0]}\\{found[0][1:]}", text)

    def defused_json(self, text: str) -> str:
        """A JSON text of the same value without a mark. Marks of brackets and quotes must not be among ``texts``."""
        return self._pattern.sub(lambda found: f"\\u{ord(found[0][0]):04x}{found[0][1:]}", text)

    def json(self, value: Any, *, indent: int | None = None) -> str:
        """A value as JSON text without a mark."""
        return self.defused_json(json.dumps(value, ensure_ascii=False, indent=indent, default=dict))


def _pattern_of(mark: str) -> str:
    """Finds a mark, and one that was defused before: that it gets one backslash more keeps the two apart."""
    # The gaps are possessive: however long a run of blanks is, it is read once for each mark.
    gap = r"\s*+/?+\s*+" if mark[0] == "<" else ""
    rest = re.escape(mark[1:]).replace("｜", "[｜|]").replace("▁", "[▁_ ]")
    return rf"{re.escape(mark[0])}\\*+{gap}{rest}"
