"""The table of writers: for each family the patterns of its calls, results and list of tools, as its chat template has them.

The writer for a format, or for a model by its name, is found here too.

A line of text is enough to begin a bare call, so for families without markers results are always written in a JSON string.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, partial

from patchbay.formats.catalog import choose
from patchbay.formats.model_names import format_of
from patchbay.formats.render.fenced import FencedWriter
from patchbay.formats.render.styles import (
    M3,
    PYTHON,
    PYTHON_IN_DOUBLE_QUOTES,
    PYTHON_WITH_JSON_WORDS,
    Elements,
    GemmaStyle,
    JsonStyle,
    NestedElements,
    PythonStyle,
    as_cdata,
    as_json_with_python_booleans,
    as_python,
    in_attribute,
)
from patchbay.formats.render.tool_lists import HEADED, XML, gemma_list, json_lines, json_list, typescript
from patchbay.formats.render.writer import FamilyWriter, Frames, Layout
from patchbay.formats.spec import Format
from patchbay.types import DEFAULT_CALL_TAG, DEFAULT_RESULT_TAG, ToolCall

_CHATML = ("<|im_start|>", "<|im_end|>")
_LLAMA = ("<|start_header_id|>", "<|eot_id|>", "<|eom_id|>")
"""Markers that end a turn: data that contained them would be read as another author's words."""

_ARGUMENTS = '"arguments" is an object that fits the tool\'s schema ({} if it takes none).'
_PARAMETERS = '"parameters" is an object that fits the tool\'s schema ({} if it takes none).'
_INPUT = "The {} a JSON object that fits the tool's schema ({{}} if it takes none)."
_ALONE = "Write no other text in an answer that calls a tool."

_RESPONSE = Frames("<tool_response>\n{content}\n</tool_response>", markers=("<tool_response",))
_RESPONSE_JSON = Frames('<tool_response>\n{{"output": {json}}}\n</tool_response>', markers=("<tool_response",))
_RESPONSE_ON_LINE = Frames("<tool_response>{content}</tool_response>", markers=("<tool_response",))
_SHORT_RESPONSE = Frames("<response>{content}</response>", markers=("<response",))

_PLAIN = Layout(prose=("", ""))
_THINK = Layout(("<think>", "</think>"), prose=("", ""))

_TOOL_LINES = json_lines("", "", openai=False)
_OPENAI_LINES = json_lines("", "")
_TAGGED_LINES = json_lines()
_TOOL_LIST = json_list(openai=False)

# fmt: off
_json = partial(FamilyWriter, style=JsonStyle(), rules=(_ARGUMENTS,), listing_of=_TAGGED_LINES, frames=_RESPONSE)

_JSON_TAGS = (
    _json("hermes", "<tool_call>\n{object}\n</tool_call>", markers=("<tool_call", *_CHATML)),
    _json("ernie45", "<tool_call>\n{object}\n</tool_call>\n", join="", markers=("<tool_call", "<response"),
          layout=Layout(("<think>\n", "\n</think>\n\n"), answer=("<response>\n", "\n</response>\n"))),
    _json("longcat", "<longcat_tool_call>\n{object}\n</longcat_tool_call>", markers=("<longcat_tool_call",),
          layout=Layout(("<longcat_think>\n", "\n</longcat_think>\n"))),
    _json("granite3", "{object}", join=", ", block=("<|tool_call|>[", "]"), by_name=False, listing_of=json_list(indent=4),
          markers=("<|tool_call|>", "<tool_call", "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>")),
    _json("granite_20b_fc", "<function_call> {object}", join=" ", listing_of=_OPENAI_LINES, markers=("<function_call",)),
    _json("jamba", "{object}", join=",\n", block=("<tool_calls>[\n", "\n]</tool_calls>"), markers=("<tool_calls",),
          listing_of=json_lines("<tool_definitions>\n", "\n</tool_definitions>")),
    _json("hunyuan_a13b", "{object}", join=", ", block=("<tool_calls>[", "]</tool_calls>"), markers=("<tool_calls", "<answer"),
          layout=Layout(("<think>\n", "\n</think>\n"), answer=("<answer>\n", "\n</answer>"))),
    # The prompt opens Apriel's reasoning, by a line of words.
    _json("apriel", "{object}", join=", ", block=("<tool_calls>[", "]</tool_calls>"),
          listing_of=json_lines("<available_tools>\n", "\n</available_tools>"),
          markers=("<tool_calls", "[BEGIN FINAL RESPONSE]", "<|end|>"), layout=Layout(("", "\n[BEGIN FINAL RESPONSE]\n"))),
    _json("minimax_m1", "{object}", block=("<tool_calls>\n", "\n</tool_calls>"),
          markers=("<tool_calls", "<end_of_sentence>", "<beginning_of_sentence>")),
    _json("nemotron_v2", "{object}", join=", ", block=("<TOOLCALL>[", "]</TOOLCALL>"), markers=("<TOOLCALL", "<SPECIAL_"),
          listing_of=json_list("<AVAILABLE_TOOLS>", "</AVAILABLE_TOOLS>", openai=False),
          layout=Layout(("<think>\n", "\n</think>\n"), prose=("", "\n")),
          frames=Frames("{json}", join=", ", around="<TOOL_RESPONSE>[{results}]</TOOL_RESPONSE>", markers=("<TOOL_RESPONSE",))),
    _json("internlm2", "<|action_start|> <|plugin|>\n{object}<|action_end|>\n", join="", style=JsonStyle("parameters"),
          by_name=False, listing_of=_TOOL_LIST, markers=("<|action_start|>", "<|action_end|>", "<|plugin|>", *_CHATML),
          layout=_PLAIN, rules=(_PARAMETERS,)),
    _json("phi4_mini", "{object}", join=", ", block=("functools[", "]"),
          listing_of=json_list("<|tool|>", "<|/tool|>", openai=False),
          markers=("functools[", "<|tool_call|>", "<|/tool_call|>", "<|end|>"),
          frames=Frames('<|tool_response|>{{"output": {json}}}<|/tool_response|>',
                        markers=("<|tool_response|>", "<|/tool_response|>"))),
    _json("firefunction_v2", "{object}", join=", ", block=(" functools[", "]"), listing_of=_TOOL_LIST, markers=("functools[",),
          layout=_PLAIN, frames=_RESPONSE_JSON),
    _json("cohere_command", '{{"tool_call_id": {json_id}, "tool_name": {json_name}, "parameters": {arguments}}}',
          join=",\n    ", block=("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>"), by_name=False,
          listing_of=json_list("```json\n", "\n```", openai=False),
          markers=("<|START_", "<|END_", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>"),
          layout=Layout(("<|START_THINKING|>", "<|END_THINKING|>"), prose=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
                        answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
          frames=Frames('    {{"tool_call_id": "{id}", "results": {{"0": {{"content": {json}}}}}, "is_error": null}}', join=",\n",
                        around="<|START_TOOL_RESULT|>[\n{results}\n]<|END_TOOL_RESULT|>",
                        markers=("<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>")),
          rules=('"tool_call_id" counts the calls of the whole conversation from "0".', _PARAMETERS),
          number_id=lambda number, _name: str(number)),
    _json("command_r_plus", '    {{\n        "tool_name": {json_name},\n        "parameters": {arguments}\n    }}', join=",\n",
          block=("Action:\n```json\n[\n", "\n]```\n"), listing_of=json_list("```json\n", "\n```", openai=False),
          markers=("Action:", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>"), rules=(_PARAMETERS,),
          frames=Frames("Document: {number}\n{json}", join="\n\n", around="<results>\n{results}\n</results>",
                        markers=("<results", "Document:"))),
    _json("apertus", "{{{json_name}: {arguments}}}", join=", ", block=("<|tools_prefix|>[", "]<|tools_suffix|>"), by_name=False,
          listing_of=_TOOL_LIST, layout=Layout(("<|inner_prefix|>", "<|inner_suffix|>"), prose=("", "")),
          markers=("<|tools_prefix|>", "<|tools_suffix|>", "<|inner_", "<|assistant_", "<|user_", "<|system_", "<|developer_"),
          rules=("The tool's name is the key, and its value an object that fits the tool's schema ({} if it takes none).",)),
    _json("gigachat3", "<|function_call|>{object}", join="", by_name=False, listing_of=_TOOL_LINES, layout=_PLAIN,
          markers=("<|function_call|>", "<|message_sep|>", "<|role_sep|>"), parallel=False),
    _json("inkling", "{name}<|content_invoke_tool_json|>{object}<|end_message|>", join="<|message_model|>", by_name=False,
          style=JsonStyle("args"), listing_of=_TOOL_LIST, markers=("<|message_", "<|content_", "<|end_message|>"),
          layout=Layout(("<|content_thinking|>", "<|end_message|><|message_model|>"),
                        prose=("<|content_text|>", "<|end_message|><|message_model|>"),
                        answer=("<|content_text|>", "<|end_message|>")),
          rules=('The name stands before the object and in it; "args" fits the tool\'s schema ({} if it takes none).',)),
    _json("pangu", "{object}", join=", ", block=("[unused11][", "][unused12]"), by_name=False, listing_of=_TOOL_LIST,
          markers=("[unused",)),
    _json("hyperclova", "{object}", join=", ", by_name=False, listing_of=_TOOL_LIST,
          block=("<|im_end|>\n<|im_start|>assistant -> tool/function_call\n[", "]<|im_end|>"),
          markers=("-> tool/function_call", *_CHATML),
          layout=Layout(("/think\n", "<|im_end|>\n<|im_start|>assistant\n"), prose=("", ""))),
)

_DEEPSEEK = ("<｜tool▁", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>")
_MISTRAL = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[AVAILABLE_TOOLS]", "[INST]", "[/INST]", "[THINK]", "[/THINK]", "<s>")
_AVAILABLE = json_list("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
_JSON = _INPUT.format("arguments are")
_RECIPIENT = "\n<|from|>assistant\n<|recipient|>"
_KIMI_HEAD = 'The head is "functions.", the name, ":" and the number of the call, counted from 0 over the whole conversation.'
_AGAIN = "<|start|>assistant"
"""Separates the messages of a turn."""
_CHANNEL_MARKERS = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>")
_CHANNEL_LAYOUT = Layout(
    ("<|channel|>analysis<|message|>", f"<|end|>{_AGAIN}"), prose=("<|channel|>commentary<|message|>", f"<|end|>{_AGAIN}"),
    answer=("<|channel|>final<|message|>", "<|return|>"),
)
_CHANNEL_FRAMES = Frames(
    "<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{content}<|end|>", join="",
    markers=("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
)


def _nine_characters(number: int, _name: str) -> str:
    return f"call{(number + 1) % 100_000:05d}"


_named = partial(_json, join="", rules=(_JSON,))

_NAMED = (
    _named("mistral_json", '{{"name": {json_name}, "arguments": {arguments}, "id": "{id}"}}', join=", ",
           block=("[TOOL_CALLS][", "]"), by_name=False, listing_of=_AVAILABLE, markers=_MISTRAL, layout=_PLAIN,
           frames=Frames('[TOOL_RESULTS]{{"content": {json}, "call_id": "{id}"}}[/TOOL_RESULTS]', join="",
                         markers=("[TOOL_RESULTS]", "[/TOOL_RESULTS]")),
           rules=(_ARGUMENTS, '"id" has nine letters and digits.'), number_id=_nine_characters),
    _named("mistral_args", "[TOOL_CALLS]{name}[ARGS]{arguments}", by_name=False, listing_of=_AVAILABLE, markers=_MISTRAL,
           layout=Layout(("[THINK]", "[/THINK]"), prose=("", "")),
           frames=Frames("[TOOL_RESULTS]{content}[/TOOL_RESULTS]", join="",
                         markers=("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]"))),
    _named("deepseek_v3_json",
           "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
           join="\n", block=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), listing_of=HEADED, markers=_DEEPSEEK,
           layout=Layout(("<think>\n", "\n</think>\n\n"), prose=("", "")),
           frames=Frames("<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>", markers=("<｜tool▁output",),
                         around="<｜tool▁outputs▁begin｜>{results}<｜tool▁outputs▁end｜>")),
    _named("deepseek_v31", "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
           block=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), listing_of=HEADED, markers=_DEEPSEEK, layout=_THINK,
           frames=Frames("<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>", join="", markers=("<｜tool▁output",))),
    _named("kimi_k2", "<|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>", by_name=False,
           block=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"), listing_of=json_list(),
           markers=("<|tool_call", "<|im_"), layout=_THINK,
           frames=Frames("## Return of {id}\n{content}", markers=("## Return of",)),
           rules=(_KIMI_HEAD, _JSON),
           number_id=lambda number, name: f"functions.{name}:{number}"),
    _named("functionary_v31", "<function={name}>{arguments}</function>", listing_of=_TOOL_LINES, layout=_PLAIN,
           markers=("<function", "<|python_tag|>", *_LLAMA)),
    # The prompt ends in ">>>". What is said to the user has the recipient "all".
    _named("functionary_v32", "{name}\n{arguments}", join=">>>", listing_of=typescript(), markers=_LLAMA,
           layout=Layout(None, prose=("all\n", ">>>"), answer=("all\n", "")), frames=_RESPONSE_JSON,
           rules=(_JSON, 'Separate calls, and what you say before them, by ">>>".')),
    # The prompt ends in "<|recipient|>".
    _named("functionary_v2", "{name}\n<|content|>{arguments}", join=_RECIPIENT, by_name=False, listing_of=typescript(),
           markers=("<|from|>", "<|recipient|>", "<|content|>", "<|stop|>"),
           layout=Layout(None, prose=("all\n<|content|>", _RECIPIENT), answer=("all\n<|content|>", "")),
           rules=(_JSON, "What you say to the user has the recipient all.")),
    _named("harmony", "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>", join=_AGAIN,
           by_name=False, listing_of=typescript("## functions\n\n"), markers=_CHANNEL_MARKERS, layout=_CHANNEL_LAYOUT,
           frames=_CHANNEL_FRAMES, rules=(_JSON, "A call goes to the channel commentary.")),
    _named("plamo3",
           "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
           "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{arguments}<|plamo:end_tool_arguments:plamo|>"
           "<|plamo:end_tool_request:plamo|>",
           block=("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"), listing_of=_OPENAI_LINES,
           markers=("<|plamo:",), layout=Layout(("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"), prose=("", ""))),
    _named("solar_open", "<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>",
           block=("<|tool_calls|>", "<|calls|>"), by_name=False, number_id=_nine_characters,
           markers=("<|tool_call", "<|calls|>", "<|begin|>", "<|end|>", "<|content|>", "<|think|>"),
           layout=Layout(("<|think|>", "<|end|><|begin|>assistant"), prose=("<|content|>", "<|end|><|begin|>assistant"),
                         answer=("<|content|>", ""))),
)

_bare = partial(_json, rules=(_ARGUMENTS, _ALONE), frames=_RESPONSE_JSON, by_name=False)

_BARE = (
    _bare("llama3_json", "{object}", join="; ", style=JsonStyle("parameters"), by_name=True, listing_of=_OPENAI_LINES,
          markers=("<|python_tag|>", *_LLAMA), rules=(_PARAMETERS, _ALONE),
          several='For several calls write several of these, separated by "; ".'),
    _bare("bare_json", "{object}", listing_of=_TOOL_LINES),
    _bare("bare_json_list", "{object}", join=", ", block=("[", "]"), listing_of=_TOOL_LIST),
    _bare("json_array_required", "{object}", join=", ", block=("[", "]"), style=JsonStyle("parameters"), listing_of=_TOOL_LIST,
          rules=(_PARAMETERS, _ALONE)),
    _bare("xlam", "{object}", join=", ", block=("[", "]"), by_name=True, listing_of=_TOOL_LIST),
    _bare("openai_dict",
          '{{"id": {json_id}, "type": "function", "function": {{"name": {json_name}, "arguments": {json_arguments}}}}}',
          join=", ", block=('{"tool_calls": [', "]}"), listing_of=json_list(),
          rules=('"arguments" is a JSON object inside a string.', _ALONE)),
    _bare("react", "Action: {name}\nAction Input: {arguments}", listing_of=_TOOL_LINES, parallel=False,
          layout=Layout(None, answer=("Final Answer: ", "")), frames=Frames("Observation: {json}", markers=("Observation:",)),
          rules=(_INPUT.format("input is"),)),
    _bare("qwen_agent", "✿FUNCTION✿: {name}\n✿ARGS✿: {arguments}", listing_of=_TOOL_LINES,
          markers=("✿FUNCTION", "✿ARGS"), layout=Layout(answer=("✿RETURN✿: ", "")),
          frames=Frames("✿RESULT✿: {content}", markers=("✿RESULT", "✿RETURN")), rules=(_JSON,)),
)

_TEXT = "A text stands as it is, without quotes or escapes; everything else as JSON."
_TEXT_OR_PYTHON = "A text stands as it is, without quotes or escapes; everything else as a Python literal."
_TYPED = 'A text stands as it is, without quotes or escapes, with string="true"; everything else as JSON, with string="false".'
_PARAMETER = Elements('<parameter name="{key}">{value}</parameter>\n')
_INVOKE = '<invoke name="{name}">\n{values}</invoke>'
_TOOL_TAGS = json_lines("<tools>\n<tool>", "</tool>\n</tools>", openai=False, join="</tool>\n<tool>")

_xml = partial(FamilyWriter, raw=True, rules=(_TEXT,), listing_of=_TAGGED_LINES, frames=_RESPONSE)


def _dsml(name: str, tag: str, block: str, *, blank: str = "", frames: Frames) -> FamilyWriter:
    """Return the writer of DeepSeek's markup language, or a sister's: ``tag`` is the token in every tag, ``blank`` follows it."""
    begin, end = f"<｜{tag}｜{blank}", f"</｜{tag}｜{blank}"
    return _xml(name, f'{begin}invoke name="{{name}}">\n{{values}}{end}invoke>', block=(f"{begin}{block}>\n", f"\n{end}{block}>"),
                style=Elements(f'{begin}parameter name="{{key}}" string="{{string}}">{{value}}{end}parameter>\n'), by_name=False,
                listing_of=json_lines("<functions>\n", "\n</functions>", openai=False), frames=frames, rules=(_TYPED,),
                markers=(f"<｜{tag}｜", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
                layout=Layout(("<think>", "</think>"), prose=("", "\n\n")))


_TOOL_RESULT = Frames("<tool_result>{content}</tool_result>", markers=("<tool_result",))

_XML_PARAMETERS = (
    _xml("qwen3_coder", "<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>",
         style=Elements("<parameter={key}>\n{value}\n</parameter>\n", encode=as_json_with_python_booleans), listing_of=XML,
         markers=("<tool_call", "<function=", *_CHATML), inner_markers=("<function", "<parameter"),
         layout=Layout(prose=("", "\n\n")), rules=(_TEXT, "Each value has its own lines.")),
    # The ampersand: some readers of this family undo XML's escapes.
    _xml("mimo", "<tool_call><function={name}>{values}</function></tool_call>", join="",
         style=Elements("<parameter={key}>{value}</parameter>"), markers=("<tool_call", "<function=", *_CHATML),
         inner_markers=("<function", "<parameter", "&"), layout=_THINK,
         rules=(_TEXT, "There is no line break between the tags.")),
    _xml("seed_oss", "<seed:tool_call>\n<function={name}>\n{values}</function>\n</seed:tool_call>",
         style=Elements("<parameter={key}>{value}</parameter>\n", encode=as_python), markers=("<seed:", "<function="),
         inner_markers=("<function", "<parameter"), layout=Layout(("<seed:think>", "</seed:think>\n"), prose=("", "\n\n")),
         rules=(_TEXT_OR_PYTHON,)),
    _xml("minicpm5", '<function name="{name}">{values}</function>',
         style=Elements('<param name="{key}">{value}</param>', encode=as_python, text=as_cdata),
         markers=("<function", *_CHATML), inner_markers=("<param", "]]>"),
         rules=(_TEXT_OR_PYTHON, "A text with '<', '&' or line breaks stands in <![CDATA[ and ]]>.")),
    _xml("minimax_m2", _INVOKE, block=("<minimax:tool_call>\n", "\n</minimax:tool_call>"), style=_PARAMETER,
         listing_of=_TOOL_TAGS, markers=("<minimax:tool_call", "<invoke", "]~b", "[e~"), inner_markers=("<parameter",),
         frames=_SHORT_RESPONSE),
    _xml("minimax_m3", f'{M3}<invoke name="{{name}}">{{values}}{M3}</invoke>\n', join="",
         block=(f"{M3}<tool_call>\n", f"{M3}</tool_call>"), style=NestedElements(), typed_by_schema=True, by_name=False,
         listing_of=_TOOL_TAGS, markers=(M3, "]~b", "[e~"), layout=Layout(("<mm:think>", "</mm:think>"), prose=("", "")),
         frames=_SHORT_RESPONSE,
         rules=("The element of an argument has its name.",
                "A text stands as it is; an object holds an element for each member, a list one <item> for each.")),
    _dsml("deepseek_v32", "DSML", "function_calls",
          frames=Frames("<result>{content}</result>", around="<function_results>\n{results}\n</function_results>",
                        markers=("<function_results", "<result"))),
    _dsml("deepseek_v4", "DSML", "tool_calls", frames=_TOOL_RESULT),
    _dsml("deepseek_v41", "DSML", "calls", blank=" ", frames=_TOOL_RESULT),
    _dsml("gigachat35", "GCML", "tool_calls", frames=_RESPONSE),
    _xml("step3",
         '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">{values}</steptml:invoke><｜tool_call_end｜>',
         block=("<｜tool_calls_begin｜>\n", "\n<｜tool_calls_end｜>"), by_name=False,
         style=Elements('<steptml:parameter name="{key}">{value}</steptml:parameter>'), markers=("<｜tool▁", "<steptml:"),
         layout=_PLAIN,
         frames=Frames("<｜tool_output_begin｜>{content}<｜tool_output_end｜>", markers=("<｜tool_output",),
                       around="<｜tool_outputs_begin｜>\n{results}\n<｜tool_outputs_end｜>")),
    _xml("muse",
         (' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n{values}</atem:invoke>\n'
          "</atem:function_calls>"),
         join="<|eom|><|start|>assistant", style=Elements('<atem:parameter name="{key}">{value}</atem:parameter>\n'),
         by_name=False, listing_of=_TOOL_LINES, markers=("<atem:", "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
         layout=Layout((" to=self<|message|>", "<|eom|><|start|>assistant"), answer=(" to=user<|message|>", ""),
                       prose=(" to=user<|message|>", "<|eom|><|start|>assistant")),
         rules=(_TEXT, "Each call is a message to its tool.")),
    _xml("beam", "<|channel|>commentary to=functions.{name}<|message|>{values}<|call|>", join=_AGAIN, by_name=False,
         style=Elements('<rfl:parameter name="{key}">{value}</rfl:parameter>'), listing_of=typescript("## functions\n\n"),
         markers=("<rfl:", *_CHANNEL_MARKERS), layout=_CHANNEL_LAYOUT, frames=_CHANNEL_FRAMES,
         rules=(_TEXT, "A call goes to the channel commentary.")),
    _xml("dots", _INVOKE, block=("<dots_function_call>\n", "\n</dots_function_call>"), style=_PARAMETER,
         markers=("<dots_function_call", "<invoke"), inner_markers=("<parameter",)),
    _xml("kimi_k3", '<|open|>call tool="{name}" index="{index}"<|sep|>{values}<|close|>call<|sep|>', join="",
         block=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"), by_name=False,
         style=Elements('<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>',
                        attribute=in_attribute),
         listing_of=json_list(), markers=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
         layout=Layout(("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
                       prose=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
                       answer=("<|open|>response<|sep|>", "<|close|>response<|sep|>")),
         rules=('A text stands as it is, with type="string"; everything else as JSON, with its JSON type.',)),
    _xml("claude_xml", _INVOKE, block=("<function_calls>\n", "\n</function_calls>"), style=_PARAMETER,
         listing_of=json_lines("<functions>\n<function>", "</function>\n</functions>", openai=False,
                               join="</function>\n<function>"),
         markers=("<function_calls", "<invoke"), inner_markers=("<parameter",),
         frames=Frames("<result>\n<tool_name>{name}</tool_name>\n<stdout>\n{content}\n</stdout>\n</result>",
                       around="<function_results>\n{results}\n</function_results>",
                       markers=("<function_results", "<result", "<stdout"))),
)

_GLM = ("<tool_call", "<|user|>", "<|assistant|>", "<|observation|>", "<|system|>")
_HUNYUAN = ("<tool_call", "<｜hy_")
_KEYS = Elements("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>")
_KEY_LINES = Elements("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")

_keys = partial(_xml, style=_KEYS, markers=("<tool_call",), layout=_THINK,
                inner_markers=("<tool_call", "<arg_key", "<arg_value", "<tool_sep"))

_XML_KEYS = (
    _keys("glm45", "<tool_call>{name}\n{values}</tool_call>", style=_KEY_LINES, markers=_GLM,
          layout=Layout(("\n<think>", "</think>\n"))),
    _keys("glm47", "<tool_call>{name}{values}</tool_call>", join="", markers=_GLM, frames=_RESPONSE_ON_LINE),
    _keys("ling3", "<tool_call>{name}\n{values}\n</tool_call>",
          style=Elements("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>"),
          markers=("<tool_call", "<role>", "<|role_end|>"), layout=Layout(("<think>", "</think>"))),
    _keys("spark25", "<tool_call>{name}{values}</tool_call>", join="", frames=_RESPONSE_ON_LINE),
    _keys("iquest_q1", "<iquest_tool_call>{name}{values}</iquest_tool_call>", join="", markers=("<iquest_", "<|iquest_"),
          frames=_RESPONSE_ON_LINE),
    _keys("poolside_v1", "<tool_call>{name}\n{values}</tool_call>", style=_KEY_LINES,
          layout=Layout(("<think>", "</think>\n"))),
    _keys("hunyuan_v3", "<tool_call>{name}<tool_sep>\n{values}</tool_call>", style=_KEY_LINES,
          block=("<tool_calls>\n", "\n</tool_calls>"), markers=_HUNYUAN),
    _keys("hunyuan_v4", "<tool_call>{name}\n{values}</tool_call>", style=_KEY_LINES,
          block=("<tool_calls>\n", "\n</tool_calls>"), markers=_HUNYUAN),
    _keys("k2_horizon", "<ifm|tool_call>{name}{values}</ifm|tool_call>", join="",
          block=("<ifm|tool_calls>", "</ifm|tool_calls>"),
          style=Elements("<ifm|arg_key>{key}</ifm|arg_key><ifm|arg_value>{value}</ifm|arg_value>"), markers=("<ifm|",),
          layout=Layout(("<ifm|think>", "</ifm|think>"), prose=("", ""))),
)

_KEYWORDS = "Arguments are keyword arguments, their values Python literals."

_python = partial(FamilyWriter, call="{call}", join=", ", style=PythonStyle(PYTHON), rules=(_KEYWORDS,), frames=_RESPONSE_JSON,
                  listing_of=json_list(openai=False, indent=4))

_PYTHON = (
    _python("pythonic", block=("[", "]"), markers=_LLAMA),
    _python("llama4_pythonic", block=("<|python_start|>[", "]<|python_end|>"), by_name=False,
            markers=("<|python_start|>", "<|python_end|>", "<|header_start|>", "<|eot|>", "<|eom|>")),
    _python("lfm2", block=("<|tool_call_start|>[", "]<|tool_call_end|>"), style=PythonStyle(PYTHON_IN_DOUBLE_QUOTES),
            by_name=False, listing_of=json_list("List of tools: <|tool_list_start|>", "<|tool_list_end|>", openai=False),
            markers=("<|tool_call_", "<|tool_list_", *_CHATML), layout=_THINK,
            frames=Frames("<|tool_response_start|>{content}<|tool_response_end|>",
                          markers=("<|tool_response_start|>", "<|tool_response_end|>"))),
    _python("olmo3", block=("<function_calls>", "</function_calls>"), join="\n", style=PythonStyle(PYTHON_WITH_JSON_WORDS),
            listing_of=json_list("<functions>", "</functions>", openai=False), markers=("<function_calls", *_CHATML),
            layout=_PLAIN, frames=_RESPONSE,
            rules=("Arguments are keyword arguments, their values JSON.", "Each call stands on a line of its own.")),
    _python("tool_code", call="print(default_api.{call})", block=("```tool_code\n", "\n```"), join="\n",
            style=PythonStyle(PYTHON_IN_DOUBLE_QUOTES), by_name=False, listing_of=_TOOL_LINES,
            markers=("<start_of_turn>", "<end_of_turn>"),
            frames=Frames("```tool_output\n{json}\n```", markers=("```tool_output",))),
)


_Pair = tuple[str, str]


def _gemma(name: str, mark: str, call: _Pair, declaration: _Pair, *, layout: Layout, frames: Frames) -> FamilyWriter:
    return FamilyWriter(name, f"{call[0]}call:{{name}}{{arguments}}{call[1]}", join="", style=GemmaStyle(mark), by_name=False,
                        listing_of=gemma_list(mark, *declaration), layout=layout, frames=frames, raw=True,
                        markers=(mark, *call, *declaration, "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>"),
                        rules=(f"Keys stand bare, texts as they are between two {mark}, everything else as JSON.",))


_GEMMA = (
    _gemma("gemma4", '<|"|>', ("<|tool_call>", "<tool_call|>"), ("<|tool>", "<tool|>"),
           layout=Layout(("<|channel>thought\n", "\n<channel|>"), prose=("", "")),
           frames=Frames('<|tool_response>response:{name}{{value:<|"|>{content}<|"|>}}<tool_response|>', join="",
                         markers=("<|tool_response>", "<tool_response|>"))),
    _gemma("functiongemma", "<escape>", ("<start_function_call>", "<end_function_call>"),
           ("<start_function_declaration>", "<end_function_declaration>"), layout=_PLAIN,
           frames=Frames("<start_function_response>response:{name}{{value:<escape>{content}<escape>}}<end_function_response>",
                         join="", markers=("<start_function_response>", "<end_function_response>"))),
)
# fmt: on

WRITERS: dict[str, FamilyWriter] = {
    row.format: row for row in (*_JSON_TAGS, *_NAMED, *_XML_PARAMETERS, *_XML_KEYS, *_GEMMA, *_PYTHON, *_BARE)
}
"""All writers, by the name of the format that reads what they write. Families without a writer use the fenced contract."""

Writer = FamilyWriter | FencedWriter

_MAX_NAME = 256


@lru_cache(maxsize=256)
def writer_for(
    format: str | Format = "auto",  # noqa: A002 - the name the API fixes
    *,
    tool_call_tag: str = DEFAULT_CALL_TAG,
    tool_result_tag: str = DEFAULT_RESULT_TAG,
    text_tools: frozenset[str] = frozenset(),
) -> Writer:
    """Return the writer of a format: its family's, or the fenced contract's with these tags. Raises ConfigurationError.

    ``text_tools``: tools whose calls the contract writes as plain text.
    """
    name = format.name if isinstance(format, Format) else format
    if name in WRITERS:
        return WRITERS[name]
    choose(format)
    return FencedWriter(tool_call_tag, tool_result_tag, text_tools)


def format_for(model: str) -> str:
    """Return the format for prompts to a model of this name; "auto", the fenced contract, if none is certain."""
    return _format_for(model) if len(model) <= _MAX_NAME else "auto"


@lru_cache(maxsize=256)
def _format_for(model: str) -> str:
    hint = format_of(model)
    writer = None if hint is None else WRITERS.get(hint.format)
    return writer.format if writer is not None and writer.by_name else "auto"


def render_calls(
    format: str | Format,  # noqa: A002 - the name the API fixes
    calls: Iterable[ToolCall],
    content: str = "",
    reasoning: str = "",
) -> str:
    """Render a turn as a model of this format would write it, its calls numbered from 0. Raises ConfigurationError."""
    writer = writer_for(format)
    numbered = [
        ToolCall(writer.call_id(number, call.name, call.id), call.name, call.raw_arguments) for number, call in enumerate(calls)
    ]
    return writer.turn(content, numbered, reasoning)
