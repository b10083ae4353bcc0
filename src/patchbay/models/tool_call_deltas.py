"""Accumulates the native tool calls of a stream from their deltas.

OpenAI gives each call an ``index`` and an id, and the name in its first delta only. Some servers give all calls one index, one id
or none, and some repeat the name in every delta.
"""

from __future__ import annotations

from typing import Any

from patchbay._text import json_object


class StreamedCall:
    """A call that may still grow. ``pieces`` are its arguments.

    ``place`` is its index in the client's answer (None: the client does not get it), ``client_id`` its id there; the owner of the
    accumulator sets both.
    """

    __slots__ = ("client_id", "extra", "id", "name", "pieces", "place", "written")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.extra: dict[str, Any] | None = None
        self.place: int | None = None
        self.client_id = ""
        self.written = False
        """Its begin was sent, or it is not for the client."""

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self.pieces)


class ToolCallAccumulator:
    """Assembles calls from deltas. ``calls`` are in the order in which they began."""

    def __init__(self) -> None:
        self.calls: list[StreamedCall] = []
        self._by_index: dict[int, StreamedCall] = {}

    def add(
        self, index: int | None, call_id: str, name: str, arguments: str, extra: dict[str, Any] | None = None
    ) -> StreamedCall:
        """Add a delta; return the call that it begins or continues."""
        if index is not None:
            call = self._by_index.get(index)
        else:
            call = self.calls[-1] if self.calls else None
            if call is not None and call_id and call.id and call_id != call.id:
                call = None
        if call is None or _begins_new_call(call, call_id, name, arguments):
            call = StreamedCall()
            self.calls.append(call)
        if index is not None:
            self._by_index[index] = call
        call.id = call.id or call_id
        call.name = call.name or name
        if arguments:
            call.pieces.append(arguments)
        if extra is not None:
            call.extra = extra
        return call


def _begins_new_call(call: StreamedCall, call_id: str, name: str, arguments: str) -> bool:
    """Whether a delta with the index of ``call`` begins another call."""
    if not name or not call.name:
        return False
    if (call_id and call.id and call_id != call.id) or name != call.name:
        return True
    # Text after a complete object can only be the arguments of the next call.
    return bool(arguments.strip()) and json_object(call.arguments) is not None
