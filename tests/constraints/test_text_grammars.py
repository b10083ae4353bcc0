"""Grammars of plain texts: what is read of Lark's notation, and that a call's text has the grammar of its tool."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from constraints.custom_tools import PATCHES, custom_tool, tools_of
from constraints.matchers import LarkMatcher, Matcher
from patchbay.constraints.calls import OfferedTool
from patchbay.constraints.lark import TextGrammarError, read_text_grammar
from patchbay.constraints.replies import ReplyRules, reply_grammar
from patchbay.constraints.schemas import compile_schema
from patchbay.formats.events import CallEnd
from patchbay.formats.parser import StreamParser
from patchbay.formats.render import writer_for
from patchbay.formats.render.fenced import takes_text
from patchbay.formats.values.tool_names import make_rules
from patchbay.types import ToolSpec, read_specs

NEEDED, FREE = ReplyRules(needed=True), ReplyRules()


def offered(syntax: str, definition: str) -> OfferedTool:
    spec = custom_tool(syntax, definition)
    return OfferedTool(spec, compile_schema(spec.parameters))


def matcher(syntax: str, definition: str, rules: ReplyRules = NEEDED) -> Matcher:
    tool = offered(syntax, definition)
    assert takes_text(tool.spec)
    assert () == tool.unenforced
    return Matcher(reply_grammar(writer_for("fenced", text_tools=frozenset(["patch"])), [tool], rules))


def block(text: str) -> str:
    return f"```tool_call patch\n{text}\n```"


ADD = "*** Begin Patch\n*** Add File: a b.py\n+import x\n+\n+```\n*** End Patch"
UPDATE = (
    "*** Begin Patch\n*** Update File: a.py\n*** Move to: b.py\n@@ def f():\n-    return 1\n+    return 2\n \n@@\n+{}\n"
    "*** End of File\n*** Delete File: c.py\n*** End Patch\n"
)
BAD = [
    "",
    "*** Begin Patch\n*** End Patch",
    ADD.replace("*** Begin", "*** Start"),
    ADD.replace("+import x", "import x"),
    ADD.replace("+import x\n+\n+```\n", ""),
    ADD.replace("Add File: a b.py", "Add File: "),
    ADD.removesuffix("\n*** End Patch"),
    ADD + "\n\n",
    UPDATE.replace("@@ def", "@@def"),
    UPDATE.replace("*** Move to: b.py\n@@", "@@ x\n*** Move to: b.py\n@@"),
    UPDATE.replace("-    return 1", "    return 1\n```"),
]


@pytest.mark.parametrize("text", [ADD, UPDATE, ADD + "\n", ADD.replace("import x", "x" * 3000)])
def test_good_patch_is_accepted_and_read_as_it_stands(text: str) -> None:
    assert text == matcher("lark", PATCHES).accepted_part(block(text))[len("```tool_call patch\n") : -len("\n```")]
    assert matcher("lark", PATCHES).accepts(block(text))
    assert LarkMatcher(PATCHES).accepts(text)
    parser = StreamParser(make_rules([custom_tool("lark", PATCHES)], "text"))
    [call] = [event.call for event in [*parser.feed(block(text)), *parser.close()] if isinstance(event, CallEnd)]
    assert {"input": text} == json.loads(call.raw_arguments)


@pytest.mark.parametrize("text", BAD)
def test_patch_with_a_mistake_is_refused(text: str) -> None:
    assert not matcher("lark", PATCHES).accepts(block(text))
    assert not LarkMatcher(PATCHES).accepts(text)


def test_answer_without_a_patch_is_allowed_where_no_call_is_needed() -> None:
    free = matcher("lark", PATCHES, FREE)
    assert free.accepts(block(ADD))
    assert free.accepts("There is nothing to patch.")
    assert not free.accepts(block(BAD[2]))


@pytest.mark.parametrize(
    ("syntax", "definition", "good", "bad"),
    [
        ("regex", r"[A-Z]{2}-\d+", ["AB-1", "AB-" + "1" * 300], ["A-1", "AB-", "AB-1 "]),
        ("regex", "on|off", ["on", "off"], ["o", "onoff"]),
        ("regex", "a{1,255}", ["a" * 255], ["a" * 256]),
        ("lark", 'start: "a" ~ 2..3 ("b" | "c")?', ["aa", "aaab"], ["a", "aaaa", "aabc"]),
        ("lark", 'start: A [B] "!"\nA: "a".."c"\nB.2: "x"{2}', ["a!", "cxx!"], ["d!", "ax!"]),
        ("lark", '?start: one\n     | two -> second\n!one: "1"\ntwo: "2" // a comment\n# another', ["1", "2"], ["3", "12"]),
        ("lark", 'start: "+" NUMBER\n%import common.NUMBER', ["+1", "+1.5", "+2e3"], ["+", "1"]),
        ("lark", 'start: "+" N WORD\n%import common.INT -> N\n%import common (WORD, LF)', ["+1a"], ["+a1"]),
        ("lark", r'start: "\"q\\\u00e9" /a\/b/', ['"q\\éa/b'], ["q"]),
        ("lark", 'start: (\n  "x"\n  | "y"\n) "z"', ["xz", "yz"], ["z"]),
    ],
)
def test_text_has_the_grammar_of_its_tool(syntax: str, definition: str, good: list[str], bad: list[str]) -> None:
    found = matcher(syntax, definition)
    assert [] == [text for text in good if not found.accepts(block(text))]
    assert [] == [text for text in bad if found.accepts(block(text))]


@pytest.mark.parametrize(
    ("syntax", "definition", "why"),
    [
        ("ebnf", "start: 1", "syntax 'ebnf' is not known"),
        ("regex", "(?=a)b", "not understood"),
        ("lark", 'begin: "a"', "start is not defined"),
        ("lark", 'start: "a" other', "other is not defined"),
        ("lark", 'start: "(" start ")" | "x"', "start contains itself"),
        ("lark", 'start: "a"i', "flags"),
        ("lark", "start: /a/i", "flags"),
        ("lark", 'start: "x"\n%ignore " "', "not understood"),
        ("lark", 'start: "x"\n%import python.NAME', "only common"),
        ("lark", "start: NAME\n%import common.NAME", "common.NAME is not known"),
        ("lark", 'start{x}: "a"', "not understood"),
        ("lark", 'start: "x"\nstart: "y"', "defined twice"),
        ("lark", 'start: ("x"', "is missing"),
        ("lark", 'start: "x")', "not understood"),
        ("lark", "start: *", "not understood"),
        ("lark", 'start: "x" ->', "is missing"),
        ("lark", 'start: "x"{5,2}', "repetitions"),
        ("lark", 'start: "b".."a"', "no range"),
        ("lark", "start: $", "not understood"),
        ("lark", r'start: "\d"', "escapes"),
        ("lark", "start: a a\n" + "".join(f"{x}: {y} {y} {y}\n" for x, y in pairwise("abcdefghi")) + 'i: "x"', "parts"),
        ("lark", "start: " + "(" * 5000 + '"x"' + ")" * 5000, "nested too deeply"),
        ("lark", "start: /.*/", "could be empty"),
        ("lark", r"start: /a(.|\n)*/", "line that ends the block"),
        ("lark", 'start: ("a" /\\n/)+ "`"?', "line that ends the block"),
        ("lark", 'start: /./ "x"', "begin like a call"),
        ("lark", 'start: "{}"', "begin like a call"),
    ],
)
def test_grammar_that_cannot_be_used_says_why_and_any_text_is_allowed(syntax: str, definition: str, why: str) -> None:
    with pytest.raises(TextGrammarError, match=why):
        read_text_grammar(syntax, definition)
    tool = offered(syntax, definition)
    assert any("the grammar of its text: " in each for each in tool.unenforced)
    grammar = reply_grammar(writer_for("fenced", text_tools=frozenset(["patch"])), [tool], NEEDED)
    assert Matcher(grammar).accepts(block("Anything"))


def test_format_of_json_calls_takes_any_text() -> None:
    grammar = reply_grammar(writer_for("hermes"), [offered("lark", PATCHES)], NEEDED)
    call = {"name": "patch", "arguments": {"input": "Anything"}}
    assert Matcher(grammar).accepts(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")


def test_tool_without_a_grammar_has_none() -> None:
    assert None is ToolSpec("f").text_grammar
    [spec] = read_specs(tools_of({"type": "custom", "name": "patch"}))
    assert ("input", None) == (spec.text_parameter, spec.text_grammar)
