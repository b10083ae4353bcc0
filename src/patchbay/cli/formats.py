"""``patchbay formats``: list formats, and find the one that a model or a checkpoint writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from patchbay.checkpoint import read_config
from patchbay.cli.options import CONTEXT, Json, command_group
from patchbay.cli.serving import load_format
from patchbay.cli.terminal import print_json
from patchbay.errors import ConfigurationError
from patchbay.formats.catalog import FORMATS, choose
from patchbay.formats.detect import Reasoning, Recognition, recognise
from patchbay.formats.model_names import KNOWN, ModelHint, format_of
from patchbay.formats.render import WRITERS, render_calls
from patchbay.formats.spec import Format
from patchbay.formats.user_format import CustomRegions
from patchbay.types import ToolCall

_EXAMPLE = ToolCall("call_1", "get_weather", '{"city": "Paris", "days": 3}')

formats = command_group("formats", "", no_args_is_help=False)


@formats.callback(invoke_without_command=True)
def list_all(ctx: typer.Context, as_json: Json = False) -> None:
    """List the formats, or find the one that a model writes.

    [bold]Examples[/bold]

      patchbay formats

      patchbay formats show hermes

      patchbay formats model qwen3-coder:30b

      patchbay formats derive ./my-checkpoint/tokenizer_config.json
    """  # fmt: skip
    if ctx.invoked_subcommand is not None:
        return
    if as_json:
        print_json([_as_json(row) for row in FORMATS.values()], ensure_ascii=False)
        return
    _print_table(
        ("format", "auto", "writes", "begins with", "families"),
        ((row.name, _yes(row.auto), _yes(_writes(row)), _first_marker(row), "; ".join(row.families)) for row in FORMATS.values()),
    )


@formats.command(context_settings=CONTEXT)
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME|PATH", help="Format name, or a file that defines one.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Show a format: markers, model families, and an example call.

    [bold]Examples[/bold]

      patchbay formats show kimi_k2

      patchbay formats show ./acme.toml
    """  # fmt: skip
    chosen = load_format(name)
    if chosen == "auto":
        raise ConfigurationError("'auto' is not a format: it detects those that 'patchbay formats' lists.")
    (row,) = choose(chosen)
    details = _as_json(row)
    if as_json:
        print_json(details, ensure_ascii=False)
        return
    _print_facts(
        {
            "format": row.name,
            "families": "; ".join(row.families),
            "auto": "yes" if row.auto else "no",
            "calls": _markers(details["markers"]),
            "reasoning": "; ".join(_span(opener, closer) for opener, closer in details["reasoning"]),
            "special tokens": f"{len(row.control_tokens)}, removed from the text (listed by --json)"
            if row.control_tokens
            else "",
            "prompts": "in this format" if _writes(row) else "in the fenced format",
        }
    )
    if details["example"]:
        print(f"\nExample call:\n\n{details['example']}")


@formats.command(context_settings=CONTEXT)
def model(
    name: Annotated[
        str,
        typer.Argument(metavar="[MODEL]", help="Ollama tag, id or file name; by default all known names."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Show the format that a model's name implies; exit with 1 if none.

    [bold]Examples[/bold]

      patchbay formats model qwen2.5-coder:7b-instruct-q4_K_M

      patchbay formats model mistralai/Devstral-Small-2507 --json
    """  # fmt: skip
    if not name:
        _list_models(as_json=as_json)
        return
    hint = format_of(name)
    if as_json:
        print_json(None if hint is None else asdict(hint), ensure_ascii=False)
    elif hint is None:
        print(f"{name}: unknown name. The format is detected from the text; the prompt uses the fenced format.")
    else:
        _print_facts({"model": name, "format": hint.format, "why": hint.why, "reasoning": _reasoning(hint)})
    if hint is None:
        raise typer.Exit(1)


@formats.command(context_settings=CONTEXT)
def derive(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            show_default=False,
            help="tokenizer_config.json, tokenizer.json, a .jinja template, or a checkpoint's folder.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Show the format that a checkpoint writes, with evidence; exit with 1 if none is recognised.

    [bold]Examples[/bold]

      patchbay formats derive tokenizer_config.json

      patchbay formats derive ./my-checkpoint --json
    """  # fmt: skip
    found = recognise(read_config(path))
    if as_json:
        print_json(_recognition_json(found), ensure_ascii=False)
    else:
        _print_facts(_checkpoint_facts(path, found))
    if found.format is None:
        raise typer.Exit(1)


def _as_json(row: Format) -> dict[str, Any]:
    return {
        "name": row.name,
        "families": list(row.families),
        "auto": row.auto,
        "writes": _writes(row),
        "markers": _openers(row),
        "reasoning": [["".join(markers.openers[:1]), "".join(markers.closers[:1])] for markers in row.reasoning_markers],
        "special_tokens": list(row.control_tokens),
        "example": render_calls(row.name, [_EXAMPLE]) if _writes(row) else None,
    }


def _first_marker(row: Format) -> str:
    return next(map(_escape, _openers(row)), "")


def _openers(row: Format) -> list[str]:
    own = row.regions.markers if isinstance(row.regions, CustomRegions) else ()
    return [*(opener for wrapper in row.wrappers for opener in wrapper.openers), *own]


def _writes(row: Format) -> bool:
    """Return True if prompts use this format itself."""
    return row.name in WRITERS or row.name == "fenced"


def _list_models(*, as_json: bool) -> None:
    known = {name: row.format for row in KNOWN for name in row.names if row.format is not None}
    if as_json:
        print_json(known, ensure_ascii=False)
        return
    by_format: dict[str, list[str]] = {}
    for name, format_name in known.items():
        by_format.setdefault(format_name, []).append(name)
    _print_table(("format", "words in a model's name"), ((name, ", ".join(words)) for name, words in by_format.items()))


def _reasoning(hint: ModelHint) -> str:
    if hint.reasons is None:
        return "as requested"
    if not hint.reasons:
        return "none"
    return "yes, opened by the prompt" if hint.reasoning_prefilled else "yes"


def _recognition_json(found: Recognition) -> dict[str, Any]:
    return {
        "format": found.format,
        "source": found.source or None,
        "evidence": list(found.evidence),
        "rule": found.rule or None,
        "reasoning": [asdict(reasoning) for reasoning in found.reasoning],
    }


def _checkpoint_facts(path: Path, found: Recognition) -> dict[str, str]:
    row = FORMATS.get(found.format or "")
    return {
        "checkpoint": str(path),
        "format": found.format or "none recognised",
        "source": found.source if found.format else "",
        "rule": found.rule,
        "families": "; ".join(row.families) if row else "",
        "reasoning": "; ".join(map(_describe, found.reasoning)),
        "use": f"--format {found.format}" if found.format is not None else "--format auto, which detects it from the text",
    }


def _describe(reasoning: Reasoning) -> str:
    marks = _span(reasoning.opener, reasoning.closer)
    if reasoning.prefilled is None:
        return f"{marks}; opened by the prompt if {reasoning.when}" if reasoning.when else f"{marks}; opened by either"
    return f"{marks}; opened by the {'prompt' if reasoning.prefilled else 'model'}"


def _span(opener: str, closer: str) -> str:
    return f"{_escape(opener) or 'start'} to {_escape(closer) or 'end'}"


def _markers(marks: Iterable[str]) -> str:
    return "  ".join(map(_escape, marks))


def _escape(marker: str) -> str:
    return marker.replace("\n", "\\n")


def _yes(value: bool) -> str:
    return "yes" if value else "-"


def _print_facts(facts: Mapping[str, str]) -> None:
    """Print aligned facts without wrapping, which would break markers."""
    facts = {name: value for name, value in facts.items() if value}
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        print(f"{name:<{width}}{value}")


def _print_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*head, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)
