"""Calls as tags with named parameters: ``<function=f><parameter=k>v</parameter></function>`` and its many variants.

    <function=f> <parameter=k> v </parameter> </function>             Qwen3-Coder, MiMo, Seed-OSS; JSON inside: Functionary
    <function name="f"> <param name="k"> v </param> </function>       MiniCPM5
    <invoke name="f"> <parameter name="k"> v </parameter> </invoke>   Claude, MiniMax M2; with a prefix DeepSeek, Step, Muse
    <invoke> <tool_name> f </tool_name> <parameters> <k> v </k> ...   Claude in 2023

Values are raw: entities are not decoded. A closer inside of a value is text unless the call continues or ends behind it, which a
few characters of lookahead show. A next parameter, or the end of the call followed by nothing else, ends a value without a
closer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from patchbay.formats.codecs.elements import Elements, Tag, Tags
from patchbay.formats.codecs.json import emit_call
from patchbay.formats.context import Context, Reader
from patchbay.formats.source import MarkerSet, NoMatch, Source, Steps, Truncated, marker_set
from patchbay.formats.spec import Wrapper
from patchbay.formats.values.json_strict import escaped, json_string
from patchbay.formats.values.raw_text import Boundary, UntypedArguments, read_text, verbatim

_MAX_BLANKS = 256
"""Maximum white space skipped behind a closer; more of it ends a value too."""
_ARTEFACTS = "\u0120\u010a"
"""A blank and a line break, as some tokenizers let them through."""
BLANKS: Final = " \t\r\n" + _ARTEFACTS


class TagContext:
    """Looks at ``source`` between tags. ``ends``: markers and special tokens, which confirm a possible closer before them."""

    def __init__(self, source: Source, ends: MarkerSet) -> None:
        self.source = source
        self.ends = ends

    def space(self, limit: int = 0) -> Steps[str]:
        """Read white space, including line breaks written as a backslash and ``n``; return the next character or "".

        ``limit``: how much is read at most (0: no limit).
        """
        source = self.source
        begin = source.offset
        while True:
            char = yield from source.peek()
            if char == "\\":
                if (yield from source.char(1)) != "n":
                    return char
                source.pos += 2
            elif not char or char not in BLANKS:
                return char
            else:
                source.pos += 1
            if limit and source.offset - begin >= limit:
                return " "

    def value_cannot_continue(self) -> Steps[bool]:
        """True if behind white space, which is read, no value can continue: at a marker, a special token, the end of the text."""
        source = self.source
        char = yield from self.space(_MAX_BLANKS)
        if char in ("", " ") or (yield from self.ends.at(source)) or self.ends.is_cut_off(source):
            return True
        return char == "<" and (yield from source.char(1)) in ("|", "｜")


CALLS: Final = frozenset({"function", "invoke"})
_PARAMETERS = frozenset({"parameter", "param"})
_PREFIXES = ("antml:", "atem:", "rfl:", "steptml:", "｜DSML｜", "|DSML|", "｜GCML｜", "|GCML|")
_TYPED_PREFIXES = ("｜DSML｜", "|DSML|", "｜GCML｜", "|GCML|")
TAGS: Final = Tags((*CALLS, *_PARAMETERS, "parameters", "tool_name"), _PREFIXES)
_CDATA, _CDATA_END = marker_set(("<![CDATA[",)), marker_set(("]]>",))


class XmlBody:
    """Reads one call from behind its opening tag into ``arguments``.

    ``lines``: values may stand on lines of their own. ``buffered``: emit nothing before all is read.
    """

    def __init__(
        self,
        context: Context,
        structure: TagContext,
        closers: frozenset[str],
        arguments: UntypedArguments,
        *,
        lines: bool,
        buffered: bool,
    ) -> None:
        self.context = context
        self.source = context.source
        self.note = context.emitter.note
        self.structure = structure
        self.arguments = arguments
        self.lines = lines
        self.buffered = buffered
        self.begun = False
        """Part of the call arrived: it is more than a mention of its opening tag."""
        self.emitted = False
        """The whole call was emitted."""
        self._own_lines = False
        """A parameter stood on a line of its own: then values do too, as in their family's template."""
        self._closers = closers
        self._elements = Elements(context.source, arguments, context.emitter.note, buffered=buffered)

    def read(self) -> Steps[bool]:
        """Read up to the call's end; return whether it was closed. Raises NoMatch, Truncated."""
        source, keys = self.source, self.arguments.keys
        inside = False
        while True:
            before = source.offset
            char = yield from self.structure.space()
            tag = (yield from TAGS.at(source)) if char == "<" else None
            if not char or (tag is not None and tag.cut):
                self.begun |= tag is not None
                raise Truncated  # more arguments may be missing
            if tag is None:
                if char == "{" and not keys:
                    yield from self._object()
                elif not (char == "<" and (yield from self._element(any_name=inside))):
                    if not (yield from self.structure.ends.at(source)) and self.structure.ends.is_cut_off(source):
                        raise Truncated
                    source.rewind_to(before)
                    if keys or (yield from self._marker_follows()):
                        return False
                    raise NoMatch
            elif tag.word in CALLS:
                if tag.closes:
                    source.pos += tag.size
                else:
                    source.rewind_to(before)
                return tag.closes
            else:
                source.pos += tag.size
                self.begun = True
                if tag.word == "parameters":
                    inside = not tag.closes
                elif tag.word in _PARAMETERS and tag.name and not tag.closes:
                    self._own_lines = self.lines and (self._own_lines or "\n" in source.since(before)[: -tag.size])
                    yield from self._parameter(tag)
                else:
                    self.note("stray_tag")
            if self.emitted:
                yield from self._closer(CALLS)
                return True

    def _marker_follows(self) -> Steps[bool]:
        """True if a marker follows: the call has no arguments, and its closer was left out."""
        begin = self.source.offset
        yield from self.structure.space()
        marked = bool((yield from self.structure.ends.at(self.source)))
        self.source.rewind_to(begin)
        return marked

    def _element(self, *, any_name: bool) -> Steps[bool]:
        """Read an argument that is an element named after it."""
        tag = yield from self._elements.tag()
        if tag is None or not self._elements.opens_argument(tag, any_name=any_name):
            return False
        self.begun = True
        yield from self._elements.read(tag)
        return True

    def _object(self) -> Steps[None]:
        """Read all arguments as one JSON object. Raises NoMatch if nothing may be emitted yet."""
        if self.buffered:
            raise NoMatch
        reader = self.context.json
        self.begun = True
        reader.guarded = False
        yield from emit_call(reader, self.context.calls, self.context.rules, self.arguments.name)
        self.emitted = True

    def _closer(self, words: frozenset[str]) -> Steps[None]:
        """Read a closing tag with one of these words, if there is one."""
        source = self.source
        before = source.offset
        if (yield from self.structure.space()) == "<":
            tag = yield from TAGS.at(source)
            if tag is not None and tag.closes and tag.word in words:
                source.pos += tag.size
                return
        source.rewind_to(before)

    def _parameter(self, tag: Tag) -> Steps[None]:
        """Read a parameter from behind its opening tag."""
        arguments, key = self.arguments, tag.name or ""
        if tag.empty:
            arguments.add(key, arguments.types.json(key, ""))
            return
        raw = tag.string == "true" or (not tag.string and arguments.types.is_text(key) and not self._is_json_by_family(tag))
        if raw and not self.buffered and not arguments.may_hold_all(key):
            yield from self._value(tag, arguments.begin_text(key), escaped)
            arguments.end_text()
            return
        sink: list[str] = []
        yield from self._value(tag, sink, verbatim)
        text = "".join(sink)
        if raw:
            value = json_string(text)
        elif tag.string or self._is_json_by_family(tag):
            value = arguments.types.json_or_typed(key, text)
        else:
            value = arguments.types.json(key, text)
        arguments.add(key, value, text)

    def _is_json_by_family(self, tag: Tag) -> bool:
        """True if a value of unknown type is JSON, because its family marks texts explicitly."""
        return tag.prefix in _TYPED_PREFIXES and tag.name not in (self.arguments.types.keys or ())

    def _value(self, tag: Tag, sink: list[str], encode: Callable[[str], str]) -> Steps[None]:
        if tag.word == "param" and (yield from self._is_cdata()):
            yield from read_text(self.source, sink, self._cdata_end, mark="]", encode=encode)
            while (yield from self._is_cdata()):  # a text that contains "]]>" is written as two sections
                yield from read_text(self.source, sink, self._cdata_end, mark="]", encode=encode)
            yield from self._closer(_PARAMETERS)
            return
        yield from read_text(self.source, sink, lambda: self._end(tag), encode=encode, lines=self._own_lines)

    def _end(self, opener: Tag) -> Steps[Boundary]:
        """Classify ``pos`` in the value that ``opener`` opened."""
        source = self.source
        begin = source.offset
        scalar = self.arguments.is_scalar(opener.name or "")
        tag = yield from TAGS.at(source)
        if tag is not None and tag.cut:
            raise Truncated
        if tag is None:
            mark = yield from self.structure.ends.at(source)
            source.pos += len(mark)
            broken = mark in self._closers and (scalar or (yield from self.structure.value_cannot_continue()))
        elif tag.word in _PARAMETERS and tag.closes:
            source.pos += tag.size
            after = source.offset
            closes = scalar or (yield from self._call_continues())
            source.rewind_to(after if closes else begin)
            return Boundary.CLOSED if closes else Boundary.NONE
        elif tag.word in _PARAMETERS:
            broken = self._is_new(tag.name, opener)
        else:
            source.pos += tag.size
            broken = tag.closes and tag.word in CALLS and (scalar or (yield from self._call_is_over()))
        source.rewind_to(begin)
        if broken:
            self.note("unclosed_tag")
        return Boundary.BROKEN if broken else Boundary.NONE

    def _is_new(self, key: str | None, opener: Tag) -> bool:
        """True if a parameter that opens within a value is the next one, the value's closer being left out."""
        known = self.arguments.types.keys
        return bool(key) and key != opener.name and key not in self.arguments.keys and (known is None or key in known)

    def _call_is_over(self) -> Steps[bool]:
        """True if only the end, or another call, follows a call's closer."""
        if (yield from self.structure.value_cannot_continue()):
            return True
        tag = yield from TAGS.at(self.source)
        return tag is not None and tag.word in CALLS

    def _call_continues(self) -> Steps[bool]:
        """True if a value's closer is followed by something that only the call's rest can begin with."""
        if (yield from self.structure.value_cannot_continue()):
            return True
        tag = yield from TAGS.at(self.source)
        if tag is None:
            return False
        return tag.cut or tag.word in CALLS or (tag.word == "parameters" and tag.closes) or bool(tag.name)

    def _is_cdata(self) -> Steps[bool]:
        """Read the opener of a CDATA section, if one stands at ``pos``."""
        mark = yield from _CDATA.at(self.source)
        self.source.pos += len(mark)
        return mark != ""

    def _cdata_end(self) -> Steps[Boundary]:
        """Check whether a CDATA section ends at ``pos``: a closing tag, or another section, follows."""
        source = self.source
        mark = yield from _CDATA_END.at(source)
        if not mark:
            return Boundary.NONE
        begin = source.offset
        source.pos += len(mark)
        after = source.offset
        over = yield from self._is_cdata()
        if not over:
            char = yield from self.structure.space()
            tag = (yield from TAGS.at(source)) if char == "<" else None
            over = not char or (tag is not None and tag.cut)
            if tag is not None and tag.word in _PARAMETERS and tag.closes:
                source.pos += tag.size
                over = yield from self._call_continues()
        source.rewind_to(after if over else begin)
        return Boundary.CLOSED if over else Boundary.NONE


_MAX_NAME = 256
_NAME_END = "</tool_name>"


class XmlCalls(Reader):
    """Reads one call from its opening tag on.

    ``closers``: markers that end wrappers. ``ends``: all markers and special tokens, any of which may follow a value.
    """

    def __init__(self, context: Context, closers: tuple[str, ...], ends: MarkerSet) -> None:
        super().__init__(context)
        self.structure = TagContext(context.source, ends)
        self._closers = frozenset(closers)

    def read(self, wrapper: Wrapper, *, first: bool) -> Steps[int]:  # noqa: ARG002 - a tag stands for itself
        """Read one call and return 1.

        Without a wrapper around it, a tag may be only mentioned: then a ``function`` is a call from the first tag in it on, an
        ``invoke``, which many models were shown, only if it is complete.
        """
        if (yield from self.source.peek()) != "<":
            raise NoMatch
        bare = wrapper.body_prefix_len > 0
        tag = yield from TAGS.at(self.source)
        if tag is not None and tag.cut and not bare:
            raise Truncated
        if tag is None or tag.closes or tag.word not in CALLS:
            raise NoMatch
        self.source.pos += tag.size
        name = self.rules.resolve(tag.name if tag.name is not None else (yield from self._name()))
        if name is None:
            raise NoMatch
        arguments = UntypedArguments(self.calls, name, self.rules.types(name), self.context.emitter.note)
        buffered = bare and tag.word == "invoke"
        body = XmlBody(self.context, self.structure, self._closers, arguments, lines=tag.word == "function", buffered=buffered)
        try:
            closed = tag.empty or (yield from body.read())
        except Truncated:
            if buffered or (bare and not body.begun):
                raise NoMatch from None
            self.calls.name = name
            raise
        if body.emitted:
            return 1
        if bare and not (closed or (body.begun and not buffered)):
            raise NoMatch
        if buffered and not (arguments.complete and self.rules.offered(name) is not None):
            raise NoMatch
        arguments.emit()
        return 1

    def _name(self) -> Steps[str]:
        """Read the name from a tag of its own."""
        source = self.source
        if (yield from self.structure.space()) != "<":
            raise NoMatch
        tag = yield from TAGS.at(source)
        if tag is not None and tag.cut:
            raise Truncated
        if tag is None or tag.closes or tag.word != "tool_name":
            raise NoMatch
        source.pos += tag.size
        while True:
            end = source.buf.find(_NAME_END, source.pos, source.pos + _MAX_NAME)
            if end >= 0:
                name = source.buf[source.pos : end]
                source.pos = end + len(_NAME_END)
                return name.strip()
            if len(source.buf) - source.pos >= _MAX_NAME:
                raise NoMatch
            if source.ended:
                raise Truncated
            yield
