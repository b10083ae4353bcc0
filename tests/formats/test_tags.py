"""JSON calls between markers, with the name inside the JSON or before it: every family, and common damage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from patchbay import StreamParser
from patchbay.formats import CallArguments, TextDelta
from patchbay.formats.render import render_calls
from patchbay.types import Reply, ToolCall

from .cuts import read as read_in_any_split
from .tools import tool

TOOLS = [
    tool(
        "plant",
        what={"type": "string"},
        beds={"type": "array", "items": {"type": "integer"}},
        plan={"type": "object"},
        depth={"type": "integer"},
    ),
    tool("water", bed={"type": "integer"}),
    tool("harvest"),
    tool("python", code={"type": "string"}),
]

ONE = ("plant", '{"what": "leeks"}')
TWO = ("water", '{"bed": 3}')
ONE_JSON = '{"name": "plant", "arguments": {"what": "leeks"}}'
TWO_JSON = '{"name": "water", "arguments": {"bed": 3}}'


def read(text: str, way: str = "auto", **options: Any) -> Reply:
    return read_in_any_split(text, TOOLS, format=way, **options)


def summary(reply: Reply) -> tuple[list[tuple[str, str]], str, str, list[str]]:
    calls = [(call.name, call.raw_arguments) for call in reply.tool_calls]
    return calls, (reply.content or "").strip(), reply.reasoning or "", [call.name for call in reply.incomplete]


def check(
    family: str,
    text: str,
    calls: list[tuple[str, str]],
    *,
    content: str = "",
    reasoning: str = "",
    incomplete: tuple[str, ...] = (),
) -> None:
    """Assert what is read from a text, with the format named and with "auto"."""
    for way in (family, "auto"):
        assert (calls, content, reasoning, list(incomplete)) == summary(read(text, way)), way


def _deepseek(text: str) -> str:
    """Short names for DeepSeek's tokens: [calls [call [sep] call] calls]."""
    for short, words in (
        ("[calls", "tool▁calls▁begin"),
        ("calls]", "tool▁calls▁end"),
        ("[call", "tool▁call▁begin"),
        ("call]", "tool▁call▁end"),
        ("[sep]", "tool▁sep"),
    ):
        text = text.replace(short, f"<｜{words}｜>")
    return text


def _plamo(text: str) -> str:
    """Short names for PLaMo's tokens: {begin_think}."""
    for name in ("think", "tool_requests", "tool_request", "tool_name", "tool_arguments"):
        for end in ("begin", "end"):
            text = text.replace(f"«{end}_{name}»", f"<|plamo:{end}_{name}:plamo|>")
    return text.replace("«json»", "<|plamo:constrain|>json<|plamo:msg|>")


KIMI = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
KIMI_ONE = '<|tool_call_begin|>functions.plant:0<|tool_call_argument_begin|>{"what": "leeks"}<|tool_call_end|>'
KIMI_TWO = '<|tool_call_begin|>functions.water:1<|tool_call_argument_begin|>{"bed": 3}<|tool_call_end|>'
V3_ONE = '[callfunction[sep]plant\n```json\n{"what": "leeks"}\n```call]'
V3_TWO = '[callfunction[sep]water\n```json\n{"bed": 3}\n```call]'
V31_ONE = '[callplant[sep]{"what": "leeks"}call]'
V31_TWO = '[callwater[sep]{"bed": 3}call]'
ACTIONS = '[\n    {"tool_call_id": "0", "tool_name": "plant", "parameters": {"what": "leeks"}},\n    {"tool_name": "water", "parameters": {"bed": 3}}\n]'
SOLAR = "<|tool_call:begin|>call0000{}<|tool_call:name|>{}<|tool_call:args|>{}<|tool_call:end|>"
PLAMO = (
    "«begin_tool_request»«begin_tool_name»{}«end_tool_name»«begin_tool_arguments»«json»{}«end_tool_arguments»«end_tool_request»"
)

FAMILIES = [
    "hermes", "granite3", "granite_20b_fc", "jamba", "hunyuan_a13b", "apriel", "minimax_m1", "nemotron_v2", "longcat", "ernie45", "internlm2",
    "phi4_mini", "firefunction_v2", "xlam", "command_r_plus", "cohere_command", "apertus", "solar_open", "pangu", "hyperclova", "mistral_json",
    "mistral_args", "deepseek_v3_json", "deepseek_v31", "kimi_k2", "functionary_v31", "plamo3", "llama3_json",
]  # fmt: skip
TWO_CALLS = {name: render_calls(name, [ToolCall("", *ONE), ToolCall("", *TWO)]) for name in FAMILIES} | {
    "dots": f"<dots_function_call>{ONE_JSON}</dots_function_call><dots_function_call>{TWO_JSON}</dots_function_call>",
}


BAD = [
    ("hermes", f"<tool_call>{ONE_JSON}; {TWO_JSON}</tool_call>"),
    ("hermes", f"<tool_call>\n{ONE_JSON[:-1]}\n</tool_call>\n<tool_call>\n{TWO_JSON[:-2]}\n</tool_call>"),
    ("hermes", f"<tool_call>{ONE_JSON}}}</tool_call><tool_call>{TWO_JSON}}}]</tool_call>"),
    ("hermes", f"<tool_call>{ONE_JSON}</tool_calls><tool_calls>{TWO_JSON}</tool_call>"),
    ("hermes", f"<|tool_call|>{ONE_JSON}</tool_call><tool_call>{TWO_JSON}<|/tool_call|>"),
    ("hermes", f"<tool_call>\n```json\n{ONE_JSON}\n```\n</tool_call><tool_call>```{TWO_JSON}```</tool_call>"),
    ("hermes", f"<tool_call>{ONE_JSON}</tool_call><tool_call>{TWO_JSON}</tool_ca"),
    (
        "hermes",
        '<tool_call>{"function": "plant", "arguments": {"what": "leeks"}}<tool_call>{"bed": 3, "name": "water"}</tool_call>',
    ),
    ("hermes", '[Calling tool: plant({"what": "leeks"})]\n[Calling tool: water(bed=3)]'),
    (
        "hermes",
        "<tool_call>[{'name': 'plant', 'arguments': {\"what\": \"leeks\"},}, {'name': 'water', 'args': {\"bed\": 3}},]</tool_call>",
    ),
    (
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "plant", "arguments": "{\\"what\\": \\"leeks\\"}"}}' + TWO_JSON,
    ),
    ("granite3", f"<tool_call> [{ONE_JSON}, {TWO_JSON}]"),
    ("granite3", f"<|tool_call|> [{ONE_JSON}, {TWO_JSON}"),
    ("granite_20b_fc", f"<function_call> {ONE_JSON}\n</function_call><function_call>\n{TWO_JSON}</function_call>"),
    ("jamba", f"<tool_calls>[{ONE_JSON}, {TWO_JSON}</tool_calls>"),
    ("jamba", f"<tool_calls>{ONE_JSON}, {TWO_JSON}"),
    ("internlm2", f"<|action_start|>  <|plugin|>{ONE_JSON}<|action_start|>{TWO_JSON}<|action_end|><|im_end|>"),
    ("phi4_mini", f"<|tool_call|>[{ONE_JSON}, {TWO_JSON}]<|/tool_call|>"),
    ("phi4_mini", f"functools [{ONE_JSON}, {TWO_JSON}"),
    ("xlam", f'{{"tool_calls": [{ONE_JSON}, {TWO_JSON}]}}'),
    ("command_r_plus", f"Action: ```json\n{ACTIONS}\n```"),
    ("cohere_command", f"<|START_ACTION|>{ACTIONS[:-2]}<|END_ACTION|>"),
    ("apertus", '<|tools_prefix|>[{"plant": {"what": "leeks"}}, {"water": {"bed": 3}}<|assistant_end|>'),
    ("pangu", f"[unused11][{ONE_JSON}, {TWO_JSON}[unused12][unused10]"),
    ("hyperclova", f" -> tool/function_call\n[{ONE_JSON}, {TWO_JSON}]"),
    ("solar_open", SOLAR.format(1, *ONE) + SOLAR.format(2, *TWO).removesuffix("<|tool_call:end|>")),
    ("mistral_json", f"[TOOL_CALLS] [TOOL_CALLS] [{ONE_JSON}, {TWO_JSON}"),
    ("mistral_args", '[TOOL_CALLS]plant{"what": "leeks"}[TOOL_CALLS]functions.water [ARGS] {"bed": 3}</s>'),
    ("mistral_args", '[TOOL_CALLS]plant[CALL_ID]a1b2c3d4e[ARGS]{"what": "leeks"}[TOOL_CALLS]water[ARGS]"{\\"bed\\": 3}"'),
    ("deepseek_v3_json", _deepseek(f"[calls{V3_ONE}\n{V3_TWO}calls]").replace("▁", "_").replace("｜", "|")),
    ("deepseek_v31", _deepseek(f"[calls{V31_ONE}{V31_TWO}calls]").replace(_deepseek("call]"), "")),
    ("deepseek_v31", _deepseek('[calls[callplant[sep]```json\n{"what": "leeks"}\n```call][callwater[sep]{"bed": 3}')),
    ("kimi_k2", KIMI.format(KIMI_ONE + KIMI_TWO).replace("calls_section", "call_section").replace("<|tool_call_end|>", "")),
    ("plamo3", _plamo(PLAMO.format(*ONE) + PLAMO.format(*TWO).removesuffix("«end_tool_request»"))),
]


@pytest.mark.parametrize(("family", "text"), BAD)
def test_damaged_markers_cost_no_call(family: str, text: str) -> None:
    check(family, text, [ONE, TWO])


@pytest.mark.parametrize(
    ("family", "text", "content", "reasoning"),
    [
        ("granite3", "<think>It rains.</think>\n<response>\nNo need.\n</response>\n", "No need.", "It rains."),
        ("granite3", "Here's my thought process: It rains. Here's my response: No need.", "No need.", "It rains."),
        ("apriel", "It rains.\n[BEGIN FINAL RESPONSE]\nNo need.\n[END FINAL RESPONSE]", "No need.", "It rains."),
        ("apriel", "Here are my reasoning steps:\nIt rains.\n[BEGIN FINAL RESPONSE]\nNo need.", "No need.", "It rains."),
        ("ernie45", "It rains.\n</think>\n\n<response>\nNo need.\n</response>\n", "No need.", "It rains."),
        (
            "cohere_command",
            "<|START_THINKING|>It rains.<|END_THINKING|><|START_TEXT|>No need.<|END_TEXT|>",
            "No need.",
            "It rains.",
        ),
        ("pangu", "[unused16]It rains.[unused17]No need.[unused10]", "No need.", "It rains."),
        ("hyperclova", "/think\nIt rains.<|im_end|>\n<|im_start|>assistant\nNo need.<|im_end|>", "No need.", "It rains."),
        ("mistral_args", "It rains.[/THINK]No need.", "No need.", "It rains."),
        ("kimi_k2", "◁think▷It rains.◁/think▷No need.", "No need.", "It rains."),
        ("plamo3", _plamo("«begin_think»It rains.«end_think»No need.«end_think»<|plamo:tag|>"), "No need.", "It rains."),
        ("deepseek_v31", "It rains.</think>No <｜tool▁output▁begin｜>need<｜tool▁output▁end｜>.", "No need.", "It rains."),
        ("deepseek_v3_json", "<think>It rains.</think>No need.<｜end▁of▁sentence｜>", "No need.", "It rains."),
        ("llama3_json", "<|start_header_id|>assistant<|end_header_id|>\n\nNo need.<|eot_id|>", "No need.", ""),
    ],
)
def test_reasoning_and_frames_are_not_content(family: str, text: str, content: str, reasoning: str) -> None:
    check(family, text, [], content=content, reasoning=reasoning)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "The tag <tool_call> is for calls, and `</tool_call>` ends them."),
        ("hermes", 'Write <tool_call>{"name": "<function>", "arguments": <arguments>}</tool_call> then.'),
        (
            "hermes",
            f'<tool_call>{{"name": "dig", "arguments": {{"how": "<tool_call>{json.dumps(ONE_JSON)[1:-1]}</tool_call>"}}}}</tool_call>',
        ),
        ("hermes", '[Calling tool: dig({"bed": 3})]'),
        ("hermes", "A list: [Calling tool: nothing]"),
        ("hunyuan_a13b", "The <answer> tag and </answer> too."),
        ("ernie45", "The <response> tag."),
        ("phi4_mini", "import functools\n\nfunctools[0]"),
        ("mistral_json", '[TOOL_CALLS] ["plant"]'),
        ("mistral_args", 'I would write plant[ARGS]{"what": "leeks"} now.'),
        ("mistral_args", '[TOOL_CALLS]dig[ARGS]{"bed": 3}'),
        ("command_r_plus", 'Action:\n```json\n[{"bed": 1}]\n```'),
        ("deepseek_v3_json", _deepseek('[calls[callfunction[sep]dig\n```json\n{"bed": 3}\n```call]calls]')),
        ("kimi_k2", KIMI.format(KIMI_ONE.replace("plant", "dig"))),
        ("kimi_k2", KIMI.format(KIMI_ONE.replace("functions.plant:0", "0").replace("what", "who"))),
        ("llama3_json", "<|python_tag|>web_search.call(query='leeks')"),
        ("hyperclova", "The mode is /think\nor not."),
        ("plain", "Here are my reasoning steps: none."),
        ("plain", "Here is my thought process: none."),
        ("plain", "<answer>No tag of ours.</answer>"),
    ],
)
def test_words_about_markers_and_calls_of_other_tools_are_prose(family: str, text: str) -> None:
    for way in ("auto",) if family == "plain" else (family, "auto"):
        reply = read(text, way)
        assert (text, None, (), ()) == (reply.content, reply.reasoning, reply.tool_calls, reply.incomplete), way


@pytest.mark.parametrize(
    ("family", "text", "name"),
    [
        ("hermes", "<tool_call>", ""),
        ("mistral_args", "[TOOL_CALLS]plant[AR", "plant"),
        ("deepseek_v3_json", _deepseek("[calls[callfunction[sep]pl"), ""),
        ("deepseek_v31", _deepseek("[calls[callplant") + "<｜tool▁s", "plant"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_", ""),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.plant:0<|tool_call_arg", "plant"),
        ("plamo3", _plamo("«begin_tool_requests»") + "<|plamo:begin_tool_re", ""),
        ("llama3_json", "<|python_tag|>plant.call(what='le", "plant"),
    ],
)
def test_truncated_call_is_neither_a_call_nor_content(family: str, text: str, name: str) -> None:
    check(family, text, [], incomplete=(name,))


def test_truncated_text_begins_with_its_marker() -> None:
    text = KIMI_ONE + '<|tool_call_begin|>functions.water:1<|tool_call_argument_begin|>{"be'
    reply = read("<|tool_calls_section_begin|>" + text)
    assert [text[len(KIMI_ONE) :]] == [call.raw for call in reply.incomplete]


def test_malformed_block_leaves_the_others_intact() -> None:
    other = '<tool_call>{"name": "dig"}</tool_call>'
    check("hermes", f"{other}\n<tool_call>{ONE_JSON}</tool_call>", [ONE], content=other)
    check("hermes", f'<tool_call>{ONE_JSON}\n{{"name": "dig"}}\n{TWO_JSON}</tool_call>', [ONE, TWO], content='{"name": "dig"}')
    dig = _deepseek(V3_ONE).replace("plant", "dig")
    check("deepseek_v3_json", _deepseek("[calls") + dig + _deepseek(f"{V3_TWO}calls]"), [TWO], content=_deepseek("[calls") + dig)


def test_words_between_a_marker_and_its_list_are_content() -> None:
    check("mistral_json", f"[TOOL_CALLS] well [{ONE_JSON}] done", [ONE], content="well  done")


def test_code_after_the_interpreter_token_is_the_argument_of_its_tool() -> None:
    code = 'x = "a\\n"\nfor y in x:\n    print(y)'
    check(
        "llama3_json", f"I run it.<|python_tag|>{code}<|eom_id|>", [("python", json.dumps({"code": code}))], content="I run it."
    )
    check("llama3_json", "<|python_tag|>plant.call(what='leeks')<|eom_id|>", [ONE])
    assert () == read('<|python_tag|>{"name": "dig", "parameters": {}}').tool_calls


def test_counter_calls_the_only_tool_that_accepts_its_arguments() -> None:
    check("kimi_k2", KIMI.format(KIMI_ONE.replace("functions.plant:0", "0")), [ONE])
    assert () == read(KIMI.format("<|tool_call_begin|>0<|tool_call_argument_begin|>{}<|tool_call_end|>")).tool_calls


@pytest.mark.parametrize("written", ['"arguments": ""', '"arguments": null', '"arguments": {}', '"id": "7"'])
def test_empty_arguments_are_an_empty_object(written: str) -> None:
    check("hermes", f'<tool_call>{{"name": "harvest", {written}}}</tool_call>', [("harvest", "{}")])


def test_bare_name_is_a_call_without_arguments() -> None:
    check("deepseek_v31", _deepseek("[calls[callharvest[sep]call]calls]"), [("harvest", "{}")])
    check(
        "kimi_k2",
        KIMI.format('<|tool_call_begin|>functions.harvest:0<|tool_call_argument_begin|>""<|tool_call_end|>'),
        [("harvest", "{}")],
    )


@pytest.mark.parametrize("key", ["arguments", "parameters", "args", "input", "params"])
@pytest.mark.parametrize("name", ["name", "tool_name", "function"])
def test_every_usual_key_names_the_tool_and_its_arguments(name: str, key: str) -> None:
    check("hermes", f'<tool_call>{{"{name}": "plant", "{key}": {{"what": "leeks"}}}}</tool_call>', [ONE])
    check("hermes", f'<tool_call>{{"{key}": {{"what": "leeks"}}, "{name}": "plant"}}</tool_call>', [ONE])


WRAPPED = [
    '<tool_call>{{"name": "plant", "arguments": {}}}</tool_call>',
    '<tool_call>{{"arguments": {}, "name": "plant"}}</tool_call>',
    '<|tools_prefix|>[{{"plant": {}}}]<|tools_suffix|>',
    "[TOOL_CALLS]plant[ARGS]{}",
]


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_list_or_object_in_a_string_is_decoded_where_the_schema_wants_one(wrapped: str) -> None:
    written = '{"what": "[1]", "beds": "[1, 2]", "plan": "{\\"a\\": \\"[3]\\"}", "depth": 4, "more": "[5]"}'
    meant = '{"what": "[1]", "beds": [1, 2], "plan": {"a": "[3]"}, "depth": 4, "more": "[5]"}'
    check("auto", wrapped.format(written), [("plant", meant)])


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_non_list_string_is_kept_verbatim(wrapped: str) -> None:
    written = '{"beds":"all of them",  "plan": "[1", "depth": 1.50, "what": "\\u00e9\\/"}'
    check("auto", wrapped.format(written), [("plant", written)])


def test_the_text_of_a_closer_inside_a_string_ends_nothing() -> None:
    for text in ("</tool_call>", "[TOOL_CALLS]", "<|tool_call_end|>", "\\n```\\n", "<｜tool▁calls▁end｜>"):
        arguments = f'{{"what": "a {text} b"}}'
        check("hermes", f'<tool_call>{{"name": "plant", "arguments": {arguments}}}</tool_call>', [("plant", arguments)])
        check("mistral_args", f"[TOOL_CALLS]plant[ARGS]{arguments}", [("plant", arguments)])


@pytest.mark.parametrize("family", [family for family in TWO_CALLS if family not in ("xlam", "llama3_json")])
def test_the_arguments_of_a_marked_call_go_out_before_they_are_complete(family: str) -> None:
    text = TWO_CALLS[family]
    at = text.index("eeks")
    parser = StreamParser(TOOLS, format=family)
    parser.feed(text[:at])
    assert ["ee"] == [event.text for event in parser.feed(text[at : at + 2]) if isinstance(event, CallArguments)]


def test_reasoning_that_is_switched_off_stays_in_place() -> None:
    text = f"<think>Maybe <tool_call>{ONE_JSON}</tool_call> no.</think>[{TWO_JSON}]"
    assert ([TWO], text[: text.index("[{")], "", []) == summary(read(text, reasoning=False))
    prose = " a <think>b\n</think>\n [THINK]c[/THINK]  d </think> "
    assert prose == read(prose, reasoning=False).content


def test_a_special_token_may_be_written_about_in_backticks() -> None:
    text = "The tokens `<|im_end|>`, `[THINK]` and `<|START_TEXT|>` are special."
    assert text == read(text).content


def test_the_words_in_a_frame_go_out_before_it_ends() -> None:
    words = "No need to water anything today, said the gardener, and went back to the shed with his boots and his can."
    parser = StreamParser(TOOLS, format="ernie45")
    events = [*parser.feed("<think>Hm.</think>\n<response>\n"), *parser.feed(words)]
    assert [words] == [event.text for event in events if isinstance(event, TextDelta)]
