"""``make fidelity``: how rows are read and counted, and the verdicts. Measured figures are not asserted."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from bench.fidelity import __main__ as fidelity
from bench.fidelity import bfcl, carriers, corpora, cost, formats
from bench.fidelity.readings import LIMIT, read

from patchbay import StreamParser
from patchbay.types import Reply, ToolCall

CALL = '```tool_call\n{"name": "f", "arguments": {"a": 1}}\n```'
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}]

FORMATS_SCORE = """
import json

def judge(row, calls, content, reasoning):
    right = [{"name": name, "arguments": json.loads(arguments)} for name, arguments in calls] == row["expected_calls"]
    every = right and content == row["expected_content"]
    return {"calls": right, "all": every, "leak": "<tool_call>" in content, "why": None if right else "args"}
"""
BFCL_SCORE = """
def score_record(row, calls):
    right = bool(calls) == bool(row["possible_answers"])
    return right, None if right else "no_call"
"""


def row(**fields: Any) -> dict[str, Any]:
    """A row of the corpus of formats."""
    default = {"id": "one", "format": "fenced", "cls": "clean", "text": CALL, "tools": TOOLS, "extract_reasoning": True}
    expected = {
        "reasoning_prefilled": False,
        "expected_calls": [{"name": "f", "arguments": {"a": 1}}],
        "expected_content": "",
        "expected_reasoning": "",
    }
    return default | expected | fields


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Write rows and a scorer where a corpus is looked for."""

    def write(name: str, score: str, rows: list[dict[str, Any]]) -> None:
        with gzip.open(tmp_path / "dev.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(one) + "\n" for one in rows)
        (tmp_path / "score.py").write_text(score)
        monkeypatch.setattr(corpora, name, tmp_path / "dev.jsonl.gz")

    corpora.scorer.cache_clear()
    yield write
    corpora.scorer.cache_clear()


def test_a_reading_that_does_not_end_is_stopped(monkeypatch):
    def forever(_parser: StreamParser, _text: str) -> None:
        while True:
            pass

    monkeypatch.setattr(StreamParser, "feed", forever)
    monkeypatch.setattr("bench.fidelity.readings.LIMIT", 0.05)
    assert "took longer than" in read("x", None, 0).error
    assert LIMIT > 1


def test_format_row_is_found_by_name_and_read_whole_and_in_pieces(corpus):
    corpus("FORMATS", FORMATS_SCORE, [row(), row(id="two", expected_calls=[])])
    measured = formats.measure(jobs=1, sample=0, only="")
    assert {"named": 1, "auto": 1} == {way: measured.raw["formats"][way]["calls"] for way in formats.WAYS}
    assert ["two fenced clean", "two fenced clean"] == [failure.row for failure in measured.failures]
    bars = {verdict.what: verdict for verdict in measured.verdicts}
    assert ("50.00 % of 2", False) == (
        bars["Formats, auto: calls right, all texts"].measured,
        bars["Formats, auto: calls right, all texts"].met,
    )
    assert bars["Formats, auto: texts that read otherwise in pieces of 1"].met


def test_a_row_that_expects_a_call_of_a_tool_that_was_not_offered_is_read_by_its_own_policy(corpus):
    text = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
    one = row(text=text, format="hermes", expected_calls=[{"name": "g", "arguments": {}}])
    corpus("FORMATS", FORMATS_SCORE, [one, row(id="two", text=text, format="hermes", expected_calls=[], expected_content=text)])
    measured = formats.measure(jobs=1, sample=0, only="")
    bars = {verdict.what: verdict.measured for verdict in measured.verdicts}
    assert "100.00 % of 2 (50.00 % with unknown tools left in the text)" == bars["Formats, named: calls right, all texts"]
    assert "0" == bars["Formats, named: markup leaked"]  # what was left in the text is prose


def test_a_row_that_reads_otherwise_in_pieces_is_counted(corpus, monkeypatch):
    corpus("FORMATS", FORMATS_SCORE, [row()])
    feed = StreamParser.feed
    monkeypatch.setattr(StreamParser, "feed", lambda parser, piece: feed(parser, piece if len(piece) != 3 else piece.upper()))
    measured = formats.measure(jobs=1, sample=0, only="")
    differing = {verdict.what[-1]: verdict.measured for verdict in measured.verdicts if "named: texts that read" in verdict.what}
    assert {"1": "0 of 1", "3": "1 of 1", "7": "0 of 1"} == differing


def test_benchmark_rows_are_counted_by_content(corpus):
    base = {"model": "m", "family": "g", "tools": TOOLS, "possible_answers": []}
    corpus(
        "BFCL",
        BFCL_SCORE,
        [
            base | {"id": "a", "category": "simple", "text": CALL, "possible_answers": [1]},
            base | {"id": "b", "category": "simple", "text": "no", "possible_answers": [1]},
            base | {"id": "c", "category": "irrelevance", "text": CALL, "call_intent": "none"},
            base | {"id": "d", "category": "irrelevance", "text": "no", "call_intent": "known"},
            base | {"id": "e", "category": "irrelevance", "text": CALL, "call_intent": "unknown"},
        ],
    )
    measured = bfcl.measure(jobs=1, sample=0, only="")
    raw = measured.raw["bfcl"]
    assert (2, 50.0, 1, 1, 0) == (raw["due"], raw["acc"], raw["spurious"], raw["missed"], raw["errors"])
    assert ["no_call", "spurious", "missed_intent"] == [failure.why for failure in measured.failures]


def test_missing_corpus_is_reported_and_the_rest_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(corpora, "FORMATS", corpora.ROOT.parent / "nowhere" / "dev.jsonl.gz")
    assert 0 == fidelity.main(["--only", "formats", "--json", str(tmp_path / "out.json")])
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert ["../nowhere/dev.jsonl.gz is not here"] == [bar["measured"] for bar in outcome["bars"]]
    assert [None] == [bar["met"] for bar in outcome["bars"]]
    assert "formats: skipped" in capsys.readouterr().err


def test_shares_are_rounded_down():
    verdict = corpora.share_at_least("x", 97.0, 96.9999)
    assert ("96.99 %", False) == (verdict.measured, verdict.met)
    assert corpora.share_at_least("x", 97.0, 97.0).met
    assert corpora.count_at_most("x", 0, 0).met
    assert not corpora.count_at_most("x", 0, 1).met
    assert not corpora.no_slow_text("x", [1.0, 5.1]).met


def test_call_of_a_carrier_is_identified_by_its_whole_argument():
    whole = ToolCall("id", carriers.NAME, json.dumps({carriers.KEY: carriers.value(cost.SMALL)}))
    assert cost.is_the_call(Reply(None, tool_calls=(whole,)))
    assert not cost.is_the_call(Reply(None, tool_calls=(ToolCall("id", carriers.NAME, '{"content": "half"}'),)))
    assert not cost.is_the_call(Reply("prose"))
