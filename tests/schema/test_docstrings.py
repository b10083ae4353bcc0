"""A docstring's prose is the description; parameter lines of each style are the parameters'."""

from __future__ import annotations

import pytest

from patchbay.schema import FunctionSchema
from patchbay.schema.docstrings import read_docstring

GOOGLE = """Find flights.

Only direct ones: no changes.

Args:
    origin: where from,
        as a code
    day (str): which day

Returns:
    A list.

Raises:
    ValueError: never
"""

SPHINX = """Find flights.

Only direct ones: no changes.

:param origin: where from,
    as a code
:param str day: which day
:return: A list.
:raises ValueError: never
"""

NUMPY = """Find flights.

Only direct ones: no changes.

Parameters
----------
origin : str
    where from,
    as a code
day
    which day

Returns
-------
list
    A list.
"""


EPYDOC = """Find flights.

Only direct ones: no changes.

@param origin: where from,
    as a code
@param day: which day
@return: A list.
"""


@pytest.mark.parametrize("text", [GOOGLE, SPHINX, NUMPY, EPYDOC], ids=["google", "sphinx", "numpy", "epydoc"])
def test_every_docstring_style_gives_the_same_description(text):
    read = read_docstring(text)
    assert "Find flights.\n\nOnly direct ones: no changes." == read.description
    assert {"origin": "where from, as a code", "day": "which day"} == read.parameters


def test_examples_and_notes_of_a_docstring_are_kept_verbatim():
    read = read_docstring("Search.\n\nArgs:\n    q: the query\n\nExample:\n    search('a')\n\nNote:\n    Costs money.\n")
    assert "Search.\n\nExample:\n    search('a')\n\nNote:\n    Costs money." == read.description
    read = read_docstring("Search.\n\nParameters\n----------\nq : str\n    the query\n\nNotes\n-----\nCosts money.\n")
    assert ("Search.\n\nNotes\n-----\nCosts money.", {"q": "the query"}) == (read.description, read.parameters)


@pytest.mark.parametrize(
    "sections",
    [
        "Args:\n    q: the query\n\nReturns:\n    A list.",
        ":param q: the query\n:type q: str\n:returns: A list.\n:raises KeyError: never",
    ],
    ids=["google", "sphinx"],
)
def test_prose_after_the_sections_is_kept(sections):
    read = read_docstring(f"Search.\n\n{sections}\n\nUse it rarely.\nVery rarely.\n")
    assert "Search.\n\nUse it rarely.\nVery rarely." == read.description
    assert {"q": "the query"} == read.parameters


def test_a_docstring_may_begin_with_its_parameters():
    read = read_docstring(
        "Args:\n        q: the query\n        n: how many,\n        at most\n\n    Returns:\n        A list.\n    "
    )
    assert ("", {"q", "n"}) == (read.description, set(read.parameters))


def test_the_lines_of_one_parameter_become_one_line():
    read = read_docstring(
        "S.\n\nArgs:\n    a (dict[str, int], optional): one: two\n        three\n\n        four\n    *rest: more\n    **other: most\n"
    )
    assert {"a": "one: two three four", "rest": "more", "other": "most"} == read.parameters


@pytest.mark.parametrize(
    "text",
    [
        "S.\n\n:param str | None a: one\n:param dict[str, int] b: two\n:param \\*\\*c: three\n:type b: dict\n",
        "S.\n\nArgs:\n    a (Literal['x: y']): one\n    - b (Callable[[int], (str)], optional): two\n    `c` - three\n",
        "S.\n\nArgs:\n    a: one\n\nKeyword Args:\n    b: two\n\nOther Parameters:\n    c: three\n",
        "S.\n\nParameters\n----------\na\n    one\n*b : str, optional\n    two\n\nOther Parameters\n----------------\nc: int\n    three\n",
        "S.\n\nArgs:\n    a: one\n\n:param b: two\n@param c: three\n",
    ],
    ids=["types of several words", "odd entries", "google's other sections", "numpy's other sections", "styles mixed"],
)
def test_each_parameter_is_found_beside_any_others(text):
    read = read_docstring(text)
    assert ("S.", "one", "two", "three") == (read.description, *(read.parameters[name] for name in "abc"))


@pytest.mark.parametrize(
    "text",
    ["S.\n\nArgs:\n    a, b: both\n", "S.\n\n:param a, b: both\n", "S.\n\nParameters\n----------\na, b : float\n    both\n"],
)
def test_one_line_may_be_about_several_parameters(text):
    assert {"a": "both", "b": "both"} == read_docstring(text).parameters


def test_raises_and_returns_sections_describe_no_parameter():
    for section in ("Raises:\n    ValueError: never", ":raises ValueError: never", "Raises\n------\nValueError\n    never"):
        assert {} == read_docstring(f"S.\n\n{section}\n").parameters


def test_the_sphinx_fields_of_the_seed_need_no_empty_line_before_them():
    read = read_docstring("Search the web.\n:param query: The query\n:param max_results: How many\n")
    assert ("Search the web.", {"query": "The query", "max_results": "How many"}) == (read.description, read.parameters)


@pytest.mark.parametrize("text", [None, "", "   \n "])
def test_missing_docstring_gives_no_description(text):
    assert "" == read_docstring(text).description


def test_prose_with_colons_stays_prose():
    text = "Say: hello.\n\nMind this:\n  - one: two\n  - three"
    assert text == read_docstring(text).description


def test_descriptions_reach_the_schema_unless_the_annotation_has_its_own():
    from typing import Annotated

    from pydantic import Field

    def f(origin: str, day: str): ...

    f.__doc__ = GOOGLE
    f.__annotations__["day"] = Annotated[str, Field(description="the day")]
    properties = FunctionSchema(f).json_schema["properties"]
    assert "where from, as a code" == properties["origin"]["description"]
    assert "the day" == properties["day"]["description"]
