"""The reader of Python arguments and values as models write them, in any split, in linear time."""

from __future__ import annotations

import ast
import json
from collections import deque
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.formats.source import MalformedCall, NoMatch, Source, Truncated, marker_set
from patchbay.formats.values.python_reader import PythonReader
from patchbay.formats.values.python_values import PythonArguments, PythonValue, arguments_json
from patchbay.formats.values.tool_names import UNTYPED, ToolTypes

TYPES = ToolTypes(
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "options": {"type": "object"},
            "_from": {"type": "string"},
        },
    }
)


class Outcome(NamedTuple):
    """The value or signal of a reading, its repairs, and its end offset."""

    result: Any
    notes: list[tuple[str, int]]
    offset: int


def outcome(pieces: list[str], what: str = "arguments", ends: tuple[str, ...] = (), *, ended: bool = True) -> Outcome:
    """Read text in pieces. Without ``ended`` the source stays open, and an unfinished reading is "open"."""
    source = Source()
    notes: list[tuple[str, int]] = []
    reader = PythonReader(source, lambda kind: notes.append((kind, source.offset)))
    reader.stops = marker_set(ends)
    source.mark()
    queue = deque(filter(None, pieces)) or deque([""])
    source.push(queue.popleft())
    source.ended = ended and not queue
    steps = getattr(reader, what)()
    reported: Any
    try:
        while True:
            next(steps)
            if not queue and not ended:
                return Outcome("open", notes, source.offset)
            assert not source.ended, "waits although no more text comes"
            if queue:
                source.push(queue.popleft())
            else:
                source.ended = True
    except StopIteration as stop:
        reported = stop.value
    except (MalformedCall, Truncated, NoMatch) as signal:
        reported = type(signal)
    return Outcome(reported, notes, source.offset)


def read(text: str, types: ToolTypes = TYPES) -> str | type[Exception]:
    """The JSON of the arguments in ``text``, read whole and character by character; or the signal."""
    whole = outcome([text])
    assert whole == outcome(list(text)), "the split makes a difference"
    if not isinstance(whole.result, PythonArguments):
        return whole.result  # type: ignore[no-any-return]
    try:
        return arguments_json(whole.result, types)
    except NoMatch:
        return NoMatch


def value(text: str) -> PythonValue:
    """The value that ``text`` begins with."""
    whole = outcome([text], "value")
    assert whole == outcome(list(text), "value"), "the split makes a difference"
    assert isinstance(whole.result, PythonValue)
    return whole.result


def repairs(text: str) -> list[str]:
    return [kind for kind, _ in outcome([text]).notes]


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
    "(city='New York', NY', days=1)": NoMatch,
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
    "(tags=[1], USA)": NoMatch,
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
    "(tags=[1]": Truncated,
    "(tags=[1]]": '{"tags": [1]}',
    "(city='a'\n```\n": '{"city": "a"}',
    # cut off
    "(": Truncated,
    "(city": Truncated,
    "(city='a', days=1": Truncated,
    "(city='a": Truncated,
    "(city='\\": Truncated,
    # no call
    "(...)": NoMatch,
    "(city=...)": NoMatch,
    "(,)": NoMatch,
    "(city, days)": NoMatch,
    "(city: str, days: int = 3)": NoMatch,
    "(self, city: Optional[str])": NoMatch,
    "(**options)": NoMatch,
    "(*args)": NoMatch,
    "(it takes a city)": NoMatch,
    "(city=my_data\nThis is how it works.)": NoMatch,
    "(city=my_data\n\nThen)": NoMatch,
    "(1, 2, 3, 4, 5, 6)": NoMatch,
    "(city=```": NoMatch,
}


@pytest.mark.parametrize(("text", "expected"), ARGUMENTS.items(), ids=[text[:50] for text in ARGUMENTS])
def test_arguments_become_json(text: str, expected: str | type[Exception]) -> None:
    assert expected == read(text)


def test_positional_arguments_of_an_unknown_tool_are_not_a_call() -> None:
    assert read("('Rome')", UNTYPED) is NoMatch
    assert read("(city='Rome', days=x)", UNTYPED) == '{"city": "Rome", "days": "x"}'


def test_none_is_kept_if_required_or_nullable() -> None:
    shape = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": ["string", "null"]}, "c": {"type": "string"}},
    }
    assert '{"a": null, "b": null}' == read("(a=None, b=None, c=None)", ToolTypes({**shape, "required": ["a"]}))
    assert '{"a": null}' == read("(a=None)", UNTYPED)


def test_dict_accepted_by_the_first_parameter_is_its_value() -> None:
    record = ToolTypes({"type": "object", "properties": {"record": {"type": "object"}}})
    assert '{"record": {"id": 1}}' == read("({'id': 1})", record)
    assert '{"record": {"id": 1}}' == read("({'record': {'id': 1}})", record)


def test_reading_ends_at_the_closing_bracket() -> None:
    assert len("(city='a)')") == outcome(["(city='a)'), g(x=1)]"]).offset


@pytest.mark.parametrize("text", ["()", "(city='Rome')", "('a', 2)", "(tags=[1, x])", "(city=New York)", "({'a': \"b\"})"])
def test_a_call_is_read_as_soon_as_its_bracket_closes(text: str) -> None:
    assert isinstance(outcome(list(text), ended=False).result, PythonArguments)
    assert "open" == outcome(list(text[:-1]), ended=False).result


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
    assert kinds == repairs(text)


def test_a_marker_ends_the_arguments_outside_of_strings_only() -> None:
    ends = ("<|end|>", "[END]")
    whole = outcome(["(city='a<|end|>b', tags=[x <|end|>) c"], ends=ends)
    assert '{"city": "a<|end|>b", "tags": ["x"]}' == arguments_json(whole.result, TYPES)
    assert len("(city='a<|end|>b', tags=[x ") == whole.offset
    assert len("(days=1") == outcome(["(days=1[END]"], ends=ends).offset
    assert outcome(["(<|end|>)"], ends=ends).result is NoMatch


@pytest.mark.parametrize(
    ("text", "json_text", "rest"),
    [
        ("'abc', 5", '"abc"', ", 5"),
        ("'it's it' x", "\"it's it' x", None),
        ("[1, (2, 'x')]\n\nprose", '[1, [2, "x"]]', "\n\nprose"),
        ("{'a': True}}", '{"a": true}', "}"),
    ],
)
def test_only_the_first_value_is_read(text: str, json_text: str | None, rest: str | None) -> None:
    if rest is None:
        assert outcome([text], "value").result is Truncated
        return
    assert json_text == value(text).json
    assert rest == text[outcome([text], "value").offset :]
    assert text.removesuffix(rest) == value(text).text


def test_a_value_that_does_not_begin_or_end_is_cut_off() -> None:
    for text in ("", "[1", "'a", "{'a': "):
        assert outcome([text], "value").result is Truncated


def test_brackets_nested_too_deeply_are_not_a_call() -> None:
    for unit in ("[", "(", "{", "f(", "{'a':", "dict(a="):
        assert outcome(["(x=" + unit * 100_000]).result is NoMatch
    assert "[" * 100 + "]" * 100 == outcome(["(x=" + "[" * 100 + "]" * 100 + ")"]).result.keywords["x"].json


@pytest.mark.parametrize("quote", ["", "'"])
def test_an_argument_that_is_too_long_to_hold_back_breaks_its_call(quote: str) -> None:
    text = f"(city={quote}{'x' * 2**20}y{quote}, days=1)"
    readings = [outcome([text[at : at + size] for at in range(0, len(text), size)]) for size in (len(text), 2**16)]
    assert readings[0] == readings[1]
    assert readings[0].result is MalformedCall


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


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """The text, cut anywhere."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=10)))
    return [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])]


@given(st.data(), st.lists(values, max_size=3), st.dictionaries(names, values, max_size=4))
def test_a_call_that_python_could_read_is_read_as_it_is(data: st.DataObject, given_: list[Any], named: dict[str, Any]) -> None:
    text = f"({', '.join([*map(repr, given_), *(f'{name}={value!r}' for name, value in named.items())])})"
    reported = outcome(data.draw(pieces(text + " and more"))).result
    assert in_json(given_) == [json.loads(value.json) for value in reported.positional]
    assert in_json(named) == {name: json.loads(value.json) for name, value in reported.keywords.items()}


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


@given(st.data(), literals)
def test_literals_equal_pythons(data: st.DataObject, text: str) -> None:
    reported = outcome(data.draw(pieces(f"(a={text})"))).result
    assert in_json(ast.literal_eval(text)) == json.loads(reported.keywords["a"].json)


FRAGMENTS = [
    "(", ")", "[", "]", "{", "}", ",", ", ", ":", "=", " = ", "==", "'", '"', "'''", '"""', "\\", "\\'", "\\n", "\\x4", "\\u00e9", "\\_", "#",
    " # x\n", "\n", "\n\n", " ", "\t", "a", "b=", "name=", "'k': ", "dict(", "list(", "f(", "r'", "rb", "x y", "Words of prose", "1", "-", "+",
    "*", "**", "1.5", "0x1", "1e5", "True", "null", "math.pi", "2*3", "...", "```", "~~~", "`", "<", "<|end|>", "</", "[END]", "$5", "5%",
    "it's ", "', '", "', ", "'a'", '"b"', "'c', D'", "lambda x: ", "if", "str", "\x00", "\ud800", "é", ".join(x)", "{'a': 1}", "[1, 2]",
    "http://a", "Ω",
]  # fmt: skip
"""Fragments that the reader's decisions depend on."""


@given(st.data(), st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=2), max_size=14).map("".join), st.booleans())
def test_any_split_gives_the_value_of_the_whole_text(data: st.DataObject, text: str, is_call: bool) -> None:
    what, text = ("arguments", "(" + text) if is_call else ("value", text)
    whole = outcome([text], what, ("<|end|>", "[END]"))
    assert whole == outcome(data.draw(pieces(text)), what, ("<|end|>", "[END]"))
    assert whole == outcome(list(text), what, ("<|end|>", "[END]"))


@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=2), max_size=14).map("".join))
def test_python_arguments_are_valid_encodable_json(text: str) -> None:
    reported = outcome(["(" + text]).result
    if not isinstance(reported, PythonArguments):
        assert reported in (Truncated, NoMatch)
        return
    for written in (*reported.positional, *reported.keywords.values()):
        for json_text in (written.json, written.nearest):
            if json_text is not None:
                json.loads(json_text.encode())
    try:
        assert isinstance(json.loads(arguments_json(reported, TYPES)), dict)
    except NoMatch:
        pass
