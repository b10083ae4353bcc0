"""Stores of long results, whole for one conversation, and the tool by which a model reads them."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Protocol

from patchbay.errors import ToolRetry
from patchbay.tools.context import ToolContext
from patchbay.tools.tool import Tool

READER_NAME = "read_result"
KEPT_CHARS = 50_000_000
"""The most characters of stored results for one run, or for one session."""

PIECE_CHARS = 50_000
"""The most characters that are read at once if results have no limit."""

_HEADING = 200
"""Characters reserved for the heading of a piece."""


class ResultStore(Protocol):
    """Stores texts for a conversation, by ids of its own choice."""

    async def keep(self, text: str) -> str:
        """Store ``text`` and return its id: short, since the model has to write it, and the same for the same text."""
        ...

    async def read(self, result_id: str) -> str | None:
        """Return the text, or None for an unknown or dropped id."""
        ...


class MemoryResultStore:
    """A ResultStore in memory, of at most ``max_chars`` characters: the oldest texts are dropped, the newest always stays."""

    def __init__(self, *, max_chars: int = KEPT_CHARS) -> None:
        self._max_chars = max_chars
        self._texts: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._size = 0
        self._count = 0

    @property
    def size(self) -> int:
        """The number of characters stored."""
        return self._size

    @property
    def texts(self) -> dict[str, str]:
        """The stored texts by id, oldest first."""
        return self._texts

    @classmethod
    def of(cls, texts: dict[str, str], *, max_chars: int) -> MemoryResultStore:
        """Return a store with ``texts`` that were read from another one's."""
        store = cls(max_chars=max_chars)
        store._texts, store._ids = texts, {text: result_id for result_id, text in texts.items()}
        store._size = sum(map(len, texts.values()))
        store._count = max((int(result_id.removeprefix("result_")) for result_id in texts), default=0)
        return store

    def copy(self) -> MemoryResultStore:
        """Return an independent store with the same texts under the same ids."""
        other = MemoryResultStore(max_chars=self._max_chars)
        other._texts, other._ids = dict(self._texts), dict(self._ids)
        other._size, other._count = self._size, self._count
        return other

    async def keep(self, text: str) -> str:
        """Store ``text`` and return its id."""
        if (known := self._ids.get(text)) is not None:
            return known
        self._count += 1
        result_id = f"result_{self._count}"
        self._texts[result_id] = text
        self._ids[text] = result_id
        self._size += len(text)
        while self._size > self._max_chars and len(self._texts) > 1:
            dropped = self._texts.pop(next(iter(self._texts)))
            del self._ids[dropped]
            self._size -= len(dropped)
        return result_id

    async def read(self, result_id: str) -> str | None:
        """Return the text, or None if it is not stored."""
        return self._texts.get(result_id)


class ReadResult(Tool):
    """Reads a stored result, at most ``limit`` characters per call. ``taken`` are the names of other tools."""

    def __init__(self, store: ResultStore, taken: Container[str], limit: int | None) -> None:
        self._store = store
        self._longest = (PIECE_CHARS if limit is None else limit) - _HEADING
        name = READER_NAME
        while name in taken:
            name += "_"
        parameters = {
            "type": "object",
            "properties": {
                "result_id": {"type": "string", "description": "The id that the result was given."},
                "offset": {"type": "integer", "minimum": 0, "description": "Where to begin, in characters."},
                "length": {"type": "integer", "minimum": 1, "description": f"How many characters; {self._longest} at most."},
                "find": {"type": "string", "description": "Begin at the first place from offset on where this text stands."},
            },
            "required": ["result_id"],
        }
        super().__init__(name, "Read a part of a result that was too long to be shown whole.", parameters=parameters)

    def advice(self, result_id: str) -> Callable[[int], str]:
        """Return a function of an offset that returns advice on how to read the result from there."""
        return lambda offset: f'Read them with {self.name}(result_id="{result_id}", offset={offset}).'

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:  # noqa: ARG002  (a Tool's signature)
        """Return a piece of the result, with a heading. Raises ToolRetry for an unknown id or an invalid offset."""
        result_id = str(arguments.get("result_id", ""))
        text = await self._store.read(result_id)
        if text is None:
            raise ToolRetry(f"No result {result_id[:100]!r} is kept (any more).")
        offset = _whole(arguments.get("offset"), 0)
        length = min(_whole(arguments.get("length"), self._longest), self._longest)
        if wanted := str(arguments.get("find") or ""):
            place = text.find(wanted, offset)
            if place < 0:
                raise ToolRetry(f"The text to find does not stand in {result_id} from character {offset} on.")
            offset = place
        if offset >= len(text):
            raise ToolRetry(f"{result_id} has only {len(text)} characters.")
        piece = text[offset : offset + length]
        return f"[{result_id}: characters {offset} to {offset + len(piece)} of {len(text)}]\n{piece}"


def _whole(number: Any, otherwise: int) -> int:
    """Return a count that the model wrote, which may be anything if arguments are not validated."""
    if isinstance(number, float) and number.is_integer():  # 7.0 is an integer in JSON Schema
        number = int(number)
    return max(number, 0) if isinstance(number, int) else otherwise
