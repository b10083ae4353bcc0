"""``patchbay parse``: its page and its JSON, explanations, and unreadable files."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from patchbay import StreamParser

TOOLS = [{"type": "function", "function": {"name": "tide_table", "parameters": {"type": "object", "properties": {}}}}]
TEXT = """\
<think>One harbour.</think>
I ask.
```tool_call
{"name": "tide_table", "arguments": {"harbour": "Brest",}}
```
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "answer.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(TOOLS), encoding="utf-8")
    return file


def sections(page: str) -> dict[str, str]:
    """The parts of a page by their titles."""
    parts = [part.partition("\n") for part in page.rstrip("\n").split("\n\n")]
    return {title: "\n".join(line.removeprefix("  ") for line in body.splitlines()) for title, _, body in parts}


def test_page_and_json_have_every_part_of_the_reply(patchbay, text, tools):
    status, page, _ = patchbay("parse", text, "--tools", tools)
    shown = sections(page)
    assert "line 4, column" in shown.pop("repairs")
    assert (0, {"reasoning": "One harbour.", "content": "I ask.", "calls": 'tide_table {"harbour": "Brest"}'}) == (status, shown)
    assert (status, page) == patchbay("parse", text, "--tools", tools, "--chunks", 3)[:2]
    status, printed, _ = patchbay("parse", text, "--tools", tools, "--json")
    outcome = json.loads(printed)
    assert (0, "I ask.", "One harbour.") == (status, outcome["content"], outcome["reasoning"])
    assert [{"name": "tide_table", "arguments": '{"harbour": "Brest"}'}] == [call["function"] for call in outcome["tool_calls"]]
    assert [] == outcome["incomplete"]
    assert [TEXT.index(",}") + 1] == [repair["position"] for repair in outcome["repairs"]]


def test_text_without_a_call_is_reported(patchbay, tmp_path):
    (tmp_path / "prose.txt").write_text("Low water at noon.")
    assert {"content": "Low water at noon.", "calls": "none"} == sections(patchbay("parse", tmp_path / "prose.txt")[1])
    explained = sections(patchbay("parse", tmp_path / "prose.txt", "--explain")[1])
    assert "no marker of a format" in explained["why"]


def test_truncated_call_is_printed_as_written(patchbay, tmp_path):
    (tmp_path / "cut.txt").write_text('```tool_call\n{"name": "tide_table", "arguments": {"harbour": "Br')
    shown = sections(patchbay("parse", tmp_path / "cut.txt")[1])
    assert shown["truncated"].endswith('{"name": "tide_table", "arguments": {"harbour": "Br')


@pytest.mark.parametrize("place", [[], ["-"]])
def test_text_is_read_from_standard_input(patchbay, monkeypatch, place):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Très\r\nbien".encode())))
    assert json.loads(patchbay("parse", *place, "--json")[1])["content"] == "Très\r\nbien"


def test_explain_shows_marker_positions_and_when_a_call_was_known(patchbay, tmp_path, tools):
    written = 'So:\n<tool_call>\n{"name": "tide_table", "arguments": {}}\n</tool_call>'
    (tmp_path / "hermes.txt").write_text(written)
    status, page, _ = patchbay("parse", tmp_path / "hermes.txt", "--tools", tools, "--explain")
    shown = sections(page)
    assert 0 == status
    assert "<tool_call>  line 2, column 1 (hermes" in shown["markers in the text"]
    assert f"of {len(written)} characters, complete after" in shown["calls in a stream"]
    why = json.loads(patchbay("parse", tmp_path / "hermes.txt", "--tools", tools, "--explain", "--json")[1])["why"]
    (timing,) = why["timings"]
    assert written.index("tide_table") < timing["known"] < timing["complete"] <= len(written)


def test_explain_names_the_tools_that_were_called_and_not_offered(patchbay, tmp_path, tools):
    (tmp_path / "a.txt").write_text('```tool_call\n{"name": "launch_ship", "arguments": {}}\n```')
    page = patchbay("parse", tmp_path / "a.txt", "--tools", tools, "--explain")[1]
    assert ["launch_ship"] == [body for title, body in sections(page).items() if title.startswith("calls of tools")]
    kept = patchbay("parse", tmp_path / "a.txt", "--tools", tools, "--unknown-tools", "keep")[1]
    assert "launch_ship {}" == sections(kept)["calls"]


def test_pieces_that_are_read_otherwise_are_a_failure(patchbay, text, monkeypatch):
    feed = StreamParser.feed
    monkeypatch.setattr(StreamParser, "feed", lambda parser, piece: feed(parser, piece[:2]))
    status, _, complaint = patchbay("parse", text, "--chunks", 3)
    assert (1, "patchbay: pieces of 3 characters are read differently from the whole text\n") == (status, complaint)


def test_control_characters_are_escaped_on_the_terminal(patchbay, tmp_path):
    (tmp_path / "a.txt").write_text("\x1b[2Jred\x07\x9b")
    assert "\\x1b[2Jred\\x07\\x9b" == sections(patchbay("parse", tmp_path / "a.txt")[1])["content"]


def test_tools_of_a_whole_request_are_found(patchbay, text, tmp_path):
    (tmp_path / "request.json").write_text(json.dumps({"model": "m", "tools": TOOLS}))
    assert "tide_table" in sections(patchbay("parse", text, "--tools", tmp_path / "request.json")[1])["calls"]


@pytest.mark.parametrize(
    ("complaint", "content"),
    [
        ("is not JSON: Expecting value, line 2, column 1", b"[\n"),
        ("is not readable JSON: it is nested too deeply", b"[" * 100_000),
        ("has no 'tools'", b'{"name": "tide_table"}'),
        ("contains no list of tools", b'{"tools": 1}'),
        ("'tools[0].function' must be an object", b'[{"type": "function"}]'),
        ("is not UTF-8: invalid byte 1", b"[\xff"),
    ],
)
def test_unreadable_tools_file_is_a_one_line_error(patchbay, text, tmp_path, complaint, content):
    (tmp_path / "tools.json").write_bytes(content)
    status, printed, reply = patchbay("parse", text, "--tools", tmp_path / "tools.json")
    assert (2, "", 1) == (status, printed, reply.count("\n"))
    assert complaint in reply


def test_documented_example_is_the_output(patchbay, tmp_path, tools):
    page = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "parse.md").read_text(encoding="utf-8")
    answer = page.partition("````text\n")[2].partition("````")[0]
    printed = page.partition("\n```text\n")[2].partition("```")[0]
    (tmp_path / "answer.txt").write_text(answer)
    assert printed == patchbay("parse", tmp_path / "answer.txt", "--tools", tools)[1]


def test_a_format_in_a_file_is_read_with(patchbay, tmp_path: Path, tools: Path) -> None:
    own = tmp_path / "acme.toml"
    own.write_text('name = "acme"\n[[calls]]\nopen = "<acme:call>"\nclose = "</acme:call>"\n', encoding="utf-8")
    answer = tmp_path / "answer.txt"
    answer.write_text('<acme:call>{"name": "tide_table", "arguments": {}}</acme:call>', encoding="utf-8")
    status, out, _ = patchbay("parse", answer, "--tools", tools, "--format", own, "--explain", "--json", "--chunks", 3)
    read = json.loads(out)
    assert (0, ["tide_table"]) == (status, [call["function"]["name"] for call in read["tool_calls"]])
    assert ["acme"] == next(marker["formats"] for marker in read["why"]["markers"] if marker["text"] == "<acme:call>")


def test_checkpoint_format_is_used(patchbay, tmp_path: Path, tools: Path) -> None:
    template = tmp_path / "chat_template.jinja"
    template.write_text(
        "<tool_call>\n{{ '{\"name\": ' }}</tool_call>{% if add_generation_prompt %}<A>{% endif %}", encoding="utf-8"
    )
    answer = tmp_path / "answer.txt"
    answer.write_text('<tool_call>{"name": "tide_table", "arguments": {}}</tool_call>', encoding="utf-8")
    for path in (template, tmp_path):
        status, out, _ = patchbay("parse", answer, "--tools", tools, "--format", path, "--json")
        assert (0, ["tide_table"]) == (status, [call["function"]["name"] for call in json.loads(out)["tool_calls"]])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["TEXT", "--format", "nowhere.toml"], "nowhere.toml"),
        (["TEXT", "--format", "morse"], "Unknown format 'morse'"),
        (["TEXT", "--format", "formats.json"], "formats.json"),
        (["nowhere.txt"], "nowhere.txt cannot be read: No such file or directory"),
    ],
)
def test_missing_text_or_format_is_an_error(patchbay, text: Path, arguments: list[str], named: str) -> None:
    status, out, err = patchbay("parse", *(text if each == "TEXT" else each for each in arguments))
    assert (2, "", True) == (status, out, named in err)
