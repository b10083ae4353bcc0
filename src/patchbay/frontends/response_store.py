"""Responses that are kept for ``previous_response_id`` and ``GET /v1/responses/ID``: in memory, bounded by number and size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from patchbay.cache import SizedCache
from patchbay.errors import InvalidRequestError

_MOST: Final = 1000
_MOST_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class StoredResponse:
    """A response with the items that led to it; ``items`` are the whole conversation before its output."""

    response: dict[str, Any]
    items: list[dict[str, Any]]

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """All items up to its output."""
        return [*self.items, *self.response["output"]]


class ResponseStore:
    """The last 1,000 responses, at most 64 MiB of them; the oldest go first."""

    def __init__(self) -> None:
        self._responses: SizedCache[str, StoredResponse] = SizedCache(most=_MOST, most_bytes=_MOST_BYTES)

    def put(self, stored: StoredResponse, size: int) -> None:
        """Keep a response; ``size`` is that of its items in bytes."""
        self._responses.put(stored.response["id"], stored, size)

    def get(self, response_id: str) -> StoredResponse | None:
        """Return a response; None where it is not kept (any more)."""
        return self._responses.get(response_id)

    def delete(self, response_id: str) -> bool:
        """Forget a response; False where there was none."""
        return self._responses.pop(response_id) is not None

    def conversation(self, response_id: str) -> list[dict[str, Any]]:
        """The items that a request goes on with. Raises InvalidRequestError."""
        stored = self._responses.get(response_id)
        if stored is None:
            raise InvalidRequestError(f"Previous response with id {response_id!r} not found.", param="previous_response_id")
        return stored.conversation
