"""The generated tables of docs/reference: commands, HTTP, configuration, events, errors, the Python API.

    python scripts/reference.py cli|http|configuration|events|errors|python

``scripts/check_docs.py --write`` writes them between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OPENAPI = ROOT / "tests" / "oracle" / "openapi" / "serve.json"
"""What ``patchbay serve`` describes with every option on; ``make oracle`` keeps it current."""

EVENTS = {
    "The runner": ("patchbay.loop", "`ToolRunner.run_stream` and `loop.turn` yield these."),
    "Realtime and chat sessions": (
        "patchbay.realtime",
        "`session.events()` yields these. The tool events are those of a turn, without `iteration`.",
    ),
    "The parser": ("patchbay.formats", "`StreamParser.feed` and `StreamParser.close` return these. They have no `type`."),
    "Observers": (
        "patchbay.hooks",
        "Observers get one `Event` for each of these kinds; `patchbay tail` and `GET /api/events` show them.",
    ),
    "Agents": ("patchbay.agents", "`Runner.run` yields `Event`; subscribers of an `EventBus` get `BusEvent`."),
}
PACKAGES = ("patchbay", *map("patchbay.{}".format, (
    "proxy", "models", "tools", "agents", "realtime", "hooks", "hooks.sdk", "approvals", "audit", "media", "plugins", "server",
    "loop", "executor", "formats", "schema", "errors", "types", "testing",
)))  # fmt: skip
PARSER_EVENTS = ("TextDelta", "ReasoningDelta", "TextWasReasoning", "CallStart", "CallArguments", "CallEnd", "CallCut")


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *map(list, rows)]
    if len(lines) == 1:
        return ""
    cells = [" | ".join(map(escaped, line)) for line in lines]
    return "\n".join([f"| {cells[0]} |", f"|{'---|' * len(lines[0])}", *(f"| {line} |" for line in cells[1:])]) + "\n"


def escaped(cell: str) -> str:
    """Escape what would end a cell, or be read as HTML outside of code."""
    cell = cell.replace("|", "\\|").replace("\n", " ")
    return re.sub(r"`[^`]*`|<", lambda found: "&lt;" if found[0] == "<" else found[0], cell)


def markdown(docstring: str | None) -> str:
    """Return the first paragraph of a docstring, its double backticks as single ones."""
    paragraph = inspect.cleandoc(docstring or "").split("\n\n")[0]
    return re.sub(r"``(.+?)``", r"`\1`", " ".join(paragraph.split()))


# Commands


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command by its full name, groups before their members."""
    from patchbay.cli import commands as cli

    for name in cli.COMMANDS:
        waiting = [(name, cli._load(name))]  # noqa: SLF001  (a command as it runs)
        while waiting:
            title, command = waiting.pop(0)
            yield title, command
            waiting += [(f"{title} {sub}", each) for sub, each in getattr(command, "commands", {}).items()]


def summary(text: str | None) -> str:
    return " ".join((text or "").split("\f")[0].split("\n\n")[0].split())


def options(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.param_type_name == "option" and not parameter.hidden]


def default_of(option: Any) -> str:
    value = option.default
    if value in (None, False, "", ()) or callable(value) or repr(value).startswith("Sentinel"):
        return ""
    return f"`{getattr(value, 'value', value)}`"


def flags_of(option: Any) -> str:
    return ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])


def cli() -> str:
    parts = []
    for title, command in commands():
        members = getattr(command, "commands", None)
        parts.append(f"{'##' if ' ' not in title else '###'} patchbay {title}\n\n{summary(command.help)}\n")
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        if members:
            parts.append(f"```text\npatchbay {title} COMMAND\n```\n")
            parts.append(table(("command", "meaning"), ((f"`{name}`", summary(each.help)) for name, each in members.items())))
            continue
        words = [
            f"[{each.metavar or each.name.upper()}]" if not each.required else each.metavar or each.name.upper()
            for each in arguments
        ]
        parts.append("```text\n" + " ".join(["patchbay", title, *words, "[OPTIONS]"]) + "\n```\n")
        rows = (
            (flags_of(each), (each.help or "").rstrip(), default_of(each))
            for each in sorted(options(command), key=lambda each: each.opts[-1])
            if each.name != "help"
        )
        parts.append(table(("flag", "meaning", "default"), rows))
    return "\n".join(filter(None, parts))


# HTTP


def http() -> str:
    described = json.loads(OPENAPI.read_text(encoding="utf-8"))
    parts = []
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            parts.append(f"### {method.upper()} {path}\n\n{operation.get('summary', '')}.\n")
            parameters = (
                (f"`{each['name']}`", each["in"], kind_of(each.get("schema", {})), each.get("description", ""))
                for each in operation.get("parameters", ())
            )
            parts.append(table(("parameter", "in", "type", "meaning"), parameters))
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            if body:
                parts.append(f"Body: {kind_of(body)}.\n")
            answers = (
                (f"`{status}`", each.get("description", ""), content_of(each)) for status, each in operation["responses"].items()
            )
            parts.append(table(("status", "meaning", "body"), answers))
    parts.append("## Bodies\n")
    for name, schema in described["components"]["schemas"].items():
        required = schema.get("required", ())
        rows = (
            (f"`{key}`", kind_of(each), "yes" if key in required else "", each.get("description", ""))
            for key, each in schema.get("properties", {}).items()
        )
        parts.append(
            f"### {name}\n\n{markdown(schema.get('description'))}\n\n{table(('member', 'type', 'required', 'meaning'), rows)}"
        )
    return "\n".join(filter(None, parts))


def content_of(answer: dict[str, Any]) -> str:
    return ", ".join(kind_of(each.get("schema", {})) or kind for kind, each in answer.get("content", {}).items())


def kind_of(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(filter(None, map(kind_of, schema[union])))
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    kind = schema.get("type", "")
    if kind == "array":
        return f"array of {kind_of(schema.get('items', {})) or 'anything'}"
    return f"`{schema['const']}`" if "const" in schema else str(kind)


# Configuration


def configuration() -> str:
    """Environment variables of every command; the keys of files are described by hand."""
    found: dict[str, tuple[set[str], Any]] = {}
    for title, command in commands():
        if getattr(command, "commands", None):
            continue
        for option in options(command):
            names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
            for name in names:
                found.setdefault(name, (set(), option))[0].add(title)
    rows = (
        (f"`{name}`", flags_of(option), ", ".join(f"`{title}`" for title in sorted(titles)), option.help or "")
        for name, (titles, option) in sorted(found.items())
    )
    return table(("variable", "flag", "commands", "meaning"), rows)


# Events


def events() -> str:
    parts = []
    for title, (package, about) in EVENTS.items():
        module = importlib.import_module(package)
        parts.append(f"## {title}\n\n`{package}`. {about}\n")
        if package == "patchbay.hooks":
            from patchbay.hooks.process.protocol import KINDS

            parts.append(table(("kind",), ((f"`{kind}`",) for kind in sorted(KINDS))))
            continue
        names = PARSER_EVENTS if package == "patchbay.formats" else [n for n in module.__all__ if n.endswith("Event")]
        for name in names:
            cls = getattr(module, name)
            if not inspect.isclass(cls) or not dataclasses.is_dataclass(cls):
                continue
            kind = f' (`type: "{cls.type}"`)' if isinstance(getattr(cls, "type", None), str) else ""
            rows = ((f"`{each.name}`", f"`{each.type}`") for each in dataclasses.fields(cls))
            parts.append(f"### {name}\n\n{markdown(cls.__doc__)}{kind}\n\n{table(('field', 'type'), rows)}")
    return "\n".join(filter(None, parts))


# Errors


def errors() -> str:
    from patchbay import errors as tree

    def below(cls: type, depth: int) -> Iterator[tuple[type, int]]:
        yield cls, depth
        for each in cls.__subclasses__():
            if each.__module__ == tree.__name__:
                yield from below(each, depth + 1)

    rows = (
        (
            "&nbsp;&nbsp;" * depth + f"`{cls.__name__}`",
            ", ".join(f"`{base.__name__}`" for base in cls.__bases__ if base.__module__ == "builtins"),
            f"`{cls.code}`",
            str(cls.status),
            "yes" if cls.retryable else "",
            markdown(cls.__doc__),
        )
        for cls, depth in below(tree.PatchbayError, 0)
    )
    return table(("class", "is also a", "code", "HTTP", "retryable", "meaning"), rows)


# Python


def python() -> str:
    """Public classes and functions of each package; the site has the whole docstrings in the place of ``<!-- api: ... -->``."""
    parts = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        members = {name: getattr(module, name) for name in getattr(module, "__all__", vars(module)) if not name.startswith("_")}
        rows = (
            (f"`{name}`", markdown(each.__doc__))
            for name, each in sorted(members.items(), key=lambda member: member[0].lower())
            if (inspect.isclass(each) or inspect.isroutine(each)) and (hasattr(module, "__all__") or each.__module__ == package)
        )
        parts.append(f"## {package}\n\n{table(('name', 'meaning'), rows)}\n<!-- api: {package} -->\n")
    return "\n".join(filter(None, parts))


TABLES = {each.__name__: each for each in (cli, http, configuration, events, errors, python)}

if __name__ == "__main__":
    print(TABLES[sys.argv[1]]())
