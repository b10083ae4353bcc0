"""``patchbay formats``: which formats there are, and which one a model or a checkpoint writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from patchbay.checkpoint import read_config
from patchbay.cli.format_flag import given_format
from patchbay.errors import ConfigurationError
from patchbay.formats.outside.declaredformat import FieldRegions
from patchbay.formats.outside.knownmodels import Hint, format_of
from patchbay.formats.outside.modeltable import KNOWN
from patchbay.formats.outside.recognise import Reasoning, Recognition, recognise
from patchbay.formats.rows import Format
from patchbay.formats.table import FORMATS, choose
from patchbay.formats.writing import WRITERS, render_calls
from patchbay.types import ToolCall

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_EXAMPLE = ToolCall("call_1", "get_weather", '{"city": "Paris", "days": 3}')

Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]

formats = typer.Typer(
    name="formats", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich", context_settings=_CONTEXT
)


@formats.callback(invoke_without_command=True)
def every(ctx: typer.Context, as_json: Json = False) -> None:
    """List the formats; say which one a model or a checkpoint writes.

    [bold]Examples[/bold]

      patchbay formats

      patchbay formats show hermes

      patchbay formats model qwen3-coder:30b

      patchbay formats derive ./my-checkpoint/tokenizer_config.json
    """  # fmt: skip
    if ctx.invoked_subcommand is not None:
        return
    if as_json:
        _print_json([_described(row) for row in FORMATS.values()])
        return
    _print_table(
        ("format", "auto", "writes", "begins with", "families"),
        ((row.name, _mark(row.auto), _mark(_writes(row)), _first_mark(row), "; ".join(row.families)) for row in FORMATS.values()),
    )


@formats.command(context_settings=_CONTEXT)
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME|PATH", help="The format's name, or a file that shows it.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Show one format: its markers, who writes it, and what a call looks like.

    [bold]Examples[/bold]

      patchbay formats show kimi_k2

      patchbay formats show ./acme.toml
    """  # fmt: skip
    given = given_format(name)
    if given == "auto":
        raise ConfigurationError("'auto' is no format of its own: it looks for those that 'patchbay formats' lists.")
    (row,) = choose(given)
    described = _described(row)
    if as_json:
        _print_json(described)
        return
    _print_facts(
        {
            "format": row.name,
            "families": "; ".join(row.families),
            "auto": "finds it" if row.auto else "does not look for it",
            "calls": _marks(described["markers"]),
            "reasoning": "; ".join(_span(opener, closer) for opener, closer in described["reasoning"]),
            "special tokens": f"{len(row.leaks)} are left out where they show (--json names them)" if row.leaks else "",
            "prompts": "in its own way" if _writes(row) else "with the fenced contract",
        }
    )
    if described["example"]:
        print(f"\nA call as such a model writes it:\n\n{described['example']}")


@formats.command(context_settings=_CONTEXT)
def model(
    name: Annotated[
        str,
        typer.Argument(metavar="[MODEL]", help="Its name, as an Ollama tag, an id or a file. Without: all known names."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Say which format a model's name hints at; exit with 1 if it hints at none.

    [bold]Examples[/bold]

      patchbay formats model qwen2.5-coder:7b-instruct-q4_K_M

      patchbay formats model mistralai/Devstral-Small-2507 --json
    """  # fmt: skip
    if not name:
        _list_models(as_json=as_json)
        return
    hint = format_of(name)
    if as_json:
        _print_json(None if hint is None else asdict(hint))
    elif hint is None:
        print(f"{name}: not a known name. Reading finds the format from the text; the prompt uses the fenced contract.")
    else:
        _print_facts({"model": name, "format": hint.format, "why": hint.why, "reasoning": _hinted(hint)})
    if hint is None:
        raise typer.Exit(1)


@formats.command(context_settings=_CONTEXT)
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
    """Say which format a checkpoint writes and what shows it; exit with 1 if nothing does.

    [bold]Examples[/bold]

      patchbay formats derive tokenizer_config.json

      patchbay formats derive ./my-checkpoint --json
    """  # fmt: skip
    found = recognise(read_config(path))
    use = str(path) if found.response_template is not None else found.format
    if as_json:
        _print_json(_found(found, use))
    else:
        _print_facts(_told(path, found, use))
    if use is None:
        raise typer.Exit(1)


def _described(row: Format) -> dict[str, Any]:
    return {
        "name": row.name,
        "families": list(row.families),
        "auto": row.auto,
        "writes": _writes(row),
        "markers": _openers(row),
        "reasoning": [["".join(thought.openers[:1]), "".join(thought.closers[:1])] for thought in row.thoughts],
        "special_tokens": list(row.leaks),
        "example": render_calls(row.name, [_EXAMPLE]) if _writes(row) else None,
    }


def _first_mark(row: Format) -> str:
    return next(map(_mark_text, _openers(row)), "")


def _openers(row: Format) -> list[str]:
    declared = row.regions.fields if isinstance(row.regions, FieldRegions) else ()
    return [
        *(opener for wrapper in row.wrappers for opener in wrapper.openers),
        *(start for field in declared if field.role == "calls" and field.open for start in field.open.starts),
    ]


def _writes(row: Format) -> bool:
    """Whether a model is asked for this format in its own words, and not with the contract of another."""
    return row.name in WRITERS or row.name == "fenced"


def _list_models(*, as_json: bool) -> None:
    known = {name: row.format for row in KNOWN for name in row.names if row.format is not None}
    if as_json:
        _print_json(known)
        return
    by_format: dict[str, list[str]] = {}
    for name, format_name in known.items():
        by_format.setdefault(format_name, []).append(name)
    _print_table(("format", "words in a model's name"), ((name, ", ".join(words)) for name, words in by_format.items()))


def _hinted(hint: Hint) -> str:
    if hint.reasons is None:
        return "as the request asks"
    if not hint.reasons:
        return "none"
    return "yes, and the prompt opens it" if hint.reasoning_prefilled else "yes"


def _found(found: Recognition, use: str | None) -> dict[str, Any]:
    template = found.response_template
    return {
        "use": use,
        "format": found.format,
        "source": found.source or None,
        "evidence": list(found.evidence),
        "rule": found.rule or None,
        "reasoning": [asdict(reasoning) for reasoning in found.reasoning],
        "response_template": None if template is None else {field.name: field.role for field in template.fields},
        "problem": found.problem or None,
    }


def _told(path: Path, found: Recognition, use: str | None) -> dict[str, str]:
    declared = found.response_template
    template = ""
    if declared is not None:
        template = "declares " + ", ".join(f"{field.name} ({field.role})" for field in declared.fields)
    elif found.problem:
        template = f"cannot be used: {found.problem}"
    row = FORMATS.get(found.format or "")
    return {
        "checkpoint": str(path),
        "response_template": template,
        "format": found.format or ("none was recognised" if declared is None else ""),
        "found in": found.source if found.format else "",
        "by": found.rule,
        "families": "; ".join(row.families) if row else "",
        "reasoning": "; ".join(map(_opened, found.reasoning)),
        "use": f"--format {use}" if use is not None else "--format auto, which finds out from the text",
    }


def _opened(reasoning: Reasoning) -> str:
    marks = _span(reasoning.opener, reasoning.closer)
    if reasoning.prefilled is None:
        return (
            f"{marks}; the prompt opens it if {reasoning.when}" if reasoning.when else f"{marks}; who opens it is not to be seen"
        )
    return f"{marks}; opened by the {'prompt' if reasoning.prefilled else 'model'}"


def _span(opener: str, closer: str) -> str:
    return f"{_mark_text(opener) or 'the beginning'} to {_mark_text(closer) or 'the end'}"


def _marks(marks: Iterable[str]) -> str:
    return "  ".join(map(_mark_text, marks))


def _mark_text(marker: str) -> str:
    return marker.replace("\n", "\\n")


def _mark(value: bool) -> str:
    return "yes" if value else "-"


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


def _print_facts(facts: Mapping[str, str]) -> None:
    """Print what is known, each fact on a line of its own; markers must not be broken, so no line is wrapped."""
    told = {name: value for name, value in facts.items() if value}
    width = max(map(len, told)) + 2
    for name, value in told.items():
        print(f"{name:<{width}}{value}")


def _print_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*head, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)
