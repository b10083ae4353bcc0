"""Match frames of a response to calls: by item id, call id, output index, or by elimination.

A server may omit any id in any frame, and describe a call several times. Two calls at one index that differ are two.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

_MOST: Final = 256
"""Calls per response that are recognized; further ones each count as new."""

_MOST_NAMES: Final = 4 * _MOST
"""The same for ids and indexes."""


@dataclass(slots=True)
class CallReference:
    """What one frame says about a call. ``whole``: ``arguments`` are complete."""

    item: str = ""
    call_id: str = ""
    place: int | None = None
    name: str = ""
    whole: bool = False
    arguments: str = ""

    @property
    def mark(self) -> int:
        """A hash of the arguments; 0 if there are none."""
        return hash(self.arguments) if self.arguments else 0


@dataclass(slots=True)
class KnownCall:
    """A call and its ``number`` in the response. Of long arguments only the hash ``mark`` is kept."""

    response_id: str
    number: int
    reference: CallReference
    mark: int = 0

    @property
    def key(self) -> str:
        """A key that is unique in the connection."""
        return f"{self.response_id}/{self.number}"

    def contradicts(self, named: CallReference) -> bool:
        """True if a reference differs in id, name or arguments."""
        reference = self.reference
        return (
            _differ(reference.item, named.item)
            or _differ(reference.call_id, named.call_id)
            or _differ(reference.name, named.name)
            or bool(self.mark and named.mark and self.mark != named.mark)
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

    def find(self, named: CallReference) -> KnownCall:
        """Return the call that a frame refers to, a new one if none matches."""
        known = self._by_id(named) or self._by_place(named)
        if known is None and not (named.item or named.call_id):
            known = self._by_arguments(named, at=named.place) if named.whole else None
            if known is None and named.place is None:
                known = self._last(named)
        return self._record(known, named)

    def match_all(self, listed: list[CallReference]) -> list[tuple[KnownCall, CallReference]]:
        """Match the list at the end of a response, each entry to a different call."""
        found: dict[int, tuple[KnownCall, CallReference]] = {}
        for named in listed:
            known = self._by_id(named) or self._by_arguments(named, found)
            if known is None:
                # Here the place is one in the list, and in other frames it may be counted otherwise: it says least.
                known = self._by_place(named)
                known = None if known is not None and known.number in found else known
            known = self._record(known, named)
            found.setdefault(known.number, (known, named))
        return list(found.values())

    def _by_id(self, named: CallReference) -> KnownCall | None:
        known = self._by.get(("item", named.item)) if named.item else None
        return self._by.get(("call", named.call_id)) if known is None and named.call_id else known

    def _by_place(self, named: CallReference) -> KnownCall | None:
        known = None if named.place is None else self._by.get(("place", named.place))
        return None if known is None or known.contradicts(named) else known

    def _last(self, named: CallReference) -> KnownCall | None:
        known = self._calls[-1] if self._calls else None
        if known is None or known.contradicts(named) or (known.reference.whole and not named.whole):
            return None
        return known

    def _by_arguments(self, named: CallReference, but: Container[int] = (), *, at: int | None = None) -> KnownCall | None:
        """Find a call with the same arguments, preferably of the same name."""
        found: KnownCall | None = None
        for known in self._calls:
            if known.number in but or (at is not None and known.reference.place not in (at, None)):
                continue
            if known.mark == named.mark and not known.contradicts(named):
                if known.reference.name == named.name:
                    return known
                found = found or known
        return found

    def _record(self, known: KnownCall | None, named: CallReference) -> KnownCall:
        if known is None:
            known = KnownCall(self._response_id, self._number, CallReference())
            self._number += 1
            if len(self._calls) >= _MOST:
                return known
            self._calls.append(known)
        reference = known.reference
        reference.item = reference.item or named.item
        reference.call_id = reference.call_id or named.call_id
        reference.name = reference.name or named.name
        reference.place = named.place if reference.place is None else reference.place
        if named.whole:
            reference.whole, known.mark = True, known.mark or named.mark
        for name in (("item", named.item), ("call", named.call_id)):
            if name[1] and len(self._by) < _MOST_NAMES:
                self._by.setdefault(name, known)
        if named.place is not None and (("place", named.place) in self._by or len(self._by) < _MOST_NAMES):
            self._by["place", named.place] = known
        return known
