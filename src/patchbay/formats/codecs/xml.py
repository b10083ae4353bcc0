"""Calls as tags with named parameters: ``<function=f><parameter=k>v</parameter></function>`` and its many variants.

    <function=f> <parameter=k> v </parameter> </function>             Qwen3-Coder, MiMo, Seed-OSS; JSON inside: Functionary
    <function name="f"> <param name="k"> v </param> </function>       MiniCPM5
    <invoke name="f"> <parameter name="k"> v </parameter> </invoke>   Claude, MiniMax M2; with a prefix DeepSeek, Step, Muse
    <invoke> <tool_name> f </tool_name> <parameters> <k> v </k> ...   Claude in 2023

Values are raw: entities are not decoded. A closer inside of a value is text if its opener is in the value too, if it is another
format's, or if the call does not continue behind it, which a few characters of lookahead show. A next parameter, or the end of
the call followed by nothing else, ends a value without a closer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from patchbay.formats.codecs.elements import Elements, Tag, Tags, token_prefixes
from patchbay.formats.codecs.json import emit_call
from patchbay.formats.context import Context, Reader
from patchbay.formats.source import MarkerSet, NoMatch, Source, Steps, Truncated, discard, marker_set
from patchbay.formats.spec import Wrapper
from patchbay.formats.values.json_strict import escaped, json_string
from patchbay.formats.values.raw_text import Boundary, QuotedCalls, UntypedArguments, read_text, verbatim

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
_TYPED_PREFIXES = (*token_prefixes("DSML"), *token_prefixes("GCML"))
TAGS: Final = Tags((*CALLS, *_PARAMETERS, "parameters", "tool_name"), ("antml:", "atem:", "rfl:", "steptml:", *_TYPED_PREFIXES))
_MAX_CLOSERS = 4
"""Maximum number of closers that are looked at behind a parameter's."""
ANGLE = marker_set(("<",))
_CDATA, _CDATA_END = marker_set(("<![CDATA[",)), marker_set(("]]>",))


class XmlBody:
    """Reads one call from behind its opening tag into ``arguments``.

    ``lines``: values may stand on lines of their own. ``buffered``: emit nothing before all is read. ``opener``: the opening tag,
    None if something else opens the call.
    """

    def __init__(
        self,
        context: Context,
        structure: TagContext,
        arguments: UntypedArguments,
        *,
        lines: bool,
        buffered: bool,
        opener: Tag | None = None,
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
        self._opener = opener
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
        quoted = QuotedCalls()
        if tag.word == "param" and (yield from self._is_cdata()):
            yield from read_text(self.source, sink, lambda: self._cdata_end(quoted), marks="<]", encode=encode)
            while (yield from self._is_cdata()):  # a text that contains "]]>" is written as two sections
                yield from read_text(self.source, sink, lambda: self._cdata_end(quoted), marks="<]", encode=encode)
            yield from self._closer(_PARAMETERS)
            return
        yield from read_text(self.source, sink, lambda: self._end(tag, quoted), encode=encode, lines=self._own_lines)

    def _end(self, opener: Tag, quoted: QuotedCalls) -> Steps[Boundary]:
        """Classify ``pos`` in the value that ``opener`` opened. ``quoted``: the calls that the value quotes."""
        source, context = self.source, self.context
        begin = source.offset
        scalar = self.arguments.is_scalar(opener.name or "")
        tag = yield from TAGS.at(source)
        if tag is not None and tag.cut:
            raise Truncated
        own = tag is not None and self._is_own(tag, opener)
        broken = False
        if tag is None:
            mark = yield from self.structure.ends.at(source)
            source.pos += len(mark)
            if mark in context.call_openers:
                quoted.open_call()
            elif mark in context.call_closers and not quoted.close_call():
                broken = scalar or (yield from self.structure.value_cannot_continue())
        elif tag.word in _PARAMETERS and tag.closes:
            source.pos += tag.size
            after = source.offset
            closes = scalar or (yield from self._closes(opener, quoted, own=own))
            source.rewind_to(after if closes else begin)
            return Boundary.CLOSED if closes else Boundary.NONE
        elif tag.word in _PARAMETERS:
            broken = own and not quoted.any_open and self._is_new(tag, opener) and (scalar or (yield from self._is_next(tag)))
            if own and not broken:
                quoted.open_value()
        elif tag.word in CALLS:
            source.pos += tag.size
            if not _is_in_quoted_call(tag, quoted) and tag.closes and own:
                broken = scalar or (yield from self._call_is_over())
        source.rewind_to(begin)
        if broken:
            self.note("unclosed_tag")
        return Boundary.BROKEN if broken else Boundary.NONE

    def _is_own(self, tag: Tag, opener: Tag) -> bool:
        """True if a tag within the value that ``opener`` opened is written as those of this call are."""
        like = opener if tag.word in _PARAMETERS else self._opener
        return like is not None and tag.word == like.word and _plain(tag.prefix) == _plain(like.prefix)

    def _is_new(self, tag: Tag, opener: Tag) -> bool:
        """True if a parameter that opens within a value may be the next one, the value's closer being left out."""
        key, known = tag.name, self.arguments.types.keys
        return bool(key) and key != opener.name and key not in self.arguments.keys and (known is None or key in known)

    def _is_next(self, tag: Tag) -> Steps[bool]:
        """True if such a parameter is not quoted: the call continues behind its closer, if that was not left out too."""
        source = self.source
        source.pos += tag.size
        while (yield from source.read_to(ANGLE, discard)):
            inner = yield from TAGS.at(source)
            if inner is None:
                source.pos += 1
                continue
            if inner.word not in _PARAMETERS or not inner.closes:
                break
            source.pos += inner.size
            return (yield from self._own_markup_follows(tag, own=True))
        return True

    def _call_is_over(self) -> Steps[bool]:
        """True if only the end, or another call, follows a call's closer."""
        if (yield from self.structure.value_cannot_continue()):
            return True
        tag = yield from TAGS.at(self.source)
        return tag is not None and tag.word in CALLS

    def _closes(self, opener: Tag, quoted: QuotedCalls, *, own: bool) -> Steps[bool]:
        """True if a parameter's closer, which was read, ends the value."""
        if own and not quoted.close_value():
            return (yield from self._call_continues())
        return not quoted.any_open and (yield from self._own_markup_follows(opener, own=own))

    def _call_continues(self) -> Steps[bool]:
        """True if only the call's rest can begin behind a value's closer, or behind the same closer again."""
        for _ in range(_MAX_CLOSERS):
            if (yield from self.structure.value_cannot_continue()):
                return True
            tag = yield from TAGS.at(self.source)
            if tag is None:
                return False
            if tag.cut or tag.name or tag.word in CALLS or (tag.word == "parameters" and tag.closes):
                return True
            if not tag.closes:
                return False
            self.source.pos += tag.size
        return False

    def _own_markup_follows(self, opener: Tag, *, own: bool) -> Steps[bool]:
        """True if the call's rest follows in its own markup, behind a closer that may belong to the value.

        ``own``: that closer belongs to a quoted parameter. Otherwise it is another format's, which others may follow.
        """
        source = self.source
        for _ in range(_MAX_CLOSERS):
            char = yield from self.structure.space(_MAX_BLANKS)
            mark = yield from self.structure.ends.at(source)
            tag = yield from TAGS.at(source)
            if not char or mark in self.context.call_closers or (tag is not None and tag.cut):
                return True
            if tag is not None and self._is_own(tag, opener):
                return tag.closes if tag.word in CALLS else not tag.closes and self._is_new(tag, opener)
            if own or not (tag.closes if tag is not None else mark.startswith("</")):
                return False
            source.pos += tag.size if tag is not None else len(mark)
        return False

    def _is_cdata(self) -> Steps[bool]:
        """Read the opener of a CDATA section, if one stands at ``pos``."""
        mark = yield from _CDATA.at(self.source)
        self.source.pos += len(mark)
        return mark != ""

    def _cdata_end(self, quoted: QuotedCalls) -> Steps[Boundary]:
        """Check whether a CDATA section ends at ``pos``: a closing tag, or another section, follows."""
        source = self.source
        begin = source.offset
        if (yield from source.peek()) == "<":
            tag = yield from TAGS.at(source)
            if tag is not None and tag.word in CALLS:
                _is_in_quoted_call(tag, quoted)
            elif quoted.any_open and (yield from self._is_cdata()):
                quoted.open_value()
                source.rewind_to(begin)
            return Boundary.NONE
        mark = yield from _CDATA_END.at(source)
        if not mark or quoted.close_value():
            return Boundary.NONE
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


def _plain(prefix: str) -> str:
    return prefix.replace("｜", "|").replace("||", "|")


def _is_in_quoted_call(tag: Tag, quoted: QuotedCalls) -> bool:
    """Count a call's tag; return False if it closes no quoted call."""
    kind = _plain(tag.prefix) + tag.word
    if tag.closes:
        return quoted.close_call(kind)
    quoted.open_call(kind)
    return True


_MAX_NAME = 256
_NAME_END = "</tool_name>"


class XmlCalls(Reader):
    """Reads one call from its opening tag on. ``ends``: all markers and special tokens, any of which may follow a value."""

    def __init__(self, context: Context, ends: MarkerSet) -> None:
        super().__init__(context)
        self.structure = TagContext(context.source, ends)

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
        body = XmlBody(self.context, self.structure, arguments, lines=tag.word == "function", buffered=buffered, opener=tag)
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
