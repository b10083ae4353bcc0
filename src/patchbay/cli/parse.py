"""``patchbay parse``: show how a model's text is read, and why.

The page is plain text; control characters, which a model may write, are printed as escapes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from patchbay._text import escape_controls
from patchbay.cli.serving import load_format
from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.formats import FORMATS, CallEnd, CallStart, Format, StreamParser
from patchbay.types import Reply, read_specs

_MAX_MARKERS = 12
_MAX_NAMES = 5
_WORD = re.compile(r"[\w\s-]*")  # tool names and keys in a format's spec are not markers


class UnknownTools(StrEnum):
    """Policy for calls of tools that were not offered."""

    text = "text"
    keep = "keep"
    drop = "drop"


def parse(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Model output; - or nothing: standard input.")] = None,
    tools: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Offered tools: OpenAI's list as JSON, or a request that contains it.")
    ] = None,
    format: Annotated[
        str, typer.Option(metavar="NAME|PATH", help="Format name, or a file that defines one; auto detects it.")
    ] = "auto",
    explain_it: Annotated[
        bool, typer.Option("--explain", help="Show the markers found, when each call was known, and calls of unknown tools.")
    ] = False,
    json_it: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    chunks: Annotated[int, typer.Option(min=0, metavar="N", help="Feed the text in pieces of N characters; 0: whole.")] = 0,
    unknown_tools: Annotated[
        UnknownTools,
        typer.Option(
            help="Calls of tools that were not offered: text leaves them in the content, keep emits them, drop removes."
        ),
    ] = UnknownTools.text,
    reasoning_prefilled: Annotated[
        bool | None,
        typer.Option(
            "--reasoning-prefilled/--no-reasoning-prefilled",
            show_default=False,
            help="Whether the prompt already opened the reasoning; detected from the text by default.",
        ),
    ] = None,
    no_reasoning: Annotated[bool, typer.Option("--no-reasoning", help="Leave reasoning in the content.")] = False,
) -> None:
    """Show how a model's text is read: reasoning, content, calls and repairs.

    Exit status: 0 for any text, 2 for an unreadable file or an invalid option. With --chunks, 1 if the pieces are read
    differently from the whole text, which is a bug in Patchbay.

    [bold]Examples[/bold]

      patchbay parse answer.txt --tools tools.json

      ollama run qwen3 "…" | patchbay parse --explain

      patchbay parse answer.txt --format kimi_k2 --chunks 4 --json
    """  # fmt: skip
    options = {
        "format": load_format(format),
        "reasoning": not no_reasoning,
        "reasoning_prefilled": reasoning_prefilled,
        "unknown_tools": unknown_tools.value,
    }
    reader = Reader(None if tools is None else read_tools(tools), options)
    text = read_text(file)
    reply = reader.read(text, chunks)
    explanation = explain(reader, text, reply) if explain_it else None
    print(as_json(reply, explanation) if json_it else as_page(text, reply, explanation))
    if chunks and reply != reader.read(text):
        print(f"patchbay: pieces of {chunks} characters are read differently from the whole text", file=sys.stderr)
        raise typer.Exit(1)


def read_text(file: Path | None) -> str:
    """Read a file or standard input, line ends unchanged. Raises ConfigurationError."""
    name = "standard input" if file is None or str(file) == "-" else str(file)
    try:
        if name == "standard input":
            if sys.stdin.isatty():
                print("Reading from the terminal; Ctrl-D ends the text.", file=sys.stderr)
            return sys.stdin.buffer.read().decode("utf-8")
        return Path(name).read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{name} is not UTF-8: invalid byte {error.start}.") from error


def read_tools(file: Path) -> list[Any]:
    """Read OpenAI's ``tools`` from a file with the list or a request. Raises ConfigurationError."""
    try:
        found = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{file} is not JSON: {error.msg}, line {error.lineno}, column {error.colno}.") from error
    except RecursionError as error:
        raise ConfigurationError(f"{file} is not readable JSON: it is nested too deeply.") from error
    if isinstance(found, dict):
        if "tools" not in found:
            raise ConfigurationError(f"{file} has no 'tools': use OpenAI's list of tools, or a request.")
        found = found["tools"]
    if not isinstance(found, list):
        raise ConfigurationError(f"{file} contains no list of tools.")
    try:
        read_specs(found)
    except InvalidRequestError as error:
        raise ConfigurationError(f"{file}: {error}") from error
    return found


@dataclass(frozen=True)
class Marker:
    """A format marker in the text: number of occurrences, first position in characters, formats that define it."""

    text: str
    count: int
    position: int
    formats: tuple[str, ...]


@dataclass(frozen=True)
class Timing:
    """Number of characters after which a call's name was known and the call was complete."""

    name: str
    known: int
    complete: int | None


@dataclass(frozen=True)
class Explanation:
    """Why a text was read as it was. ``unknown``: tools of calls that stayed text because they were not offered."""

    markers: tuple[Marker, ...]
    timings: tuple[Timing, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Reader:
    """Parses texts with fixed tools and options. Raises ConfigurationError for invalid options."""

    tools: list[Any] | None
    options: dict[str, Any] = field(default_factory=dict)

    def parser(self, **overrides: Any) -> StreamParser:
        """Create a parser, with some options replaced. Ids are the same in every reading, so that replies compare equal."""
        return StreamParser(self.tools, generate_id=lambda index: f"call_{index + 1}", **{**self.options, **overrides})

    def read(self, text: str, chunk: int = 0, **overrides: Any) -> Reply:
        """Parse the text, in pieces of ``chunk`` characters or whole."""
        parser = self.parser(**overrides)
        for at in range(0, len(text), chunk or len(text) or 1):
            parser.feed(text[at : at + (chunk or len(text))])
        parser.close()
        return parser.reply


def explain(reader: Reader, text: str, reply: Reply) -> Explanation:
    """Explain why ``text`` was read as ``reply``."""
    return Explanation(
        markers=tuple(_markers(text, reader.options.get("format"))),
        timings=tuple(_timings(reader.parser(), text)),
        unknown=tuple(_unknown(reader, text, reply)),
    )


def _markers(text: str, chosen: object = None) -> Iterator[Marker]:
    """Yield the markers in the text in order, the longest at each position; also those of a custom ``chosen`` format."""
    formats: dict[str, list[str]] = {}
    for row in (*FORMATS.values(), *([chosen] if isinstance(chosen, Format) and chosen.name not in FORMATS else [])):
        for marker in dict.fromkeys(
            _strings((row.wrappers, row.reasoning_markers, row.answer_markers, row.channels, row.control_tokens))
        ):
            formats.setdefault(marker, []).append(row.name)
    places = {marker: text.find(marker) for marker in formats if not _WORD.fullmatch(marker)}
    found = sorted((place, -len(marker), marker) for marker, place in places.items() if place >= 0)
    longest = {place: marker for place, _, marker in reversed(found)}
    for place, marker in sorted(longest.items())[:_MAX_MARKERS]:
        yield Marker(marker, text.count(marker), place, tuple(formats[marker]))


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings nested in a format's spec."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _strings(part)
    elif is_dataclass(value):
        for declared in fields(value):
            yield from _strings(getattr(value, declared.name))


def _timings(parser: StreamParser, text: str) -> Iterator[Timing]:
    """Parse character by character, as the slowest stream would arrive."""
    known: dict[int, tuple[str, int]] = {}
    complete: dict[int, int] = {}
    for arrived, events in [*((at + 1, parser.feed(char)) for at, char in enumerate(text)), (len(text), parser.close())]:
        for event in events:
            if isinstance(event, CallStart):
                known[event.index] = event.name, arrived
            elif isinstance(event, CallEnd):
                complete[event.index] = arrived
    for index, (name, place) in known.items():
        yield Timing(name, place, complete.get(index))


def _unknown(reader: Reader, text: str, reply: Reply) -> Iterator[str]:
    if reader.tools is None or reader.options.get("unknown_tools") == "keep":
        return
    seen = {tool["function"]["name"] for tool in reader.tools} | {call.name for call in reply.tool_calls}
    for call in reader.read(text, unknown_tools="keep").tool_calls:
        if call.name not in seen:
            seen.add(call.name)
            yield call.name


def as_json(reply: Reply, explanation: Explanation | None) -> str:
    """Format as JSON: OpenAI's calls, the source text of truncated calls in ``raw``, positions in characters."""
    result: dict[str, Any] = {
        "content": reply.content,
        "reasoning": reply.reasoning,
        "tool_calls": [call.to_openai() for call in reply.tool_calls],
        "incomplete": [asdict(call) for call in reply.incomplete],
        "repairs": [asdict(repair) for repair in reply.repairs],
    }
    if explanation is not None:
        result["why"] = asdict(explanation)
    return json.dumps(result, indent=2)


def as_page(text: str, reply: Reply, explanation: Explanation | None) -> str:
    """Format as titled sections; empty sections are left out."""
    sections = [*_reply_sections(text, reply), *(_explanation_sections(text, explanation) if explanation is not None else ())]
    return "\n\n".join(f"{title}\n{_block(lines)}" for title, lines in sections)


def _reply_sections(text: str, reply: Reply) -> Iterator[tuple[str, list[str]]]:
    if reply.reasoning:
        yield "reasoning", reply.reasoning.splitlines()
    if reply.content:
        yield "content", reply.content.splitlines()
    yield "calls", [f"{call.name} {call.raw_arguments}" for call in reply.tool_calls] or ["none"]
    if reply.incomplete:
        yield "truncated", [f"{call.name or 'a call'}: {call.raw}" for call in reply.incomplete]
    if reply.repairs:
        yield "repairs", [f"{repair.kind}, at {_place(text, repair.position)}" for repair in reply.repairs]


def _explanation_sections(text: str, why: Explanation) -> Iterator[tuple[str, list[str]]]:
    if why.markers:
        yield "markers in the text", [_marker(text, marker) for marker in why.markers]
    if why.timings:
        lines = [
            f"{timing.name}: known after {timing.known:,} of {len(text):,} characters, "
            + ("truncated" if timing.complete is None else f"complete after {timing.complete:,}")
            for timing in why.timings
        ]
        yield "calls in a stream", lines
    if why.unknown:
        yield "calls of tools that were not offered (--unknown-tools keep emits them)", [", ".join(why.unknown)]
    if not (why.markers or why.timings or why.unknown):
        yield "why", ["no marker of a format, and nothing that looks like a call of an offered tool"]


def _marker(text: str, marker: Marker) -> str:
    times = f", {marker.count} times" if marker.count > 1 else ""
    more = f" and {len(marker.formats) - _MAX_NAMES} more" if len(marker.formats) > _MAX_NAMES else ""
    return f"{marker.text}  {_place(text, marker.position)}{times} ({', '.join(marker.formats[:_MAX_NAMES])}{more})"


def _block(texts: list[str]) -> str:
    lines = [line for text in texts for line in (text.splitlines() or [""])]
    return "\n".join(f"  {escape_controls(line)}".rstrip() for line in lines)


def _place(text: str, position: int) -> str:
    """Format a position as line and column, from 1."""
    before = text[:position]
    return f"line {before.count(chr(10)) + 1}, column {position - before.rfind(chr(10))}"
