"""Every golden case gives its expected reading, with the format named and with ``auto``, in any split."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from patchbay.formats import FORMATS
from patchbay.types import Reply

from .cuts import cuts_at_many_places, streamed
from .golden import FOLDER, Case, cases

CASES = cases()
OF_FORMAT = {name: [case for case in CASES if case.format == name] for name in dict.fromkeys(case.format for case in CASES)}


def whole(case: Case, way: str) -> Reply:
    return streamed([case.text], case.tools, format=way, **case.options)


@pytest.mark.parametrize("name", ["fenced", "qwen3_coder", "glm45", "deepseek_v31", "harmony", "minimax_m2", "gemma4"])
def test_what_read_a_text_is_freed_without_the_garbage_collector(name: str) -> None:
    """A server would pay for it with each answer. (The readers of calls that nothing marks still hold each other.)"""

    def left_by(case: Case) -> int:
        whole(case, name)
        streamed(list(case.text), case.tools, format=name, **case.options)
        return gc.collect()

    gc.collect()
    gc.freeze()  # for good: each collection after an unfreeze would look through all that the process has loaded
    gc.disable()
    try:
        # A thread that another test has left may make garbage meanwhile, but not at each of three readings.
        assert [] == [case.id for case in OF_FORMAT[name] if all(left_by(case) for _ in range(3))]
    finally:
        gc.enable()


@pytest.mark.parametrize("name", OF_FORMAT)
def test_case_is_read_as_expected_in_any_split(name: str) -> None:
    for case in OF_FORMAT[name]:
        for way in case.ways:
            read_in_pieces(case, way)


def read_in_pieces(case: Case, way: str) -> None:
    """Hold the reading of a case against what is in its text, and the readings in pieces against that."""
    expected = whole(case, way)
    case.check(expected)
    for pieces in (list(case.text), *cuts_at_many_places(case.text, 4)):
        assert expected == streamed(pieces, case.tools, format=way, **case.options), (case.id, way, pieces)


def test_case_ids_are_unique_and_have_a_provenance() -> None:
    assert {1} == set(Counter(case.id for case in CASES).values())
    assert [] == [case.id for case in CASES if not case.provenance.startswith(("catalogue ", "data/", "issue "))]


def test_prose_case_expects_only_content() -> None:
    prose = [case for case in CASES if case.prose]
    assert [] == [case.id for case in prose if case.calls or case.incomplete or case.content or case.reasoning]


def test_every_format_has_three_cases() -> None:
    """The contract's own fences have the laws (tests/laws), and plain text has every case that is prose."""
    counts = Counter(case.format for case in CASES)
    assert [] == [name for name in FORMATS if counts[name] < 3 and name not in {"fenced", "plain_text"}]


def test_formats_of_cases_exist() -> None:
    assert set() == {case.format for case in CASES} - {*FORMATS, "auto"}


def test_the_groups_are_those_of_the_catalogue() -> None:
    expected = [
        "bare_and_prompted",
        "channels",
        "gemma",
        "json_in_tags",
        "key_value_tags",
        "name_outside_json",
        "python_calls",
        "rules",
    ]
    assert sorted([*expected, "tools", "xml_parameters"]) == sorted(file.stem for file in FOLDER.glob("*.toml"))
