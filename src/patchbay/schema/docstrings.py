"""What a docstring says: prose for the model, and a line for each parameter.

Sphinx, Google, NumPy and Epydoc styles.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Docstring:
    """``description`` is all prose but the sections on parameters, results and errors."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str | None) -> Docstring:
    """Read a raw ``__doc__``; text that no style understands is all description."""
    cleaned = inspect.cleandoc(text or "").strip()
    if not cleaned:
        return Docstring()
    if not _SECTION.search(cleaned):
        return Docstring(cleaned)
    import docstring_parser

    try:
        parsed = docstring_parser.parse(cleaned)
    except docstring_parser.ParseError:
        return Docstring(cleaned)
    parameters = {
        # "*args" and "**kwargs" are documented with their stars.
        parameter.arg_name.lstrip("*"): " ".join(parameter.description.split())
        for parameter in parsed.params
        if parameter.description
    }
    prose = [parsed.description or ""]
    prose += [f"{meta.args[0].capitalize()}:\n{text}" for meta in parsed.meta if (text := _prose_of(meta))]
    return Docstring("\n\n".join(part.strip() for part in prose if part), parameters)


def _prose_of(section: Any) -> str:
    """Return a section's text that a model should read; "" where it speaks of results and errors."""
    if not section.args or section.args[0] not in _PROSE_SECTIONS:
        return ""
    snippet = getattr(section, "snippet", None)
    return "\n".join(part.strip() for part in (snippet, section.description) if part)


_PROSE_SECTIONS = {"example", "examples", "note", "notes", "warning", "warnings"}

# Plain prose, by far the most common, is not worth the import of a parser. These are the marks of the four
# styles.
_SECTION = re.compile(
    r"^[ \t]*(?:[:@]\w+.*:|(?:Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Attributes"
    r"|Other Parameters|Returns|Return|Yields|Raises|Raise|Except|Exceptions|Example|Examples|Note|Notes"
    r"|Warns|Warnings|See Also|References)[ \t]*(?::|\n[ \t]*-{3,}))",
    re.MULTILINE,
)
