"""Arguments in Python as models write them: what is read, what is prose, and what is cut off, in any split."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchbay.types import Reply
from support.repeated import examples

from .cuts import read, streamed
from .tools import tool

NO_CALL, CUT = "no call", "cut"


TOOL = tool(
    "f",
    city={"type": "string"},
    days={"type": "number"},
    tags={"type": "array", "items": {"type": "string"}},
    options={"type": "object"},
    _from={"type": "string"},
)


def arguments_of(text: str, offered: dict[str, Any] | None = TOOL) -> str:
    """The JSON of the arguments in ``text``, behind a tool's name."""
    reply = read(f"<function_calls>f{text}</function_calls>", offered and [offered], format="olmo3")
    return reply.tool_calls[0].raw_arguments if reply.tool_calls else NO_CALL


ARGUMENTS = {
    # how arguments are given
    "()": "{}",
    "( )": "{}",
    "(city='Rome', days=3)": '{"city": "Rome", "days": 3}',
    "(city = 'Rome' , days= 3,)": '{"city": "Rome", "days": 3}',
    "(from='a', class='b', lambda=1)": '{"_from": "a", "class": "b", "lambda": 1}',
    "(größe=1, a-b=2, a.b=3)": '{"größe": 1, "a-b": 2, "a.b": 3}',
    "(city: 'Rome', days: 3)": '{"city": "Rome", "days": 3}',
    "('city': 'Rome', \"days\"=3)": '{"city": "Rome", "days": 3}',
    "('Rome', 3)": '{"city": "Rome", "days": 3}',
    "('Rome', tags=['a'])": '{"city": "Rome", "tags": ["a"]}',
    "(3, city='Rome')": '{"days": 3, "city": "Rome"}',
    "({'city': 'Rome', 'days': 3})": '{"city": "Rome", "days": 3}',
    "({'city': 'Rome'}, days=3)": '{"city": "Rome", "days": 3}',
    "(**{'city': 'Rome'}, days=3)": '{"city": "Rome", "days": 3}',
    "(params={'city': 'Rome'})": '{"city": "Rome"}',
    "(params={'town': 'Rome'})": '{"params": {"town": "Rome"}}',
    "({'city': a_name, 'days': 2*3})": '{"city": "a_name", "days": "2*3"}',
    "(days=1, city='a', days=2)": '{"days": 2, "city": "a"}',
    "(city\\_name='a\\_b', days=3\\*2)": '{"city_name": "a_b", "days": "3*2"}',
    "(tags=\\['a', 'b'\\], days=1)": '{"tags": ["a", "b"], "days": 1}',
    "(\n  city='Rome',  # where, or 'when' (?)\n  days=3  # how long\n)": '{"city": "Rome", "days": 3}',
    # strings
    r"""(city='\n\t\\\'\"\a\x41\u00e9\U0001F600\101\0')""": '{"city": "\\n\\t\\\\\'\\"\\u0007Aé😀A\\u0000"}',
    r"(city='\N{DASH} \d \_', tags=['\x4', '\u12'])": r'{"city": "\\N{DASH} \\d _", "tags": ["\\x4", "\\u12"]}',
    r"(city=r'\d\'', tags=[b'a', f'{x}', u'ü', Rb'\n'])": r'{"city": "\\d\\' + "'" + r'", "tags": ["a", "{x}", "ü", "\\n"]}',
    "(city='a\nb\x00c\\\nd')": '{"city": "a\\nb\\u0000cd"}',
    '(city=\'\'\'it\'s "so"\n\'\'\', tags=[""""x"""])': '{"city": "it\'s \\"so\\"\\n", "tags": ["\\"x"]}',
    "(city='a' \"b\"\n  f'c', tags=('d' + 'e'))": '{"city": "abc", "tags": "de"}',
    "(city='', tags=['', \"\"])": '{"city": "", "tags": ["", ""]}',
    "(city='It's always fresh', days=1)": '{"city": "It\'s always fresh", "days": 1}',
    "(city='the dogs' bowl', days=1)": '{"city": "the dogs\' bowl", "days": 1}',
    "(city='New York', NY', days=1)": NO_CALL,
    "(city='New York', USA, days=1)": '{"city": "New York, USA", "days": 1}',
    "(city='x -c \"f(g('a'))\"', days=1)": '{"city": "x -c \\"f(g(\'a\'))\\"", "days": 1}',
    '(city="a "good" one", days=1)': '{"city": "a \\"good\\" one", "days": 1}',
    '(city="echo "hi"", days=1)': '{"city": "echo \\"hi\\"", "days": 1}',
    "(city=\\'Rome\\', tags=[\\\"a's\\\"])": '{"city": "Rome", "tags": ["a\'s"]}',
    "(city='[x](y) {z}, w=1')": '{"city": "[x](y) {z}, w=1"}',
    "(city='\ud800\\ud83d\\ude00')": '{"city": "\\ud800\\ud83d\\ude00"}',
    # numbers and constants
    "(days=1" + "0" * 5000 + ")": '{"days": 1' + "0" * 5000 + "}",
    "(tags=[1.50, -0, 1e5, 1_000, +5, .5, 5., 0x1f, 0b11, -0o17])": '{"tags": [1.50, -0, 1e5, 1000, 5, 0.5, 5.0, 31, 3, -15]}',
    "(tags=[True, False, None, true, false, null])": '{"tags": [true, false, null, true, false, null]}',
    "(city=007, days=5j)": '{"city": "007", "days": "5j"}',
    "(days=1e999)": '{"days": "1e999"}',
    # containers
    "(tags=(1, 2), options={'a': {'b': [1, {}]}})": '{"tags": [1, 2], "options": {"a": {"b": [1, {}]}}}',
    "(tags=[(), (1,), (1), {1, 2}, [], ])": '{"tags": [[], [1], 1, [1, 2], []]}',
    "(options={1: 'a', 2.5: 'b', True: 'c', None: 'd', key: 'e'})": (
        '{"options": {"1": "a", "2.5": "b", "true": "c", "null": "d", "key": "e"}}'
    ),
    "(options={'a': 1, 'a': 2})": '{"options": {"a": 2}}',
    "(options=dict(a=1, b=[x]), tags=list((1, 2)))": '{"options": {"a": 1, "b": ["x"]}, "tags": [1, 2]}',
    "(options=dict(), tags=[set(), tuple([1])])": '{"options": {}, "tags": [[], [1]]}',
    # what only running it would give
    "(days=2*math.pi)": '{"days": "2*math.pi"}',
    "(tags=[1+1, f(2)])": '{"tags": ["1+1", "f(2)"]}',
    "(city=10-5, days=2024-10-15)": '{"city": "10-5", "days": "2024-10-15"}',
    # non-literals
    "(city=my_data, days=len)": '{"city": "my_data", "days": "len"}',
    "(city=The Thinker, days=1)": '{"city": "The Thinker", "days": 1}',
    "(city=Boston, MA, days=1)": '{"city": "Boston, MA", "days": 1}',
    "(city=O'Brien's 5\" pipe, days=1)": '{"city": "O\'Brien\'s 5\\" pipe", "days": 1}',
    "(city=$5,000, days=5%)": '{"city": "$5,000", "days": "5%"}',
    "(days=1,000,000, city=1,000)": '{"days": "1,000,000", "city": "1,000"}',
    "(tags=[1], USA)": NO_CALL,
    "(days=5kg)": '{"days": "5kg"}',
    "(city=C#, days=1)": '{"city": "C#", "days": 1}',
    "(city=#ff0000, days=1)": '{"city": "#ff0000", "days": 1}',
    "(city=http://a.b/c?d=e, days=1)": '{"city": "http://a.b/c?d=e", "days": 1}',
    "(city=<id of it>, days=1)": '{"city": "<id of it>", "days": 1}',
    "(city=lambda x: x + 1, days=1)": '{"city": "lambda x: x + 1", "days": 1}',
    "(city=fetch('a, b=(1', c=[1])['id'], days=math.lcm(a=1, b=2))": (
        '{"city": "fetch(\'a, b=(1\', c=[1])[\'id\']", "days": "math.lcm(a=1, b=2)"}'
    ),
    "(city='a'.join(x), days=g({'k': 1}))": '{"city": "\'a\'.join(x)", "days": "g({\'k\': 1})"}',
    "(tags=[Big Room, x, 'y'], city=[a, 'b'])": '{"tags": "[Big Room, x, \'y\']", "city": "[a, \'b\']"}',
    "(city=2 *\n  x, days=1)": '{"city": "2 *\\n  x", "days": 1}',
    "(city=x  # note\n, days=1)": '{"city": "x", "days": 1}',
    "(New York, 3)": '{"city": "New York", "days": 3}',
    "(days='[1]', tags='[\"a\"]')": '{"days": "[1]", "tags": ["a"]}',
    # slips
    "(city='a' days=1)": '{"city": "a", "days": 1}',
    "(days=5 city='a' tags=[1])": '{"days": 5, "city": "a", "tags": [1]}',
    "(city=, days=1)": '{"days": 1}',
    "(city, 1)": '{"city": "city", "days": 1}',
    "(city='a',, days=1)": '{"city": "a", "days": 1}',
    "(tags=[1, , 2])": '{"tags": "[1, , 2]"}',
    "(tags=[1, 2)": '{"tags": [1, 2]}',
    "({'city': 'a', 'tags': ['b')": '{"city": "a", "tags": ["b"]}',
    "(tags=(1, 2], days=1)": '{"tags": [1, 2], "days": 1}',
    "(tags=[1]], days=1)": '{"tags": [1], "days": 1}',
    "(tags=[1]": CUT,
    "(tags=[1]]": '{"tags": [1]}',
    "(city='a'\n```\n": '{"city": "a"}',
    # cut off
    "(": CUT,
    "(city": CUT,
    "(city='a', days=1": CUT,
    "(city='a": CUT,
    "(city='\\": CUT,
    # no call
    "(...)": NO_CALL,
    "(city=...)": NO_CALL,
    "(,)": NO_CALL,
    "(city, days)": NO_CALL,
    "(city: str, days: int = 3)": NO_CALL,
    "(self, city: Optional[str])": NO_CALL,
    "(**options)": NO_CALL,
    "(*args)": NO_CALL,
    "(it takes a city)": NO_CALL,
    "(city=my_data\nThis is how it works.)": NO_CALL,
    "(city=my_data\n\nThen)": NO_CALL,
    "(1, 2, 3, 4, 5, 6)": NO_CALL,
    "(city=```": NO_CALL,
}


@pytest.mark.parametrize(("text", "expected"), ARGUMENTS.items(), ids=[text[:50] for text in ARGUMENTS])
def test_arguments_become_json(text: str, expected: str) -> None:
    if expected == CUT:
        reply = read(f"<function_calls>f{text}", [TOOL], format="olmo3")
        assert ((), ["f"]) == (reply.tool_calls, [call.name for call in reply.incomplete])
    else:
        assert expected == arguments_of(text)


@pytest.mark.parametrize(
    ("text", "offered", "expected"),
    [
        ("('Rome')", None, NO_CALL),
        ("(city='Rome', days=x)", None, '{"city": "Rome", "days": "x"}'),
        ("(a=None)", None, '{"a": null}'),
        ("(a=None, b=None)", tool("f", a={"type": "string"}, b={"type": ["string", "null"]}), '{"b": null}'),
        ("({'id': 1})", tool("f", record={"type": "object"}), '{"record": {"id": 1}}'),
        ("({'record': {'id': 1}})", tool("f", record={"type": "object"}), '{"record": {"id": 1}}'),
    ],
)
def test_the_schema_says_where_a_value_goes(text: str, offered: dict[str, Any] | None, expected: str) -> None:
    assert expected == arguments_of(text, offered)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("(city='a', tags=[True, -1.5])", []),
        ("(city='it's')", ["unescaped_quote"]),
        ("(city=x)", ["unquoted_string"]),
        ("(city: true)", ["foreign_separator", "foreign_constant"]),
        ("(city='a' days=1) # x", ["missing_comma"]),
        ("(city='a', # x\n)", ["comment"]),
        ("(tags=[1)", ["unclosed_bracket"]),
        ("(tags=[1]], days=)", ["stray_bracket", "missing_value"]),
    ],
)
def test_repairs_are_reported(text: str, kinds: list[str]) -> None:
    reply = read(f"<function_calls>f{text}</function_calls>", [TOOL], format="olmo3")
    assert kinds == [repair.kind for repair in reply.repairs]


def test_a_marker_ends_the_arguments_outside_of_strings_only() -> None:
    reply = read("<function_calls>f(city='a</function_calls>b', tags=[x </function_calls>) c", [TOOL], format="olmo3")
    assert ['{"city": "a</function_calls>b", "tags": ["x"]}'] == [call.raw_arguments for call in reply.tool_calls]
    assert ") c" == reply.content


def test_brackets_nested_too_deeply_are_not_a_call() -> None:
    for unit in ("[", "(", "{", "f(", "{'a':", "dict(a="):
        text = "f(city=" + unit * 20_000
        assert text == streamed([text], [TOOL], format="pythonic").content
    assert '{"city": ' + "[" * 100 + "]" * 100 + "}" == arguments_of("(city=" + "[" * 100 + "]" * 100 + ")", tool("f", city={}))


@pytest.mark.parametrize("quote", ["", "'"])
def test_an_argument_that_is_too_long_to_hold_back_breaks_its_call(quote: str) -> None:
    text = f"<function_calls>f(city={quote}{'x' * 2**20}y{quote}, days=1)</function_calls>"
    readings = [
        streamed([text[at : at + size] for at in range(0, len(text), size)], [TOOL], format="olmo3")
        for size in (len(text), 2**16)
    ]
    assert readings[0] == readings[1]
    assert ((), ["f"]) == (readings[0].tool_calls, [call.name for call in readings[0].incomplete])


@pytest.mark.parametrize(
    "text",
    [
        "<function_calls>f(, 1[f(null\n    =\n    </function_calls>",  # broken behind words in a block: raised
        "f(\nb=import x\nr'b=', ",  # whether a string begins on the next line was decided before it had arrived
        "# c\nWords of prose==f(a=1)\n\\f(a=1)\n'c', D'",  # a backslash before a name is not Markdown's
    ],
)
@pytest.mark.parametrize("name", ["olmo3", "pythonic", "auto"])
def test_text_that_once_broke_the_reader_reads_the_same_in_any_split(name: str, text: str) -> None:
    read(text, [TOOL], format=name)


SETTINGS = settings(max_examples=examples(30))
texts = st.text(st.sampled_from("abc é'\"\\\n\t,:=()[]{}#+%.*\x00\ud800") | st.characters(), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts | st.integers(), inner, max_size=4)
        | st.sets(st.integers(), min_size=1, max_size=3)
    ),
    max_leaves=8,
)
names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True) | st.sampled_from(
    ["from", "class", "None", "dict", "rb", "lambda_"]
)


def in_json(value: Any) -> Any:
    """A Python value as JSON."""
    return json.loads(json.dumps(value, default=list))


@SETTINGS
@given(st.dictionaries(names, values, max_size=4))
def test_a_call_that_python_could_read_is_read_as_it_is(named: dict[str, Any]) -> None:
    text = f"({', '.join(f'{name}={value!r}' for name, value in named.items())})"
    reply = read(f"<function_calls>f{text}</function_calls> and more", None, format="olmo3")
    assert [in_json(named)] == [json.loads(call.raw_arguments) for call in reply.tool_calls]
    assert "and more" == (reply.content or "").strip()


LITERALS = [
    "'a'", '"b"', "r'\\d'", "'''c\n'''", "f''", "1", "-2", "3.5", ".5", "5.", "1e3", "1_000", "0x1F", "0o7", "0b1", "True", "None", "()",
    "[]", "{}", "+4", "'\\x41\\u00e9\\101'", "'\\\\'", "u'd'",
]  # fmt: skip
literals = st.recursive(
    st.sampled_from([literal for literal in LITERALS if literal != "f''"]),
    lambda inner: (
        st.tuples(
            st.sampled_from(["[%s]", "(%s,)", "[%s, ]", "[ %s ]", "[%s # x\n]"]), st.lists(inner, min_size=1, max_size=4)
        ).map(lambda pair: pair[0] % ", ".join(pair[1]))
        | st.lists(st.tuples(st.sampled_from(["'k'", "1", '"l" "m"']), inner), min_size=1, max_size=3).map(
            lambda entries: "{" + ",\n".join(f"{key} : {value}" for key, value in entries) + "}"
        )
        | inner.map(lambda literal: f"( {literal} )")
    ),
    max_leaves=6,
)


@SETTINGS
@given(literals)
def test_literals_equal_pythons(text: str) -> None:
    assert {"a": in_json(ast.literal_eval(text))} == json.loads(arguments_of(f"(a={text})", None))


FRAGMENTS = [
    "(", ")", "[", "]", "{", "}", ",", ", ", ":", "=", " = ", "==", "'", '"', "'''", '"""', "\\", "\\'", "\\n", "\\x4", "\\u00e9", "\\_", "#",
    " # x\n", "\n", "\n\n", " ", "\t", "a", "b=", "name=", "'k': ", "dict(", "list(", "f(", "r'", "rb", "x y", "Words of prose", "1", "-", "+",
    "*", "**", "1.5", "0x1", "1e5", "True", "null", "math.pi", "2*3", "...", "```", "~~~", "`", "<", "<|end|>", "</", "[END]", "$5", "5%",
    "it's ", "', '", "', ", "'a'", '"b"', "'c', D'", "lambda x: ", "if", "str", "\x00", "\ud800", "é", ".join(x)", "{'a': 1}", "[1, 2]",
    "http://a", "Ω",
]  # fmt: skip
"""Fragments that the reader's decisions depend on."""


@SETTINGS
@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=2), max_size=14).map("".join))
def test_any_text_in_a_call_reads_the_same_in_any_split_and_gives_valid_json(text: str) -> None:
    reply: Reply = read(f"<function_calls>f({text}</function_calls>", [TOOL], format="olmo3")
    for call in reply.tool_calls:
        assert isinstance(json.loads(call.raw_arguments), dict)
