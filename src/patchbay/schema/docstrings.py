"""What a docstring says: prose for the model, and a line for each parameter.

Sphinx, Google, NumPy and Epydoc styles, also side by side. Sections about parameters, results and errors are taken out, and all
else is prose, word for word: nothing that an author wrote for a reader is lost. Each entry of a section is read by itself, since
people write them as they like: one that is odd spoils no other.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Docstring:
    """``description`` is all prose but the sections on parameters, results and errors; ``parameters`` a line for each by name."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str | None) -> Docstring:
    """Read a raw ``__doc__``; text that no style understands is all description."""
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
    """Return what a section says of each parameter; nothing where it is about something else."""
    header = section[0].rstrip()
    if header[0] in ":@":
        return _entries(section, _FIELD)
    if not _OF_PARAMETERS.match(header):
        return {}
    return _entries(section[1:], _GOOGLE_ENTRY) if header.endswith(":") else _entries(section[2:], _NUMPY_ENTRY)


def _entries(lines: list[str], beginning: re.Pattern[str]) -> dict[str, str]:
    """Return the text of each parameter: the line that names it, and all that follow up to the next such line."""
    entries: list[tuple[str, list[str]]] = [("", [])]
    for line in inspect.cleandoc("\n".join(["", *lines])).splitlines():
        if entry := beginning.match(line):
            entries.append((entry["names"] or "", [entry["text"]]))
        else:
            entries[-1][1].append(line)
    texts = ((names, " ".join(" ".join(text).split())) for names, text in entries)
    # The name is the last word: Sphinx has the type before it. Stars and quotes around it are for the reader.
    return {name.split()[-1].strip("*\\`"): text for names, text in texts if text for name in names.split(",") if name.strip()}


def _end_of_section(lines: list[str], start: int) -> int:
    """Return where the section that begins at ``start`` ends; ``start`` itself if none begins there."""
    line = lines[start]
    index = start + 1
    if _FIELD.match(line):
        # Its text goes on until an empty line, and behind that where it is indented.
        while index < len(lines) and lines[index].strip() and not _FIELD.match(lines[index]):
            index += 1
        return _end_of_block(lines, index)
    if _HEADER.match(line) and index < len(lines) and _UNDERLINE.match(lines[index]):
        while index < len(lines) and not (index > start + 1 and _UNDERLINE.match(lines[index])):
            index += 1
        # An underline belongs to the title above it: the next section begins there.
        return index if index == len(lines) else index - 1
    if _HEADER_WITH_COLON.match(line):
        if start == 0:  # ``cleandoc`` has taken away what the lines behind a first line were indented by
            while index < len(lines) and lines[index].strip() and not _HEADER_WITH_COLON.match(lines[index]):
                index += 1
        end = _end_of_block(lines, index)
        return end if any(line.strip() for line in lines[start + 1 : end]) else start
    return start


def _end_of_block(lines: list[str], index: int) -> int:
    """Return where the indented lines that begin at ``index`` end, empty ones among them included."""
    end = index
    while index < len(lines) and (not lines[index].strip() or lines[index][0].isspace()):
        index += 1
        if lines[index - 1].strip():
            end = index
    return end


def _joined(lines: list[str]) -> str:
    """Return the prose without the gaps that the sections have left."""
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
# The type in parentheses may have some of its own.
_GOOGLE_ENTRY: Final = re.compile(
    r"(?:[-+*]\s+)?(?P<names>[`*\w]+(?:\s*,\s*[`*\w]+)*)\s*(?:\((?:[^()]|\([^()]*\))*\))?(?:\s*:|\s+--?(?=\s))(?P<text>.*)"
)
_NUMPY_ENTRY: Final = re.compile(r"(?P<names>[^\s:][^:]*)(?P<text>)")
