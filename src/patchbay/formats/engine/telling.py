"""Where the calls that a format reads are told: one at a time, by name and pieces of JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from patchbay.formats.engine.emitter import Emitter
from patchbay.formats.engine.repeats import Repeats, call_key


class CallSink(Protocol):
    """Where calls are told."""

    def start(self, name: str) -> list[str]:
        """A call begins; its arguments are appended to the list that is returned."""

    def end(self) -> None:
        """The call is complete."""

    def passed_over(self, text: str) -> None:
        """A value among the calls that is none: prose."""


class Telling:
    """Tells calls to ``emitter`` as they are read. A call that ``drops(name)`` is read and not told.

    Once the model has gone ``astray`` a call that says what an earlier one has said is a repetition and is not told. As long as
    the arguments may become an earlier call's they are held back, and no longer.
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
        self.idle: tuple[str, ...] = ()
        """Names that mean that no tool is called."""
        self.astray = False
        """The model has lost the thread: it writes openers in openers, and its calls again and again."""
        self._repeats = Repeats()
        self._held: list[str] | None = None

    def start(self, name: str) -> list[str]:
        """Begin a call; one that is dropped is read into a list that nobody reads."""
        self.name = name
        if self.ahead:
            self.emitter.text(self.ahead)
            self.ahead = ""
        idle = name in self.idle
        self._dropped = idle or (self._drops is not None and self._drops(name))
        if self._dropped:
            self.emitter.note("no_call" if idle else "unknown_tool")
            return []
        if self.astray and self._repeats.may_come(name, self.emitter.calls):
            self._held = []
            self.emitter.before_flush = self._look
            return self._held
        return self.emitter.start(name)

    def end(self) -> None:
        """End the call, or leave it out where an earlier one said the same."""
        held, self._held = self._held, None
        name, self.name = self.name, ""
        if held is not None and self._repeats.has("".join(held)):
            self.emitter.note("repeated_call")
            return
        if held is not None:
            self.emitter.start(name, held)
        if not self._dropped:
            self.emitter.end()

    def cut(self, raw: str) -> None:
        """The text ended inside of the call being read, or of what would have become one; ``raw`` is its text."""
        if self.name and (self.name in self.idle or (self._drops is not None and self._drops(self.name))):
            self.emitter.note("no_call" if self.name in self.idle else "unknown_tool")
            return
        if self._held is not None:
            self.emitter.start(self.name, self._held)
            self._held = None
        self.emitter.cut(raw, self.name)

    def _look(self) -> None:
        """A piece of the text was read: tell what was held back, if it cannot become a repetition any more."""
        if self._held is not None and not self._repeats.may_become("".join(self._held)):
            held, self._held = self._held, None
            self.emitter.start(self.name, held)

    def passed_over(self, text: str) -> None:
        """Tell prose."""
        self.emitter.text(text)


class Staged:
    """Holds calls back until it is known that they are calls: ``tell`` tells them, nothing else does."""

    def __init__(self) -> None:
        self.items: list[tuple[str, list[str]]] = []
        """The calls, by name and pieces of their arguments; what was passed over between them, under no name."""
        self.ended: Callable[[], None] = _nothing
        """Called when a call is complete."""
        self._open = False

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The calls that are staged, by name and arguments."""
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
        """Forget all that was staged."""
        self.items = []
        self._open = False

    @property
    def holds_prose(self) -> bool:
        """Something that is no call was passed over."""
        return any(not name for name, _ in self.items)

    def passed_over(self, text: str) -> None:
        """Keep prose in its place."""
        self.items.append(("", [text]))

    def drop_repeated(self, told: set[str]) -> None:
        """Keep of calls that say the same only the first; ``told``: the keys of those that were told before, added to."""
        kept = []
        for name, pieces in self.items:
            key = call_key(name, "".join(pieces)) if name else ""
            if not key or key not in told:
                kept.append((name, pieces))
            if key:
                told.add(key)
        self.items = kept

    def tell(self, sink: CallSink) -> None:
        """Tell all that was staged."""
        for name, pieces in self.items:
            if name:
                sink.start(name).extend(pieces)
                sink.end()
            else:
                sink.passed_over("".join(pieces))


def _nothing() -> None:
    pass
