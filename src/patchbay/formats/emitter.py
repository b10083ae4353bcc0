"""Turns what readers find into events and a reply, and decides what becomes of white space around markup.

White space that ends in a line break is held back until it is known what follows: before a call or reasoning it is layout and
dropped, before prose it is prose. A text without calls or reasoning comes out exactly as it came in.
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
        self._call: tuple[int, str, str] | None = None  # index, id, name of the call being emitted
        self._arguments: list[str] = []
        self._pieces: list[str] = []
        self._gap: list[str] = []
        self._joint = ""  # the white space before a region, should prose follow it
        self._after_region = False
        self._reasoning_gap: list[str] = []
        self._new_reasoning = True
        self.blank = True
        """The line so far holds nothing but layout."""
        self.before_flush: Callable[[], None] | None = None
        self.over = False
        """The model's turn is over: what comes is a conversation that it invents, and no call in it is one."""
        self.muted = False
        """Text is only looked at, not emitted (it may have to be read again as something else)."""

    # prose

    @property
    def clear(self) -> bool:
        """Nothing is held back."""
        return not (self._gap or self._after_region or self.muted)

    @property
    def in_call(self) -> bool:
        """A call is being emitted."""
        return self._call is not None

    @property
    def has_text(self) -> bool:
        """Some prose was emitted."""
        return bool(self.prose)

    @property
    def has_calls(self) -> bool:
        """A call was emitted."""
        return self._count > 0

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The calls that were emitted and are complete."""
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
        text = self.tail(_CODE_ROOM)
        if not text.rstrip("`")[-1:].strip():
            return True  # behind white space they cannot close anything
        opened = ""
        for run in _TICKS.findall(text, text.rfind("\n") + 1):
            opened = "" if run == opened else opened or run
        return bool(opened)

    def tail(self, size: int) -> str:
        """The last characters of the prose, ``size`` at the most."""
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

    def verbatim_event(self, text: str) -> TextDelta:
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

    def markup(self) -> None:
        """Markup stands here: what white space is held back before it was layout."""
        if not self._after_region:
            self._joint = "".join(self._gap).replace(">", "").rstrip(" \t")
        self._gap.clear()
        self._after_region = True
        self.blank = True
        self._reasoning_gap.clear()
        self._new_reasoning = True

    def begin_message(self) -> None:
        """A further message of the answer: it begins on a line of its own."""
        self.markup()
        self._joint = self._joint or "\n"

    # reasoning

    def reasoning(self, text: str) -> None:
        """A piece of reasoning."""
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
        kept = text.rstrip(" \t\r\n")
        if kept:
            piece = "".join(self._reasoning_gap) + kept
            self._reasoning_gap.clear()
            self._flush_run()
            self._events.append(ReasoningDelta(piece))
            self._reasoning.append(piece)
        if len(kept) < len(text):
            self._reasoning_gap.append(text[len(kept) :])

    def end_reasoning(self) -> None:
        """The reasoning is over; white space at its end goes away."""
        self._reasoning_gap.clear()
        self._new_reasoning = True
        self._after_region = True
        self.blank = True

    def reclassify_as_reasoning(self) -> None:
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
        self.end_reasoning()

    # calls

    def start(self, name: str, pieces: list[str] | None = None) -> list[str]:
        """A call begins; its arguments are appended to the list returned, which is ``pieces`` if given."""
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
        self.markup()
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
        """All that was emitted."""
        return Reply(
            content="".join(self.prose) or None,
            reasoning="".join(self._reasoning) or None,
            tool_calls=tuple(self._calls),
            incomplete=tuple(self._cut),
            repairs=tuple(self._repairs),
        )


class Repeats:
    """The arguments of earlier calls of one tool, looked up by what has arrived of a further call's."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[str]] = {}
        self._seen = 0
        self._earlier: list[str] = []

    def may_come(self, name: str, calls: Sequence[ToolCall]) -> bool:
        """True if a call of ``name`` that begins now can repeat one of ``calls``."""
        for call in calls[self._seen :]:
            insort(self._by_name.setdefault(call.name, []), call.raw_arguments)
        self._seen = len(calls)
        self._earlier = self._by_name.get(name, [])
        return bool(self._earlier)

    def may_become(self, arguments: str) -> bool:
        """True if an earlier call's arguments begin so."""
        at = bisect_left(self._earlier, arguments)
        return at < len(self._earlier) and self._earlier[at].startswith(arguments)

    def has(self, arguments: str) -> bool:
        """True if an earlier call's arguments are these."""
        at = bisect_left(self._earlier, arguments)
        return at < len(self._earlier) and self._earlier[at] == arguments


def call_key(name: str, arguments: str) -> str:
    """The same text for calls that say the same."""
    try:
        return json.dumps([name, json.loads(arguments)], sort_keys=True)
    except (ValueError, RecursionError):
        return name + arguments


class CallSink(Protocol):
    """Emits calls."""

    def start(self, name: str) -> list[str]:
        """A call begins; its arguments are appended to the list that is returned."""

    def end(self) -> None:
        """The call is complete."""

    def skip_text(self, text: str) -> None:
        """A value among the calls that is none: prose."""


class CallEmitter:
    """Emits calls to ``emitter`` as they are read. A call that ``drops(name)`` is read and not emitted.

    Once the model has gone ``degenerate`` a call that says what an earlier one has said is a repetition and is not emitted. As
    long as the arguments may become an earlier call's they are held back, and no longer.
    """

    def __init__(self, emitter: Emitter, drops: Callable[[str], bool] | None = None) -> None:
        self.emitter = emitter
        self._drops = drops
        self._dropped = False
        self.name = ""
        """The name of the call being read, as far as it is known: for a call that is cut off."""
        self.ahead = ""
        """Words that stand before the call being read, inside of its markers: prose if it is a call."""
        self.passed = 0
        """How far a marked call of a tool that was not offered was read: nothing in it is a call."""
        self.noop_names: tuple[str, ...] = ()
        """Names that mean that no tool is called."""
        self.degenerate = False
        """The model has lost the thread: it writes openers in openers, and its calls again and again."""
        self._repeats: Repeats | None = None
        self._pending: list[str] | None = None

    def _earlier_calls(self) -> Repeats:
        if self._repeats is None:
            self._repeats = Repeats()
        return self._repeats

    def start(self, name: str) -> list[str]:
        """Begin a call; one that is dropped is read into a list that is discarded."""
        self.name = name
        if self.ahead:
            self.emitter.text(self.ahead)
            self.ahead = ""
        is_noop = name in self.noop_names
        self._dropped = is_noop or (self._drops is not None and self._drops(name))
        if self._dropped:
            self.emitter.note("no_call" if is_noop else "unknown_tool")
            return []
        if self.degenerate and self._earlier_calls().may_come(name, self.emitter.calls):
            self._pending = []
            self.emitter.before_flush = self._look
            return self._pending
        return self.emitter.start(name)

    def end(self) -> None:
        """End the call, or leave it out where an earlier one said the same."""
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
        """The text ended inside of the call being read, or of what would have become one; ``raw`` is its text."""
        if self.name and (self.name in self.noop_names or (self._drops is not None and self._drops(self.name))):
            self.emitter.note("no_call" if self.name in self.noop_names else "unknown_tool")
            return
        if self._pending is not None:
            self.emitter.start(self.name, self._pending)
            self._pending = None
        self.emitter.cut(raw, self.name)

    def _look(self) -> None:
        """A piece of the text was read: emit what was held back, if it cannot become a repetition any more."""
        if self._pending is not None and not self._earlier_calls().may_become("".join(self._pending)):
            pending, self._pending = self._pending, None
            self.emitter.start(self.name, pending)

    def skip_text(self, text: str) -> None:
        """Emit prose."""
        self.emitter.text(text)


class BufferedCalls:
    """Holds calls back until it is known that they are calls: ``emit`` emits them, nothing else does."""

    def __init__(self) -> None:
        self.items: list[tuple[str, list[str]]] = []
        """The calls, by name and pieces of their arguments; what was passed over between them, under no name."""
        self.ended: Callable[[], None] = _nothing
        """Called when a call is complete."""
        self._open = False

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The calls that are buffered, by name and arguments."""
        return [(name, "".join(pieces)) for name, pieces in self.items if name]

    def start(self, name: str) -> list[str]:
        """Keep a call, and the pieces that its arguments will have."""
        pieces: list[str] = []
        self.items.append((name, pieces))
        self._open = True
        return pieces

    def end(self) -> None:
        """The call is complete."""
        self._open = False
        self.ended()

    def cut(self) -> str:
        """The text ended: take a call that is not complete back; its name, "" if there is none."""
        if not self._open:
            return ""
        self._open = False
        return self.items.pop()[0]

    def clear(self) -> None:
        """Forget all that was buffered."""
        self.items = []
        self._open = False

    @property
    def holds_prose(self) -> bool:
        """Something that is no call was passed over."""
        return any(not name for name, _ in self.items)

    def skip_text(self, text: str) -> None:
        """Keep prose in its place."""
        self.items.append(("", [text]))

    def drop_repeated(self, known: set[str]) -> None:
        """Keep of calls that say the same only the first; ``known``: the keys of those that were emitted before, added to."""
        kept = []
        for name, pieces in self.items:
            key = call_key(name, "".join(pieces)) if name else ""
            if not key or key not in known:
                kept.append((name, pieces))
            if key:
                known.add(key)
        self.items = kept

    def emit(self, sink: CallSink) -> None:
        """Emit all that was buffered."""
        for name, pieces in self.items:
            if name:
                sink.start(name).extend(pieces)
                sink.end()
            else:
                sink.skip_text("".join(pieces))


def _nothing() -> None:
    pass
