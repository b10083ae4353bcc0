"""``parse`` and ``StreamParser``: a model's text to prose, reasoning and calls. No I/O, no clock; no text makes it raise."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.formats.engine.emitter import Emitter
from patchbay.formats.engine.marks import marks
from patchbay.formats.engine.scanner import Scanner
from patchbay.formats.engine.source import Source, Steps
from patchbay.formats.events import Event, TextDelta
from patchbay.formats.parts import Parts, ToolRules, UnknownTools, make_rules
from patchbay.formats.readers import Readers, plan_of
from patchbay.formats.regions.xmltools import XmlTools, check_xml_tools
from patchbay.formats.rows import Format
from patchbay.formats.table import unknown_format
from patchbay.types import Reply

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
        self._parts = parts = Parts(
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
        self._readers = readers = Readers(plan, parts, prefilled=reasoning_prefilled)
        lines = readers.loose if plan.bare and parts.rules.has_tools else None
        markers, region = plan.marks, readers.region
        if xml_tools:
            tags = XmlTools(parts, check_xml_tools(xml_tools), plan.routes)
            markers, region = marks(tags.markers), lambda marker: tags.region(marker) or readers.region(marker)
        self._scanner = Scanner(source, emitter, markers, region, lines)
        self._prose = emitter.prose
        self._told = 0
        """How many pieces of prose had been told when a chunk was last read by the readers."""
        self._pause: Callable[[str], object] = len
        """What finds None in a chunk that is prose as a whole; while no chunk can be, it finds something in each."""
        self._closed = False
        self._inside = bool(reasoning_prefilled)
        self.prefilled = reasoning and self._inside
        """The text was read as beginning inside the reasoning."""
        self._steps = self._run()

    def _run(self) -> Steps[None]:
        readers = self._readers
        if self._inside:
            yield from readers.thoughts.begin()
        elif readers.plan.may_open(self._source.buf, self._parts.rules):
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
        source = self._catch_up()
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
        self._told = len(self._prose)
        return events

    def take_prose(self, text: str) -> bool:
        """Read the next piece if it is prose that comes out as it came in, without an event; False where it has to be fed."""
        if text and self._pause(text) is None:
            self._prose.append(text)
            return True
        return False

    def _catch_up(self) -> Source:
        """The source, at the place behind the chunks that no reader has seen."""
        self._source.base += sum(map(len, self._prose[self._told :]))
        return self._source

    def close(self) -> list[Event]:
        """The text is over; the last events. Closing twice is harmless."""
        if self._closed:
            return []
        self._closed = True
        self._pause = len
        self._catch_up().ended = True
        for _ in self._steps:
            pass
        self._emitter.finish()
        return self._emitter.flush()

    @property
    def in_prose(self) -> bool:
        """Waiting in plain prose: what comes without any marker in it is prose too."""
        return self._scanner.idle

    @property
    def reply(self) -> Reply:
        """All that was read so far; final after ``close()``."""
        return self._emitter.reply()


def parse(text: str, tools: Iterable[Any] | None = None, **options: Any) -> Reply:
    """Read a whole text; the options are StreamParser's. Never raises on any text."""
    parser = StreamParser(tools, **options)
    parser._source.push(text)  # noqa: SLF001 - not fed: no reader needs to wait at its end
    parser.close()
    return parser.reply


@lru_cache(maxsize=64)
def check_tag(tag: str, option: str) -> None:
    """Refuse a tag that could not be found again in a text; raises ConfigurationError."""
    if not isinstance(tag, str) or not re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,63}", tag):
        raise ConfigurationError(f"{option} is {tag!r}: use letters, digits, '_', '-' and '.', at most 64 characters.")
