"""What the scanner found, as events and as the reply; and what becomes of white space around markup.

White space that ends in a line break is held back until it is known what follows: before a call or reasoning it is layout and
goes away, before prose it is prose. With neither calls nor reasoning in it, a text comes out exactly as it came in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from patchbay.formats.engine.source import Source
from patchbay.formats.events import (
    CallArguments,
    CallCut,
    CallEnd,
    CallStart,
    Event,
    ReasoningDelta,
    TextDelta,
    TextWasReasoning,
)
from patchbay.types import IncompleteCall, Repair, Reply, ToolCall

_MOST_REPAIRS = 1000
_OPENS_QUOTE = re.compile(r"[\w:,(][ \t]+\"\Z")
_QUOTE_ROOM = 4
_CODE_ROOM = 1024
_LINE_END = re.compile("[\r\n]")
_TICKS = re.compile("`+")
LAYOUT = " \t\r\n>"
"""What may stand between prose and markup; ``>`` is a blockquote's."""


class Emitter:
    """Collects events until ``flush()`` and the parts of the reply until ``reply()``."""

    def __init__(self, source: Source, generate_id: Callable[[int], str]) -> None:
        self._source = source
        self._generate_id = generate_id
        self._events: list[Event] = []
        self._run: list[str] = []  # prose of this flush, joined into one event
        self.prose: list[str] = []
        """The pieces of the answer's prose."""
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._cut: list[IncompleteCall] = []
        self._repairs: list[Repair] = []
        self._count = 0
        self._call: tuple[int, str, str] | None = None  # index, id, name of the call being told
        self._arguments: list[str] = []
        self._pieces: list[str] = []
        self._gap: list[str] = []
        self._joint = ""  # the white space before a region, should prose follow it
        self._after_region = False
        self._thought_gap: list[str] = []
        self._new_thought = True
        self.blank = True
        """The line so far holds nothing but layout."""
        self.before_flush: Callable[[], None] | None = None
        self.over = False
        """The model's turn is over: what comes is a conversation that it invents, and no call in it is one."""
        self.muted = False
        """Text is only looked at, not told (it may have to be read again as something else)."""

    # prose

    @property
    def clear(self) -> bool:
        """Nothing is held back."""
        return not (self._gap or self._after_region or self.muted)

    @property
    def in_call(self) -> bool:
        """A call is being told."""
        return self._call is not None

    @property
    def has_text(self) -> bool:
        """Some prose was told."""
        return bool(self.prose)

    @property
    def has_calls(self) -> bool:
        """A call was told."""
        return self._count > 0

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The calls that were told and are complete."""
        return self._calls

    @property
    def after_markup(self) -> bool:
        """Nothing but white space came since a call, or reasoning."""
        return self._after_region

    @property
    def quoted(self) -> bool:
        """The line so far is the mark of a blockquote."""
        return self.blank and ">" in "".join(self._gap)

    @property
    def last(self) -> str:
        """The last character of the prose, "" if it is white space or there is none."""
        return self.prose[-1][-1] if self.prose and not self._gap and not self._after_region else ""

    @property
    def opens_code(self) -> bool:
        """The prose ends in what opens inline code or a quotation: a marker behind it is a word about the marker."""
        if self.quoted:
            return True
        if self.last == '"':
            return _OPENS_QUOTE.search(self.tail(_QUOTE_ROOM)) is not None
        if self.last != "`":
            return False
        line: list[str] = []
        size = 0
        for piece in reversed(self.prose):
            line.append(piece)
            size += len(piece)
            if size >= _CODE_ROOM or "\n" in piece:
                break
        text = "".join(reversed(line))[-_CODE_ROOM:]
        if not text.rstrip("`")[-1:].strip():
            return True  # behind white space they cannot close anything
        opened = ""
        for run in _TICKS.findall(text, text.rfind("\n") + 1):
            opened = "" if run == opened else opened or run
        return bool(opened)

    def tail(self, room: int) -> str:
        """The last characters of the prose, ``room`` at the most."""
        pieces: list[str] = []
        for piece in reversed(self.prose):
            pieces.append(piece[-room:])
            room -= len(piece)
            if room <= 0:
                break
        return "".join(reversed(pieces))

    def _track(self, text: str) -> None:
        end = max(text.rfind("\n"), text.rfind("\r"))
        if end >= 0:
            self.blank = not text[end + 1 :].strip(LAYOUT)
        elif self.blank:
            self.blank = not text.strip(LAYOUT)

    def text(self, text: str) -> None:
        """Prose outside of fences."""
        if not text:
            return
        kept = len(text.rstrip(LAYOUT)) if text[-1] in LAYOUT else len(text)
        if self.muted:
            pass
        elif not kept and (self.blank or self._after_region):
            self._gap.append(text)
        else:
            cut = _LINE_END.search(text, kept)
            if cut is None:
                self._out(text)
            else:
                self._out(text[: cut.start()])
                self._gap.append(text[cut.start() :])
        if self.blank or "\n" in text or "\r" in text:
            self._track(text)

    def verbatim(self, text: str) -> None:
        """Prose whose white space is its own: what stands in a fence, or what turned out not to be a call."""
        if not text:
            return
        self._track(text)
        if not self.muted:
            self._out(text)

    def passed_verbatim(self, text: str) -> TextDelta:
        """A piece of what stands in a fence, as its event; only when ``clear``."""
        self._track(text)
        self.prose.append(text)
        return TextDelta(text)

    def _out(self, text: str) -> None:
        if self._after_region:
            # Empty lines after markup are layout, the indent of the next line is not.
            text = "".join(self._gap) + text
            self._gap.clear()
            space = text[: len(text) - len(text.lstrip(" \t\r\n"))]
            line = space.rfind("\n") + 1 or len(space)
            gap, text = text[:line], text[line:]
            if self.prose and (self._joint or gap):
                text = (self._joint or gap) + text
            self._after_region = False
            self._joint = ""
        elif self._gap:
            text = "".join(self._gap) + text
            self._gap.clear()
        if text:
            self._run.append(text)
            self.prose.append(text)

    def _region(self) -> None:
        """Markup follows: what white space is held back was layout."""
        if not self._after_region:
            self._joint = "".join(self._gap).replace(">", "").rstrip(" \t")
        self._gap.clear()
        self._after_region = True
        self.blank = True
        self._thought_gap.clear()
        self._new_thought = True

    def markup(self) -> None:
        """A marker that stands for nothing: white space beside it is layout."""
        self._region()

    def message_begins(self) -> None:
        """A further message of the answer: it begins on a line of its own."""
        self._region()
        self._joint = self._joint or "\n"

    # reasoning

    def thought(self, text: str) -> None:
        """A piece of reasoning."""
        self._track(text)
        if self.muted:
            return
        if self._new_thought:
            text = text.lstrip(" \t\r\n")
            if not text:
                return
            if self._reasoning:
                text = "\n\n" + text
            self._new_thought = False
        kept = text.rstrip(" \t\r\n")
        if kept:
            piece = "".join(self._thought_gap) + kept
            self._thought_gap.clear()
            self._flush_run()
            self._events.append(ReasoningDelta(piece))
            self._reasoning.append(piece)
        if len(kept) < len(text):
            self._thought_gap.append(text[len(kept) :])

    def thought_begins(self) -> None:
        """A reasoning marker opens."""
        self._region()

    def thought_ends(self) -> None:
        """The reasoning is over; white space at its end goes away."""
        self._thought_gap.clear()
        self._new_thought = True
        self._after_region = True
        self.blank = True

    def all_was_reasoning(self) -> None:
        """A closing marker came whose opener was in the prompt."""
        if ">" in "".join(self._gap):
            self._out("")
        self._flush_run()
        self._gap.clear()
        text = "".join(self.prose).strip()
        if self.prose:
            self._events.append(TextWasReasoning())
        if text:
            self._reasoning.append(text)
        self.prose.clear()
        self._joint = ""
        self.thought_ends()

    # calls

    def start(self, name: str, pieces: list[str] | None = None) -> list[str]:
        """A call begins; its arguments are appended to the list returned, which is ``pieces`` if given."""
        self._region()
        self._flush_run()
        index = self._count
        self._count += 1
        call_id = self._generate_id(index)
        self._call = (index, call_id, name)
        self._events.append(CallStart(index, call_id, name))
        self._arguments = []
        self._pieces = [] if pieces is None else pieces
        return self._pieces

    def end(self) -> None:
        """The call is complete."""
        assert self._call is not None
        self._flush_arguments()
        index, call_id, name = self._call
        call = ToolCall(call_id, name, "".join(self._arguments))
        self._calls.append(call)
        self._events.append(CallEnd(index, call))
        self._call = None

    def cut(self, raw: str, name: str = "") -> None:
        """The text ended inside a call; ``raw`` is its text from its first marker on, ``name`` its name if that was read."""
        if self._call is None and name:
            self.start(name)
        if self._call is None:
            self._flush_run()
            call = IncompleteCall("", "", "", raw)
            index = None
        else:
            self._flush_arguments()
            index, call_id, name = self._call
            call = IncompleteCall(call_id, name, "".join(self._arguments), raw)
            self._call = None
        self._region()
        self._cut.append(call)
        self._events.append(CallCut(index, call))

    def argument_text(self, text: str) -> CallArguments:
        """A piece of the arguments that went by the fast path, as its event."""
        assert self._call is not None
        self._arguments.append(text)
        return CallArguments(self._call[0], text)

    def _flush_arguments(self) -> None:
        if self._pieces and self._call is not None:
            text = "".join(self._pieces)
            self._pieces.clear()
            self._arguments.append(text)
            self._events.append(CallArguments(self._call[0], text))

    def note(self, kind: str) -> None:
        """Record a repair at the place being read; of a text that needs thousands, the first are enough."""
        if len(self._repairs) < _MOST_REPAIRS:
            self._repairs.append(Repair(kind, self._source.offset))

    def repaired(self, repairs: Iterable[Repair]) -> None:
        """Record the repairs that another reading of the same text needed."""
        self._repairs.extend(islice(repairs, _MOST_REPAIRS - len(self._repairs)))

    @property
    def repairs(self) -> int:
        """How many repairs are recorded."""
        return len(self._repairs)

    def forget_repairs(self, count: int) -> None:
        """Keep only the first ``count`` repairs: the reading that needed the others was taken back."""
        del self._repairs[count:]

    # out

    def _flush_run(self) -> None:
        if self._run:
            self._events.append(TextDelta("".join(self._run)))
            self._run.clear()

    def flush(self) -> list[Event]:
        """The events since the last flush."""
        if self.before_flush is not None:
            self.before_flush()
        if self._call is not None:
            self._flush_arguments()
        if self._run:
            self._flush_run()
        events = self._events
        self._events = []
        return events

    def finish(self) -> None:
        """The text is over: white space at its end is prose unless markup came before it."""
        if self._gap:
            if ">" in "".join(self._gap) or not (self._after_region or self._count or self._cut):
                self._out("")
            self._gap.clear()

    def reply(self) -> Reply:
        """All that was told."""
        return Reply(
            content="".join(self.prose) or None,
            reasoning="".join(self._reasoning) or None,
            tool_calls=tuple(self._calls),
            incomplete=tuple(self._cut),
            repairs=tuple(self._repairs),
        )
