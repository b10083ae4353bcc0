"""``parse`` and ``StreamParser``: a model's text to prose, reasoning and calls. No I/O, no clock; never raises on a text."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.formats.catalog import choose, markers, unknown_format
from patchbay.formats.channels import ChannelReader, channel_markers
from patchbay.formats.codecs.xml_tools import XmlTools, check_xml_tools
from patchbay.formats.context import Context, cached_attribute, forget_cached
from patchbay.formats.emitter import Emitter
from patchbay.formats.events import Event, TextDelta
from patchbay.formats.fences import CallFenceReader, FenceReader, MarkedFenceReader
from patchbay.formats.reasoning import InlineReasoning, ReasoningReader, ReasoningSyntax, SeparateReasoning
from patchbay.formats.scanner import RegionReader, Scanner
from patchbay.formats.source import Source, Steps, marker_set, prefix_pattern
from patchbay.formats.spec import Format, OpeningReader, ReasoningMarkers, RegionFactory
from patchbay.formats.unmarked_blocks import OPENER, ImplicitCallReader, InlineLists
from patchbay.formats.values.tool_names import ToolRules, UnknownTools, make_rules
from patchbay.formats.wrappers import AnswerMarkerReader, Codecs, ControlTokenReader, WrapperReader, WrapperTable
from patchbay.types import DEFAULT_CALL_TAG, DEFAULT_RESULT_TAG, Reply

Route = Callable[["RegionReaders"], RegionReader]
"""Selects the reader of a marker's region, creating it at its first use."""


def _route_to(factory: RegionFactory) -> Route:
    return lambda readers: factory(readers.context)


class FormatPlan:
    """The compiled form of a format (or of all), with a reasoning tag. ``implicit``: calls without markers are read too."""

    def __init__(self, format: str | Format, reasoning_tag: str) -> None:  # noqa: A002 - the name the API fixes
        formats = choose(format)
        self.named = format != "auto"
        wrappers, reasoning, self.answer_markers, self.control_tokens = markers(formats)
        own_tag = ReasoningMarkers(openers=(f"<{reasoning_tag}>",), closers=(f"</{reasoning_tag}>",))
        self.wrappers = WrapperTable(wrappers)
        self.channels = tuple(dict.fromkeys(channel for row in formats for channel in row.channels))
        self.regions = tuple(row.regions for row in formats if row.regions is not None)
        self.fenced = any(row.fenced for row in formats)
        self.inline = self.named and any(row.inline for row in formats)
        self.implicit = any(row.implicit for row in formats)
        self.openings = tuple(row.opening for row in formats if row.opening is not None)
        self.openers = self._openers()
        self.reasoning = ReasoningSyntax(
            (own_tag, *reasoning),
            calls=self.openers,
            messages=(
                marker for channel in self.channels if channel.special for marker in (*channel.starts, *channel.headerless_starts)
            ),
            stops=self.control_tokens,
            named=self.named,
        )
        self.routes = self._routes()
        self.marker_set = marker_set(tuple(self.routes))
        self.tags = marker_set(tuple(literal for literal in self.openers if literal[0] in "<["))
        """Opening markers that are tags, not words: words may begin a line of anything."""
        self.ends = marker_set((*self.wrappers.literals, *self.control_tokens, *channel_markers(self.channels)))
        """Markers that end a value."""
        words = [*(channel.implied_words for channel in self.channels), *(opening.words for opening in self.openings)]
        self._words = re.compile(r"\s*" + prefix_pattern(chain.from_iterable(words))).match if any(words) else None
        self._names = any(channel.implied_name for channel in self.channels) or any(
            not opening.words for opening in self.openings
        )

    def _openers(self) -> dict[str, Route]:
        """Map each marker that opens calls to its reader."""
        openers: dict[str, Route] = dict.fromkeys(self.wrappers.by_opener, lambda readers: readers.wrappers.open)
        for factory in self.regions:
            openers |= dict.fromkeys(factory.markers, _route_to(factory))
        return openers

    def _routes(self) -> dict[str, Route]:
        """Map each marker to its reader. If several readers know a marker, the last one wins."""
        routes: dict[str, Route] = dict.fromkeys(self.control_tokens, lambda readers: readers.control_tokens.read)
        for row in self.answer_markers:
            if row.special:
                routes |= dict.fromkeys((*row.openers, *row.closers), lambda readers: readers.answer_markers.drop)
            else:
                routes |= dict.fromkeys(row.openers, lambda readers: readers.answer_markers.open)
                routes |= dict.fromkeys(row.closers, lambda readers: readers.answer_markers.close)
        routes |= dict.fromkeys(self.wrappers.closers, lambda readers: readers.wrappers.unexpected_closer)
        routes |= dict.fromkeys(self.reasoning.alone, lambda readers: readers.reasoning.unexpected_closer)
        routes |= dict.fromkeys(self.reasoning.by_opener, lambda readers: readers.reasoning.open)
        routes |= self.openers
        if self.inline:
            routes[OPENER] = lambda readers: readers.inline.read
        for channel in self.channels:
            routes |= dict.fromkeys(channel.noise, lambda readers: readers.channels.noise)
            routes |= dict.fromkeys(channel.ends, lambda readers: readers.channels.end)
        for channel in self.channels:
            routes |= dict.fromkeys((*channel.starts, *channel.headerless_starts), lambda readers: readers.channels.open)
        return routes | dict.fromkeys(("```", "~~~"), lambda readers: readers.fences.read_fence)

    def may_open(self, text: str, rules: ToolRules) -> bool:
        """True if one of the formats' openings may begin this text, as far as it goes."""
        return (self._words is not None and self._words(text) is not None) or (self._names and rules.may_begin(text))

    def is_meaningful_word(self, word: str, rules: ToolRules) -> bool:
        """True if a word is meaningful as a whole text: a tool's name, or the start of an opening."""
        return rules.offered(word) is not None or (self._words is not None and self._words(word) is not None)


@lru_cache(maxsize=64)
def plan_of(format: str | Format, reasoning_tag: str) -> FormatPlan:  # noqa: A002 - the name the API fixes
    """Return the cached plan for these options. Raises ConfigurationError."""
    return FormatPlan(format, reasoning_tag)


class RegionReaders:
    """The readers of one text, each created when first needed.

    ``prefilled``: the prompt opened the reasoning (None: decide by the text).
    """

    def __init__(self, plan: FormatPlan, context: Context, *, prefilled: bool | None) -> None:
        self.plan = plan
        self.context = context
        self.prefilled = prefilled

    def reader_of(self, marker: str) -> RegionReader:
        """Return the reader of a marker."""
        return self.plan.routes[marker](self)

    def opener(self, marker: str) -> RegionReader:
        """Return the reader of a marker that opens calls."""
        return self.plan.openers[marker](self)

    def openings(self) -> Iterator[OpeningReader | ChannelReader]:
        """Yield the readers for the start of a text."""
        if self.plan.channels:
            yield self.channels
        for opening in self.plan.openings:
            yield opening(self.context)

    @cached_attribute
    def codecs(self) -> Codecs:
        """Codecs for the calls in wrappers and messages."""
        return Codecs(self.context, self.plan.wrappers.closers, self.plan.ends)

    @cached_attribute
    def wrappers(self) -> WrapperReader:
        """Reader of wrappers."""
        return WrapperReader(self.context, self.plan.wrappers, self.codecs)

    @cached_attribute
    def channels(self) -> ChannelReader:
        """Reader of framed messages."""
        return ChannelReader(self.context, self.plan.channels, self.codecs, self.plan.ends)

    @cached_attribute
    def reasoning(self) -> ReasoningReader:
        """Reader of reasoning."""
        sink = SeparateReasoning(self.context.emitter) if self.context.reasoning else InlineReasoning(self.context.emitter)
        return ReasoningReader(
            self.context,
            self.plan.reasoning,
            self.opener,
            lambda: self.channels.begin,
            prefilled=self.prefilled,
            sink=sink,
        )

    @cached_attribute
    def control_tokens(self) -> ControlTokenReader:
        """Reader of special tokens that a server let through."""
        return ControlTokenReader(self.context.source, self.context.emitter)

    @cached_attribute
    def answer_markers(self) -> AnswerMarkerReader:
        """Reader of markers around the answer."""
        return AnswerMarkerReader(self.context.source, self.context.emitter, self.plan.answer_markers, named=self.context.named)

    @cached_attribute
    def inline(self) -> InlineLists:
        """Reader of lists of calls in the middle of a line."""
        return InlineLists(self.context, self.implicit)

    @cached_attribute
    def implicit(self) -> ImplicitCallReader | None:
        """Reader of calls without markers, None if they are not read."""
        return ImplicitCallReader(self.context) if self.context.lenient or self.plan.implicit else None

    @cached_attribute
    def fences(self) -> FenceReader:
        """Reader of fences."""
        context, plan = self.context, self.plan
        blocks = CallFenceReader(context) if plan.fenced else None
        marked = MarkedFenceReader(context, plan.tags, self._trial_readers)
        return FenceReader(context, blocks, self.implicit, marked, any_label=plan.implicit and context.rules.has_tools)

    def _trial_readers(self, emitter: Emitter) -> Callable[[str], RegionReader]:
        """Return a lookup of readers that emit to ``emitter``, for reading on trial."""
        return RegionReaders(self.plan, replace(self.context, emitter=emitter, drops=False), prefilled=False).opener


_new_event = object.__new__


def random_call_id(_index: int) -> str:
    """Return a random id, the default for calls."""
    return "call_" + os.urandom(12).hex()


class StreamParser:
    """Parses a model's text piece by piece.

    ``tools``: OpenAI's list (or ToolSpec); only their names are calls. None: any well-formed call is one.
    ``format``: a format's name, a Format of the caller's own, or "auto".
    ``tool_call_tag``, ``tool_result_tag``: the labels of the contract's blocks. A result is never the model's: its block ends the
    text.
    ``unknown_tools``: a marked call of a tool that was not offered stays prose ("text"), becomes a call ("keep"), or is removed
    from the text and reported as a repair only ("drop").
    ``xml_tools``: tags that are calls where they begin a line, each with the name of its tool: ``{"bash": "run_shell"}``.
    ``reasoning_prefilled``: the prompt already opened the reasoning; None decides by the text.

    Raises InvalidRequestError for invalid tools and ConfigurationError for invalid options; never for a text.
    """

    def __init__(
        self,
        tools: Iterable[Any] | ToolRules | None = None,
        *,
        format: str | Format = "auto",  # noqa: A002 - the name the API fixes
        tool_call_tag: str = DEFAULT_CALL_TAG,
        tool_result_tag: str = DEFAULT_RESULT_TAG,
        lenient_fences: bool = True,
        reasoning: bool = True,
        reasoning_tag: str = "think",
        reasoning_prefilled: bool | None = None,
        unknown_tools: UnknownTools = "text",
        xml_tools: Mapping[str, str] | None = None,
        generate_id: Callable[[int], str] | None = None,
    ) -> None:
        check_tag(tool_call_tag, "tool_call_tag")
        check_tag(tool_result_tag, "tool_result_tag")
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
            result_tag=tool_result_tag,
            lenient=lenient_fences,
            named=plan.named,
            reasoning=reasoning,
            drops=unknown_tools == "drop",
        )
        self._readers = readers = RegionReaders(plan, context, prefilled=reasoning_prefilled)
        lines = readers.implicit if plan.implicit and context.rules.has_tools else None
        markers, reader_of = plan.marker_set, readers.reader_of
        if xml_tools:
            tags = XmlTools(context, check_xml_tools(xml_tools), plan.routes)
            markers, reader_of = marker_set(tags.markers), lambda marker: tags.reader_of(marker) or readers.reader_of(marker)
        self._scanner = Scanner(source, emitter, markers, reader_of, lines)
        self._prose = emitter.prose
        self._known_prose = 0
        """Number of prose pieces when the readers last saw a chunk."""
        self._pause: Callable[[str], object] = len
        """Returns None for a chunk without a marker or a line. ``len`` never does: no chunk can take the fast path then."""
        self._closed = False
        self._begins_in_reasoning = bool(reasoning_prefilled)
        self.prefilled = reasoning and self._begins_in_reasoning
        """The text was parsed as beginning inside the reasoning."""
        self._steps = self._run()

    def _run(self) -> Steps[None]:
        readers, source = self._readers, self._source
        if self._begins_in_reasoning:
            yield from readers.reasoning.begin()
        elif source.ended and source.buf.isalnum() and not readers.plan.is_meaningful_word(source.buf, self._context.rules):
            self._emitter.text(source.buf)  # one word is the whole text
            source.pos = len(source.buf)
            return
        elif readers.plan.may_open(self._source.buf, self._context.rules):
            for opening in readers.openings():
                if (yield from opening.read()):
                    break
        yield from self._scanner.run()

    def feed(self, text: str) -> list[Event]:
        """Parse the next piece; return its events. Raises ValueError after ``close()``."""
        # Most chunks are prose without any marker, or the inside of a string of a call: they need no reader.
        if text and (self._pause(text) is None or (self._scanner.open and self._scanner.is_prose(text))):
            self._prose.append(text)
            delta = _new_event(TextDelta)  # TextDelta(text) would cost as much as all the rest
            delta.text = text
            return [delta]
        if self._closed:
            raise ValueError("The parser is closed.")
        if not text:
            return []
        source = self._source if len(self._prose) == self._known_prose else self._catch_up()
        event: Event | None = None
        if source.fast_prose is not None:
            event = source.fast_prose(text)
        elif source.fast_argument is not None and self._emitter.in_call and source.pos == len(source.buf):
            piece = source.fast_argument(text)
            event = self._emitter.argument_text(piece) if piece is not None else None
        if event is not None:
            source.skip_ahead(text)
            events = [event]
        else:
            source.push(text)
            self._steps.send(None)
            events = self._emitter.flush()
            self._pause = self._scanner.pause if self._scanner.open else len
        self._known_prose = len(self._prose)
        return events

    def take_prose(self, text: str) -> bool:
        """Parse the next piece if it is prose that comes out unchanged, without an event. Return False if it must be fed."""
        if text and (self._pause(text) is None or (self._scanner.open and self._scanner.is_prose(text))):
            self._prose.append(text)
            return True
        return False

    def _catch_up(self) -> Source:
        """Return the source, moved past the chunks that took the fast path."""
        self._source.base += sum(map(len, self._prose[self._known_prose :]))
        return self._source

    def close(self, text: str = "") -> list[Event]:
        """Parse the last piece; return the last events. For a whole text this costs less than ``feed``.

        Closing twice is allowed. Raises ValueError for a piece after that.
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
        forget_cached(self._readers, self._context)  # they refer to each other: without these cycles they are freed at once
        return events

    @property
    def in_prose(self) -> bool:
        """True while in plain prose: text without a marker in it is prose too."""
        return self._scanner.waiting

    @property
    def repairs(self) -> int:
        """How many repairs the text has needed so far."""
        return self._emitter.repairs

    @property
    def reply(self) -> Reply:
        """Everything parsed so far; final after ``close()``."""
        return self._emitter.reply()


def parse(text: str, tools: Iterable[Any] | None = None, **options: Any) -> Reply:
    """Parse a whole text; the options are StreamParser's. Never raises on any text."""
    parser = StreamParser(tools, **options)
    parser.close(text)
    return parser.reply


@lru_cache(maxsize=64)
def check_tag(tag: str, option: str) -> None:
    """Validate a tag; raises ConfigurationError for one that could not be found again in a text."""
    if not isinstance(tag, str) or not re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,63}", tag):
        raise ConfigurationError(f"{option} is {tag!r}: use letters, digits, '_', '-' and '.', at most 64 characters.")
