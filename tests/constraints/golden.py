"""Schemas, and the grammars that are made of them: ``python -m constraints.golden`` in ``tests`` writes the grammars again."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Final

from patchbay.constraints.backends import Backend
from patchbay.constraints.gbnf import Grammar
from patchbay.constraints.plan import ConstraintPlanner
from patchbay.constraints.replies import ReplyRules
from patchbay.constraints.schemas import compile_schema
from patchbay.constraints.values import JSON, ValueWriter
from patchbay.formats.render import writer_for
from patchbay.types import ToolSpec

TABLE: Final = Path(__file__).with_name("grammars.toml")
_HEAD: Final = """\
# Schemas, and the grammars that are made of them: of a value as JSON, or with a `format` of a call of the tool `f` in it; with `copied` its
# arguments are copied from that text. `python -m constraints.golden` in tests/ writes the grammars again: review the difference.
"""


def read_rows() -> dict[str, dict[str, str]]:
    """The rows by their names; ``schema`` is JSON."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def grammar_of_row(row: dict[str, str]) -> str:
    """The grammar of a row's schema."""
    schema: dict[str, Any] = json.loads(row["schema"])
    if "format" not in row:
        grammar = Grammar()
        return grammar.text(ValueWriter(grammar, JSON).value(compile_schema(schema).form))
    planner = ConstraintPlanner([ToolSpec("f", "", schema)], writer_for(row["format"]))
    rules = ReplyRules(needed=True, most=2)
    return str(planner.constraint(Backend.LLAMA_CPP, rules, copied_from=row.get("copied")).fields["grammar"])


def main() -> None:
    """Write the table with the grammars as they are made now."""
    rows = read_rows()
    written = [_HEAD]
    for name, row in rows.items():
        given = [f"{key} = '{row[key]}'" for key in ("format", "copied", "schema") if key in row]
        written.append("\n".join([f"[{json.dumps(name)}]", *given, f"grammar = '''\n{grammar_of_row(row)}'''\n"]))
    TABLE.write_text("\n".join(written), encoding="utf-8")


if __name__ == "__main__":
    main()
