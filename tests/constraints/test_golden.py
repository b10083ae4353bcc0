"""The grammars of some schemas, word for word: a change of them is meant."""

from __future__ import annotations

import pytest

from .golden import grammar_of_row, read_rows

ROWS = read_rows()


@pytest.mark.parametrize("name", ROWS)
def test_grammar_of_a_schema_is_the_one_of_the_table(name: str) -> None:
    assert ROWS[name]["grammar"] == grammar_of_row(ROWS[name])
