"""``parse`` and ``StreamParser``: a model's text to prose, reasoning and calls. No I/O, no clock; no text makes it raise."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.formats.engine.emitter import Emitter
from patchbay.formats.engine.scanner import Scanner
from patchbay.formats.engine.source import Source, Steps
from patchbay.formats.engine.telling import Telling
from patchbay.formats.events import Event
from patchbay.formats.fences.fencedmarkup import FencedMarkup
from patchbay.formats.fences.fencemarks import FenceMarks
from patchbay.formats.fences.reader import FenceReader
from patchbay.formats.parts import Parts, ToolRules, UnknownTools, make_rules
from patchbay.formats.readers import Readers, literals, plan_of, tags
from patchbay.formats.rows import Format, Opening
from patchbay.formats.table import choose
from patchbay.formats.unmarked.loose import LooseReader
from patchbay.formats.values.jsonreader import JsonReader
from patchbay.types import Reply


def random_call_id(_index: int) -> str:
    """The default id of a call."""
    return "call_" + secrets.token_hex(12)


class StreamParser:
    """Reads a model's text piece by piece.

    ``tools``: OpenAI's list (or ToolSpec); only their names are calls. None: any well-formed call is one.
    ``format``: a format's name, a Format of the caller's own, or "auto".
    ``unknown_tools``: "text" leaves a marked call of a tool that was not offered in the prose; "keep" makes it a call; "drop"
    takes it out of the text and tells nothing but a repair.
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
        generate_id: Callable[[int], str] | None = None,
    ) -> None:
        formats = choose(format)
        check_tag(tool_call_tag, "tool_call_tag")
        check_tag(reasoning_tag, "reasoning_tag")
        if unknown_tools not in ("text", "keep", "drop"):
            raise ConfigurationError(f"unknown_tools is {unknown_tools!r}: use 'text', 'keep' or 'drop'.")
        self._source = source = Source()
        self._emitter = emitter = Emitter(source, generate_id or random_call_id)
        rules = make_rules(tools, unknown_tools)
        named = format != "auto"
        plan = plan_of(formats)
        calls = Telling(emitter, (lambda name: rules.offered(name) is None) if unknown_tools == "drop" else None)
        reader = JsonReader(source, emitter.note, plan.ends)
        parts = Parts(
            source, emitter, rules, calls, reader, tag=tool_call_tag, lenient=lenient_fences, named=named, reasoning=reasoning
        )
        fence_marks = FenceMarks(source, tool_call_tag)
        blocks = next((row.blocks(parts, fence_marks) for row in formats if row.blocks is not None), None)
        loose = LooseReader(parts) if lenient_fences or plan.bare else None
        self._fences = FenceReader(parts, fence_marks, blocks, loose, any_label=plan.bare and rules.has_tools)
        self._readers = readers = Readers(plan, parts, self._fences, reasoning_tag, prefilled=reasoning_prefilled)
        self._fences.markup = FencedMarkup(parts, fence_marks, tags(plan), readers.on_trial)
        self._openings: list[Opening] = [row.opening(parts) for row in formats if row.opening is not None]
        if readers.messages is not None:
            self._openings.insert(0, readers.messages)
        found = literals(plan, reasoning_tag, named=named)
        self._scanner = Scanner(source, emitter, found, readers.regions, loose if plan.bare and rules.has_tools else None)
        self._quiet = self._scanner.quiet
        self._closed = False
        self._inside = bool(reasoning_prefilled)
        self.prefilled = reasoning and self._inside
        """The text was read as beginning inside the reasoning."""
        self._steps = self._run()
        next(self._steps)

    def _run(self) -> Steps[None]:
        if self._inside:
            yield from self._readers.thoughts.begin()
        else:
            for opening in self._openings:
                if (yield from opening.read()):
                    break
        yield from self._scanner.run()

    def feed(self, text: str) -> list[Event]:
        """Read the next piece; the events it brought out. Raises ValueError after ``close()``."""
        if self._closed:
            raise ValueError("The parser is closed.")
        if not text:
            return []
        source, emitter = self._source, self._emitter
        # Most chunks are prose without any marker, or the inside of a string of a call: they need no scanner.
        if self._scanner.idle:
            if not emitter.blank and emitter.clear and self._quiet(text):
                source.skip_ahead(text)
                return [emitter.passed(text)]
        elif source.live is not None:
            piece = source.live(text) if emitter.in_call and source.pos == len(source.buf) else None
            if piece is not None:
                source.skip_ahead(text)
                return [emitter.argument_text(piece)]
        elif self._fences.shown.idle and emitter.clear and "`" not in text and "~" not in text:
            source.skip_ahead(text)
            self._fences.shown.line_passed |= "\n" in text
            return [emitter.passed_verbatim(text)]
        source.push(text)
        self._steps.send(None)
        return emitter.flush()

    def close(self) -> list[Event]:
        """The text is over; the last events. Closing twice is harmless."""
        if self._closed:
            return []
        self._closed = True
        self._source.ended = True
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
    parser.feed(text)
    parser.close()
    return parser.reply


@lru_cache(maxsize=64)
def check_tag(tag: str, option: str) -> None:
    """Refuse a tag that could not be found again in a text; raises ConfigurationError."""
    if not isinstance(tag, str) or not re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,63}", tag):
        raise ConfigurationError(f"{option} is {tag!r}: use letters, digits, '_', '-' and '.', at most 64 characters.")
