"""The recorded corpora beside the repository: the bars of ``make fidelity`` (without timing) and the properties of every reading.

The rows are other people's texts, so they are no part of the repository: where they are absent, these tests are skipped.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from bench.fidelity import bfcl, corpora, formats
from bench.fidelity.readings import read
from bench.places import ROOT, UnavailableError

from support.repeated import sampled

from .sound import is_within, lost_words

EVERY = 20
"""Of BFCL, one row in so many: the whole of it is what ``make fidelity`` reads."""


def rows(file: Any) -> list[str]:
    """A corpus, unread; skips the test where it is absent."""
    try:
        corpora.scorer(file.parent)
        return corpora.lines(file)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def cut() -> Iterator[None]:
    """Each text is read by the character and in pieces of random size here; ``make fidelity`` has more sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "PIECES", (1, "random"))
        patch.setattr(bfcl, "CUTS", (1, "random"))
        yield


@pytest.fixture(scope="module")
def recorded(cut: None) -> list[formats.Result]:
    """The corpus of formats, read in every way."""
    return [result for line in rows(corpora.FORMATS) for result in formats.judge(line)]


@pytest.fixture(scope="module")
def called(cut: None) -> list[bfcl.Result]:
    """A sample of BFCL, read in every way. A step that shares a factor with the number of models would see only some of them."""
    return [bfcl.judge(line) for line in rows(corpora.BFCL)[:: EVERY - 1]]


def share(results: list[formats.Result], *, of: str) -> float:
    return 100 * sum(getattr(result, of) for result in results) / len(results)


def table(results: list[formats.Result]) -> str:
    """List the formats that are read wrongly, for the failure message."""
    wrong = Counter(result.format for result in results if not result.right)
    count = Counter(result.format for result in results)
    return "\n".join(f"{name}: {number} of {count[name]} wrong" for name, number in wrong.most_common())


@pytest.mark.parametrize("way", formats.WAYS)
def test_the_calls_of_the_recorded_formats_are_right(recorded: list[formats.Result], way: str) -> None:
    of_way = [result for result in recorded if result.way == way]
    clean = [result for result in of_way if result.cls == "clean"]
    assert formats.CLEAN[way] <= share(clean, of="right"), table(clean)
    assert formats.EVERY[way] <= share(of_way, of="right"), table(of_way)


def test_calls_content_and_reasoning_of_the_recorded_formats_are_right(recorded: list[formats.Result]) -> None:
    named = [result for result in recorded if result.way == "named"]
    assert formats.ALL_THREE <= share(named, of="all_right"), table(named)


def test_the_page_of_rows_that_are_read_otherwise_lists_just_these(recorded: list[formats.Result]) -> None:
    page = (ROOT / "docs" / "project" / "failing-rows.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`((?:vllm|sglang|llama\.cpp|ollama)-\w+-[0-9]{3})`", page))
    failing = {result.row for result in recorded if not result.all_right or result.by_default != (True, True)}
    assert (set(), set()) == (failing - listed, listed - failing)


def test_no_recorded_text_reads_otherwise_in_pieces(recorded: list[formats.Result], called: list[bfcl.Result]) -> None:
    assert [] == [(result.row, result.way, result.differs) for result in recorded if result.differs]
    assert [] == [(result.model, result.row, result.differs) for result in called if result.differs]


def test_no_text_beside_native_calls_reads_otherwise_in_pieces() -> None:
    for line in rows(corpora.BFCL_TEXT)[::5]:
        row = json.loads(line)
        whole, cut = (read(row["text"], row["tools"], cut).reply for cut in (0, "random"))
        assert whole == cut, row["id"]


def test_recorded_texts_neither_raise_nor_leak_nor_give_invalid_json(
    recorded: list[formats.Result], called: list[bfcl.Result]
) -> None:
    assert [] == [(result.row, result.way, result.errors) for result in recorded if result.errors]
    assert [] == [(result.row, result.way) for result in recorded if result.leak]
    assert [] == [(result.row, result.way) for result in recorded if result.why == "invalid_json"]
    assert [] == [(result.model, result.row, result.errors) for result in called if result.errors]
    for result in called:
        for _, arguments in result.calls:
            assert isinstance(json.loads(arguments), dict)


def test_the_calls_of_the_benchmark_are_right(called: list[bfcl.Result]) -> None:
    """A sample lies around the whole's figures: the bars have a point of room here, and none in ``make fidelity``."""
    due = [result for result in called if result.category != "irrelevance"]
    assert bfcl.ACC - 1 <= 100 * sum(result.right for result in due) / len(due)
    quiet = [result for result in called if result.intent == "none"]
    meant = [result for result in called if result.intent == "known"]
    assert bfcl.SPURIOUS >= sum(bool(result.calls) for result in quiet), [result.row for result in quiet if result.calls]
    assert bfcl.MISSED >= sum(not result.calls for result in meant), [result.row for result in meant if not result.calls]


def test_reading_recorded_texts_invents_nothing_and_loses_no_word(called: list[bfcl.Result]) -> None:
    lost = {}
    for line in rows(corpora.FORMATS):
        row = json.loads(line)
        reply = read(row["text"], row["tools"], 0, reasoning=row["extract_reasoning"]).reply
        assert is_within(reply.content, row["text"]), row["id"]
        assert is_within(reply.reasoning, row["text"]), row["id"]
        if words := lost_words(row["text"], reply):
            lost[row["id"]] = words
    assert {} == lost
    for result in called:
        assert is_within(result.content, result.text), result.row


def test_text_without_calls_and_reasoning_is_kept_verbatim(called: list[bfcl.Result]) -> None:
    for result in called:
        if not result.calls and not result.reasoning and not result.incomplete:
            assert (result.text or None) == result.content, result.row


def test_recorded_texts_are_read_equally_in_pieces_with_any_tools() -> None:
    other = {"type": "function", "function": {"name": "zz_other", "parameters": {"type": "object", "properties": {}}}}
    differing = []
    for line in rows(corpora.FORMATS):
        row = json.loads(line)
        for unknown in sampled(("keep", "drop", None), 1):
            options: dict[str, Any] = {"unknown_tools": unknown or "text"}
            whole, *cut = (read(row["text"], [other] if unknown else None, size, **options) for size in (0, 1, 3))
            if whole.error or any(reading.reply != whole.reply for reading in cut):
                differing.append((row["id"], unknown))
    assert [] == differing
