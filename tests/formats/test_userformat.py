"""User-defined formats: the file becomes a catalog row, and errors in it name their path."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from patchbay.errors import ConfigurationError
from patchbay.formats import Format
from patchbay.formats.checkpoint.declarations import Match
from patchbay.formats.checkpoint.declared_format import FieldRegions
from patchbay.formats.checkpoint.response_template import Field, ReadCall
from patchbay.formats.checkpoint.user_format import user_format
from patchbay.formats.spec import ReasoningMarkers, Wrapper, first_part, last_part

SMALL = """
name = "acme"
[[calls]]
open = "<acme:call>"
"""

WHOLE = """
name = "acme"
families = ["Acme 7B", "Acme 70B"]
drop = "<|acme_end|>"

[[calls]]
open = ["<acme:call>", "<acme:calls>"]
close = ["</acme:call>", "</acme:calls>"]
leads = "<|json|>"

[[calls]]
open = "<|call|>"
body = "named"
separators = ["<|id|>", "<|args|>"]
name_is = "first"

[[reasoning]]
open = "<plan>"
close = "</plan>"

[[reasoning]]
open = "<|think|>"
close = "<|/think|>"
anywhere = true
"""


def test_minimal_file_declares_a_format() -> None:
    row = user_format(SMALL)
    assert ("acme", False, None) == (row.name, row.auto, row.regions)
    assert (Wrapper(openers=("<acme:call>",)),) == row.wrappers


def test_complete_file_becomes_a_catalog_row() -> None:
    row = user_format(WHOLE)
    assert ("Acme 7B", "Acme 70B") == row.families
    assert ("<|acme_end|>",) == row.control_tokens
    plain, named = row.wrappers
    assert (
        Wrapper(("<acme:call>", "<acme:calls>"), ("</acme:call>", "</acme:calls>"), noise_markers=("<|json|>",), name=last_part)
        == plain
    )
    assert Wrapper(("<|call|>",), separators=("<|id|>", "<|args|>"), name=first_part) == named
    assert (
        ReasoningMarkers(("<plan>",), ("</plan>",)),
        ReasoningMarkers(("<|think|>",), ("<|/think|>",), special=True),
    ) == row.reasoning_markers


def only_field(row: Format) -> Field:
    """The one kind of region that no marker of a row describes."""
    assert isinstance(row.regions, FieldRegions)
    (field,) = row.regions.fields
    return field


def test_own_keys_are_read() -> None:
    field = only_field(user_format(SMALL + 'close = "</acme:call>"\nname_key = "do"\narguments_key = "with.these"\n'))
    assert [ReadCall("f", '{"a": 1}', None), ReadCall("g", "{}", None)] == field.calls(
        '[{"do": "f", "with": {"these": {"a": 1}}}, {"do": "g", "with": {"these": {}}}]', {}
    )
    assert [ReadCall("f", '{"a": 1}', None)] == field.calls('{"do": "f", "with": {"these": {"a": 1}}}', {})


TAGS = """
name = "acme"
[[calls]]
open = "<calls>"
close = "</calls>"
body = "tags"
call = '<do what="{name}">'
call_end = "</do>"
parameter = "<set {key}>"
parameter_end = "</set>"
"""


def test_calls_as_tags_are_read() -> None:
    row = user_format(TAGS)
    field = only_field(row)
    assert field.open is not None
    assert Match(18, {"name": "get.it"}) == field.open.match('<do what="get.it">', 0)
    assert [ReadCall("get.it", '{"a": "\\n1\\n", "b": "x"}', {"a": "\n1\n", "b": "x"})] == field.calls(
        "<set a>\n1\n</set> <set b>x</set>", {"name": "get.it"}
    )
    assert ("<calls>", "</calls>") == row.control_tokens


@pytest.mark.parametrize(("trim", "expected"), [("none", "\n  x\n"), ("line", "  x"), ("space", "x")])
def test_trim_option_defines_which_whitespace_is_markup(trim: str, expected: str) -> None:
    field = only_field(user_format(TAGS + f'trim = "{trim}"\n'))
    (call,) = field.calls("<set a>\n  x\n</set>", {"name": "f"})
    assert {"a": expected} == call.raw


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "The format file is not TOML"),
        ("", "name is missing"),
        ('name = "My Format"\n', "name is 'My Format': use lower-case"),
        ('name = "hermes"\n', "name is 'hermes', which is a format that is there already"),
        ('name = "auto"\n', "name is 'auto', which is a format that is there already"),
        ('name = "acme"\n', "calls is missing"),
        ('name = "acme"\ncalls = 3\n', "calls must be a table or a list of tables, not a number"),
        ('name = "acme"\n[[calls]]\n', r"calls\[0\]\.open is missing"),
        (SMALL.replace("open", "opne"), r"calls\[0\]\.opne is not known here \(did you mean 'open'\?\)"),
        (TAGS.replace("call =", "cal ="), r"calls\[0\]\.cal is not known here \(did you mean 'call'\?\)"),
        (SMALL.replace("name", "nmae"), r"nmae is not known here \(did you mean 'name'\?\)"),
        (SMALL + "[[reasoning]]\nopen = '<p>'\ncloze = 'x'\n", r"reasoning\[0\]\.cloze is not known here"),
        (SMALL + "colse = 'x'\n", r"calls\[0\]\.colse is not known here \(did you mean 'close'\?\)"),
        (SMALL + "close = 3\n", r"calls\[0\]\.close must be text or a list of texts"),
        (SMALL + "leads = ['']\n", r"calls\[0\]\.leads must be text or a list of texts, none of them empty"),
        (SMALL.replace("<acme:call>", " "), r"calls\[0\]\.open is white space"),
        (SMALL + "body = 'yaml'\n", r"calls\[0\]\.body is 'yaml', which is not one of json, named, python, tags"),
        (SMALL + "separators = 'x'\n", r"calls\[0\]\.separators is not known here"),
        (SMALL + "body = 'named'\n", r"calls\[0\]\.separators is missing"),
        (SMALL + "body = 'named'\nseparators = 'x'\nname_is = 'middle'\n", "which is not one of first, last"),
        (SMALL + "name_key = 'do'\n", r"calls\[0\]\.close is missing"),
        (SMALL + "close = 'x'\nname_key = 'a b'\n", r"calls\[0\]\.name_key is 'a b': use letters"),
        (TAGS.replace("{name}", "x"), r"calls\[0\]\.call is .* it must hold \{name\} once"),
        (TAGS.replace("<set {key}>", "{key}>"), r"calls\[0\]\.parameter is .* it must hold \{key\} once"),
        (TAGS.replace('call_end = "</do>"', ""), r"calls\[0\]\.call_end is missing"),
        (TAGS.replace('parameter_end = "</set>"', ""), r"calls\[0\]\.parameter_end is missing"),
        (SMALL + "[[reasoning]]\nopen = '<p>'\n", r"reasoning\[0\]\.close is missing"),
        (SMALL + "[[reasoning]]\nopen = '<p>'\nclose = 'x'\nloud = true\n", r"reasoning\[0\]\.loud is not known here"),
        ("drops = ''\n" + SMALL, r"drops is not known here \(did you mean 'drop'\?\)"),
    ],
)
def test_error_in_a_file_names_its_path(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        user_format(text)


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "formats.md"


def test_documented_files_are_valid() -> None:
    files = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert ["acme", "acme_two"] == [user_format(text).name for text in files]


def test_the_documentation_names_every_field() -> None:
    text = PAGE.read_text(encoding="utf-8")
    source = (Path(__file__).parents[2] / "src/patchbay/formats/checkpoint/user_format.py").read_text(encoding="utf-8")
    taken = set(re.findall(r"""(?:declared|_markers|_tag_pattern|texts?|flag|one_of)\((?:declared, )?"(\w+)\"""", source))
    assert {"open", "separators", "parameter_end", "anywhere"} <= taken
    assert [] == sorted(key for key in taken if f"`{key}`" not in text and f"`{key} = " not in text)
