"""``patchbay parse``: its flags, and the files it reads. ``parse_why`` finds out why, ``parse_page`` shows what was read."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from patchbay.cli.format_flag import given_format
from patchbay.cli.parse_page import as_json, as_page
from patchbay.cli.parse_why import Reader, explain
from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.types import read_specs


class UnknownTools(StrEnum):
    """What becomes of a call of a tool that was not offered."""

    text = "text"
    keep = "keep"
    drop = "drop"


def parse(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="The model's text; - or nothing: standard input.")] = None,
    tools: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The tools that were offered: OpenAI's list as JSON, or a request that holds it."),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            metavar="NAME|PATH", help="How the model writes its calls: a format, or a file that shows it; auto finds out."
        ),
    ] = "auto",
    explain_it: Annotated[
        bool,
        typer.Option("--explain", help="Say which formats' markers stand where, and what kept other text from being a call."),
    ] = False,
    json_it: Annotated[bool, typer.Option("--json", help="Print all of it as one JSON object.")] = False,
    chunks: Annotated[int, typer.Option(min=0, metavar="N", help="Feed it in pieces of N characters; 0 is the whole text.")] = 0,
    unknown_tools: Annotated[
        UnknownTools,
        typer.Option(
            help="A call of a tool that was not offered: text leaves it in the content, keep makes it a call, drop takes it out."
        ),
    ] = UnknownTools.text,
    reasoning_prefilled: Annotated[
        bool | None,
        typer.Option(
            "--reasoning-prefilled/--no-reasoning-prefilled",
            show_default=False,
            help="Whether the prompt already opened the reasoning; without it, the text shows it.",
        ),
    ] = None,
    no_reasoning: Annotated[bool, typer.Option("--no-reasoning", help="Leave reasoning in the content.")] = False,
) -> None:
    """Show what is read from a model's text: reasoning, content, calls, and what was mended.

    The exit status is 0 when the text was read, whatever is in it, and 2 when a file cannot be read or an option cannot be.
    With --chunks it is 1 when the pieces give another reading than the whole text, which would be a defect of Patchbay.

    [bold]Examples[/bold]

      patchbay parse answer.txt --tools tools.json

      ollama run qwen3 "…" | patchbay parse --explain

      patchbay parse answer.txt --format kimi_k2 --chunks 4 --json
    """  # fmt: skip
    offered = None if tools is None else read_tools(tools)
    reader = Reader(
        offered,
        {
            "format": given_format(format),
            "reasoning": not no_reasoning,
            "reasoning_prefilled": reasoning_prefilled,
            "unknown_tools": unknown_tools.value,
        },
    )
    text = read_text(file)
    reply = reader.read(text, chunks)
    why = explain(reader, text, reply) if explain_it else None
    print(as_json(reply, why) if json_it else as_page(text, reply, why))
    if chunks and reply != reader.read(text):
        print(f"patchbay: pieces of {chunks} characters give another reading than the whole text", file=sys.stderr)
        raise typer.Exit(1)


def read_text(file: Path | None) -> str:
    """The text of a file, or of standard input, its line ends kept. Raises ConfigurationError where it cannot be read."""
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
        raise ConfigurationError(f"{name} is not UTF-8: byte {error.start} cannot be read.") from error


def read_tools(file: Path) -> list[Any]:
    """OpenAI's ``tools`` from a file that holds them or a request with them. Raises ConfigurationError, naming what is wrong."""
    try:
        found = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{file} is not JSON: {error.msg}, line {error.lineno}, column {error.colno}.") from error
    except RecursionError as error:
        raise ConfigurationError(f"{file} is not JSON that can be read: it is nested too deeply.") from error
    if isinstance(found, dict):
        if "tools" not in found:
            raise ConfigurationError(f"{file} holds an object without 'tools': give OpenAI's list of tools, or a request.")
        found = found["tools"]
    if not isinstance(found, list):
        raise ConfigurationError(f"{file} holds no list of tools.")
    try:
        read_specs(found)
    except InvalidRequestError as error:
        raise ConfigurationError(f"{file}: {error}") from error
    return found
