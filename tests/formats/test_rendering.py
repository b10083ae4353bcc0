"""Every family writes calls as its chat template does, and its instructions teach that form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from patchbay.errors import ConfigurationError
from patchbay.formats import parse, render_contract
from patchbay.formats.render import WRITERS, render_calls, writer_for
from patchbay.types import ToolCall, ToolResult, ToolSpec

SHARED = Path(__file__).parents[3] / "shared" / "data" / "formats"

CALLS = [
    ToolCall("a", "get_weather", '{"city": "Paris", "days": 3}'),
    ToolCall("b", "set_opts", '{"on": true, "tags": ["a", "b"]}'),
]
"""The calls that the recorded templates were given."""

TOOLS = [
    ToolSpec(
        "get_weather",
        "The weather of a city.",
        {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Its name"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    ),
    ToolSpec(
        "set_opts",
        "",
        {"type": "object", "properties": {"on": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}}}},
    ),
]

RENDERED_AS = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "apriel",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed_oss",
    "Cohere2MoE": "cohere_command",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere_command",
    "GLM-4.6": "glm45",
    "GLM-4.7-Flash": "glm47",
    "Kimi-K2-Instruct": "kimi_k2",
    "Kimi-K2-Thinking": "kimi_k2",
    "Kimi-K3": "kimi_k3",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "minimax_m1",
    "MiniMax-M2": "minimax_m2",
    "MiniMax-M3": "minimax_m3",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron_v2",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen3_coder",
    "Spark2.5": "spark25",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek_v3_json",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek_v3_json",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v31",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek_v4",
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "ling3",
    "meetkai-functionary-medium-v3.1": "functionary_v31",
    "meetkai-functionary-medium-v3.2": "functionary_v32",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral_args",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral_json",
    "moonshotai-Kimi-K2": "kimi_k2",
    "muse-glimmer": "muse",
    "openbmb-MiniCPM5-1B": "minicpm5",
    "tencent-Hy3": "hunyuan_v3",
    "unsloth-Apriel-1.5": "apriel",
    "unsloth-mistral-Devstral-Small-2507": "mistral_args",
    "upstage-Solar-Open-100B": "solar_open",
}
"""The recorded templates whose calls are written byte for byte the same; others write the same with other white space or markers."""

RENDERED_ALONE = {
    "GigaChat3.1-10B-A1.8B": "gigachat3",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3_json",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3_json",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3_json",
}
"""Templates that write one call in a turn."""


@pytest.fixture(scope="module")
def renders() -> dict[str, Any]:
    path = SHARED / "template_renders.json"
    if not path.exists():
        pytest.skip("the recorded templates are not here")
    return json.loads(path.read_text(encoding="utf-8"))


def region(name: str, calls: list[ToolCall]) -> str:
    """The calls of a first turn, without the prose before them."""
    return render_calls(name, calls)


def test_calls_are_written_as_the_chat_template_writes_them(renders: dict[str, Any]) -> None:
    # One family's tokens carry a suffix of the checkpoint; two of the recordings begin behind the first character.
    for template, name in RENDERED_AS.items():
        recorded = "<" + renders[template]["render"].replace(":opensource", "")
        assert region(name, CALLS) in recorded, (template, name)


def test_a_single_call_is_written_as_the_chat_template_writes_it(renders: dict[str, Any]) -> None:
    for template, name in RENDERED_ALONE.items():
        assert region(name, CALLS[:1]) in renders[template]["render"], (template, name)


WHOLE_TURNS = [
    "ByteDance-Seed-OSS", "GLM-4.6", "GLM-4.7-Flash", "Kimi-K2-Thinking", "Kimi-K3", "MiniMax-M2", "MiniMax-M3",
    "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "Spark2.5", "deepseek-ai-DeepSeek-V3.2", "deepseek-ai-DeepSeek-V4",
    "inclusionai-ling-3.0-flash", "openbmb-MiniCPM5-1B", "unsloth-Apriel-1.5", "unsloth-mistral-Devstral-Small-2507",
    "meetkai-functionary-medium-v3.2", "Apriel-1.6-15b-Thinker-fixed", "Apertus-8B-Instruct",
]  # fmt: skip
"""Templates that keep the prose before the calls."""


def test_reasoning_and_prose_are_placed_as_in_the_chat_template(renders: dict[str, Any]) -> None:
    """The generation prompt may have opened the reasoning, and a template may leave it out of the history."""
    for template in WHOLE_TURNS:
        each = renders[template]
        recorded = each["gen_prompt_tail"] + each["render"]
        name = RENDERED_AS[template]
        whole = render_calls(name, CALLS, "Let me check.", "I think." if "I think." in recorded else "")
        assert whole in recorded, template


def test_every_format_of_the_corpus_has_a_writer() -> None:
    path = SHARED / "dev.jsonl.gz"
    if not path.exists():
        pytest.skip("the corpus is not here")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        formats = {json.loads(line)["format"] for line in lines}
    assert {"plain_text"} >= formats - WRITERS.keys()


def test_each_writer_is_listed_under_its_format_name() -> None:
    for name in WRITERS:
        assert name == WRITERS[name].format, name
        assert WRITERS[name] is writer_for(name), name


def test_the_lesson_has_the_tools_a_call_and_a_result_in_the_familys_form() -> None:
    for name in WRITERS:
        writer = WRITERS[name]
        lesson = writer.instructions(TOOLS)
        assert writer.listing(TOOLS) in lesson, name
        assert render_calls(name, [ToolCall("call_0", "example_count", '{"hall": 7, "what": "boxes"}')]) in lesson, name
        assert (
            writer.results([ToolResult(writer.call_id(0, "example_count", "call_0"), "example_count", '{"count": 42}')]) in lesson
        ), name
        assert "example_count" not in writer.instructions(TOOLS, examples=False), name
        for text in ("get_weather", "The weather of a city.", "Its name", "set_opts", "tags"):
            assert text in writer.listing(TOOLS), name


def test_equal_tools_give_equal_bytes() -> None:
    for name in WRITERS:
        again = [ToolSpec(spec.name, spec.description, json.loads(json.dumps(spec.parameters))) for spec in TOOLS]
        assert WRITERS[name].instructions(TOOLS) == WRITERS[name].instructions(again), name


BROKEN = ["", "  ", "not json", '{"a": 1', "[1]", '"text"', '{"a": 1} x', '{"a" 1}', "{'a': 1}", "{", '{"a": ' + "[" * 5000]


def test_non_object_arguments_are_rendered_without_an_error() -> None:
    for raw in BROKEN:
        for name in [*WRITERS, "fenced"]:
            text = render_calls(name, [ToolCall("c", "f", raw)])
            assert "f" in text, (name, raw)
            if raw.strip():
                assert raw.strip()[:3].strip("\"'{") in text


def test_arguments_nested_deeply_raise_nothing() -> None:
    for name in [*WRITERS, "fenced"]:
        raw = '{"a": ' + "[" * 900 + "]" * 900 + "}"
        assert "f" in render_calls(name, [ToolCall("c", "f", raw)]), name


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "gemma4", "pythonic", "minimax_m3", "kimi_k3", "seed_oss", "hermes"])
def test_rendered_numbers_keep_their_digits(name: str) -> None:
    text = render_calls(name, [ToolCall("c", "f", '{"a": 12345678901234567890, "b": [1.0, 1e400], "c": -0.10}')])
    for digits in ("12345678901234567890", "1.0", "1e400", "-0.10"):
        assert digits in text


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("qwen3_coder", "<parameter=a>\nnull\n</parameter>"),
        ("seed_oss", "<parameter=b>[None, True, 'it\\'s \"so\"']</parameter>"),
        ("pythonic", "f(a=None, b=[None, True, 'it\\'s \"so\"'])"),
        ("olmo3", 'f(a=null, b=[null, true, "it\'s \\"so\\""])'),
        ("gemma4", 'call:f{a:null,b:[null,true,<|"|>it\'s "so"<|"|>]}'),
        ("kimi_k3", 'argument key="b" type="array"<|sep|>[null, true, "it\'s \\"so\\""]'),
    ],
)
def test_values_are_spelled_as_the_family_spells_them(name: str, written: str) -> None:
    assert written in render_calls(name, [ToolCall("c", "f", '{"a": null, "b": [null, true, "it\'s \\"so\\""]}')])


def test_key_that_is_not_a_python_name_makes_the_arguments_one_dict() -> None:
    assert "[f({'a-b': 1, 'c': 'x'})]" == render_calls("pythonic", [ToolCall("c", "f", '{"a-b": 1, "c": "x"}')])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "if a < b and c > d: </div>"),
        ("qwen3_coder", "a </parameter> b"),
        ("qwen3_coder", render_calls("qwen3_coder", [ToolCall("c", "f", '{"a": "x"}')])),
        ("hermes", "</tool_call>"),
    ],
)
def test_a_text_that_is_read_back_is_written_as_it_is(name: str, text: str) -> None:
    assert WRITERS[name].holds(text)
    assert [{"a": text}] == read_back(name, text)


@pytest.mark.parametrize(
    ("name", "text", "written"),
    [
        ("qwen3_coder", "a </parameter>\n</function> b", "a <\\/parameter>\n<\\/function> b"),
        ("qwen3_coder", "a <parameter=b>", "a <\\parameter=b>"),
        ("glm45", "</ARG_VALUE>\n</arg_value>", "<\\/ARG_VALUE>\n<\\/arg_value>"),
        ("gemma4", 'a<|"|>}', 'a<\\|"|>}'),
        ("minimax_m3", "]<]minimax[>[</a>", "]\\<]minimax[>[</a>"),
    ],
)
def test_markers_are_escaped_in_a_text_that_would_be_misread(name: str, text: str, written: str) -> None:
    assert not WRITERS[name].holds(text)
    assert [{"a": written}] == read_back(name, text)


def read_back(name: str, text: str) -> list[Any]:
    written = render_calls(name, [ToolCall("c", "f", json.dumps({"a": text}))])
    return [json.loads(call.raw_arguments) for call in parse(written, format=name).tool_calls]


def test_a_closer_inside_a_list_is_escaped_where_lists_are_json() -> None:
    text = render_calls("qwen3_coder", [ToolCall("c", "f", '{"a": ["</parameter>"]}')])
    assert '["\\u003c/parameter>"]' in text


def test_generated_ids_count_the_calls() -> None:
    assert "functions.f:0<|" in render_calls("kimi_k2", [ToolCall("x", "f")])
    assert "functions.f:7" == WRITERS["kimi_k2"].call_id(7, "f", "x")
    assert "call00008" == WRITERS["mistral_json"].call_id(7, "f", "x")
    assert "x" == WRITERS["hermes"].call_id(7, "f", "x")


@pytest.mark.parametrize("name", ["auto", "fenced"])
def test_auto_and_fenced_are_the_contract_with_its_tags(name: str) -> None:
    text = render_contract(TOOLS, format=name, tool_call_tag="call", tool_result_tag="result")
    assert render_contract(TOOLS, tool_call_tag="call", tool_result_tag="result") == text
    assert "```call\n" in text
    assert "```result name=" in text


def test_unknown_format_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="hermez"):
        writer_for("hermez")


def test_chat_template_gets_the_tools_and_a_call() -> None:
    seen: list[Any] = []

    def template(context: Any) -> str:
        seen.append(context)
        return "mine"

    assert "mine" == render_contract(TOOLS, format="hermes", template=template)
    assert WRITERS["hermes"].listing(TOOLS) == seen[0].rendered_tools
    assert ("hermes", tuple(TOOLS)) == (seen[0].format, tuple(seen[0].tools))
    assert '<tool_call>\n{"name": "example", "arguments": {"argument": "value"}}\n</tool_call>' == seen[0].example_call


SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", 1, None], "description": "one\ntwo"},
        "many": {"type": "array", "items": {"type": ["string", "null"]}},
        "deep": {"type": "object", "properties": {"x-y": {"anyOf": [{"type": "number"}, {"$ref": "#/nowhere"}]}}},
        "free": {"type": "object", "default": {}},
    },
    "required": ["kind"],
}


def test_a_schema_is_written_as_typescript() -> None:
    expected = """\
// Does it.
type f = (_: {
// one
// two
kind: "a" | 1 | null,
many?: (string | null)[],
deep?: {
  "x-y"?: number | any,
},
free?: object, // default: {}
}) => any;"""
    assert expected in WRITERS["harmony"].listing([ToolSpec("f", "Does it.", SCHEMA)])


def test_schema_is_rendered_as_in_gemmas_template() -> None:
    parameters = {"type": "object", "properties": {"type": {"type": ["string", "null"], "maxLength": 5}}}
    expected = (
        '<|tool>declaration:f{parameters:{type:<|"|>OBJECT<|"|>,properties:{type:'
        '{type:[<|"|>STRING<|"|>,<|"|>NULL<|"|>],maxLength:5}}}}<tool|>'
    )
    assert expected == WRITERS["gemma4"].listing([ToolSpec("f", "", parameters)])


def test_exponentially_nested_schema_is_listed() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(150):
        schema = {"type": "object", "properties": {"a": schema, "b": {"anyOf": [schema]}}} if _ < 8 else {"items": schema}
    for writer in WRITERS.values():
        assert "f" in writer.listing([ToolSpec("f", "", {"type": "object", "properties": {"a": schema}})])
