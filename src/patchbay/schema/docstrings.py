"""What a docstring says: prose for the model, and a line for each parameter.

Sphinx, Google, NumPy and Epydoc styles. Which lines are a section about parameters, results or errors is decided here, and
all else is prose, word for word: nothing that an author wrote for a reader is lost. What such a section says of each parameter is
``docstring_parser``'s to read.
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
    prose, sections = _split(lines)
    parameters: dict[str, str] = {}
    for style, section in sections.items():
        parameters |= _parameters(style, section)
    return Docstring(_joined(prose), parameters)


def _parameters(style: str, section: list[str]) -> dict[str, str]:
    import docstring_parser

    try:
        # The parser takes what stands first for the summary.
        parsed = docstring_parser.parse("\n".join((".", "", *section)), docstring_parser.DocstringStyle[style])
    except docstring_parser.ParseError:
        return {}
    return {
        # "*args" and "**kwargs" are documented with their stars, and Sphinx wants those escaped.
        parameter.arg_name.lstrip("*\\"): " ".join(parameter.description.split())
        for parameter in parsed.params
        if parameter.description
    }


def _split(lines: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the lines of prose, and by style those of the sections about parameters, results and errors."""
    prose: list[str] = []
    sections: dict[str, list[str]] = {}
    index = 0
    while index < len(lines):
        end = _end_of_section(lines, index)
        if end == index:
            prose.append(lines[index])
            index += 1
            continue
        prose.append("")
        sections.setdefault(_style(lines[index]), []).extend([*_indented(lines[index:end]), ""])
        index = end
    return prose, sections


def _style(header: str) -> str:
    """Return the parser's name for the style of a section that begins with ``header``."""
    if header[0] in ":@":
        return "REST" if header[0] == ":" else "EPYDOC"
    return "GOOGLE" if header.rstrip().endswith(":") else "NUMPYDOC"


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


def _indented(section: list[str]) -> list[str]:
    """Return a section as Google's style wants it: the parser refuses all of it where one line is not."""
    if not _HEADER_WITH_COLON.match(section[0]):
        return section
    margin = min((len(line) - len(line.lstrip()) for line in section[1:] if line.strip()), default=0)
    body = [line[margin:] for line in section[1:]]
    # A line that names nothing goes on with the one before.
    return [section[0], *("    " + line if line[:1].isspace() or ":" in line else "        " + line for line in body)]


def _joined(lines: list[str]) -> str:
    """Return the prose without the gaps that the sections have left."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in lines)).strip()


_NAMES: Final = (
    "Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters|Other Args|Attributes"
    "|Returns?|Yields?|Receives|Raises?|Exceptions?|Except|Warns"
)
_HEADER: Final = re.compile(rf"(?:{_NAMES})\s*\Z")
_HEADER_WITH_COLON: Final = re.compile(rf"(?:{_NAMES})\s*:\s*\Z")
_UNDERLINE: Final = re.compile(r"-{3,}\s*\Z")
_FIELD: Final = re.compile(
    r"[:@](?:param|parameter|arg|argument|attribute|key|keyword|kwarg|type|vartype|var|ivar|cvar"
    r"|returns?|rtype|yields?|ytype|raises?|except|exception|meta)\b[^:\n]*:"
)
