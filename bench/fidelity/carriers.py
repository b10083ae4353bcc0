"""One call with one string argument as every format writes it: the texts whose cost and whose speed are measured.

Written by hand from the formats' descriptions and not with the package's own writers: what is measured is the reader, and a
mistake that writer and reader share would not show.
"""

from __future__ import annotations

import json
from collections.abc import Callable

NAME, KEY = "write_file", "content"

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": NAME,
            "description": "Write a file.",
            "parameters": {"type": "object", "properties": {KEY: {"type": "string"}}, "required": [KEY]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of the next days.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    },
    {"type": "function", "function": {"name": "list_files", "parameters": {"type": "object", "properties": {}}}},
]
"""What is offered while measuring."""


def value(size: int) -> str:
    """A program of about ``size`` characters: what agents write most, and it has quotes, brackets and line breaks."""
    made: list[str] = []
    length = 0
    while length < size:
        made.append(f"row_{len(made):05d} = measure('{len(made):05d}', [scale, 1.5])  # \"as read\"\n")
        length += len(made[-1])
    return "".join(made)


def text(name: str, size: int) -> str:
    """The call in the format ``name`` with about ``size`` characters of argument."""
    return CARRIERS[name](value(size))


def _json(value: str, key: str = "arguments") -> str:
    return json.dumps({"name": NAME, key: {KEY: value}})


def _object(value: str) -> str:
    return json.dumps({KEY: value})


def _around(before: str, after: str) -> Callable[[str], str]:
    """A JSON object with name and arguments between two markers."""
    return lambda value: before + _json(value) + after


def _named(before: str, after: str) -> Callable[[str], str]:
    """A JSON object of arguments behind a marker that holds the name."""
    return lambda value: before.replace("NAME", NAME) + _object(value) + after


def _raw(before: str, after: str) -> Callable[[str], str]:
    """The value as it is, behind a marker that holds name and key."""
    return lambda value: (
        before.replace("NAME", NAME).replace("KEY", KEY) + value + after.replace("NAME", NAME).replace("KEY", KEY)
    )


def _python(before: str, after: str) -> Callable[[str], str]:
    """A Python call."""
    return lambda value: f"{before}{NAME}({KEY}={value!r}){after}"


def _dsml(opener: str, closer: str, mark: str) -> Callable[[str], str]:
    return _raw(
        f'{opener}\n<{mark}invoke name="NAME">\n<{mark}parameter name="KEY" string="true">',
        f"</{mark}parameter>\n</{mark}invoke>\n{closer}",
    )


_M3 = "]<]minimax[>["
_FENCE = "```"

CARRIERS: dict[str, Callable[[str], str]] = {
    # an object in tags
    "fenced": _around("```tool_call\n", "\n```\n"),
    "hermes": _around("<tool_call>\n", "\n</tool_call>"),
    "groq": lambda value: f"<tool_call>\n{json.dumps({'id': 0, 'name': NAME, 'arguments': {KEY: value}})}\n</tool_call>",
    "granite3": _around("<|tool_call|>[", "]"),
    "granite_20b_fc": _around("<function_call> ", ""),
    "jamba": _around("<tool_calls>[\n", "\n]</tool_calls>"),
    "minimax_m1": _around("<tool_calls>\n", "\n</tool_calls>"),
    "nemotron_v2": _around("<TOOLCALL>[", "]</TOOLCALL>"),
    "longcat": _around("<longcat_tool_call>", "</longcat_tool_call>"),
    "internlm2": lambda value: f"<|action_start|> <|plugin|>\n{_json(value, 'parameters')}<|action_end|>\n",
    "phi4_mini": _around("functools[", "]"),
    "phi4_mini (tokens)": _around("<|tool_call|>[", "]<|/tool_call|>"),
    "xlam": _around("[", "]"),
    "command_r_plus": lambda value: (
        f"Action:\n{_FENCE}json\n{json.dumps([{'tool_name': NAME, 'parameters': {KEY: value}}], indent=4)}{_FENCE}\n"
    ),
    "cohere_command": lambda value: (
        "<|START_ACTION|>"
        + json.dumps([{"tool_call_id": "0", "tool_name": NAME, "parameters": {KEY: value}}], indent=4)
        + "<|END_ACTION|>"
    ),
    "apertus": lambda value: f"<|tools_prefix|>{json.dumps([{NAME: {KEY: value}}])}<|tools_suffix|>",
    "dots (JSON)": _around("<dots_function_call>", "</dots_function_call>"),
    "gigachat3": _around("<|function_call|>", "<|message_sep|>"),
    "gigachat3 (3.0)": _around("<|message_sep|>\n\nfunction call<|role_sep|>\n", ""),
    "inkling": lambda value: (
        f"<|message_model|>{NAME}<|content_invoke_tool_json|>"
        + json.dumps({"name": NAME, "args": {KEY: value}})
        + "<|end_message|>"
    ),
    "solar_open": _named(
        "<|tool_calls|><|tool_call:begin|>call00001<|tool_call:name|>NAME<|tool_call:args|>", "<|tool_call:end|><|calls|>"
    ),
    "pangu": _around("[unused11][", "][unused12]"),
    "hyperclova": _around("<|im_end|>\n<|im_start|>assistant -> tool/function_call\n[", "]<|im_end|>"),
    # the name outside
    "mistral_json": _around("[TOOL_CALLS] [", "]"),
    "mistral_args": _named("[TOOL_CALLS]NAME[ARGS]", ""),
    "deepseek_v3_json": _named(
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n{_FENCE}json\n",
        f"\n{_FENCE}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": _named(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "kimi_k2": _named(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "functionary_v31": _named("<function=NAME>", "</function>"),
    "functionary_v32": _named(">>>NAME\n", ""),
    "harmony": _named("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>", "<|call|>"),
    # XML
    "qwen3_coder": _raw("<tool_call>\n<function=NAME>\n<parameter=KEY>\n", "\n</parameter>\n</function>\n</tool_call>"),
    "mimo": _raw("<tool_call><function=NAME><parameter=KEY>", "</parameter></function></tool_call>"),
    "seed_oss": _raw("<seed:tool_call>\n<function=NAME>\n<parameter=KEY>", "</parameter>\n</function>\n</seed:tool_call>"),
    "minicpm5": _raw('<function name="NAME"><param name="KEY"><![CDATA[', "]]></param></function>"),
    "minicpm5 (bare)": _raw('<function name="NAME"><param name="KEY">', "</param></function>"),
    "minimax_m2": _raw(
        '<minimax:tool_call>\n<invoke name="NAME">\n<parameter name="KEY">', "</parameter>\n</invoke>\n</minimax:tool_call>"
    ),
    "minimax_m3": _raw(f'{_M3}<tool_call>\n{_M3}<invoke name="NAME">{_M3}<KEY>', f"{_M3}</KEY>{_M3}</invoke>\n{_M3}</tool_call>"),
    "deepseek_v32": _dsml("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "｜DSML｜"),
    "deepseek_v4": _dsml("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "｜DSML｜"),
    "deepseek_v41": _dsml("<｜DSML｜ calls>", "</｜DSML｜ calls>", "｜DSML｜ "),
    "gigachat35": _dsml("<｜GCML｜tool_calls>", "</｜GCML｜tool_calls>", "｜GCML｜"),
    "step3": _raw(
        '<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME"><steptml:parameter name="KEY">',
        "</steptml:parameter></steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
    ),
    "muse": _raw(
        ' to=NAME<|message|><atem:function_calls>\n<atem:invoke name="NAME">\n<atem:parameter name="KEY">',
        "</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>",
    ),
    "dots": _raw(
        '<dots_function_call>\n<invoke name="NAME">\n<parameter name="KEY">', "</parameter>\n</invoke>\n</dots_function_call>"
    ),
    "kimi_k3": _raw(
        '<|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY" type="string"<|sep|>',
        "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    "claude_xml": _raw(
        '<function_calls>\n<invoke name="NAME">\n<parameter name="KEY">', "</parameter>\n</invoke>\n</function_calls>"
    ),
    "claude_xml (2023)": _raw(
        "<function_calls>\n<invoke>\n<tool_name>NAME</tool_name>\n<parameters>\n<KEY>",
        "</KEY>\n</parameters>\n</invoke>\n</function_calls>",
    ),
    # keys and values in tags
    "glm45": _raw("<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n</tool_call>"),
    "glm47": _raw("<tool_call>NAME<arg_key>KEY</arg_key><arg_value>", "</arg_value></tool_call>"),
    "iquest_q1": _raw("<iquest_tool_call>NAME<arg_key>KEY</arg_key><arg_value>", "</arg_value></iquest_tool_call>"),
    "hunyuan_v3": _raw(
        "<tool_calls>\n<tool_call>NAME<tool_sep>\n<arg_key>KEY</arg_key>\n<arg_value>",
        "</arg_value>\n</tool_call>\n</tool_calls>",
    ),
    "k2_horizon": _raw(
        "<ifm|tool_calls><ifm|tool_call>NAME<ifm|arg_key>KEY</ifm|arg_key><ifm|arg_value>",
        "</ifm|arg_value></ifm|tool_call></ifm|tool_calls>",
    ),
    "plamo3": _named(
        "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>NAME"
        "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>",
    ),
    # Gemma
    "gemma4": _raw('<|tool_call>call:NAME{KEY:<|"|>', '<|"|>}<tool_call|>'),
    "functiongemma": _raw("<start_function_call>call:NAME{KEY:<escape>", "<escape>}<end_function_call>"),
    "tool_code": _python(f"{_FENCE}tool_code\nprint(default_api.", f")\n{_FENCE}"),
    # Python
    "pythonic": _python("[", "]"),
    "llama4_pythonic": _python("<|python_start|>[", "]<|python_end|>"),
    "lfm2": _python("<|tool_call_start|>[", "]<|tool_call_end|>"),
    "olmo3": _python("<function_calls>", "</function_calls>"),
    "nexusraven": _python("Call: ", "<bot_end>"),
    "gorilla": _python("<<function>>", ""),
    "chatglm3": lambda value: f"{NAME}\n{_FENCE}python\ntool_call({KEY}={value!r})\n{_FENCE}",
    # bare JSON and prompted styles
    "llama3_json": lambda value: _json(value, "parameters"),
    "llama3_json (tagged)": lambda value: "<|python_tag|>" + _json(value, "parameters"),
    "openai_dict": lambda value: json.dumps(
        {"tool_calls": [{"id": "call_1", "type": "function", "function": {"name": NAME, "arguments": _object(value)}}]}
    ),
    "json_array_required": lambda value: f"[{_json(value, 'parameters')}]",
    "json fence": _around(f"{_FENCE}json\n", f"\n{_FENCE}"),
    "react": _named("Thought: I write it.\nAction: NAME\nAction Input: ", "\nObservation:"),
    "react (chat)": lambda value: (
        f"Action:\n{_FENCE}json\n{json.dumps({'action': NAME, 'action_input': {KEY: value}})}\n{_FENCE}"
    ),
    "qwen_agent": _named("✿FUNCTION✿: NAME\n✿ARGS✿: ", "\n✿RESULT✿"),
    "glm4_9b": _named("NAME\n", ""),
}
"""By the format's name; a word in brackets tells the spellings of one format apart. Formats that share a spelling stand once."""
