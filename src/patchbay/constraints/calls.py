"""Grammars of calls: the calls of offered tools as one format writes them.

The layout of a call comes from the format's writer: a grammar for calls is what the writer would write, with an expression in the
place of each value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

from patchbay.constraints.forms import (
    ANY_OBJECT,
    AnyForm,
    ArrayForm,
    ChoiceForm,
    ConstantForm,
    Form,
    Member,
    NumberForm,
    ObjectForm,
    TextForm,
)
from patchbay.constraints.gbnf import Grammar, NoGrammarError, alternatives, excluding, literal, sequence
from patchbay.constraints.lark import TextGrammarError, read_text_grammar
from patchbay.constraints.patterns import Pattern
from patchbay.constraints.schemas import Compiled
from patchbay.constraints.spans import Spans
from patchbay.constraints.values import (
    JSON,
    JSON_IN_MARKUP,
    JSON_IN_TEXT,
    PLAIN,
    PYTHON_IN_MARKUP,
    PYTHON_NOTATIONS,
    ValueNotation,
    ValueWriter,
    bare,
    gemma,
    join_members,
)
from patchbay.formats.render import Writer
from patchbay.formats.render.fenced import FencedWriter
from patchbay.formats.render.styles import (
    JSON_TYPES,
    Elements,
    GemmaStyle,
    JsonStyle,
    NestedElements,
    PythonStyle,
    as_cdata,
    as_python,
    m3_element,
)
from patchbay.formats.render.values import quoted
from patchbay.formats.render.writer import FamilyWriter, ReservedText
from patchbay.types import ToolCall, ToolSpec

MAX_CALLS: Final = 16
"""Calls in one reply."""
_VALUE, _ID, _NAME = "\ue000", "\ue001", "\ue002"
"""Stand in the place of a value, of an id and of a name while a call is laid out."""
_SLOT: Final = re.compile(f'(\\\\?"{_VALUE}\\\\?"|{_VALUE}|{_ID})')
_NO_MARKERS: Final = ReservedText(())
_CDATA: Final = ("<![CDATA[", "]]>")


@dataclass(frozen=True)
class OfferedTool:
    """A tool that may be called, and the form of its arguments."""

    spec: ToolSpec
    compiled: Compiled

    @cached_property
    def _text(self) -> Pattern | TextGrammarError | None:
        if (grammar := self.spec.text_grammar) is None:
            return None
        try:
            return read_text_grammar(*grammar)
        except TextGrammarError as error:
            return error

    @property
    def text(self) -> Pattern | None:
        """The pattern of the plain text that it takes; None for any text."""
        return None if isinstance(self._text, TextGrammarError) else self._text

    @property
    def unenforced(self) -> tuple[str, ...]:
        """What a grammar of its calls does not enforce, in words."""
        found = list(self.compiled.unenforced)
        if isinstance(self._text, TextGrammarError):
            found.append(f"the grammar of its text: {self._text}")
        if not (self._objects or isinstance(self.compiled.form, AnyForm)):
            found.append("the schema is that of no object, which arguments are")
        return tuple(found)

    @cached_property
    def _objects(self) -> tuple[ObjectForm, ...]:
        """The objects that the schema admits."""
        form = self.compiled.form
        found = form.options if isinstance(form, ChoiceForm) else (form,)
        return tuple(option for option in found if isinstance(option, ObjectForm))

    @property
    def objects(self) -> tuple[ObjectForm, ...]:
        """The objects that the arguments can be. Raises NoGrammarError if they are not known."""
        if self.compiled.refused or not self._objects:
            raise NoGrammarError(f"the arguments of {self.spec.name!r} can be anything")
        return self._objects

    @property
    def arguments(self) -> Form:
        """The form of the arguments: any object where they are not known."""
        if self.compiled.refused or not self._objects:
            return ANY_OBJECT
        return self._objects[0] if len(self._objects) == 1 else ChoiceForm(self._objects)


class CallWriter:
    """Writes the expressions of calls, in the format of one writer, into a grammar."""

    def __init__(self, grammar: Grammar, writer: Writer, spans: Spans | None = None) -> None:
        self._grammar = grammar
        self._writer = writer
        self._spans = spans

    def _values(self, notation: ValueNotation) -> ValueWriter:
        return ValueWriter(self._grammar, notation, self._spans)

    @cached_property
    def _json(self) -> ValueWriter:
        """Writes arguments that are JSON."""
        is_in_text = isinstance(self._writer, FamilyWriter) and "{json_arguments}" in self._writer.call
        return self._values(JSON_IN_TEXT if is_in_text else JSON)

    def calls(self, tools: Sequence[OfferedTool], most: int = MAX_CALLS) -> str:
        """Return the expression of one to ``most`` calls. Raises NoGrammarError."""
        grammar, writer = self._grammar, self._writer
        if isinstance(writer, FencedWriter):
            call = alternatives([self._fenced(writer, tool) for tool in tools])
            return grammar.separated("call", grammar.rule("call", call), "\n\n", 1, most)
        call = grammar.rule("call", alternatives([self._call(writer, tool) for tool in tools]))
        calls = grammar.separated("call", call, writer.join, 1, most if writer.parallel else 1)
        return sequence(literal(writer.block[0]), calls, literal(writer.block[1]))

    def _fenced(self, writer: FencedWriter, tool: OfferedTool) -> str:
        grammar, name = self._grammar, tool.spec.name
        if name in writer.text_tools:
            if tool.text is not None:
                text = ValueWriter(grammar, PLAIN).pattern(tool.text)
            else:  # It begins with no brace: a text that is an object with a name would be read as a call.
                text = sequence(excluding("`~{ \t\r\n"), grammar.without("plain", ["\n`", "\n~"]))
            return sequence(literal(f"```{writer.call_tag} {name}\n"), text, literal("\n```"))
        head = f'```{writer.call_tag}\n{{"name": {quoted(name)}, "arguments": '
        return sequence(literal(head), self._json.value(tool.arguments), literal("}\n```"))

    def _call(self, writer: FamilyWriter, tool: OfferedTool) -> str:
        style, name = writer.style, tool.spec.name
        if isinstance(style, JsonStyle):
            laid = self._layout.replace(_NAME, name) if name.isidentifier() else _json_layout(writer, style, name)
            slots = {_VALUE: self._json.value(tool.arguments)}
            return _fill(laid, slots | {_ID: _id(writer, name)} if _ID in laid else slots)
        parts = {"call": f"{name}({_VALUE})", "arguments": f"{{{_VALUE}}}", "values": _VALUE, "index": _ID}
        laid = writer.call.format_map({**parts, "name": style.attribute(name) if isinstance(style, Elements) else name})
        return _fill(laid, {_VALUE: alternatives([*map(self._inside, tool.objects)]), _ID: "[1-9] [0-9]?"})

    @cached_property
    def _layout(self) -> str:
        """A call with JSON, whose name has no escapes."""
        assert isinstance(self._writer, FamilyWriter)
        assert isinstance(self._writer.style, JsonStyle)
        return _json_layout(self._writer, self._writer.style, _NAME)

    @cached_property
    def _inside(self) -> Callable[[ObjectForm], str]:
        """Returns the expression of arguments, without what is around them, in a style other than JSON."""
        writer = self._writer
        assert isinstance(writer, FamilyWriter)
        style = writer.style
        if isinstance(style, PythonStyle):
            return partial(self._keywords, self._values(PYTHON_NOTATIONS[style.notation]))
        if isinstance(style, GemmaStyle):
            values = self._values(gemma(style.mark, writer.markers))
            return lambda form: values.members(form.members)
        if isinstance(style, Elements):
            return _Elements(self._grammar, writer, style, self._spans).members
        assert isinstance(style, NestedElements)
        return _Nested(self._grammar, writer, self._spans).members

    def _keywords(self, values: ValueWriter, form: ObjectForm) -> str:
        """Return the expression of keyword arguments, or of one dict with a key that is not a Python name."""
        named = [member for member in form.members if member.name.isidentifier()]
        options = [values.value(form)] if len(named) < len(form.members) else []
        if not any(member.required for member in form.members if member not in named):
            written = [(sequence(literal(f"{member.name}="), values.value(member.form)), member.required) for member in named]
            options.append(join_members(self._grammar, written, ", "))
        return alternatives(options)


def _json_layout(writer: FamilyWriter, style: JsonStyle, name: str) -> str:
    return writer.call.format_map(style(ToolCall(_ID, name, f'"{_VALUE}"'), 0, _NO_MARKERS))


def _fill(laid: str, slots: Mapping[str, str]) -> str:
    """Return the expression of a text with its slots filled."""
    parts = _SLOT.split(laid)
    filled = [slots[part.strip('\\"')] if index % 2 else literal(part) for index, part in enumerate(parts)]
    return sequence(*filled)


def _id(writer: FamilyWriter, name: str) -> str:
    """Return the expression of a call's id in the family's scheme: a number at its end."""
    text = "call_0" if writer.number_id is None else writer.number_id(0, name)
    fixed = text.rstrip("0123456789")
    digits = len(text) - len(fixed)
    return sequence(literal(fixed), f"[0-9]{{{digits}}}" if digits > 1 else "[0-9]{1,3}")


class _Elements:
    """Writes arguments as elements (``styles.Elements``)."""

    def __init__(self, grammar: Grammar, writer: FamilyWriter, style: Elements, spans: Spans | None) -> None:
        self._grammar = grammar
        self._style = style
        self._begin, _, end = style.value.partition("{value}")
        self._end = literal(end)
        self._texts = ValueWriter(grammar, bare(_markers(writer, end.strip())), spans)
        notation = PYTHON_IN_MARKUP if style.encode is as_python else JSON_IN_MARKUP
        self._others = ValueWriter(grammar, notation, spans)
        self._made: dict[Member, str] = {}

    def members(self, form: ObjectForm) -> str:
        """Return the expression of all elements."""
        return " ".join(map(self._member, form.members))

    def _member(self, member: Member) -> str:
        if (made := self._made.get(member)) is not None:
            return made
        form = member.form
        options: dict[str, list[str]] = {}
        for option in form.options if isinstance(form, ChoiceForm) else (form,):
            for kind, written in self._option(option):
                options.setdefault(kind, []).append(written)
        found = [self._element(member.name, kind, alternatives(written)) for kind, written in options.items()]
        made = self._made[member] = alternatives(found) if member.required else self._grammar.optional(alternatives(found))
        return made

    def _element(self, name: str, kind: str, value: str) -> str:
        is_text = "true" if kind == "string" else "false"
        begin = self._begin.format(key=self._style.attribute(name), type=kind, string=is_text)
        return sequence(literal(begin), value, self._end)

    def _option(self, form: Form) -> list[tuple[str, str]]:
        """Return expressions of a value, each with its JSON type."""
        if isinstance(form, TextForm | AnyForm):
            return [("string", self._text(form if isinstance(form, TextForm) else TextForm()))]
        if isinstance(form, NumberForm):
            return [("number", self._others.value(form))]
        if isinstance(form, ConstantForm):
            return [self._constant(raw) for raw in form.values]
        return [("object" if isinstance(form, ObjectForm) else "array", self._others.value(form))]

    def _constant(self, raw: str) -> tuple[str, str]:
        style = self._style
        kind = JSON_TYPES.get(raw[0], "number")
        return kind, literal(style.text(json.loads(raw)) if kind == "string" else style.encode(raw, _NO_MARKERS))

    def _text(self, form: TextForm) -> str:
        is_any = not (
            form.pattern is not None or form.copied or form.most is not None or form.least
        )  # (a section could be empty)
        if self._style.text is not as_cdata or not is_any:
            return self._texts.value(form)
        return alternatives(
            [
                self._texts.value(TextForm(1)),
                sequence(literal(_CDATA[0]), self._grammar.without("cdata", [_CDATA[1]]), literal(_CDATA[1])),
            ]
        )


class _Nested:
    """Writes arguments as nested elements (``styles.NestedElements``)."""

    def __init__(self, grammar: Grammar, writer: FamilyWriter, spans: Spans | None) -> None:
        self._grammar = grammar
        self._texts = ValueWriter(grammar, bare(_markers(writer, m3_element("", "")[: len(m3_element("", "")) // 2])), spans)

    def members(self, form: ObjectForm) -> str:
        """Return the expression of an object's members."""
        written = [(self._element(member.name, member.form), member.required) for member in form.members]
        return " ".join([element if required else self._grammar.optional(element) for element, required in written])

    def _element(self, name: str, form: Form) -> str:
        return _fill(m3_element(name, _VALUE), {_VALUE: self._value(form)})

    def _value(self, form: Form) -> str:
        if isinstance(form, ObjectForm):
            return self.members(form)
        if isinstance(form, ArrayForm):
            return self._items(form)
        if isinstance(form, ChoiceForm):
            return alternatives([self._value(option) for option in form.options])
        if isinstance(form, NumberForm):
            return self._texts.value(form)
        if isinstance(form, ConstantForm):
            return alternatives([literal(json.loads(raw) if raw.startswith('"') else raw) for raw in form.values])
        return self._texts.value(form if isinstance(form, TextForm) else TextForm())

    def _items(self, form: ArrayForm) -> str:
        items = [self._element("item", item) for item in form.first]
        more = form.most - len(items)
        tail = ""
        if form.items is not None and more > 0:
            rest = self._grammar.rule("item", self._element("item", form.items))
            tail = self._grammar.repeated("item", rest, max(0, form.least - len(items)), more)
        for index in range(len(items) - 1, -1, -1):  # items behind the least number may be left out
            tail = sequence(items[index], tail)
            if index >= form.least:
                tail = self._grammar.optional(tail)
        return tail


def _markers(writer: FamilyWriter, end: str) -> tuple[str, ...]:
    """Return the markers that a text without escapes must not contain: its end, and what begins a call or an argument."""
    found = [end]
    for marker in (*writer.markers, *writer.inner_markers):
        if marker[0] == "<":
            found += [marker, f"</{marker[1:]}"]
    return tuple(dict.fromkeys(found))
