"""User-defined formats: the file becomes a catalog row, and errors in it name their path."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from patchbay import parse
from patchbay.errors import ConfigurationError
from patchbay.formats import user_format as user
from patchbay.formats.spec import ReasoningMarkers, Wrapper, first_part, last_part
from patchbay.formats.user_format import user_format

from .cuts import read
from .test_work import RATIO, Work
from .tools import tool

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


KEYED = SMALL + 'close = "</acme:call>"\nname_key = "do"\narguments_key = "with.these"\n'

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


TOOLS = [tool("f", a={"type": "string"}, n={"type": "integer"}), tool("g")]


@pytest.mark.parametrize(
    ("file", "text", "content", "calls"),
    [
        (KEYED, 'Yes. <acme:call>{"do": "f", "with": {"these": {"n": 1}}}</acme:call>', "Yes. ", [("f", {"n": 1})]),
        (KEYED, '<acme:call>[{"do": "f", "with": {"these": {"n": 1}}}, {"do": "g"}]', None, [("f", {"n": 1}), ("g", {})]),
        (KEYED, """<acme:call>{'do': 'f', 'with': {'these': {'a': '</acme:call>'}}}</acme:call>""", None, [("f", {"a": "</acme:call>"})]),
        (KEYED, '<acme:call>{"do": "h", "with": {}}</acme:call>', '<acme:call>{"do": "h", "with": {}}</acme:call>', []),
        (KEYED, "<acme:call>{}</acme:call>", "<acme:call>{}</acme:call>", []),
        (TAGS, '<calls><do what="f"><set a>\n1\n</set> <set n>2</set></do></calls>', None, [("f", {"a": "\n1\n", "n": 2})]),
        (TAGS, '<do what="g"></do><do what="f"><set a><do what="g"></do></set></do>', None, [("g", {}), ("f", {"a": '<do what="g"></do>'})]),
        (TAGS, 'I <do what="f\n it.', 'I <do what="f\n it.', []),
        (TAGS, 'I <do what="h"></do> it.', 'I <do what="h"></do> it.', []),
    ],
)  # fmt: skip
def test_own_notations_are_read_in_any_pieces(file: str, text: str, content: str | None, calls: list[object]) -> None:
    reply = read(text, TOOLS, format=user_format(file))
    assert (content, calls, ()) == (reply.content, [(call.name, call.arguments) for call in reply.tool_calls], reply.incomplete)


def test_own_notations_are_read_without_tools() -> None:
    (call,) = parse('<do what="get.it"><set n>2</set></do>', format=user_format(TAGS)).tool_calls
    assert ("get.it", {"n": "2"}) == (call.name, call.arguments)


@pytest.mark.parametrize(
    ("file", "text"),
    [(KEYED, '<acme:call>{"do": "f", "with": {'), (KEYED, '<acme:call>{"do": "f", "with"}'), (TAGS, '<do what="f"><set a>1</se')],
)
def test_a_broken_call_is_incomplete(file: str, text: str) -> None:
    reply = read(text, TOOLS, format=user_format(file))
    assert (None, (), [text]) == (reply.content, reply.tool_calls, [call.raw for call in reply.incomplete])


@pytest.mark.parametrize(("trim", "expected"), [("none", "\n  x\n"), ("line", "  x"), ("space", "x")])
def test_trim_option_defines_which_whitespace_is_markup(trim: str, expected: str) -> None:
    (call,) = parse('<do what="f"><set a>\n  x\n</set></do>', format=user_format(TAGS + f'trim = "{trim}"\n')).tool_calls
    assert {"a": expected} == call.arguments


@pytest.mark.parametrize("text", ['<do what="' * 40, '<do what="f"><set a>' * 40, '<acme:call>{"do": ' * 40, "<acme:call>[" * 40])
def test_hostile_text_costs_linear_work(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = user_format(TAGS if text.startswith("<do") else KEYED)
    for cut in (0, 7):
        assert Work(monkeypatch).growth(text, text * 10, cut, format=row) < RATIO


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "The format file is not TOML"),
        ("", "name: field required"),
        (SMALL.replace("acme", "My Format", 1), "name: string should match"),
        (SMALL.replace("acme", "hermes", 1), "name: 'hermes' is a format that is there already"),
        (SMALL.replace("acme", "auto", 1), "name: 'auto' is a format that is there already"),
        ('name = "acme"\n', "calls: field required"),
        ('name = "acme"\ncalls = []\n', "calls: is empty"),
        ('name = "acme"\ncalls = 3\n', "calls: must be a table or a list of tables"),
        ('name = "acme"\n[[calls]]\n', r"calls\[0\]\.open: field required"),
        (SMALL.replace("open", "opne"), r"calls\[0\]\.opne: extra inputs are not permitted"),
        (SMALL + "close = 3\n", r"calls\[0\]\.close: input should be"),
        (SMALL + "leads = ['']\n", r"calls\[0\]\.leads"),
        (SMALL.replace("<acme:call>", " "), r"calls\[0\]\.open: string should match"),
        (SMALL + "body = 'yaml'\n", r"calls\[0\]\.body: 'yaml' is not one of json, named, python, tags"),
        (SMALL + "separators = 'x'\n", r"calls\[0\]\.separators: extra inputs are not permitted"),
        (SMALL + "body = 'named'\n", r"calls\[0\]\.separators: field required"),
        (SMALL + "body = 'named'\nseparators = 'x'\nname_is = 'middle'\n", r"calls\[0\]\.name_is: input should be"),
        (SMALL + "name_key = 'do'\n", r"calls\[0\]\.close: nothing else says"),
        (SMALL + "close = 'x'\nname_key = 'a b'\n", r"calls\[0\]\.name_key: string should match"),
        (TAGS.replace("{name}", "x"), r"calls\[0\]\.call: string should match"),
        (TAGS.replace("<set {key}>", "{key}>"), r"calls\[0\]\.parameter: string should match"),
        (TAGS.replace('call_end = "</do>"', ""), r"calls\[0\]\.call_end: field required"),
        (SMALL + "[[reasoning]]\nopen = '<p>'\n", r"reasoning\[0\]\.close: field required"),
        ("drops = ''\n" + SMALL, "drops: extra inputs are not permitted"),
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
    keys = {key for table in (user.FormatFile, user.ReasoningTable, *user.CALLS.values()) for key in table.model_fields}
    assert {"open", "separators", "parameter_end", "anywhere"} <= keys
    assert [] == sorted(key for key in keys if f"`{key}`" not in text and f"`{key} = " not in text and f"`[[{key}]]`" not in text)
