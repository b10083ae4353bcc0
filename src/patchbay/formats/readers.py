"""The readers of what markers open, for one text: made when its first marker shows, for most texts have none.

Which markers there are depends on the formats and options alone and is kept; what reads them belongs to the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from patchbay.formats.channelrows import Channels
from patchbay.formats.channels.channelcalls import ChannelCalls
from patchbay.formats.channels.messages import ChannelReader, channel_marks
from patchbay.formats.engine.emitter import Emitter
from patchbay.formats.engine.marks import Marks, marks
from patchbay.formats.engine.scanner import Region
from patchbay.formats.engine.source import Source
from patchbay.formats.engine.telling import Telling
from patchbay.formats.fences.fencemarks import FenceMarks
from patchbay.formats.fences.reader import FenceReader
from patchbay.formats.parts import Parts
from patchbay.formats.regions.bodies import shapes
from patchbay.formats.regions.frames import FrameReader
from patchbay.formats.regions.leaks import LeakReader
from patchbay.formats.regions.reasoning import ReasoningReader
from patchbay.formats.regions.thoughts import LeftIn
from patchbay.formats.regions.wrapped import Shape, WrapperReader, closers_of, wrapper_marks
from patchbay.formats.rows import Format, Frame, Thought, Wrapper
from patchbay.formats.table import markers
from patchbay.formats.unmarked.inlinelists import InlineLists
from patchbay.formats.values.jsonreader import JsonReader
from patchbay.formats.values.names import make_rules


@dataclass(frozen=True, eq=False)
class Plan:
    """What some formats come to. ``ends``: the markers that end a value. ``bare``: calls that nothing marks are read too."""

    formats: tuple[Format, ...]
    wrappers: tuple[Wrapper, ...]
    thoughts: tuple[Thought, ...]
    frames: tuple[Frame, ...]
    leaks: tuple[str, ...]
    channels: tuple[Channels, ...]
    closers: tuple[str, ...]
    ends: Marks
    bare: bool


@lru_cache(maxsize=64)
def plan_of(formats: tuple[Format, ...]) -> Plan:
    """The plan of these formats."""
    wrappers, thoughts, frames, leaks = markers(formats)
    channels = tuple(dict.fromkeys(channel for row in formats for channel in row.channels))
    ends = wrapper_marks(wrappers, (*leaks, *channel_marks(channels)))
    bare = any(row.loose for row in formats)
    return Plan(formats, wrappers, thoughts, frames, leaks, channels, closers_of(wrappers), ends, bare)


class Readers:
    """``reasoning_tag``, ``prefilled``: the parser's options. ``fences``: the reader of fences."""

    def __init__(self, plan: Plan, parts: Parts, fences: FenceReader, reasoning_tag: str, *, prefilled: bool | None) -> None:
        self.plan = plan
        self.parts = parts
        self.fences = fences
        self._tag = reasoning_tag
        self._prefilled = prefilled
        self.messages = ChannelReader(parts, plan.channels, self._channel_calls) if plan.channels else None

    @cached_property
    def _bodies(self) -> Sequence[Shape]:
        return shapes(self.parts, self.plan.closers, self.plan.ends)

    def _channel_calls(self) -> ChannelCalls:
        return ChannelCalls(self.parts, self._bodies, self.plan.ends)

    @cached_property
    def _wrapped(self) -> WrapperReader:
        return WrapperReader(self.parts, self.plan.wrappers, self._bodies)

    @cached_property
    def openers(self) -> dict[str, Region]:
        """What reads each marker that opens calls."""
        openers: dict[str, Region] = {}
        if self.plan.wrappers:
            openers |= self._wrapped.openers()
        for row in self.plan.formats:
            if row.regions is not None:
                openers |= row.regions(self.parts)
        return openers

    @cached_property
    def thoughts(self) -> ReasoningReader:
        """The reader of reasoning."""
        parts = self.parts
        return ReasoningReader(
            parts.source,
            parts.emitter,
            (_asked(self._tag), *self.plan.thoughts),
            fences=self.fences,
            calls=self.openers,
            messages=self.messages.starts() if self.messages else None,
            prefilled=self._prefilled,
            named=parts.named,
            told=None if parts.reasoning else LeftIn(parts.emitter),
            stops=self.plan.leaks,
        )

    def on_trial(self, emitter: Emitter) -> Mapping[str, Region]:
        """Readers of what opens calls that tell ``emitter`` what they read."""
        reader = JsonReader(self.parts.source, emitter.note, self.plan.ends)
        parts = replace(self.parts, emitter=emitter, calls=Telling(emitter), json=reader)
        return Readers(self.plan, parts, self.fences, self._tag, prefilled=False).openers

    def regions(self) -> dict[str, Region]:
        """What reads each marker; where several know one, the last of them counts."""
        plan, source, emitter = self.plan, self.parts.source, self.parts.emitter
        regions: dict[str, Region] = {}
        if plan.leaks:
            regions |= LeakReader(source, emitter, plan.leaks).regions()
        if plan.frames:
            regions |= FrameReader(source, emitter, plan.frames, named=self.parts.named).regions()
        if plan.wrappers:
            regions |= self._wrapped.closers()
        regions |= self.thoughts.regions()
        regions |= self.openers
        if self.parts.named and any(row.inline for row in plan.formats):
            regions |= InlineLists(self.parts, self.fences.loose).regions()
        if self.messages is not None:
            regions |= self.messages.regions()
        return regions | dict.fromkeys(("```", "~~~"), self.fences.region)


@lru_cache(maxsize=64)
def literals(plan: Plan, reasoning_tag: str, *, named: bool) -> tuple[str, ...]:
    """All markers that ``Readers`` of these options read."""
    return tuple(_blank(plan, reasoning_tag, named=named).regions())


@lru_cache(maxsize=64)
def tags(plan: Plan) -> Marks:
    """The markers that open calls and are tags: no words, which may begin a line of anything."""
    return marks(tuple(literal for literal in _blank(plan, "think", named=False).openers if literal[0] in "<["))


def _blank(plan: Plan, reasoning_tag: str, *, named: bool) -> Readers:
    """Readers of no text."""
    source = Source()
    emitter = Emitter(source, str)
    telling, rules, reader = Telling(emitter, None), make_rules(None, "text"), JsonReader(source, emitter.note)
    parts = Parts(source, emitter, rules, telling, reader, tag="tool_call", lenient=True, named=named)
    fences = FenceReader(parts, FenceMarks(source, parts.tag), None, None, any_label=False)
    return Readers(plan, parts, fences, reasoning_tag, prefilled=None)


@lru_cache(maxsize=64)
def _asked(tag: str) -> Thought:
    return Thought(openers=(f"<{tag}>",), closers=(f"</{tag}>",))
