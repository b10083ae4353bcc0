"""Turns what readers find into events and a reply, and decides what becomes of white space around markup.

White space that ends in a line break is held back until the text that follows is known: before a call or reasoning it is layout
and dropped, before prose it is prose. A text without calls or reasoning comes out unchanged.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Protocol

from patchbay.formats.events import CallArguments, CallCut, CallEnd, CallStart, Event, ReasoningDelta, TextDelta, TextWasReasoning
from patchbay.formats.source import Source
from patchbay.types import IncompleteCall, Repair, Reply, ToolCall

_MOST_REPAIRS = 1000
_OPENS_QUOTE = re.compile(r"[\w:,(][ \t]+\"\Z")
_QUOTE_LOOKBEHIND = 4
_CODE_LOOKBEHIND = 1024
_LINE_END = re.compile("[\r\n]")
_TICKS = re.compile("`+")
LAYOUT = " \t\r\n>"
"""Characters that may stand between prose and markup; ``>`` belongs to a blockquote."""


class Emitter:
    """Collects events until ``flush()``, and the parts of the reply until ``reply()``."""

    def __init__(self, source: Source, generate_id: Callable[[int], str]) -> None:
        self._source = source
        self._generate_id = generate_id
        self._events: list[Event] = []
        self._text_run: list[str] = []  # prose of this flush, joined into one event
        self.prose: list[str] = []
        """Pieces of the answer's prose."""
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._cut: list[IncompleteCall] = []
        self._repairs: list[Repair] = []
        self._count = 0
        self._call: tuple[int, str, str] | None = None  # index, id, name of the call being emitted
        self._arguments: list[str] = []
        self._pieces: list[str] = []
        self._held_space: list[str] = []
        self._space_before_markup = ""  # needed again if prose follows the markup
        self.after_markup = False
        """Only white space came since a call or reasoning."""
        self._held_reasoning_space: list[str] = []
        self._new_reasoning = True
        self.at_line_start = True
        """The line so far has nothing but layout."""
        self.before_flush: Callable[[], None] | None = None
        self.turn_ended = False
        """The model's turn ended: what follows is a conversation that it invents, and calls in it do not count."""
        self.muted = False
        """Look at text without emitting it (it may have to be read again as something else)."""

    # prose

    @property
    def nothing_pending(self) -> bool:
        """True if nothing is held back."""
        return not (self._held_space or self.after_markup or self.muted)

    @property
    def in_call(self) -> bool:
        """True while a call is being emitted."""
        return self._call is not None

    @property
    def has_text(self) -> bool:
        """True if some prose was emitted."""
        return bool(self.prose)

    @property
    def has_calls(self) -> bool:
        """True if a call was emitted."""
        return self._count > 0

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The complete calls so far."""
        return self._calls

    @property
    def in_blockquote(self) -> bool:
        """True if the line so far is a blockquote's ``>``."""
        return self.at_line_start and ">" in "".join(self._held_space)

    @property
    def last_char(self) -> str:
        """The last character of the prose, "" if that is white space or there is none."""
        return self.prose[-1][-1] if self.prose and not self._held_space and not self.after_markup else ""

    @property
    def next_is_mention(self) -> bool:
        """True if the prose ends in an opening backtick or quotation mark: a marker behind it is mentioned, not used."""
        if self.in_blockquote:
            return True
        if self.last_char == '"':
            return _OPENS_QUOTE.search(self.tail(_QUOTE_LOOKBEHIND)) is not None
        if self.last_char != "`":
            return False
        text = self.tail(_CODE_LOOKBEHIND)
        if not text.rstrip("`")[-1:].strip():
            return True  # behind white space they cannot close anything
        opened = ""
        for run in _TICKS.findall(text, text.rfind("\n") + 1):
            opened = "" if run == opened else opened or run
        return bool(opened)

    def tail(self, size: int) -> str:
        """Return the last characters of the prose, at most ``size``."""
        pieces: list[str] = []
        for piece in reversed(self.prose):
            pieces.append(piece[-size:])
            size -= len(piece)
            if size <= 0:
                break
        return "".join(reversed(pieces))

    def _track(self, text: str) -> None:
        end = max(text.rfind("\n"), text.rfind("\r"))
        if end >= 0:
            self.at_line_start = not text[end + 1 :].strip(LAYOUT)
        elif self.at_line_start:
            self.at_line_start = not text.strip(LAYOUT)

    def text(self, text: str) -> None:
        """Emit prose outside of fences."""
        if not text:
            return
        content_end = len(text.rstrip(LAYOUT)) if text[-1] in LAYOUT else len(text)
        if self.muted:
            pass
        elif not content_end and (self.at_line_start or self.after_markup):
            self._held_space.append(text)
        else:
            cut = _LINE_END.search(text, content_end)
            if cut is None:
                self._out(text)
            else:
                self._out(text[: cut.start()])
                self._held_space.append(text[cut.start() :])
        if self.at_line_start or "\n" in text or "\r" in text:
            self._track(text)

    def verbatim(self, text: str) -> None:
        """Emit prose whose white space matters: in a fence, or in what turned out not to be a call."""
        if not text:
            return
        self._track(text)
        if not self.muted:
            self._out(text)

    def verbatim_event(self, text: str) -> TextDelta:
        """Return the event for a piece of text in a fence. Call only when ``nothing_pending``."""
        self._track(text)
        self.prose.append(text)
        return TextDelta(text)

    def _out(self, text: str) -> None:
        if self.after_markup:
            # Empty lines after markup are layout, the indent of the next line is not.
            text = "".join(self._held_space) + text
            self._held_space.clear()
            space = text[: len(text) - len(text.lstrip(" \t\r\n"))]
            line = space.rfind("\n") + 1 or len(space)
            gap, text = text[:line], text[line:]
            if self.prose and (self._space_before_markup or gap):
                text = (self._space_before_markup or gap) + text
            self.after_markup = False
            self._space_before_markup = ""
        elif self._held_space:
            text = "".join(self._held_space) + text
            self._held_space.clear()
        if text:
            self._text_run.append(text)
            self.prose.append(text)

    def markup(self) -> None:
        """Record markup at this place: white space held back before it was layout, and is dropped."""
        if not self.after_markup:
            self._space_before_markup = "".join(self._held_space).replace(">", "").rstrip(" \t")
        self._held_space.clear()
        self.after_markup = True
        self.at_line_start = True
        self._held_reasoning_space.clear()
        self._new_reasoning = True

    def begin_message(self) -> None:
        """Begin a further message of the answer, on a line of its own."""
        self.markup()
        self._space_before_markup = self._space_before_markup or "\n"

    # reasoning

    def reasoning(self, text: str) -> None:
        """Emit a piece of reasoning."""
        self._track(text)
        if self.muted:
            return
        if self._new_reasoning:
            text = text.lstrip(" \t\r\n")
            if not text:
                return
            if self._reasoning:
                text = "\n\n" + text
            self._new_reasoning = False
        content = text.rstrip(" \t\r\n")
        if content:
            piece = "".join(self._held_reasoning_space) + content
            self._held_reasoning_space.clear()
            self._flush_run()
            self._events.append(ReasoningDelta(piece))
            self._reasoning.append(piece)
        if len(content) < len(text):
            self._held_reasoning_space.append(text[len(content) :])

    def end_reasoning(self) -> None:
        """End the reasoning; white space at its end is dropped."""
        self._held_reasoning_space.clear()
        self._new_reasoning = True
        self.after_markup = True
        self.at_line_start = True

    def reclassify_as_reasoning(self) -> None:
        """Turn all prose so far into reasoning: a closing marker came whose opener was in the prompt."""
        if ">" in "".join(self._held_space):
            self._out("")
        self._flush_run()
        self._held_space.clear()
        text = "".join(self.prose).strip()
        if self.prose:
            self._events.append(TextWasReasoning())
        if text:
            self._reasoning.append(text)
        self.prose.clear()
        self._space_before_markup = ""
        self.end_reasoning()

    # calls

    def start(self, name: str, pieces: list[str] | None = None) -> list[str]:
        """Begin a call; its arguments are appended to the list returned, which is ``pieces`` if given."""
        self.markup()
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
        """Complete the call."""
        assert self._call is not None
        self._flush_arguments()
        index, call_id, name = self._call
        call = ToolCall(call_id, name, "".join(self._arguments))
        self._calls.append(call)
        self._events.append(CallEnd(index, call))
        self._call = None

    def cut(self, raw: str, name: str = "") -> None:
        """Record a call that is not complete: the text ends in it, or it is broken.

        ``raw``: its text from its first marker on. ``name``: its name, if known.
        """
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
        self.markup()
        self._cut.append(call)
        self._events.append(CallCut(index, call, broken=self._source.pos < len(self._source.buf)))

    def argument_text(self, text: str) -> CallArguments:
        """Return the event for a piece of the arguments that took the fast path."""
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
        """Record a repair at the current position; beyond the first thousand they are not recorded."""
        if len(self._repairs) < _MOST_REPAIRS:
            self._repairs.append(Repair(kind, self._source.offset))

    def repaired(self, repairs: Iterable[Repair]) -> None:
        """Record the repairs of another reading of the same text."""
        self._repairs.extend(islice(repairs, _MOST_REPAIRS - len(self._repairs)))

    @property
    def repairs(self) -> int:
        """Number of recorded repairs."""
        return len(self._repairs)

    def forget_repairs(self, count: int) -> None:
        """Keep only the first ``count`` repairs: the reading that needed the others was undone."""
        del self._repairs[count:]

    # out

    def _flush_run(self) -> None:
        if self._text_run:
            self._events.append(TextDelta("".join(self._text_run)))
            self._text_run.clear()

    def flush(self) -> list[Event]:
        """Return the events since the last flush."""
        if self.before_flush is not None:
            self.before_flush()
        if self._call is not None:
            self._flush_arguments()
        if self._text_run:
            self._flush_run()
        events = self._events
        self._events = []
        return events

    def finish(self) -> None:
        """End the text: white space at its end is prose unless markup came before it."""
        if self._held_space:
            if ">" in "".join(self._held_space) or not (self.after_markup or self._count or self._cut):
                self._out("")
            self._held_space.clear()

    def reply(self) -> Reply:
        """Return everything that was emitted."""
        return Reply(
            content="".join(self.prose) or None,
            reasoning="".join(self._reasoning) or None,
            tool_calls=tuple(self._calls),
            incomplete=tuple(self._cut),
            repairs=tuple(self._repairs),
        )


class EarlierArguments:
    """Arguments of earlier calls of one tool, searched by what has arrived of another call's."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[str]] = {}
        self._seen = 0
        self._earlier: list[str] = []

    def select_tool(self, name: str, calls: Sequence[ToolCall]) -> bool:
        """Select the tool ``name``; True if one of ``calls`` is a call of it."""
        for call in calls[self._seen :]:
            insort(self._by_name.setdefault(call.name, []), call.raw_arguments)
        self._seen = len(calls)
        self._earlier = self._by_name.get(name, [])
        return bool(self._earlier)

    def any_starts_with(self, arguments: str) -> bool:
        """True if an earlier call's arguments start with ``arguments``."""
        at = bisect_left(self._earlier, arguments)
        return at < len(self._earlier) and self._earlier[at].startswith(arguments)

    def has(self, arguments: str) -> bool:
        """True if an earlier call had exactly these arguments."""
        at = bisect_left(self._earlier, arguments)
        return at < len(self._earlier) and self._earlier[at] == arguments


def call_key(name: str, arguments: str) -> str:
    """Return a key that is equal for calls with the same name and equal arguments."""
    try:
        return json.dumps([name, json.loads(arguments)], sort_keys=True)
    except (ValueError, RecursionError):
        return name + arguments


class CallSink(Protocol):
    """Receiver of calls."""

    def start(self, name: str) -> list[str]:
        """Begin a call; its arguments are appended to the list that is returned."""

    def end(self) -> None:
        """Complete the call."""

    def skip_text(self, text: str) -> None:
        """Handle a value among the calls that is not a call: prose."""


class CallEmitter:
    """Emits calls to ``emitter`` as they are read. A call whose name ``drops`` accepts is read and not emitted.

    Once the model is ``degenerate``, a call equal to an earlier one is a repetition and not emitted. Its arguments are held back
    while they may become an earlier call's.
    """

    def __init__(self, emitter: Emitter, drops: Callable[[str], bool] | None = None) -> None:
        self.emitter = emitter
        self._drops = drops
        self._dropped = False
        self.name = ""
        """Name of the call being read, as far as known: for a call that is cut off."""
        self.text_before_call = ""
        """Text before the call being read, inside of its markers: prose if the call is one."""
        self.skipped_to = 0
        """Offset up to which a marked call of an unknown tool was skipped: nothing in it is a call."""
        self.noop_names: tuple[str, ...] = ()
        """Names that mean "no tool"."""
        self.degenerate = False
        """The model repeats itself: it writes openers in openers, and the same calls again."""
        self._earlier: EarlierArguments | None = None
        self._pending: list[str] | None = None

    def _earlier_calls(self) -> EarlierArguments:
        if self._earlier is None:
            self._earlier = EarlierArguments()
        return self._earlier

    def start(self, name: str) -> list[str]:
        """Begin a call; a dropped one gets a list that is discarded."""
        self.name = name
        if self.text_before_call:
            self.emitter.text(self.text_before_call)
            self.text_before_call = ""
        is_noop = name in self.noop_names
        self._dropped = is_noop or (self._drops is not None and self._drops(name))
        if self._dropped:
            self.emitter.note("no_call" if is_noop else "unknown_tool")
            return []
        if self.degenerate and self._earlier_calls().select_tool(name, self.emitter.calls):
            self._pending = []
            self.emitter.before_flush = self._release_pending
            return self._pending
        return self.emitter.start(name)

    def end(self) -> None:
        """End the call, or drop it if an earlier one was equal."""
        pending, self._pending = self._pending, None
        name, self.name = self.name, ""
        if pending is not None and self._earlier_calls().has("".join(pending)):
            self.emitter.note("repeated_call")
            return
        if pending is not None:
            self.emitter.start(name, pending)
        if not self._dropped:
            self.emitter.end()

    def cut(self, raw: str) -> None:
        """Record that the text ended inside of this call, or of what would have become one; ``raw`` is its text."""
        if self.name and (self.name in self.noop_names or (self._drops is not None and self._drops(self.name))):
            self.emitter.note("no_call" if self.name in self.noop_names else "unknown_tool")
            return
        if self._pending is not None:
            self.emitter.start(self.name, self._pending)
            self._pending = None
        self.emitter.cut(raw, self.name)

    def _release_pending(self) -> None:
        """Release the held arguments, if they can no longer become a repetition."""
        if self._pending is not None and not self._earlier_calls().any_starts_with("".join(self._pending)):
            pending, self._pending = self._pending, None
            self.emitter.start(self.name, pending)

    def skip_text(self, text: str) -> None:
        """Emit prose."""
        self.emitter.text(text)


class BufferedCalls:
    """Buffers calls until it is known that they are calls; only ``emit`` emits them."""

    def __init__(self) -> None:
        self.items: list[tuple[str, list[str]]] = []
        """Calls as name and pieces of arguments; skipped text between them has no name."""
        self.ended: Callable[[], None] = _nothing
        """Called when a call is complete."""
        self._open = False

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The buffered calls, as name and arguments."""
        return [(name, "".join(pieces)) for name, pieces in self.items if name]

    def start(self, name: str) -> list[str]:
        """Buffer a call; return the list for the pieces of its arguments."""
        pieces: list[str] = []
        self.items.append((name, pieces))
        self._open = True
        return pieces

    def end(self) -> None:
        """Complete the call."""
        self._open = False
        self.ended()

    def cut(self) -> str:
        """Remove the call that the end of the text cut off; return its name, "" if there is none."""
        if not self._open:
            return ""
        self._open = False
        return self.items.pop()[0]

    def clear(self) -> None:
        """Discard the buffer."""
        self.items = []
        self._open = False

    def skip_text(self, text: str) -> None:
        """Buffer prose in its place."""
        self.items.append(("", [text]))

    def emit(self, sink: CallSink) -> None:
        """Emit the buffer."""
        for name, pieces in self.items:
            if name:
                sink.start(name).extend(pieces)
                sink.end()
            else:
                sink.skip_text("".join(pieces))


def _nothing() -> None:
    pass
