"""The readers of one text, each made when its first marker shows; and what formats and options come to, made once and kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain

from patchbay.formats.channels.messages import ChannelReader, channel_marks
from patchbay.formats.engine.emitter import Emitter
from patchbay.formats.engine.lazy import cached_attribute
from patchbay.formats.engine.marks import marks, prefix
from patchbay.formats.engine.scanner import Region
from patchbay.formats.fences.fencedmarkup import FencedMarkup
from patchbay.formats.fences.reader import FenceReader
from patchbay.formats.parts import Parts, ToolRules
from patchbay.formats.regions.bodies import Shapes
from patchbay.formats.regions.frames import FrameReader
from patchbay.formats.regions.leaks import LeakReader
from patchbay.formats.regions.reasoning import ReasoningReader, ThoughtMarks
from patchbay.formats.regions.thoughts import LeftIn, TakenOut
from patchbay.formats.regions.wrapped import WrapperReader, Wrappers
from patchbay.formats.rows import Format, Marked, Opening, Thought
from patchbay.formats.table import choose, markers
from patchbay.formats.unmarked.inlinelists import OPENER, InlineLists
from patchbay.formats.unmarked.loose import LooseReader

Route = Callable[["Readers"], Region]
"""Says which of the readers reads a marker, and makes it at its first one."""


class Plan:
    """What a format, or all of them, and a tag of reasoning come to. ``bare``: calls that nothing marks are read too."""

    def __init__(self, format: str | Format, reasoning_tag: str) -> None:  # noqa: A002 - the name the API fixes
        formats = choose(format)
        self.named = format != "auto"
        wrappers, thoughts, self.frames, self.leaks = markers(formats)
        asked = Thought(openers=(f"<{reasoning_tag}>",), closers=(f"</{reasoning_tag}>",))
        self.wrappers = Wrappers(wrappers)
        self.channels = tuple(dict.fromkeys(channel for row in formats for channel in row.channels))
        self.marked = tuple(row.regions for row in formats if row.regions is not None)
        self.blocks = next((row.blocks for row in formats if row.blocks is not None), None)
        self.inline = self.named and any(row.inline for row in formats)
        self.bare = any(row.loose for row in formats)
        self.openings = tuple(row.opening for row in formats if row.opening is not None)
        self.openers = self._openers()
        self.thoughts = ThoughtMarks(
            (asked, *thoughts),
            calls=self.openers,
            messages=(marker for row in self.channels if row.loud for marker in (*row.starts, *row.alone)),
            stops=self.leaks,
            named=self.named,
        )
        self.routes = self._routes()
        self.marks = marks(tuple(self.routes))
        self.tags = marks(tuple(literal for literal in self.openers if literal[0] in "<["))
        """The markers that open calls and are tags: no words, which may begin a line of anything."""
        self.ends = marks((*self.wrappers.literals, *self.leaks, *channel_marks(self.channels)))
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
        routes: dict[str, Route] = dict.fromkeys(self.leaks, lambda readers: readers.leaks.read)
        for frame in self.frames:
            if frame.loud:
                routes |= dict.fromkeys((*frame.openers, *frame.closers), lambda readers: readers.frames.drop)
            else:
                routes |= dict.fromkeys(frame.openers, lambda readers: readers.frames.open)
                routes |= dict.fromkeys(frame.closers, lambda readers: readers.frames.close)
        routes |= dict.fromkeys(self.wrappers.closers, lambda readers: readers.wrapped.stray)
        routes |= dict.fromkeys(self.thoughts.alone, lambda readers: readers.thoughts.stray)
        routes |= dict.fromkeys(self.thoughts.by_opener, lambda readers: readers.thoughts.open)
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
        """Whether what may only stand at a text's beginning may stand there, as far as the text goes."""
        return (self._words is not None and self._words(text) is not None) or (self._names and rules.may_begin(text))


@lru_cache(maxsize=64)
def plan_of(format: str | Format, reasoning_tag: str) -> Plan:  # noqa: A002 - the name the API fixes
    """The plan for these options. Raises ConfigurationError."""
    return Plan(format, reasoning_tag)


class Readers:
    """``prefilled``: the prompt opened the reasoning (None: found out from the text)."""

    def __init__(self, plan: Plan, parts: Parts, *, prefilled: bool | None) -> None:
        self.plan = plan
        self.parts = parts
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
            yield opening(self.parts)

    def marked(self, marked: Marked) -> Region:
        """The reader of what no wrapper describes."""
        return marked(self.parts)

    @cached_attribute
    def bodies(self) -> Shapes:
        """The readers of what stands in wrappers."""
        return Shapes(self.parts, self.plan.wrappers.closers, self.plan.ends)

    @cached_attribute
    def wrapped(self) -> WrapperReader:
        """The reader of wrappers."""
        return WrapperReader(self.parts, self.plan.wrappers, self.bodies)

    @cached_attribute
    def messages(self) -> ChannelReader:
        """The reader of framed messages."""
        return ChannelReader(self.parts, self.plan.channels, self.bodies, self.plan.ends)

    @cached_attribute
    def thoughts(self) -> ReasoningReader:
        """The reader of reasoning."""
        told = TakenOut(self.parts.emitter) if self.parts.reasoning else LeftIn(self.parts.emitter)
        return ReasoningReader(
            self.parts, self.plan.thoughts, self.opener, lambda: self.messages.begin, prefilled=self.prefilled, told=told
        )

    @cached_attribute
    def leaks(self) -> LeakReader:
        """The reader of special tokens that leaked."""
        return LeakReader(self.parts.source, self.parts.emitter)

    @cached_attribute
    def frames(self) -> FrameReader:
        """The reader of what stands around the answer."""
        return FrameReader(self.parts.source, self.parts.emitter, self.plan.frames, named=self.parts.named)

    @cached_attribute
    def inline(self) -> InlineLists:
        """The reader of lists in the middle of a line."""
        return InlineLists(self.parts, self.loose)

    @cached_attribute
    def loose(self) -> LooseReader | None:
        """The reader of calls that nothing marks."""
        return LooseReader(self.parts) if self.parts.lenient or self.plan.bare else None

    @cached_attribute
    def fences(self) -> FenceReader:
        """The reader of fences."""
        parts, plan = self.parts, self.plan
        blocks = plan.blocks(parts, parts.fences) if plan.blocks is not None else None
        markup = FencedMarkup(parts, plan.tags, self._on_trial)
        return FenceReader(parts, blocks, self.loose, markup, any_label=plan.bare and parts.rules.has_tools)

    def _on_trial(self, emitter: Emitter) -> Callable[[str], Region]:
        """Readers of what opens calls that tell ``emitter`` what they read."""
        return Readers(self.plan, replace(self.parts, emitter=emitter, drops=False), prefilled=False).opener
