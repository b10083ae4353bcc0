"""Calls as tags with named parameters, and as nested elements: every family, and common damage."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from patchbay import StreamParser
from patchbay.formats import CallArguments
from patchbay.formats.render import render_calls
from patchbay.types import ToolCall
from support.repeated import sampled

from .cuts import calls_of, pieces_of, read, streamed
from .tools import tool

_TEXT = {"type": "string"}


TOOLS = [
    tool(
        "book_boat",
        ("port",),
        port=_TEXT,
        seats={"type": "integer"},
        crew={"type": "boolean"},
        stops={"type": "array", "items": _TEXT},
        deal={"type": "object", "properties": {"price": {"type": "number"}, "notes": {"type": "array", "items": _TEXT}}},
        either={"anyOf": [{"type": "array", "items": {"type": "integer"}}, _TEXT]},
    ),
    tool("keep_log", ("path", "text"), path=_TEXT, text=_TEXT),
    tool("moor"),
]
CLAUDE = "antml" + ":"
M3 = "]<]minimax[>["

QWEN = "<tool_call>\n<function=book_boat>\n<parameter=port>\n{}\n</parameter>\n</function>\n</tool_call>"
DSML = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="book_boat">\n{}\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'


def m3(tag: str, inside: str, attribute: str = "") -> str:
    return f"{M3}<{tag}{attribute}>{inside}{M3}</{tag}>"


NAMES = [
    "qwen3_coder", "mimo", "seed_oss", "minicpm5", "minimax_m2", "minimax_m3", "deepseek_v32", "deepseek_v4", "deepseek_v41", "gigachat35",
    "step3", "dots", "claude_xml", "functionary_v31",
]  # fmt: skip
FAMILIES = {
    name: render_calls(name, [ToolCall("", "book_boat", '{"port": "Riga", "seats": 3}'), ToolCall("", "moor", "{}")])
    for name in NAMES
}
BOAT: list[tuple[str, Any]] = [("book_boat", {"port": "Riga", "seats": 3}), ("moor", {})]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_is_cut_off_in_a_value_is_incomplete(name: str) -> None:
    text = FAMILIES[name]
    cut = text[: text.index("Riga") + 2]
    reply = read(cut, TOOLS, format=name)
    assert () == reply.tool_calls
    assert ["book_boat"] == [call.name for call in reply.incomplete]
    assert cut.endswith(reply.incomplete[0].raw)
    assert None is reply.content


@pytest.mark.parametrize("value", ["Riga", "3"])
@pytest.mark.parametrize("name", [name for name, text in FAMILIES.items() if "}" not in text])  # an object has an end of its own
def test_call_truncated_after_an_argument_is_incomplete(name: str, value: str) -> None:
    text = FAMILIES[name]
    end = text.index(">", text.index("</", text.index(value))) + 1
    for cut in range(end, text.index("<", end) + 2):
        reply = read(text[:cut], TOOLS, format=name)
        assert () == reply.tool_calls
        assert ["book_boat"] == [call.name for call in reply.incomplete]
        assert None is reply.content


@pytest.mark.parametrize("name", FAMILIES)
def test_call_with_only_its_wrapper_unclosed_is_a_call(name: str) -> None:
    text = FAMILIES[name]
    begin = text.index("}" if "}" in text else "</", text.index("3"))
    end = begin + 1 if "}" in text else text.index(">", text.index("</", begin + 2)) + 1
    reply = read(text[:end], TOOLS, format=name)
    assert BOAT[:1] == calls_of(reply)
    assert () == reply.incomplete


@pytest.mark.parametrize("end", ["</function>", "</tool_call>", "<|im_end|>", "<tool_call>\n<function=moor></function>"])
def test_any_text_that_must_follow_a_call_ends_it(end: str) -> None:
    text = QWEN.partition("</function>")[0].format("Riga")
    assert ("book_boat", {"port": "Riga"}) == calls_of(read(text + end, TOOLS))[0]
    assert ["book_boat"] == [call.name for call in read(text, TOOLS).incomplete]
    assert ["book_boat"] == [call.name for call in read(text + end[:5], TOOLS).incomplete]


DAMAGED = {
    "no closer of the value, the call's behind it": QWEN.replace("</parameter>\n", "").format("Riga"),
    "no closer at all": QWEN.partition("</parameter>")[0].format("Riga") + "</tool_call>",
    "no bracket and no line break behind the name": (
        "<tool_call><function=book_boat<parameter=port>Riga</parameter></function></tool_call>"
    ),
    "JSON in the call": '<tool_call>\n<function=book_boat>\n{"port": "Riga"}\n</function>\n</tool_call>',
    "a wrapper's name cut short": DSML.replace("<｜DSML｜tool_calls>", "<｜DSML｜tool>").format(
        '<｜DSML｜parameter name="port">Riga</｜DSML｜parameter>'
    ),
    "no token in the closers": DSML.replace("</｜DSML｜", "</").format('<｜DSML｜parameter name="port">Riga</parameter>'),
    "a blank in a token's place": DSML.replace("｜DSML｜", " ").format('< parameter name="port" string="true">Riga</ parameter>'),
    "one parameter for all, as Python": "<function name=\"book_boat\"><param name=\"properties\">{'port': 'Riga'}</param></function>",
    "a tokenizer's blanks": '<function\u0120name="book_boat">\u010a<param\u0120name="port">Riga</param></function>',
    "no blanks": '<functionname="book_boat"><paramname="port">Riga</param></function>',
    "elements without their token": '<tool_call>\n<invoke name="book_boat"><port>Riga</port></invoke>\n</tool_call>',
    "an element without a closer": m3("tool_call", m3("invoke", f"{M3}<port>Riga", ' name="book_boat"')),
    "Claude's name space": re.sub(r"(</?)", rf"\1{CLAUDE}", FAMILIES["claude_xml"]),
    "an element with another's closer": m3("tool_call", m3("invoke", f"{M3}<port>Riga{M3}</harbour>", ' name="book_boat"')),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_call_is_read_as_intended(damage: str) -> None:
    reply = read(f"I book.\n{DAMAGED[damage]}", TOOLS)
    name, arguments = calls_of(reply)[0]
    assert ("book_boat", "Riga") == (name, arguments["port"])
    assert "I book." == reply.content
    assert () == reply.incomplete


def test_an_unknown_tool_between_two_others_is_prose_and_they_are_calls() -> None:
    call = "<tool_call>\n<function={}>\n</function>\n</tool_call>"
    reply = read("\n".join(call.format(name) for name in ("moor", "drift", "moor")), TOOLS)
    assert [("moor", {}), ("moor", {})] == calls_of(reply)
    assert call.format("drift") == (reply.content or "").strip()


# Text that is not a call


@pytest.mark.parametrize(
    "text",
    [
        "Write `<function=moor>` and then a parameter.",
        "The tag <function=moor> opens a call.",
        "It ends with <function=moor>",
        '<invoke name="moor"> is how it begins.',
        '<invoke name="book_boat"><parameter name="seats">3</parameter></invoke>',
        '<invoke name="book_boat"><parameter name="port">Riga</parameter>',
        '<invoke name="sink_boat"><parameter name="port">Riga</parameter></invoke>',
        '<｜DSML｜invoke name="book_boat">\n<｜DSML｜parameter name="port" string="true">Riga</｜DSML｜parameter>',
        f'{M3}<invoke name="book_boat">{M3}<seats>3{M3}</seats>{M3}</invoke>',
        "A </function> alone, a </parameter>, a </invoke> and a </tool_call> too.",
        "see <｜DSML｜tool> and <｜DSML｜ there",
        "<tool_call>\n<function=book_boat>\nno parameter at all\n</function>\n</tool_call>",
    ],
)
def test_text_that_looks_like_a_call_is_prose(text: str) -> None:
    reply = read(text, TOOLS)
    assert text == reply.content
    assert () == reply.tool_calls == reply.incomplete


@pytest.mark.parametrize("opener", ['<invoke name="book_boat">', '<｜DSML｜invoke name="book_boat">'])
def test_an_invoke_without_its_wrapper_is_a_call_when_it_is_complete(opener: str) -> None:
    reply = read(f'I book.\n{opener}\n<parameter name="port">Riga</parameter>\n</invoke>\n</｜DSML｜tool_calls>', TOOLS)
    assert [("book_boat", {"port": "Riga"})] == calls_of(reply)
    assert "I book." == reply.content


def test_an_invoke_without_its_wrapper_is_prose_where_no_tools_are_known() -> None:
    text = '<invoke name="book_boat"><parameter name="port">Riga</parameter></invoke>'
    assert text == read(text, None).content


def test_marked_call_without_known_tools_has_text_values() -> None:
    assert [("f", {"a": "1"})] == calls_of(read(QWEN.replace("book_boat", "f").replace("port", "a").format("1"), None))


# Values


@pytest.mark.parametrize(
    "value",
    [
        "    indented\n\n\ttwice",
        "&lt;b&gt; &amp; <b>bold</b> < 3 && x > 4",
        "a </parameter> b",
        "x </function> y </tool_call> z <tool_call> w",
        "<parameter=port> said twice",
        "no <parameter=such> parameter",
        "\n two lines around \n",
        'quotes " and \\ backslashes \\n \u2028 \x07',
        "\u0120 is a letter here",
        "<![CDATA[kept]]>",
        "</think> is a tag, <|im_end|> a token",
        "ends with <",
        "ends with </param",
        "",
    ],
)
def test_a_text_value_is_the_text_that_was_written(value: str) -> None:
    for text in (
        QWEN.format(value),
        QWEN.replace(">\n{}\n<", ">{}<").replace("\n<param", "<param").format(value),
        DSML.format(f'<｜DSML｜parameter name="port" string="true">{value}</｜DSML｜parameter>'),
        DSML.replace("｜DSML｜tool_calls", "minimax:tool_call")
        .replace("｜DSML｜", "")
        .format(f'<parameter name="port">{value}</parameter>'),
    ):
        assert [("book_boat", {"port": value})] == calls_of(read(text, TOOLS)), text


def test_one_line_break_on_each_side_of_a_value_is_markup_where_the_tags_have_their_own_lines() -> None:
    assert [("book_boat", {"port": "\nRiga\n"})] == calls_of(read(QWEN.format("\nRiga\n"), TOOLS))
    inline = "<tool_call><function=book_boat><parameter=port>\nRiga\n</parameter></function></tool_call>"
    assert [("book_boat", {"port": "\nRiga\n"})] == calls_of(read(inline, TOOLS, format="mimo"))
    one_sided = "<seed:tool_call>\n<function=book_boat>\n<parameter=port>Riga\n</parameter>\n</function>\n</seed:tool_call>"
    assert [("book_boat", {"port": "Riga\n"})] == calls_of(read(one_sided, TOOLS, format="seed_oss"))


@pytest.mark.parametrize(
    ("attribute", "key", "written", "meant"),
    [
        (' string="true"', "port", "  3 ", "  3 "),
        (' string="true"', "seats", "3", "3"),
        (' string="false"', "port", "3", 3),
        (' string="false"', "seats", "3", 3),
        (' string="false"', "stops", '["a"]', ["a"]),
        (' string="false"', "stops", "['a']", ["a"]),
        (' string="false"', "unheard_of", '{"a": [1]}', {"a": [1]}),
        (' string="false"', "unheard_of", "not JSON", "not JSON"),
        ("", "unheard_of", "[1]", [1]),
        ("", "unheard_of", "not JSON", "not JSON"),
        ("", "port", "[1]", "[1]"),
        ("", "seats", "3", 3),
    ],
)
def test_attribute_marks_a_value_as_text(attribute: str, key: str, written: str, meant: Any) -> None:
    text = DSML.format(f'<｜DSML｜parameter name="{key}"{attribute}>{written}</｜DSML｜parameter>')
    assert [("book_boat", {key: meant})] == calls_of(read(text, TOOLS))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("<![CDATA[a <b> & \n c]]>", "a <b> & \n c"),
        ("<![CDATA[a </param> b]]>", "a </param> b"),
        ("<![CDATA[a ]]> </param> b]]>", "a ]]> </param> b"),
        ("<![CDATA[a]]]]><![CDATA[>b]]>", "a]]>b"),
        ("<![CDATA[]]>", ""),
        ("<![CDATA plain", "<![CDATA plain"),
    ],
)
def test_a_section_of_character_data_is_the_text_in_it(written: str, meant: str) -> None:
    text = f'<function name="book_boat"><param name="port">{written}</param></function> Done.'
    reply = read(text, TOOLS)
    assert [("book_boat", {"port": meant})] == calls_of(reply)
    assert "Done." == reply.content


def test_repeated_key_has_its_last_value() -> None:
    text = QWEN.format(
        "Riga\n</parameter>\n<parameter=seats>\n1\n</parameter>\n<parameter=seats>\n2\n</parameter>\n<parameter=port>\nKiel"
    )
    assert [("book_boat", {"port": "Kiel", "seats": 2})] == calls_of(read(text, TOOLS))


# Elements


def order(*elements: str) -> str:
    return m3("tool_call", "\n" + m3("invoke", "".join(elements), ' name="book_boat"') + "\n")


@pytest.mark.parametrize(
    ("elements", "meant"),
    [
        (m3("port", "\n a <b> & </port>\n"), {"port": "\n a <b> & </port>\n"}),
        (m3("seats", " 7 "), {"seats": 7}),
        (m3("stops", m3("item", "a") + m3("item", "b")), {"stops": ["a", "b"]}),
        (m3("stops", m3("stop", "a")), {"stops": ["a"]}),
        (m3("stops", "a") + m3("stops", "b"), {"stops": ["a", "b"]}),
        (m3("stops", ""), {"stops": []}),
        (m3("stops", '["a"]'), {"stops": ["a"]}),
        (m3("deal", ""), {"deal": {}}),
        (m3("deal", m3("price", "2.5") + m3("notes", "x") + m3("notes", "y")), {"deal": {"price": 2.5, "notes": ["x", "y"]}}),
        (m3("deal", m3("notes", m3("item", "x"))), {"deal": {"notes": ["x"]}}),
        (m3("deal", "hi " + m3("k", "v") + " there"), {"deal": {"k": "v", "$text": "hi  there"}}),
        (m3("deal", "x" + m3("$text", "y")), {"deal": {"$text": "y", "$$text": "x"}}),
        (m3("either", m3("item", "1") + m3("item", "2")), {"either": [1, 2]}),
        (m3("either", ""), {"either": ""}),
        (m3("unheard_of", m3("item", "1") + m3("item", "2")), {"unheard_of": ["1", "2"]}),
        (m3("unheard_of", m3("a", m3("b", "c"))), {"unheard_of": {"a": {"b": "c"}}}),
        (m3("port", "see " + m3("i", "this")), {"port": f"see {m3('i', 'this')}"}),
    ],
)
def test_elements_in_elements_are_objects_and_lists_as_the_schema_has_them(elements: str, meant: dict[str, Any]) -> None:
    reply = read(order(elements), TOOLS)
    assert [("book_boat", meant)] == calls_of(reply)
    assert None is reply.content


@pytest.mark.parametrize("depth", [100, 200, 20_000])
def test_elements_that_are_nested_too_deeply_are_the_text_they_are(depth: int) -> None:
    inside = f"{M3}<n>" * depth + "v" + f"{M3}</n>" * depth
    [(name, arguments)] = calls_of(streamed([order(m3("deal", inside))], TOOLS))
    assert "book_boat" == name
    value = arguments["deal"]
    if depth > 127:
        assert inside == value
    else:
        for _ in range(depth):
            value = value["n"]
        assert "v" == value


# Streams


def arguments_after(text: str, **options: Any) -> str:
    """Return the arguments emitted once ``text`` has arrived."""
    parser = StreamParser(TOOLS, **options)
    events = [event for piece in pieces_of(text, 4) for event in parser.feed(piece)]
    return "".join(event.text for event in events if isinstance(event, CallArguments))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "functionary_v31"])
def test_text_argument_streams_as_it_arrives(name: str) -> None:
    text = FAMILIES[name]
    begin = text[: text.index("Riga")]
    for end in sampled(range(1, 40), 10):
        value = ("Riga and " * 5)[:end]
        outcome = arguments_after(begin + value, format=name)
        assert '{"port": "' + value == outcome


@pytest.mark.parametrize(
    "tail", ["<", "</", "</para", "</parameter", "</parameter>", "</parameter>\n", "</parameter>\n</fun", "\n"]
)
def test_possible_end_tag_of_a_text_is_buffered(tail: str) -> None:
    begin = QWEN.partition("{}")[0]
    assert '{"port": "Ri' == arguments_after(f"{begin}Ri{tail}")
    assert '{"port": "Ri' + json.dumps(tail)[1:-1] + " x" == arguments_after(f"{begin}Ri{tail} x")


def test_values_that_need_their_end_wait_for_it_and_for_the_next_text() -> None:
    begin = "<tool_call>\n<function=book_boat>\n<parameter=seats>\n3\n</parameter>\n<parameter=port>\n"
    assert "" == arguments_after(begin.partition("<parameter=port>")[0])
    assert '{"seats": 3, "port": "Ri' == arguments_after(f"{begin}Ri")


def test_unwrapped_invoke_emits_nothing_before_it_is_complete() -> None:
    text = '<invoke name="book_boat"><parameter name="port">Riga</parameter></invoke>'
    assert "" == arguments_after(text[:-1])
    assert '{"port": "Riga"}' == arguments_after(text)


OLD = (
    "<function_calls>\n<invoke>\n<tool_name>book_boat</tool_name>\n<parameters>\n<port>Riga</port>\n<seats>3</seats>\n"
    "</parameters>\n</invoke>\n</function_calls>"
)


@pytest.mark.parametrize("damage", ["\n", "<", ">", "/"])
def test_elements_with_damaged_tags_read_the_same_in_pieces(damage: str) -> None:
    for at in sampled(range(OLD.index("<parameters>"), len(OLD)), 12):
        for text in (OLD[:at] + damage + OLD[at:], OLD[:at] + damage + OLD[at + 1 :]):
            read(text, TOOLS)
            read(text, None)


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_of_unoffered_tools_are_prose_verbatim(name: str) -> None:
    text = "Before.\n" + FAMILIES[name].replace("book_boat", "sink_boat").replace("moor", "drift") + " And after."
    reply = read(text, TOOLS, format=name)
    assert (text, (), ()) == (reply.content, reply.tool_calls, reply.incomplete)


@pytest.mark.parametrize("unknown", ["keep", "drop"])
@pytest.mark.parametrize("name", FAMILIES)
def test_truncated_call_of_another_tool_reads_equally_in_pieces(name: str, unknown: str) -> None:
    text = FAMILIES[name].replace("book_boat", "sink_boat")
    for end in sampled(range(len(text)), 8):
        read(text[:end], TOOLS, unknown_tools=unknown)
