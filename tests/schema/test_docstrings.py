"""The whole prose of a docstring is the description; each style's parameter lines are theirs."""

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


@pytest.mark.parametrize("text", [GOOGLE, SPHINX, NUMPY], ids=["google", "sphinx", "numpy"])
def test_each_style_gives_the_same_description_and_parameters(text):
    read = read_docstring(text)
    assert "Find flights.\n\nOnly direct ones: no changes." == read.description
    assert {"origin": "where from, as a code", "day": "which day"} == read.parameters


def test_examples_stay_part_of_what_the_model_reads():
    read = read_docstring("Search.\n\nArgs:\n    q: the query\n\nExample:\n    search('a')\n")
    assert "Search.\n\nExamples:\nsearch('a')" == read.description


@pytest.mark.parametrize("text", [None, "", "   \n "])
def test_no_docstring_is_no_description(text):
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
