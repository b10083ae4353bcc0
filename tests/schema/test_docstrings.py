"""A docstring's prose is the description; parameter lines of each style are the parameters'."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field

from patchbay.schema import FunctionSchema
from patchbay.schema.docstrings import read_docstring

PROSE = "Find flights.\n\nOnly direct ones: no changes."
SECTIONS = {
    "google": "Args:\n    origin: where from,\n        as a code\n    day (str): which day\n\nReturns:\n    A list.\n\nRaises:\n    ValueError: never\n",
    "sphinx": ":param origin: where from,\n    as a code\n:param str day: which day\n:return: A list.\n:raises ValueError: never\n",
    "numpy": "Parameters\n----------\norigin : str\n    where from,\n    as a code\nday\n    which day\n\nReturns\n-------\nlist\n    A list.\n",
    "epydoc": "@param origin: where from,\n    as a code\n@param day: which day\n@return: A list.\n",
}


@pytest.mark.parametrize("sections", SECTIONS.values(), ids=SECTIONS)
def test_every_docstring_style_gives_the_same_description(sections):
    read = read_docstring(f"{PROSE}\n\n{sections}")
    assert PROSE == read.description
    assert {"origin": "where from, as a code", "day": "which day"} == read.parameters


THREE = {"a": "one", "b": "two", "c": "three"}
BOTH = {"a": "both", "b": "both"}
QUERY = {"q": "the query"}


@pytest.mark.parametrize(
    ("text", "description", "parameters"),
    [
        # Examples and notes are kept verbatim, and so is prose after the sections.
        (
            "S.\n\nArgs:\n    q: the query\n\nExample:\n    search('a')\n\nNote:\n    Costs money.\n",
            "S.\n\nExample:\n    search('a')\n\nNote:\n    Costs money.",
            QUERY,
        ),
        ("S.\n\nParameters\n----------\nq : str\n    the query\n\nNotes\n-----\nOnce.\n", "S.\n\nNotes\n-----\nOnce.", QUERY),
        ("S.\n\nArgs:\n    q: the query\n\nReturns:\n    A list.\n\nRarely.\nVery.\n", "S.\n\nRarely.\nVery.", QUERY),
        (
            "S.\n\n:param q: the query\n:type q: str\n:returns: A list.\n:raises KeyError: never\n\nRarely.\nVery.\n",
            "S.\n\nRarely.\nVery.",
            QUERY,
        ),
        # It may begin with its parameters.
        (
            "Args:\n        q: the query\n        n: many,\n        at most\n\n    Returns:\n        A list.\n    ",
            "",
            {**QUERY, "n": "many, at most"},
        ),
        # The lines of one parameter become one line.
        (
            "S.\n\nArgs:\n    a (dict[str, int], optional): one: two\n        three\n\n        four\n    *rest: more\n    **other: most\n",
            "S.",
            {"a": "one: two three four", "rest": "more", "other": "most"},
        ),
        # Types of several words, odd entries, other sections, styles mixed.
        (
            "S.\n\n:param str | None a: one\n:param dict[str, int] b: two\n:param \\*\\*c: three\n:type b: dict\n",
            "S.",
            {**THREE, "dict[str": "two"},
        ),
        (
            "S.\n\nArgs:\n    a (Literal['x: y']): one\n    - b (Callable[[int], (str)], optional): two\n    `c` - three\n",
            "S.",
            THREE,
        ),
        ("S.\n\nArgs:\n    a: one\n\nKeyword Args:\n    b: two\n\nOther Parameters:\n    c: three\n", "S.", THREE),
        (
            "S.\n\nParameters\n----------\na\n    one\n*b : str, optional\n    two\n\nOther Parameters\n----------------\nc: int\n    three\n",
            "S.",
            THREE,
        ),
        ("S.\n\nArgs:\n    a: one\n\n:param b: two\n@param c: three\n", "S.", THREE),
        # One line may be about several parameters.
        ("S.\n\nArgs:\n    a, b: both\n", "S.", BOTH),
        ("S.\n\n:param a, b: both\n", "S.", BOTH),
        ("S.\n\nParameters\n----------\na, b : float\n    both\n", "S.", BOTH),
        # Other sections describe no parameter.
        ("S.\n\nRaises:\n    ValueError: never\n", "S.", {}),
        ("S.\n\n:raises ValueError: never\n", "S.", {}),
        ("S.\n\nRaises\n------\nValueError\n    never\n", "S.", {}),
        # As in the seed: no empty line before the fields.
        ("S.\n:param query: The query\n:param count: How many\n", "S.", {"query": "The query", "count": "How many"}),
        # Prose with colons stays prose.
        ("Say: hello.\n\nMind this:\n  - one: two\n  - three", "Say: hello.\n\nMind this:\n  - one: two\n  - three", {}),
        *((empty, "", {}) for empty in (None, "", "   \n ")),
    ],
)
def test_prose_is_the_description_and_each_entry_its_parameters(text, description, parameters):
    read = read_docstring(text)
    assert (description, parameters) == (read.description, read.parameters)


def test_descriptions_reach_the_schema_unless_the_annotation_has_its_own():
    def f(origin: str, day: str): ...

    f.__doc__ = f"{PROSE}\n\n{SECTIONS['google']}"
    f.__annotations__["day"] = Annotated[str, Field(description="the day")]
    properties = FunctionSchema(f).json_schema["properties"]
    assert "where from, as a code" == properties["origin"]["description"]
    assert "the day" == properties["day"]["description"]
