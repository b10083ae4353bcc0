"""What others have written, made harmless for a terminal: no cursor is moved, no title set, nothing wiped.

What lives here: which characters stay. What does not: bytes that are no text (``plugins.host.output``).
"""

from __future__ import annotations

import re
from typing import Final

_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")
_RESET: Final = "\x1b[0m"

# In this order: strings (a title, a link) with their ends, sequences (CSI), other escapes, and what is left of single controls.
# A string without an end is taken for its introducer alone: it must not hide the rest of the line.
_NOISE: Final = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]*m)"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)

_BEGUN: Final = re.compile(
    r"(?:(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*\x1b?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*"
    r"|\x1b[ -/]*)\Z"
)
_LONGEST: Final = 1_024


def without_begun(text: str) -> tuple[str, str]:
    """Return a text that goes on later, and the sequence that is begun at its end, "" where there is none.

    One that is longer than any that means something is no sequence: what waits for its end is bounded.
    """
    begun = _BEGUN.search(text, max(0, len(text) - _LONGEST))
    return (text, "") if begun is None else (text[: begun.start()], begun[0])


def harmless(line: str) -> str:
    """Return one line without control characters but tabs and colours (SGR), which end with the line."""
    if line.isprintable():
        return line
    clean = _NOISE.sub(lambda found: found["colour"] or "", line)
    return clean + _RESET if _COLOUR.search(clean) and not clean.endswith(_RESET) else clean
