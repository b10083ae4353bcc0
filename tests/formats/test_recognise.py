"""A checkpoint's format is detected from its chat template or vocabulary, with the evidence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.errors import ConfigurationError
from patchbay.formats import FORMATS
from patchbay.formats.detect import (
    RULES,
    Reasoning,
    Recognition,
    Rule,
    recognise,
    recognise_template,
    template_texts,
)


def test_every_rule_names_a_catalog_format() -> None:
    assert [] == [rule.format for rule in RULES if rule.format not in FORMATS]


def witness(rule: Rule) -> str:
    return "\n".join(rule.every + rule.some[:1])


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_rule_is_hidden_by_one_before_it(rule: Rule) -> None:
    assert rule.format == recognise_template(witness(rule)).format


@pytest.mark.parametrize(
    ("expected", "template"),
    [
        ("hermes", "Write <tool_call>\\n{{ '{' }}\"name\": ..., \"arguments\": ...}\\n</tool_call>"),
        ("qwen3_coder", "<tool_call>\\n<function=example>\\n<parameter=one>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>"),
        ("mimo", "{{ '<tool_call><function=' + name + '>' }}<parameter=one>value</parameter></function></tool_call>"),
        ("seed_oss", "{% set begin = '<seed:tool_call>' %}{{ begin + '\\n<function=' + f.name }}<parameter="),
        ("functionary_v31", "{{ '<function=' + call.name + '>' + call.arguments + '</function>' }}"),
        ("glm45", "<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"),
        ("glm47", "<tool_call>{name}<arg_key>{key}</arg_key><arg_value>{value}</arg_value></tool_call>"),
        ("hunyuan_v3", "<tool_calls:open>\n<tool_call:open>{name}<tool_sep:open>\n<arg_key:open>k</arg_key:open>"),
        ("deepseek_v3_json", "{{ '<｜tool▁call▁begin｜>' + t.type + '<｜tool▁sep｜>' + t.name + '\\n```json\\n' }}"),
        ("deepseek_v31", "{{ '<｜tool▁call▁begin｜>' + t.name + '<｜tool▁sep｜>' + t.arguments }}"),
        ("deepseek_v32", "{% set dsml = '｜DSML｜' %}<{{ dsml }}function_calls>\n<{{ dsml }}invoke name=\"f\">"),
        ("deepseek_v4", "{% set dsml = '｜DSML｜' %}{{ '<' ~ dsml ~ 'tool_calls>' }}"),
        ("deepseek_v41", "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">"),
        ("mistral_json", "{{ '[TOOL_CALLS] [' }}{{ call | tojson }}{{ ']' }}"),
        ("mistral_args", "{{ '[TOOL_CALLS]' + call.name + '[ARGS]' + call.arguments }}"),
        ("jamba", "<tool_calls>[\n{\"name\": ...}]</tool_calls>"),
        ("apriel", "Calls stand in <tool_call></tool_call>:\n<tool_calls>[{}]</tool_calls> ... [BEGIN FINAL RESPONSE]"),
        ("minimax_m1", "<tool_calls>\n{\"name\": ...}\n</tool_calls><end_of_sentence>"),
        ("ernie45", "<tool_call>\n{}\n</tool_call>\n<response>\nan answer</response>"),
        ("olmo3", "<function_calls>f(a=1)</function_calls>"),
        ("claude_xml", "<function_calls>\n<invoke name=\"f\">"),
        ("llama3_json", "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its value}"),
        ("kimi_k3", "{{ '<|open|>' + tag + '<|sep|>' }}<|end_of_msg|>"),
        (None, "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"),
        (None, ""),
    ],
)  # fmt: skip
def test_a_template_is_recognised(expected: str | None, template: str) -> None:
    assert expected == recognise_template(template).format


def test_finding_names_its_place_and_evidence() -> None:
    found = recognise({"chat_template": "<tool_call>{}</tool_call>"})
    assert ("hermes", "chat template", ("<tool_call>",), "'<tool_call>', but not '<tool_calls>['") == (
        found.format, found.source, found.evidence, found.rule,
    )  # fmt: skip


def test_tool_template_is_preferred_among_named_templates() -> None:
    named = [
        {"name": "default", "template": "<start_function_call>"},
        {"name": "tool_use", "template": "<TOOLCALL>[]</TOOLCALL>"},
    ]
    found = recognise({"chat_template": named})
    assert ("nemotron_v2", "chat template 'tool_use'") == (found.format, found.source)
    found = recognise({"chat_template": [*named[:1], {"name": "tool_use", "template": "nothing"}]})
    assert ("functiongemma", "chat template 'default'") == (found.format, found.source)


@pytest.mark.parametrize("wrong", [3, {"default": "x"}, ["x"], [{"name": "default"}], [{"name": 1, "template": "x"}]])
def test_chat_template_of_an_unknown_shape_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="chat_template must be text or a list"):
        recognise({"chat_template": wrong})


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"1": {"content": "<|tool_calls_section_begin|>"}, "2": {"content": "<|im_end|>"}}},
        {"added_tokens": [{"id": 1, "content": "<|tool_calls_section_begin|>"}]},
        {"additional_special_tokens": ["<|tool_calls_section_begin|>"]},
        {"extra_special_tokens": {"call": "<|tool_calls_section_begin|>"}, "chat_template": "nothing of use"},
    ],
)
def test_vocabulary_identifies_the_format_if_the_template_does_not(config: dict[str, Any]) -> None:
    found = recognise(config)
    assert ("kimi_k2", "vocabulary") == (found.format, found.source)


def test_token_shared_by_families_is_not_evidence() -> None:
    assert None is recognise({"additional_special_tokens": ["<tool_call>", "<｜tool▁sep｜>", "<|python_tag|>"]}).format


def test_empty_template_has_no_finding() -> None:
    assert Recognition() == recognise({})


THINK = "{%- if message.reasoning %}<think>{{ message.reasoning }}</think>{% endif %}"


def ending(generation: str) -> tuple[bool | None, str]:
    found, *_ = recognise_template("{% for message in messages %}" + THINK + "{% endfor %}" + generation).reasoning
    return found.prefilled, found.when


@pytest.mark.parametrize(
    ("expected", "when", "generation"),
    [
        (True, "", "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"),
        (True, "", "{%- if add_generation_prompt -%}{{ ']b]ai' ~ '\\n' ~ '<think>' ~ '\\n' }}{%- endif -%}"),
        (True, "", "{% set begin = '<think>' %}{% if add_generation_prompt %}{{ role + begin }}{% endif %}"),
        (True, "", "{% if add_generation_prompt and not ns.is_tool %}{{'<Assistant><think>\\n'}}{% endif %}"),
        (False, "", "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"),
        (False, "", "{%- if add_generation_prompt %}a{% if quick is defined and quick %}<think>\n\n</think>{% endif %}{% endif %}"),
        (False, "", "{% if add_generation_prompt %}<A>{{- '<think></think>' if quick else '' -}}{% endif %}"),
        (None, "thinking", "{% if add_generation_prompt %}<A>{% if thinking %}<think>{% else %}</think>{% endif %}{% endif %}"),
        (None, "not (quick)", "{% if add_generation_prompt %}<A>{{ '</think>' if quick else '<think>' }}{% endif %}"),
        (None, "effort == 'high'",
         "{% if add_generation_prompt %}<A>{% if quick %}{% elif effort == 'high' %}<think>{% else %}{% endif %}{% endif %}"),
        (True, "", "{% if add_generation_prompt %}<A>{% if quick %}<think>{% else %}<think>{% endif %}{% endif %}"),
        (None, "not (quick)", "{% if add_generation_prompt %}<A><think>{% if quick %}</think>{% endif %}{% endif %}"),
        (None, "", "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"),
        (False, "", "<A>"),
        (True, "", "{{ '<A><think>' }}"),
        (None, "", ""),
    ],
)  # fmt: skip
def test_whether_the_prompt_opens_the_reasoning_is_read_from_the_template(
    expected: bool | None, when: str, generation: str
) -> None:
    assert (expected, when) == ending(generation)


def test_a_generation_prompt_inside_of_the_loop_is_found() -> None:
    source = "{% for m in messages %}" + THINK + "{% if loop.last and add_generation_prompt %}<A><think>{% endif %}{% endfor %}"
    assert recognise_template(source).reasoning[0].prefilled


def test_recognised_template_includes_reasoning_markers() -> None:
    found = recognise_template(f"<tool_call>{{}}</tool_call>{THINK}{{% if add_generation_prompt %}}<A><think>{{% endif %}}")
    assert (Reasoning("<think>", "</think>", True),) == found.reasoning
    assert () == recognise_template("<tool_call>{}</tool_call>").reasoning


@pytest.mark.parametrize(
    ("expected", "source"),
    [
        ("a<x>b", "a{{ '<x>' }}b"),
        ("<x\0>", "{{ '<x' + name + '>' }}"),
        ("<x>", "{{ ('<' ~ ('x' + '>')) }}"),
        ("<x>", '{{- "<" -}}  x{{ ">" }}'),
        ("[{{a}}]", "{{- '[{{a}}]' -}}"),
        ("it's", "{{ 'it\\'s' }}"),
        ("a\nb", "{% if x %}\na\n{% endif %}\nb"),
        ("a", "{# <x> #}a{#- '{{ }}' -#}"),
        ("yesno", "{{ 'yes' if a == '<x>' else 'no' }}"),
        ("\0", "{{ text.split('<x>')[-1] | replace('<y>', '') }}"),
        ("<x>", "{% set a = '<x>' %}{{ a }}"),
        ("\0", "{% set a = '<x>' %}{% set a = '<y>' %}{{ a }}"),
        ("<x>", "{% set a %}<x>{% endset %}"),
        ("<x>a", "{% macro f(a) %}<x>{% endmacro %}a"),
        ("ab", "{% for x in y %}a{% else %}b{% endfor %}"),
        ("{{ 'never ends", "{{ 'never ends"),
        ("ab", "a{% endif %}{% else %}b"),
        ("a", "{% if x %}a"),
    ],
)
def test_outputs_of_a_template_are_found_without_running_it(expected: str, source: str) -> None:
    assert expected == "".join(one.text for one in template_texts(source))


_scraps = st.sampled_from(
    ["{{", "}}", "{%", "%}", "{#", "#}", "'", '"', "if ", "else", "endif", "for ", "endfor", "a", "-", "\\", " ", "("]
)


@given(st.lists(_scraps, max_size=30).map("".join))
def test_no_source_makes_reading_fail(source: str) -> None:
    assert recognise_template(source + THINK).reasoning


def test_a_template_nested_beyond_reason_is_text() -> None:
    source = "{% if a %}x" * 5_000
    assert [source] == [one.text for one in template_texts(source)]
