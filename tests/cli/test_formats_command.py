"""``patchbay formats``: the list, the format of a model's name, and that of a checkpoint's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import patchbay as patchbay_package
from patchbay.checkpoint import load_format
from patchbay.errors import ConfigurationError
from patchbay.formats import FORMATS

TEMPLATE = (
    "<tool_call>{}</tool_call>{% if add_generation_prompt %}<A>{% if thinking %}<think>{% else %}</think>{% endif %}{% endif %}"
)


def facts(printed: str) -> dict[str, str]:
    """The lines of a report by their names."""
    return {line.split("  ")[0]: line.partition("  ")[2].strip() for line in printed.splitlines() if "  " in line}


def written(path: Path, config: Any) -> str:
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return str(path)


def test_all_formats_are_listed(patchbay) -> None:
    status, out, err = patchbay("formats")
    assert (0, "") == (status, err)
    assert list(FORMATS) == [line.split()[0] for line in out.splitlines()[1:] if not line.startswith(" ")]
    status, out, _ = patchbay("formats", "--json")
    listed = json.loads(out)
    assert (0, list(FORMATS)) == (status, [row["name"] for row in listed])
    hermes = next(row for row in listed if row["name"] == "hermes")
    assert (True, True, "<tool_call>") == (hermes["auto"], hermes["writes"], hermes["markers"][0])
    assert ["<think>", "</think>"] in hermes["reasoning"]


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_can_be_printed(name: str, patchbay) -> None:
    status, out, err = patchbay("formats", "show", name)
    assert (0, "", name) == (status, err, facts(out)["format"])


def test_printed_format_has_an_example(patchbay) -> None:
    _, out, _ = patchbay("formats", "show", "hermes")
    assert "hermes" == json.loads(patchbay("formats", "show", "hermes", "--json")[1])["name"]
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>' in out


def test_formats_model_prints_the_format_and_the_reason(patchbay) -> None:
    status, out, _ = patchbay("formats", "model", "qwen2.5:7b")
    found = facts(out)
    assert (0, "hermes", "'qwen2.5:7b' has the words of 'qwen 2.5'", "none") == (
        status, found["format"], found["why"], found["reasoning"],
    )  # fmt: skip
    status, out, _ = patchbay("formats", "model", "Qwen/Qwen3.5-4B", "--json")
    assert (0, "qwen3_coder", True) == (status, json.loads(out)["format"], json.loads(out)["reasoning_prefilled"])


def test_unknown_model_name_exits_1_and_known_ones_are_listed(patchbay) -> None:
    status, out, _ = patchbay("formats", "model", "my-own")
    assert (1, True) == (status, "my-own: unknown name" in out)
    assert (1, "null\n", "") == patchbay("formats", "model", "my-own", "--json")
    assert "gpt oss" in patchbay("formats", "model")[1]
    assert "harmony" == json.loads(patchbay("formats", "model", "--json")[1])["gpt oss"]


def test_a_chat_template_is_recognised_and_the_finding_explained(patchbay, tmp_path: Path) -> None:
    path = written(tmp_path / "tokenizer_config.json", {"chat_template": TEMPLATE})
    status, out, _ = patchbay("formats", "derive", path)
    assert 0 == status
    assert {
        "checkpoint": path,
        "format": "hermes",
        "source": "chat template",
        "rule": "'<tool_call>', but not '<tool_calls>['",
        "families": "; ".join(FORMATS["hermes"].families),
        "reasoning": "<think> to </think>; opened by the prompt if thinking",
        "use": "--format hermes",
    } == facts(out)
    status, out, _ = patchbay("formats", "derive", path, "--json")
    assert (0, "hermes", ["<tool_call>"]) == (status, json.loads(out)["format"], json.loads(out)["evidence"])


def test_files_of_a_folder_are_combined(patchbay, tmp_path: Path) -> None:
    written(tmp_path / "tokenizer_config.json", {"model_max_length": 1})
    written(tmp_path / "tokenizer.json", {"added_tokens": [{"content": "<|tool_calls_section_begin|>"}]})
    found = facts(patchbay("formats", "derive", str(tmp_path))[1])
    assert ("kimi_k2", "vocabulary") == (found["format"], found["source"])
    jinja = written(tmp_path / "chat_template.jinja", TEMPLATE)
    assert ["hermes"] * 2 == [facts(patchbay("formats", "derive", place)[1])["format"] for place in (str(tmp_path), jinja)]


@pytest.mark.parametrize("config", [{}, {"model_max_length": 1}, {"chat_template": "{{ messages }}"}])
def test_derive_without_a_match_exits_1_for_file_and_folder(config: dict[str, Any], patchbay, tmp_path: Path) -> None:
    for place in (written(tmp_path / "tokenizer_config.json", config), str(tmp_path)):
        status, out, err = patchbay("formats", "derive", place)
        assert (1, "none recognised", "") == (status, facts(out)["format"], err)
        status, out, _ = patchbay("formats", "derive", place, "--json")
        assert (1, None) == (status, json.loads(out)["format"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "holds no JSON object"),
        ("[" * 100_000, "is no JSON"),
        ('{"chat_template": 3}', "chat_template must be"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_on_one_line(content: str, message: str, patchbay, tmp_path: Path) -> None:
    status, out, err = patchbay("formats", "derive", written(tmp_path / "tokenizer_config.json", content))
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nope"], "Unknown format 'nope'"),
        (["show", "qwen3-coder"], "Unknown format 'qwen3-coder'. Did you mean 'qwen3_coder'?"),
        (["show", "auto"], "'auto' is not a format"),
        (["show", "./acme.toml"], "acme.toml cannot be read"),
        (["show"], "Missing argument 'NAME|PATH'"),
        (["derive", "/nowhere"], "/nowhere cannot be read"),
        (["derive", "{empty}"], "holds none of tokenizer_config.json"),
        (["derive", "{binary}"], "is no text in UTF-8"),
        (["drive"], "No such command 'drive'"),
    ],
)
def test_invalid_usage_is_a_one_line_error(arguments: list[str], message: str, patchbay, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    places = {"{empty}": str(tmp_path / "empty"), "{binary}": str(tmp_path / "binary.json")}
    status, out, err = patchbay("formats", *(places.get(argument, argument) for argument in arguments))
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert message in err


OWN = 'name = "own"\n[[calls]]\nopen = "<own>"\n'


TAGS = """
name = "own"
[[calls]]
open = "<all>"
body = "tags"
call = '<do what="{name}">'
call_end = "</do>"
parameter = "<set {key}>"
parameter_end = "</set>"
"""


@pytest.mark.parametrize(("content", "calls"), [(OWN, "<own>"), (TAGS, '<do what="')])
def test_format_in_a_file_is_printed(content: str, calls: str, patchbay, tmp_path: Path) -> None:
    status, out, err = patchbay("formats", "show", written(tmp_path / "own.toml", content))
    assert (0, "", "own", calls) == (status, err, facts(out)["format"], facts(out)["calls"])


def test_a_format_in_a_file_is_used_from_python(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    own = patchbay_package.load_format(written(path, OWN))
    assert own == patchbay_package.load_format(path)
    (call,) = patchbay_package.parse('<own>{"name": "f", "arguments": {}}', format=own).tool_calls
    assert "f" == call.name


def test_a_file_is_loaded_as_the_format_it_declares_or_shows(tmp_path: Path) -> None:
    assert "own" == load_format(Path(written(tmp_path / "own.toml", OWN))).name
    assert FORMATS["hermes"] is load_format(Path(written(tmp_path / "chat_template.jinja", TEMPLATE)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("own.toml", OWN + "opne = 1", r"own\.toml: calls\[0\]\.opne: extra inputs"),
        ("a.json", {"chat_template": ""}, r"a\.json shows no format that is known"),
        ("a.json", "{", r"^\S*a\.json is no JSON"),
    ],
)
def test_a_file_that_makes_no_format_is_refused_by_its_name(name: str, content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_format(Path(written(tmp_path / name, content)))
