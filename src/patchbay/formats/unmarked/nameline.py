"""ChatGLM 3's calls: the tool's name on a line, and below it a fence with the arguments, as a call of a function that is none.

    get_weather
    ```python
    tool_call(city="Rome")
    ```

Nothing else is written so, and the name is an offered tool's: that is all that marks it. Where such a name may stand, and whether
the call counts, is for ``loose`` to say.
"""

from __future__ import annotations

from patchbay.formats.engine.source import CutOff, NotACall, Steps
from patchbay.formats.engine.telling import CallSink
from patchbay.formats.parts import Parts
from patchbay.formats.values.pyreader import PythonReader
from patchbay.formats.values.pystrings import BLANKS, NAME
from patchbay.formats.values.pyvalues import arguments_json

_FENCE = "```"
_LABELS = frozenset({"", "py", "python"})
_FUNCTION = "tool_call"


class NameLineCalls:
    """Reads what stands below the name, and tells the call to ``sink``."""

    def __init__(self, parts: Parts, sink: CallSink) -> None:
        self.source = parts.source
        self.rules = parts.rules
        self.sink = sink
        self._values = PythonReader(parts.source, parts.emitter.note)

    def fits(self) -> Steps[bool]:
        """Whether such a fence stands behind the name that ends at ``pos``, or the text ends in it; nothing is read."""
        at = yield from self._line(0)
        for char in _FENCE:
            if not at or (yield from self._values.char(at)) != char:
                return False
            at += 1
        label = yield from self._word(at)
        at = yield from self._line(at + len(label))
        if label not in _LABELS or not at:
            return False
        word = yield from self._word(at)
        if word == _FUNCTION:
            return (yield from self._values.char(at + len(word))) in ("(", "")
        return _FUNCTION.startswith(word) and word != "" and self._ends(at + len(word))

    def read(self, name: str) -> Steps[None]:
        """Read the fence and tell the call of ``name``. Raises CutOff, and NotACall where more than the call is in the fence."""
        source = self.source
        at = yield from self._line(0)
        at += len(_FENCE)
        at += len((yield from self._word(at)))
        at = yield from self._line(at)
        at += len((yield from self._word(at)))
        source.pos += at
        if self._ends(0):
            raise CutOff
        arguments = arguments_json((yield from self._values.arguments()), self.rules.types(name))
        yield from self._close()
        self.sink.start(name).append(arguments)
        self.sink.end()

    def _line(self, at: int) -> Steps[int]:
        """Where the text goes on behind the rest of a line that is blank; 0 if it is not."""
        end = yield from self._values.run(at, BLANKS)
        return end if "\n" in self._between(at, end) else 0

    def _word(self, at: int) -> Steps[str]:
        return self._between(at, (yield from self._values.run(at, NAME)))

    def _between(self, begin: int, end: int) -> str:
        return self.source.buf[self.source.pos + begin : self.source.pos + end]

    def _ends(self, at: int) -> bool:
        return self.source.ended and self.source.pos + at >= len(self.source.buf)

    def _close(self) -> Steps[None]:
        """Read the closing fence; the text, or a special token, may stand for it."""
        end = yield from self._values.run(0, BLANKS)
        char = yield from self._values.char(end)
        if char in ("", "<"):
            return
        for place in range(end, end + len(_FENCE)):
            if (yield from self._values.char(place)) != "`":
                raise NotACall
        self.source.pos += end + len(_FENCE)
