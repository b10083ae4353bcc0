"""A server's own calls: their deltas, in any server's form, as the parts of calls.

OpenAI gives each call an index and an id, and its id and name in its first delta only. Others give all calls one index, one id or
none, numbers as ids, arguments as objects, no arguments at all, and the name or the id again in every delta.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from patchbay.formats.events import CallArguments, CallCut, CallEnd, CallStart
from patchbay.formats.native_arguments import ArgumentsReader
from patchbay.formats.values.tool_names import ToolRules
from patchbay.models.parts import CallExtra, InvalidCall, Part
from patchbay.types import IncompleteCall, ToolCall

ENDED_BY_MODEL: Final = frozenset({"stop", "tool_calls", "function_call"})
"""Finish reasons of a model that ended its answer itself; with any other the last call may be cut off."""
_EMPTY: Final[dict[str, Any]] = {}


class _NativeCall:
    """One call so far: ``id`` and ``name`` are the client's, ``own_id`` and ``own_name`` the server's.

    ``has_begun``: its CallStart was returned.
    """

    __slots__ = ("arguments", "extra", "has_begun", "has_ended", "id", "index", "name", "own_id", "own_name", "waiting")

    def __init__(self, index: int) -> None:
        self.index = index
        self.own_id: Any = None
        self.own_name = ""
        self.id = ""
        self.name = ""
        self.arguments: ArgumentsReader | None = None
        self.waiting: list[str] = []
        """Arguments that came before the name."""
        self.extra: dict[str, Any] | None = None
        self.has_begun = self.has_ended = False


class NativeCalls:
    """Reads the deltas of one choice's calls. ``make_id(index)`` makes the id of a call without a unique one.

    A call begins once its name is known and its arguments begin like an object; until then nothing of it is returned.
    """

    def __init__(self, rules: ToolRules, make_id: Callable[[int], str]) -> None:
        self._rules = rules
        self._make_id = make_id
        self._calls: list[_NativeCall] = []
        self._by_index: dict[Any, _NativeCall] = {}
        self.unchanged = False
        """The deltas last read are in OpenAI's form, and the parts say the same, but for ``late``."""
        self.late: list[Part] = []
        """The parts that begin calls whose names came with earlier deltas."""

    def __len__(self) -> int:
        return len(self._calls)

    def feed(self, deltas: Sequence[Any]) -> list[Part]:
        """Read the elements of a ``tool_calls``; return their parts."""
        parts: list[Part] = []
        self.unchanged = True
        self.late = []
        for delta in deltas:
            if type(delta) is dict:
                self._read(delta, parts)
        return parts

    def close(self, finish: Any) -> list[Part]:
        """End all calls; ``finish`` is the server's finish reason."""
        parts: list[Part] = []
        for call in self._calls:
            if not call.has_ended:
                self._close(call, parts, cut=finish not in ENDED_BY_MODEL)
        return parts

    def _read(self, delta: dict[str, Any], parts: list[Part]) -> None:
        function = delta.get("function")
        if type(function) is not dict:
            function = _EMPTY
        index, call_id, name, given = delta.get("index"), delta.get("id"), function.get("name"), function.get("arguments")
        name = name if isinstance(name, str) else ""
        index = index if isinstance(index, int | str) else None
        text = given if isinstance(given, str) else "" if given is None else json.dumps(given, ensure_ascii=False)
        call = self._call_of(index, call_id, name, text)
        begins = not call.name and bool(name)
        call.own_id = call.own_id or call_id
        if begins:
            call.own_name, call.name = name, self._rules.resolve(name) or name
            call.arguments = ArgumentsReader(self._rules.text_parameter(call.name))
        before = len(parts)
        written = self._feed(call, text, parts)
        if len(parts) > before and not begins:
            self.late += [part for part in parts[before:] if isinstance(part, CallStart | CallExtra)]
        if (extra := delta.get("extra_content")) is not None:
            call.extra = {**(call.extra or {}), "extra_content": extra}
            if call.has_begun:
                parts.append(CallExtra(call.index, {"extra_content": extra}))
        is_usual = (call_id == call.id and name == call.name) if begins else not (call_id or name)
        if not (is_usual and call.has_begun and index == call.index and written == text and (given is None or given is text)):
            self.unchanged = False

    def _call_of(self, index: Any, call_id: Any, name: str, text: str) -> _NativeCall:
        """Return the call that a delta begins or continues."""
        if index is None:
            call = self._calls[-1] if self._calls else None
            if call is not None and call_id and call.own_id and call_id != call.own_id:
                call = None
        else:
            call = self._by_index.get(index)
        if call is None or _begins_another(call, call_id, name, text):
            call = _NativeCall(len(self._calls))
            self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _feed(self, call: _NativeCall, text: str, parts: list[Part]) -> str:
        """Read a piece of a call's arguments; return what was written of them."""
        if call.arguments is None:
            call.waiting.append(text)
            return ""
        if call.waiting:
            text = "".join(call.waiting) + text
            call.waiting.clear()
        written = call.arguments.feed(text) if text else ""
        if call.arguments.began and not call.has_begun:
            self._begin(call, parts)
        if written:
            parts.append(CallArguments(call.index, written))
        if call.arguments.state == "complete" and not call.has_ended:
            self._end(call, parts)
        return written

    def _begin(self, call: _NativeCall, parts: list[Part]) -> None:
        """Begin a call, after those before it."""
        for earlier in self._calls[: call.index]:
            if earlier.name and not earlier.has_begun:
                self._begin(earlier, parts)
        call.has_begun = True
        call.id = self._unique_id(call)
        parts.append(CallStart(call.index, call.id, call.name))
        if call.extra is not None:
            parts.append(CallExtra(call.index, call.extra))

    def _unique_id(self, call: _NativeCall) -> str:
        """Return an id for a call that no other call of the answer has."""
        own = "" if call.own_id is None else str(call.own_id)
        return own if own and all(other.id != own for other in self._calls) else self._make_id(call.index)

    def _end(self, call: _NativeCall, parts: list[Part]) -> None:
        assert call.arguments is not None
        call.has_ended = True
        parts.append(CallEnd(call.index, ToolCall(call.id, call.name, call.arguments.text)))

    def _close(self, call: _NativeCall, parts: list[Part], *, cut: bool) -> None:
        if call.arguments is None:  # no name came
            if not cut:
                parts.append(InvalidCall(call.index, ToolCall("", "", "".join(call.waiting))))
            return
        rest = call.arguments.close(cut=cut)
        state, text = call.arguments.state, call.arguments.text
        if state == "invalid":
            call_id = call.id if call.has_begun else self._unique_id(call)
            parts.append(InvalidCall(call.index, ToolCall(call_id, call.name, text, call.extra)))
            return
        if not call.has_begun:
            self._begin(call, parts)
        if rest:
            parts.append(CallArguments(call.index, rest))
        if state == "complete":
            self._end(call, parts)
        else:
            parts.append(CallCut(call.index, IncompleteCall(call.id, call.name, text, text)))


def _begins_another(call: _NativeCall, call_id: Any, name: str, text: str) -> bool:
    """Whether a delta with the index of ``call`` begins another call."""
    if not name or not call.own_name:
        return False
    if (call_id and call.own_id and call_id != call.own_id) or name != call.own_name:
        return True
    # Text after a complete object can only be the arguments of the next call.
    return bool(text.strip()) and call.has_ended
