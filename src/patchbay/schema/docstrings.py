"""Splits a docstring into a description for the model and one line per parameter.

Understands Sphinx, Google, NumPy and Epydoc style, also mixed. Sections about parameters, results and errors are removed; the
rest is the description, verbatim. Each entry of a section is read by itself, so that a malformed one does not affect the others.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Docstring:
    """``description`` has no sections about parameters, results and errors; ``parameters`` has one line per parameter name."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str | None) -> Docstring:
    """Read a raw ``__doc__``; text in no known style is all description."""
    lines = inspect.cleandoc(text or "").strip().splitlines()
    prose: list[str] = []
    parameters: dict[str, str] = {}
    index = 0
    while index < len(lines):
        end = _end_of_section(lines, index)
        if end > index:
            parameters |= _parameters(lines[index:end])
        prose.append("" if end > index else lines[index])
        index = max(end, index + 1)
    return Docstring(_joined(prose), parameters)


def _parameters(section: list[str]) -> dict[str, str]:
    """Return the parameters that a section describes; none for a section about something else."""
    header = section[0].rstrip()
    if header[0] in ":@":
        return _entries(section, _FIELD)
    if not _OF_PARAMETERS.match(header):
        return {}
    return _entries(section[1:], _GOOGLE_ENTRY) if header.endswith(":") else _entries(section[2:], _NUMPY_ENTRY)


def _entries(lines: list[str], beginning: re.Pattern[str]) -> dict[str, str]:
    """Return the text of each parameter: the line that names it, and the lines up to the next name."""
    entries: list[tuple[str, list[str]]] = [("", [])]
    for line in inspect.cleandoc("\n".join(["", *lines])).splitlines():
        if entry := beginning.match(line):
            entries.append((entry["names"] or "", [entry["text"]]))
        else:
            entries[-1][1].append(line)
    texts = ((names, " ".join(" ".join(text).split())) for names, text in entries)
    # The name is the last word: Sphinx puts the type before it. Stars and quotes around it are markup.
    return {name.split()[-1].strip("*\\`"): text for names, text in texts if text for name in names.split(",") if name.strip()}


def _end_of_section(lines: list[str], start: int) -> int:
    """Return the end of the section that begins at ``start``; ``start`` itself if none does."""
    line = lines[start]
    index = start + 1
    if _FIELD.match(line):
        # Its text ends at an empty line, unless indented lines follow.
        while index < len(lines) and lines[index].strip() and not _FIELD.match(lines[index]):
            index += 1
        return _end_of_block(lines, index)
    if _HEADER.match(line) and index < len(lines) and _UNDERLINE.match(lines[index]):
        while index < len(lines) and not (index > start + 1 and _UNDERLINE.match(lines[index])):
            index += 1
        # The next section begins at the title above its underline.
        return index if index == len(lines) else index - 1
    if _HEADER_WITH_COLON.match(line):
        if start == 0:  # ``cleandoc`` has removed the indentation of the lines after the first
            while index < len(lines) and lines[index].strip() and not _HEADER_WITH_COLON.match(lines[index]):
                index += 1
        end = _end_of_block(lines, index)
        return end if any(line.strip() for line in lines[start + 1 : end]) else start
    return start


def _end_of_block(lines: list[str], index: int) -> int:
    """Return the end of the indented lines that begin at ``index``; empty lines between them belong to them."""
    end = index
    while index < len(lines) and (not lines[index].strip() or lines[index][0].isspace()):
        index += 1
        if lines[index - 1].strip():
            end = index
    return end


def _joined(lines: list[str]) -> str:
    """Join the prose without the gaps left by removed sections."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in lines)).strip()


_PARAMETERS: Final = "Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters|Other Args|Attributes"
_NAMES: Final = rf"{_PARAMETERS}|Returns?|Yields?|Receives|Raises?|Exceptions?|Except|Warns"
_OF_PARAMETERS: Final = re.compile(rf"(?:{_PARAMETERS})\s*:?\Z")
_HEADER: Final = re.compile(rf"(?:{_NAMES})\s*\Z")
_HEADER_WITH_COLON: Final = re.compile(rf"(?:{_NAMES})\s*:\s*\Z")
_UNDERLINE: Final = re.compile(r"-{3,}\s*\Z")
_FIELD: Final = re.compile(
    r"[:@](?:(?:param|parameter|arg|argument|attribute|key|keyword|kwarg)\b(?P<names>[^:\n]*)"
    r"|(?:type|vartype|var|ivar|cvar|returns?|rtype|yields?|ytype|raises?|except|exception|meta)\b[^:\n]*)"
    r":(?P<text>.*)"
)
# The type in parentheses may itself contain parentheses.
_GOOGLE_ENTRY: Final = re.compile(
    r"(?:[-+*]\s+)?(?P<names>[`*\w]+(?:\s*,\s*[`*\w]+)*)\s*(?:\((?:[^()]|\([^()]*\))*\))?(?:\s*:|\s+--?(?=\s))(?P<text>.*)"
)
_NUMPY_ENTRY: Final = re.compile(r"(?P<names>[^\s:][^:]*)(?P<text>)")
