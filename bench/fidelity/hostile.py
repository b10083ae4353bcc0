"""Texts that want to make a parser slow: one head and one unit, again and again, made to any length.

Each is the beginning of something that never ends, or of very many things. They are read by the measuring (what do ten times as
many characters cost?) and by ``tests/formats/test_work.py`` (how much more work is that, counted?).
"""

from __future__ import annotations

_OPENERS = (
    "<tool_call>", "<tool_call>{", "<tool_calls>[", "<function=write_file>", '<function name="write_file">', '<invoke name="write_file">',
    "<parameter=content>", "<arg_key>", "<|tool_call|>", "[TOOL_CALLS]", "<｜tool▁calls▁begin｜>", "<｜DSML｜tool_calls>",
    "<|tool_calls_section_begin|>", "<|channel|>commentary to=functions.write_file<|message|>", "<|python_tag|>", "<|tool_call_start|>[",
    "<start_function_call>call:write_file{", "<|tool_call>call:write_file{", "functools[", "<minimax:tool_call>", "<seed:tool_call>",
    "<function_calls>", "<|START_ACTION|>[", "<|tools_prefix|>[", "✿FUNCTION✿: write_file\n", "Action: write_file\n", "```json\n", "```tool_call\n",
    "<think>", "[THINK]", "write_file(", "[write_file(", '{"name": "write_file", ', "<|open|>tools<|sep|>", "<ifm|tool_calls>", ">>>write_file\n",
    "<TOOLCALL>[", "]<]minimax[>[<tool_call>", "<|action_start|><|plugin|>", "<longcat_tool_call>", "<dots_function_call>",
)  # fmt: skip
"""What begins a call somewhere, without its end."""

UNITS: dict[str, tuple[str, str]] = {
    "open brackets": ("", "["),
    "open braces": ("", "{"),
    "open objects": ("", '{"a":'),
    "open parentheses": ("write_file", "("),
    "brackets and braces": ("", '[{"a":'),
    "double quotes": ("", '"'),
    "single quotes": ("[write_file(content=", "'"),
    "triple quotes": ("[write_file(content=", '"""\''),
    "backslashes": ('{"name": "write_file", "arguments": {"content": "', "\\"),
    "escapes": ('<tool_call>{"name": "write_file", "arguments": {"content": "', "\\u00e"),
    "fences": ("", "```"),
    "fence lines": ("", "```\n"),
    "labelled fences": ("", "```json\n{"),
    "calls in fences": ("", '```xml\n<tool_call>{"name": "write_file", "arguments": {}}</tool_call>\n```\n'),
    "calls in fences, without an end": ("", "```xml\n<tool_call><function=write_file><parameter=content>\n```\n"),
    "names above fences": ("", "write_file\n```python\ntool_call(content='\n```\n"),
    "angle brackets": ("", "<"),
    "pipes": ("", "<|"),
    "wide pipes": ("", "<｜"),
    "closers": ("", "</tool_call></function></parameter>"),
    "every opener": ("", "".join(_OPENERS)),
    "openers, one a line": ("", "\n".join(_OPENERS) + "\n"),
    "tool calls without an end": ("", "<tool_call>"),
    "tool calls that are prose": ("", "<tool_call>no call\n"),
    "half openers": ("", "<tool_cal"),
    "openers in a JSON string": ('<tool_call>{"name": "write_file", "arguments": {"content": "', "<tool_call>{\\n"),
    "openers in an XML value": (
        "<tool_call><function=write_file><parameter=content>",
        "<function=write_file><parameter=content>",
    ),
    "closers in an XML value": ("<tool_call><function=write_file><parameter=content>", "</parameter>x"),
    "parameters without an end": ("<tool_call><function=write_file>", "<parameter=content>"),
    "keys without values": ("<tool_call>write_file", "<arg_key>content</arg_key>"),
    "values without keys": ("<tool_call>write_file", "<arg_value>"),
    "invokes without a wrapper": ("", '<invoke name="write_file">'),
    "DSML without an end": ("", '<｜DSML｜invoke name="write_file"><｜DSML｜parameter name="content" string="true">'),
    "thoughts": ("", "<think>"),
    "thoughts that end": ("", "<think>x</think>"),
    "ends of thoughts": ("", "</think>"),
    "calls in a thought": ("<think>", '<tool_call>{"name": "write_file", "arguments": {}}</tool_call>'),
    "open calls in a thought": ("<think>", "<tool_call>\n<function=write_file>"),
    "Python names": ("", "write_file "),
    "Python calls without an end": ("", "write_file("),
    "Python calls in a list": ("[", "write_file(content='x'), "),
    "nested Python calls": ("[", "write_file(content=["),
    "bare objects that are prose": ("", '{"name": "Alice", "age": 30}\n'),
    "bare calls": ("", '{"name": "write_file", "arguments": {}}; '),
    "a long name": ("<function=", "n"),
    "a long name in JSON": ('<tool_call>{"name": "', "n"),
    "a long attribute": ('<invoke name="', "n"),
    "a long header": ("<|channel|>commentary to=", "functions."),
    "Harmony channels": ("", "<|channel|>analysis"),
    "names with arguments": ("", "[TOOL_CALLS]write_file"),
    "arguments markers": ("[TOOL_CALLS]write_file", "[ARGS]"),
    "Gemma delimiters": ("<|tool_call>call:write_file{content:", '<|"|>'),
    "Gemma objects": ("<|tool_call>call:write_file", "{a:"),
    "nested elements": ('<tool_call><invoke name="write_file">', "]<]minimax[>[<a>"),
    "CDATA": ('<function name="write_file"><param name="content">', "<![CDATA["),
    "ReAct lines": ("", "Action: write_file\n"),
    "actions without input": ("", "Action: write_file\nAction Input:\n"),
    "blank lines": ("", "\n"),
    "blanks behind an opener": ("<tool_call>", " "),
    "digits": ('<tool_call>{"name": "write_file", "arguments": {"content": ', "9"),
    "commas": ('<tool_call>{"name": "write_file", "arguments": {', ","),
    "quote marks": ("", "> "),
}
"""Head, and what is repeated behind it."""


def text(name: str, size: int) -> str:
    """About ``size`` characters of it."""
    head, unit = UNITS[name]
    return head + unit * (size // len(unit))
