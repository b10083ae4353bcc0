"""Match frames of a response to calls: by item id, call id, output index, or by elimination.

A server may omit any id in any frame, and describe a call several times. Two calls at one index that differ are two.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

_MAX_CALLS: Final = 256
"""Calls per response that are recognized; further ones each count as new."""

_MAX_REFERENCES: Final = 4 * _MAX_CALLS
"""The same for ids and indexes."""


@dataclass(slots=True)
class CallReference:
    """What one frame says about a call. ``whole``: ``arguments`` are complete."""

    item: str = ""
    call_id: str = ""
    index: int | None = None
    name: str = ""
    whole: bool = False
    arguments: str = ""

    @property
    def digest(self) -> int:
        """A hash of the arguments; 0 if there are none."""
        return hash(self.arguments) if self.arguments else 0


@dataclass(slots=True)
class KnownCall:
    """A call and its ``number`` in the response. Of long arguments only the hash ``digest`` is kept."""

    response_id: str
    number: int
    reference: CallReference
    digest: int = 0

    @property
    def key(self) -> str:
        """A key that is unique in the connection."""
        return f"{self.response_id}/{self.number}"

    def contradicts(self, reference: CallReference) -> bool:
        """True if the stored call has another id, name or arguments than ``reference``."""
        stored = self.reference
        return (
            _differ(stored.item, reference.item)
            or _differ(stored.call_id, reference.call_id)
            or _differ(stored.name, reference.name)
            or bool(self.digest and reference.digest and self.digest != reference.digest)
        )


def _differ(one: str, other: str) -> bool:
    return bool(one) and bool(other) and one != other


class CallKeys:
    """The calls of one response."""

    def __init__(self, response_id: str) -> None:
        self._response_id = response_id
        self._calls: list[KnownCall] = []
        self._by: dict[tuple[str, str | int], KnownCall] = {}
        self._number = 0

    def find(self, reference: CallReference) -> KnownCall:
        """Return the call that a frame refers to, a new one if none matches."""
        known = self._by_id(reference) or self._by_index(reference)
        if known is None and not (reference.item or reference.call_id):
            known = self._by_arguments(reference, at=reference.index) if reference.whole else None
            if known is None and reference.index is None:
                known = self._last(reference)
        return self._record(known, reference)

    def match_all(self, listed: list[CallReference]) -> list[tuple[KnownCall, CallReference]]:
        """Match the list at the end of a response, each entry to a different call."""
        found: dict[int, tuple[KnownCall, CallReference]] = {}
        for reference in listed:
            known = self._by_id(reference) or self._by_arguments(reference, found)
            if known is None:
                # The index in this list may differ from that in other frames, so it counts last.
                known = self._by_index(reference)
                known = None if known is not None and known.number in found else known
            known = self._record(known, reference)
            found.setdefault(known.number, (known, reference))
        return list(found.values())

    def _by_id(self, reference: CallReference) -> KnownCall | None:
        known = self._by.get(("item", reference.item)) if reference.item else None
        return self._by.get(("call", reference.call_id)) if known is None and reference.call_id else known

    def _by_index(self, reference: CallReference) -> KnownCall | None:
        known = None if reference.index is None else self._by.get(("index", reference.index))
        return None if known is None or known.contradicts(reference) else known

    def _last(self, reference: CallReference) -> KnownCall | None:
        known = self._calls[-1] if self._calls else None
        if known is None or known.contradicts(reference) or (known.reference.whole and not reference.whole):
            return None
        return known

    def _by_arguments(self, reference: CallReference, exclude: Container[int] = (), *, at: int | None = None) -> KnownCall | None:
        """Find a call with the same arguments, preferably of the same name."""
        found: KnownCall | None = None
        for known in self._calls:
            if known.number in exclude or (at is not None and known.reference.index not in (at, None)):
                continue
            if known.digest == reference.digest and not known.contradicts(reference):
                if known.reference.name == reference.name:
                    return known
                found = found or known
        return found

    def _record(self, known: KnownCall | None, reference: CallReference) -> KnownCall:
        if known is None:
            known = KnownCall(self._response_id, self._number, CallReference())
            self._number += 1
            if len(self._calls) >= _MAX_CALLS:
                return known
            self._calls.append(known)
        stored = known.reference
        stored.item = stored.item or reference.item
        stored.call_id = stored.call_id or reference.call_id
        stored.name = stored.name or reference.name
        stored.index = reference.index if stored.index is None else stored.index
        if reference.whole:
            stored.whole, known.digest = True, known.digest or reference.digest
        for name in (("item", reference.item), ("call", reference.call_id)):
            if name[1] and len(self._by) < _MAX_REFERENCES:
                self._by.setdefault(name, known)
        if reference.index is not None and (("index", reference.index) in self._by or len(self._by) < _MAX_REFERENCES):
            self._by["index", reference.index] = known
        return known
