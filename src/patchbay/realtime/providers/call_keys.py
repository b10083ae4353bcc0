"""Match frames of a response to calls: by item id, call id, output index, or by elimination.

A server may omit any id in any frame, and describe a call several times. Two calls at one index that differ are two.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

_MOST: Final = 256
"""More calls than this in one response are still told, and no more recognized."""

_MOST_NAMES: Final = 4 * _MOST
"""The same for what calls are recognized by: their ids, and their places."""


@dataclass(slots=True)
class CallReference:
    """What one frame says of a call. ``whole``: all of the arguments are there (``arguments``), else a piece of them or none."""

    item: str = ""
    call_id: str = ""
    place: int | None = None
    name: str = ""
    whole: bool = False
    arguments: str = ""

    @property
    def mark(self) -> int:
        """What tells these arguments from others; 0 where there are none."""
        return hash(self.arguments) if self.arguments else 0


@dataclass(slots=True)
class KnownCall:
    """A call: the ``number`` it has in its response, and what was said of it until now.

    Of the arguments there is a ``mark`` alone, 0 where there are none: they may be long, and are kept elsewhere.
    """

    response_id: str
    number: int
    said: CallReference
    mark: int = 0

    @property
    def key(self) -> str:
        """What no other call of the connection has."""
        return f"{self.response_id}/{self.number}"

    def contradicts(self, named: CallReference) -> bool:
        """Whether ``named`` is of another call, as far as one can tell."""
        said = self.said
        return (
            _differ(said.item, named.item)
            or _differ(said.call_id, named.call_id)
            or _differ(said.name, named.name)
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
        """The call that a frame is about, a new one where none fits."""
        known = self._by_id(named) or self._by_place(named)
        if known is None and not (named.item or named.call_id):
            known = self._like(named, at=named.place) if named.whole else None
            if known is None and named.place is None:
                known = self._last(named)
        return self._learn(known, named)

    def find_all(self, listed: list[CallReference]) -> list[tuple[KnownCall, CallReference]]:
        """The calls of the list at the end of a response, each another one."""
        found: dict[int, tuple[KnownCall, CallReference]] = {}
        for named in listed:
            known = self._by_id(named) or self._like(named, found)
            if known is None:
                # Here the place is one in the list, and in other frames it may be counted otherwise: it says least.
                known = self._by_place(named)
                known = None if known is not None and known.number in found else known
            known = self._learn(known, named)
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
        if known is None or known.contradicts(named) or (known.said.whole and not named.whole):
            return None
        return known

    def _like(self, named: CallReference, but: Container[int] = (), *, at: int | None = None) -> KnownCall | None:
        """A call that was told of with the same arguments; one of that name rather than one whose name is not known."""
        found: KnownCall | None = None
        for known in self._calls:
            if known.number in but or (at is not None and known.said.place not in (at, None)):
                continue
            if known.mark == named.mark and not known.contradicts(named):
                if known.said.name == named.name:
                    return known
                found = found or known
        return found

    def _learn(self, known: KnownCall | None, named: CallReference) -> KnownCall:
        if known is None:
            known = KnownCall(self._response_id, self._number, CallReference())
            self._number += 1
            if len(self._calls) >= _MOST:
                return known
            self._calls.append(known)
        said = known.said
        said.item = said.item or named.item
        said.call_id = said.call_id or named.call_id
        said.name = said.name or named.name
        said.place = named.place if said.place is None else said.place
        if named.whole:
            said.whole, known.mark = True, known.mark or named.mark
        for name in (("item", named.item), ("call", named.call_id)):
            if name[1] and len(self._by) < _MOST_NAMES:
                self._by.setdefault(name, known)
        if named.place is not None and (("place", named.place) in self._by or len(self._by) < _MOST_NAMES):
            self._by["place", named.place] = known
        return known
