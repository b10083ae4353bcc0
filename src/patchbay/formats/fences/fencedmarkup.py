"""Marked calls in a fence: markup that a model shows as code, and means.

    ```xml
    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Rome"}}
    </tool_call>
    ```

Such a fence is taken away where all of it is complete calls of offered tools that say something new; any other is prose, whatever
stands in it. So it is read on trial, by the readers that read the same markup outside of fences, and told when its end was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from patchbay.formats.engine.emitter import Emitter
from patchbay.formats.engine.marks import Marks
from patchbay.formats.engine.repeats import call_key
from patchbay.formats.engine.scanner import Region
from patchbay.formats.engine.source import Steps
from patchbay.formats.fences.fencemarks import LABEL
from patchbay.formats.fences.shown import QUOTING_LABELS
from patchbay.formats.parts import Parts
from patchbay.types import ToolCall

_BLANKS = " \t\r\n"
_QUOTES = QUOTING_LABELS - {"xml"}


class FencedMarkup:
    """Reads such fences. ``openers``: what opens a call; ``on_trial``: their readers, made to tell an emitter and nobody else."""

    def __init__(self, parts: Parts, openers: Marks, on_trial: Callable[[Emitter], Callable[[str], Region]]) -> None:
        self.source = parts.source
        self.emitter = parts.emitter
        self.rules = parts.rules
        self.calls = parts.calls
        self._fences = parts.fences
        self._openers = openers
        self._on_trial = on_trial
        self._before: set[str] = set()
        self._seen = 0
        self._spent = 0
        """What was read in vain up to here is not read again: fences that never end would be, each to the text's end."""

    def read(self, char: str, label: str) -> Steps[bool]:
        """Read a fence from behind its run of ``char``, the source marked before it; False, with nothing read, if it is prose."""
        source = self.source
        begin = source.offset
        if begin >= self._spent and self.rules.has_tools and label.lower() not in _QUOTES and (yield from self._at_opener()):
            trial = Emitter(source, str)
            ended = yield from self._whole(char, trial)
            if ended and self._accept(trial):
                return True
            self._spent = source.offset
        source.rewind_to(begin)
        return False

    def _at_opener(self) -> Steps[bool]:
        """Read the label's line; whether a call's opener follows."""
        source = self.source
        found = LABEL.match(source.buf, source.pos)
        assert found is not None
        source.pos = found.end()
        line = source.offset
        yield from self._space()
        return "\n" in source.since(line) and bool((yield from self._openers.at(source)))

    def _whole(self, char: str, trial: Emitter) -> Steps[bool]:
        """Read calls to the fence's end, or the text's; False where anything else is in it."""
        source, region = self.source, self._on_trial(trial)
        while True:
            following = yield from self._space()
            if following in ("", char):
                break
            marker = yield from self._openers.at(source)
            if not marker or not (yield from region(marker)(marker)):
                return False
        if not following:
            return True
        length = yield from self._fences.run(char)
        return length >= 3 and not (yield from self._fences.is_opener())

    def _accept(self, trial: Emitter) -> bool:
        """Tell the calls that were read, if they are all that was, and not all of them were told before."""
        told = trial.reply()
        if not told.tool_calls or told.content or told.reasoning or told.incomplete:
            return False
        if any(self.rules.offered(call.name) is None for call in told.tool_calls):
            return False
        if self._keys(told.tool_calls) <= self._told_before():
            return False
        self.emitter.repaired(told.repairs)
        for call in told.tool_calls:
            self.calls.start(call.name).append(call.raw_arguments)
            self.calls.end()
        return True

    def _told_before(self) -> set[str]:
        """The keys of all calls that were told, in fences or not."""
        calls = self.emitter.calls
        self._before |= self._keys(calls[self._seen :])
        self._seen = len(calls)
        return self._before

    def _keys(self, calls: Iterable[ToolCall]) -> set[str]:
        return {call_key(call.name, call.raw_arguments) for call in calls}

    def _space(self) -> Steps[str]:
        """Read white space; the next character, "" at the end of the text."""
        source = self.source
        while (char := (yield from source.peek())) and char in _BLANKS:
            source.pos += 1
        return char
