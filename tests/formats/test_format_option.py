"""The ``format`` option: a name, a caller's own row, or every detectable format."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchbay import parse
from patchbay.errors import ConfigurationError
from patchbay.formats import FORMATS, Format, render_contract
from patchbay.formats.catalog import choose
from patchbay.formats.render import writer_for
from patchbay.formats.spec import Wrapper
from patchbay.models.options import TextOptions

OWN = Format("acme", families=("Acme 7B",), wrappers=(Wrapper(("<acme:call>",), ("</acme:call>",)),))
TEXT = 'One moment. <acme:call>{"name": "f", "arguments": {"a": 1}}</acme:call>'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}]


def test_auto_format_searches_all_detectable_formats() -> None:
    assert tuple(row for row in FORMATS.values() if row.auto) == choose("auto")


def test_a_name_chooses_one() -> None:
    assert (FORMATS["hermes"],) == choose("hermes")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Hermes", "Did you mean 'hermes'"),
        ("qwen3-coder", "Did you mean 'qwen3_coder'"),
        ("kimi k2", "Did you mean 'kimi_k2'"),
        ("mistal_args", "Did you mean 'mistral_args'"),
        ("Auto", "Did you mean 'auto'"),
        ("nothing like it", "Known formats: auto, fenced, hermes, "),
        ("./acme.toml", r"read by patchbay\.load_format\('\./acme\.toml'\)"),
        (Path("acme.toml"), r"Unknown format 'acme\.toml'.* read by patchbay\.load_format\('acme\.toml'\)"),
        (["hermes"], "Give a format's name"),
    ],
)
def test_unknown_format_error_suggests_similar_names(name: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(TEXT, format=name)


def test_a_row_of_the_callers_own_chooses_itself() -> None:
    assert (OWN,) == choose(OWN)
    reply = parse(TEXT, TOOLS, format=OWN)
    assert ("One moment.", [("f", '{"a": 1}')]) == (
        reply.content.strip(),
        [(call.name, call.raw_arguments) for call in reply.tool_calls],
    )


def test_a_row_of_the_callers_own_may_be_an_option() -> None:
    assert OWN is TextOptions(format=OWN).format


def test_a_row_of_the_callers_own_is_taught_with_the_fenced_contract() -> None:
    assert "fenced" == writer_for(OWN).format
    assert render_contract(TOOLS) == render_contract(TOOLS, format=OWN)


def test_a_row_of_the_table_is_written_like_its_name() -> None:
    assert writer_for("hermes") is writer_for(FORMATS["hermes"])


@pytest.mark.parametrize("unknown", ["text", "keep", "drop"])
def test_unknown_tools_option_equals_the_parsers(unknown: str) -> None:
    assert unknown == TextOptions(unknown_tools=unknown).unknown_tools
    parse(TEXT, TOOLS, unknown_tools=unknown)
