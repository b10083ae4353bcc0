"""``parse`` and ``StreamParser``: a model's text to prose, reasoning and calls. No I/O, no clock; never raises on a text."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.formats.catalog import choose, markers, unknown_format
from patchbay.formats.channels import ChannelReader, channel_marks
from patchbay.formats.codecs.xml_tools import XmlTools, check_xml_tools
from patchbay.formats.context import Context, cached_attribute, forget_cached
from patchbay.formats.emitter import Emitter
from patchbay.formats.envelopes import AnswerMarkerReader, Codecs, ControlTokenReader, WrapperReader, WrapperTable
from patchbay.formats.events import Event, TextDelta
from patchbay.formats.fences import CallFenceReader, FenceReader, MarkedFenceReader
from patchbay.formats.implicit import OPENER, ImplicitCallReader, InlineLists
from patchbay.formats.reasoning import InlineReasoning, ReasoningReader, ReasoningSyntax, SeparateReasoning
from patchbay.formats.scanner import Region, Scanner
from patchbay.formats.source import Source, Steps, marker_set, prefix
from patchbay.formats.spec import Format, Opening, ReasoningMarkers, RegionFactory
from patchbay.formats.values.tool_names import ToolRules, UnknownTools, make_rules
from patchbay.types import Reply

Route = Callable[["Readers"], Region]
"""Says which of the readers reads a marker, and makes it at its first one."""


class Plan:
    """What a format, or all of them, and a tag of reasoning come to. ``bare``: calls that nothing marks are read too."""

    def __init__(self, format: str | Format, reasoning_tag: str) -> None:  # noqa: A002 - the name the API fixes
        formats = choose(format)
        self.named = format != "auto"
        wrappers, reasoning_markers, self.answer_markers, self.control_tokens = markers(formats)
        asked = ReasoningMarkers(openers=(f"<{reasoning_tag}>",), closers=(f"</{reasoning_tag}>",))
        self.wrappers = WrapperTable(wrappers)
        self.channels = tuple(dict.fromkeys(channel for row in formats for channel in row.channels))
        self.marked = tuple(row.regions for row in formats if row.regions is not None)
        self.fenced = any(row.fenced for row in formats)
        self.inline = self.named and any(row.inline for row in formats)
        self.bare = any(row.implicit for row in formats)
        self.openings = tuple(row.opening for row in formats if row.opening is not None)
        self.openers = self._openers()
        self.reasoning_markers = ReasoningSyntax(
            (asked, *reasoning_markers),
            calls=self.openers,
            messages=(marker for row in self.channels if row.special for marker in (*row.starts, *row.alone)),
            stops=self.control_tokens,
            named=self.named,
        )
        self.routes = self._routes()
        self.marker_set = marker_set(tuple(self.routes))
        self.tags = marker_set(tuple(literal for literal in self.openers if literal[0] in "<["))
        """The markers that open calls and are tags: no words, which may begin a line of anything."""
        self.ends = marker_set((*self.wrappers.literals, *self.control_tokens, *channel_marks(self.channels)))
        """The markers that end a value."""
        words = [*(row.implied_words for row in self.channels), *(opening.words for opening in self.openings)]
        self._words = re.compile(r"\s*" + prefix(chain.from_iterable(words))).match if any(words) else None
        self._names = any(row.implied_name for row in self.channels) or any(not opening.words for opening in self.openings)

    def _openers(self) -> dict[str, Route]:
        """What reads the markers that open calls."""
        openers: dict[str, Route] = dict.fromkeys(self.wrappers.by_opener, lambda readers: readers.wrapped.open)
        for marked in self.marked:
            openers |= dict.fromkeys(marked.markers, partial(Readers.marked, marked=marked))
        return openers

    def _routes(self) -> dict[str, Route]:
        """What reads each marker; where several readers know one, the last of them counts."""
        routes: dict[str, Route] = dict.fromkeys(self.control_tokens, lambda readers: readers.control_tokens.read)
        for frame in self.answer_markers:
            if frame.special:
                routes |= dict.fromkeys((*frame.openers, *frame.closers), lambda readers: readers.answer_markers.drop)
            else:
                routes |= dict.fromkeys(frame.openers, lambda readers: readers.answer_markers.open)
                routes |= dict.fromkeys(frame.closers, lambda readers: readers.answer_markers.close)
        routes |= dict.fromkeys(self.wrappers.closers, lambda readers: readers.wrapped.unexpected_closer)
        routes |= dict.fromkeys(self.reasoning_markers.alone, lambda readers: readers.reasoning_markers.unexpected_closer)
        routes |= dict.fromkeys(self.reasoning_markers.by_opener, lambda readers: readers.reasoning_markers.open)
        routes |= self.openers
        if self.inline:
            routes[OPENER] = lambda readers: readers.inline.read
        for row in self.channels:
            routes |= dict.fromkeys(row.noise, lambda readers: readers.messages.noise)
            routes |= dict.fromkeys(row.ends, lambda readers: readers.messages.end)
        for row in self.channels:
            routes |= dict.fromkeys((*row.starts, *row.alone), lambda readers: readers.messages.open)
        return routes | dict.fromkeys(("```", "~~~"), lambda readers: readers.fences.region)

    def may_open(self, text: str, rules: ToolRules) -> bool:
        """True if what may only stand at a text's beginning may stand there, as far as the text goes."""
        return (self._words is not None and self._words(text) is not None) or (self._names and rules.may_begin(text))

    def is_known(self, word: str, rules: ToolRules) -> bool:
        """True if a word means something where it is a whole text."""
        return rules.offered(word) is not None or (self._words is not None and self._words(word) is not None)


@lru_cache(maxsize=64)
def plan_of(format: str | Format, reasoning_tag: str) -> Plan:  # noqa: A002 - the name the API fixes
    """The plan for these options. Raises ConfigurationError."""
    return Plan(format, reasoning_tag)


class Readers:
    """``prefilled``: the prompt opened the reasoning (None: found out from the text)."""

    def __init__(self, plan: Plan, context: Context, *, prefilled: bool | None) -> None:
        self.plan = plan
        self.context = context
        self.prefilled = prefilled

    def region(self, marker: str) -> Region:
        """What reads a marker."""
        return self.plan.routes[marker](self)

    def opener(self, marker: str) -> Region:
        """What reads a marker that opens calls."""
        return self.plan.openers[marker](self)

    def openings(self) -> Iterator[Opening | ChannelReader]:
        """What reads a text's beginning."""
        if self.plan.channels:
            yield self.messages
        for opening in self.plan.openings:
            yield opening(self.context)

    def marked(self, marked: RegionFactory) -> Region:
        """The reader of what no wrapper describes."""
        return marked(self.context)

    @cached_attribute
    def bodies(self) -> Codecs:
        """The readers of what stands in wrappers."""
        return Codecs(self.context, self.plan.wrappers.closers, self.plan.ends)

    @cached_attribute
    def wrapped(self) -> WrapperReader:
        """The reader of wrappers."""
        return WrapperReader(self.context, self.plan.wrappers, self.bodies)

    @cached_attribute
    def messages(self) -> ChannelReader:
        """The reader of framed messages."""
        return ChannelReader(self.context, self.plan.channels, self.bodies, self.plan.ends)

    @cached_attribute
    def reasoning_markers(self) -> ReasoningReader:
        """The reader of reasoning."""
        sink = SeparateReasoning(self.context.emitter) if self.context.reasoning else InlineReasoning(self.context.emitter)
        return ReasoningReader(
            self.context,
            self.plan.reasoning_markers,
            self.opener,
            lambda: self.messages.begin,
            prefilled=self.prefilled,
            sink=sink,
        )

    @cached_attribute
    def control_tokens(self) -> ControlTokenReader:
        """The reader of special tokens that leaked."""
        return ControlTokenReader(self.context.source, self.context.emitter)

    @cached_attribute
    def answer_markers(self) -> AnswerMarkerReader:
        """The reader of what stands around the answer."""
        return AnswerMarkerReader(self.context.source, self.context.emitter, self.plan.answer_markers, named=self.context.named)

    @cached_attribute
    def inline(self) -> InlineLists:
        """The reader of lists in the middle of a line."""
        return InlineLists(self.context, self.implicit)

    @cached_attribute
    def implicit(self) -> ImplicitCallReader | None:
        """The reader of calls that nothing marks."""
        return ImplicitCallReader(self.context) if self.context.lenient or self.plan.bare else None

    @cached_attribute
    def fences(self) -> FenceReader:
        """The reader of fences."""
        context, plan = self.context, self.plan
        blocks = CallFenceReader(context) if plan.fenced else None
        markup = MarkedFenceReader(context, plan.tags, self._trial_readers)
        return FenceReader(context, blocks, self.implicit, markup, any_label=plan.bare and context.rules.has_tools)

    def _trial_readers(self, emitter: Emitter) -> Callable[[str], Region]:
        """Readers of what opens calls that emit ``emitter`` what they read."""
        return Readers(self.plan, replace(self.context, emitter=emitter, drops=False), prefilled=False).opener


_new_event = object.__new__


def random_call_id(_index: int) -> str:
    """The default id of a call."""
    return "call_" + os.urandom(12).hex()


class StreamParser:
    """Reads a model's text piece by piece.

    ``tools``: OpenAI's list (or ToolSpec); only their names are calls. None: any well-formed call is one.
    ``format``: a format's name, a Format of the caller's own, or "auto".
    ``unknown_tools``: "text" leaves a marked call of a tool that was not offered in the prose; "keep" makes it a call; "drop"
    takes it out of the text and tells nothing but a repair.
    ``xml_tools``: tags that are calls where they begin a line, each with the name of its tool: ``{"bash": "run_shell"}``.
    ``reasoning_prefilled``: the prompt already opened the reasoning; None finds out from the text.
    Raises InvalidRequestError for tools and ConfigurationError for options that cannot be; never for a text.
    """

    def __init__(
        self,
        tools: Iterable[Any] | ToolRules | None = None,
        *,
        format: str | Format = "auto",  # noqa: A002 - the name the API fixes
        tool_call_tag: str = "tool_call",
        lenient_fences: bool = True,
        reasoning: bool = True,
        reasoning_tag: str = "think",
        reasoning_prefilled: bool | None = None,
        unknown_tools: UnknownTools = "text",
        xml_tools: Mapping[str, str] | None = None,
        generate_id: Callable[[int], str] | None = None,
    ) -> None:
        check_tag(tool_call_tag, "tool_call_tag")
        check_tag(reasoning_tag, "reasoning_tag")
        if unknown_tools not in ("text", "keep", "drop"):
            raise ConfigurationError(f"unknown_tools is {unknown_tools!r}: use 'text', 'keep' or 'drop'.")
        plan = plan_of(format, reasoning_tag) if isinstance(format, str | Format) else unknown_format(format)
        self._source = source = Source()
        self._emitter = emitter = Emitter(source, generate_id or random_call_id)
        self._context = context = Context(
            source,
            emitter,
            make_rules(tools, unknown_tools),
            plan.ends,
            tag=tool_call_tag,
            lenient=lenient_fences,
            named=plan.named,
            reasoning=reasoning,
            drops=unknown_tools == "drop",
        )
        self._readers = readers = Readers(plan, context, prefilled=reasoning_prefilled)
        lines = readers.implicit if plan.bare and context.rules.has_tools else None
        markers, region = plan.marker_set, readers.region
        if xml_tools:
            tags = XmlTools(context, check_xml_tools(xml_tools), plan.routes)
            markers, region = marker_set(tags.markers), lambda marker: tags.region(marker) or readers.region(marker)
        self._scanner = Scanner(source, emitter, markers, region, lines)
        self._prose = emitter.prose
        self._known_prose = 0
        """How many pieces of prose had been emitted when a chunk was last read by the readers."""
        self._pause: Callable[[str], object] = len
        """What finds None in a chunk that is prose as a whole; while no chunk can be, it finds something in each."""
        self._closed = False
        self._inside = bool(reasoning_prefilled)
        self.prefilled = reasoning and self._inside
        """The text was read as beginning inside the reasoning."""
        self._steps = self._run()

    def _run(self) -> Steps[None]:
        readers, source = self._readers, self._source
        if self._inside:
            yield from readers.reasoning_markers.begin()
        elif source.ended and source.buf.isalnum() and not readers.plan.is_known(source.buf, self._context.rules):
            self._emitter.text(source.buf)  # one word is the whole text
            source.pos = len(source.buf)
            return
        elif readers.plan.may_open(self._source.buf, self._context.rules):
            for opening in readers.openings():
                if (yield from opening.read()):
                    break
        yield from self._scanner.run()

    def feed(self, text: str) -> list[Event]:
        """Read the next piece; the events it brought out. Raises ValueError after ``close()``."""
        # Most chunks are prose without any marker, or the inside of a string of a call: they need no reader.
        if self._pause(text) is None and text:
            self._prose.append(text)
            event = _new_event(TextDelta)  # TextDelta(text) would cost as much as all the rest
            event.text = text
            return [event]
        if self._closed:
            raise ValueError("The parser is closed.")
        if not text:
            return []
        source = self._source if len(self._prose) == self._known_prose else self._catch_up()
        passed: Event | None = None
        if source.pass_on is not None:
            passed = source.pass_on(text)
        elif source.live is not None and self._emitter.in_call and source.pos == len(source.buf):
            piece = source.live(text)
            passed = self._emitter.argument_text(piece) if piece is not None else None
        if passed is not None:
            source.skip_ahead(text)
            events = [passed]
        else:
            source.push(text)
            self._steps.send(None)
            events = self._emitter.flush()
            self._pause = self._scanner.pause if self._scanner.open else len
        self._known_prose = len(self._prose)
        return events

    def take_prose(self, text: str) -> bool:
        """Read the next piece if it is prose that comes out as it came in, without an event; False where it has to be fed."""
        if text and self._pause(text) is None:
            self._prose.append(text)
            return True
        return False

    def _catch_up(self) -> Source:
        """The source, at the place behind the chunks that no reader has seen."""
        self._source.base += sum(map(len, self._prose[self._known_prose :]))
        return self._source

    def close(self, text: str = "") -> list[Event]:
        """Read the last piece; the last events. A whole text costs less here than fed.

        Closing twice is harmless. Raises ValueError for a piece after that.
        """
        if self._closed:
            if text:
                raise ValueError("The parser is closed.")
            return []
        self._closed = True
        self._pause = len
        source = self._catch_up()
        if text:
            source.push(text)
        source.ended = True
        for _ in self._steps:
            pass
        self._emitter.finish()
        events = self._emitter.flush()
        forget_cached(self._readers, self._context)  # they hold each other: without the rings all is freed at once
        return events

    @property
    def in_prose(self) -> bool:
        """Waiting in plain prose: what comes without any marker in it is prose too."""
        return self._scanner.waiting

    @property
    def reply(self) -> Reply:
        """All that was read so far; final after ``close()``."""
        return self._emitter.reply()


def parse(text: str, tools: Iterable[Any] | None = None, **options: Any) -> Reply:
    """Read a whole text; the options are StreamParser's. Never raises on any text."""
    parser = StreamParser(tools, **options)
    parser.close(text)
    return parser.reply


@lru_cache(maxsize=64)
def check_tag(tag: str, option: str) -> None:
    """Refuse a tag that could not be found again in a text; raises ConfigurationError."""
    if not isinstance(tag, str) or not re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,63}", tag):
        raise ConfigurationError(f"{option} is {tag!r}: use letters, digits, '_', '-' and '.', at most 64 characters.")
