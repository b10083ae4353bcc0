"""What a check has found: data, which the command prints and the console shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from patchbay._redaction import Redactor
from patchbay._text import escape_controls, one_line

Status = Literal["ok", "note", "problem", "skipped"]
Result: TypeAlias = tuple[Status, str, str]
"""The result of a check without its name: the status, what was seen, and what to do."""
_MOST: Final = 1_000


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``seen`` is one sentence of what was seen, ``advice`` one of what to do, "" for nothing.

    Both are without secrets, on one line and safe to print, whatever a server has answered.
    """

    name: str
    status: Status
    seen: str
    advice: str = ""

    def __post_init__(self) -> None:
        for name in ("seen", "advice"):
            object.__setattr__(self, name, escape_controls(one_line(Redactor().text(getattr(self, name)), _MOST)))
