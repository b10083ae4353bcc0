"""OpenAI Responses as a front-end: ``POST /v1/responses``, and responses that were stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from patchbay.cache import SizedCache
from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.frontends.base import DecodedRequest, checked, estimate_tokens, member, read_body
from patchbay.frontends.responses_answer import ResponsesEncoder, error_body
from patchbay.frontends.responses_request import ResponsesRequest, decode, read_items
from patchbay.models.wire import encode

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


class OpenAIResponses:
    """See Frontend. Responses are kept in ``store`` unless a request says otherwise."""

    name = "OpenAI Responses"

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def decode(self, body: bytes, _path: str) -> DecodedRequest:
        """See Frontend."""
        request = self._read(body)
        if request.given.get("background") is True:
            raise InvalidRequestError("'background' responses are not supported here.", param="background")
        keep = self._keep if request.given.get("store") is not False else None
        return DecodedRequest(request.body, ResponsesEncoder(request, keep))

    def count_tokens(self, body: bytes, _path: str) -> bytes:
        """See Frontend."""
        return encode({"object": "response.input_tokens", "input_tokens": estimate_tokens(self._read(body).body)})

    def error_body(self, error: PatchbayError) -> bytes:
        """See Frontend."""
        return error_body(error)

    def stored(self, response_id: str) -> StoredResponse | None:
        """Return a response that was kept."""
        return self._store.get(response_id)

    def delete(self, response_id: str) -> bool:
        """Forget a response; False where there was none."""
        return self._store.delete(response_id)

    def _read(self, body: bytes) -> ResponsesRequest:
        given = read_body(body)
        member(given, "model", str, "", "a string")
        items = read_items(given.get("input"))
        if (previous := given.get("previous_response_id")) is not None:
            items = self._store.conversation(checked(previous, str, "previous_response_id", "a string")) + items
        return decode(given, items)

    def _keep(self, items: list[dict[str, Any]], response: dict[str, Any]) -> None:
        self._store.put(StoredResponse(response, items), len(encode(items)) + len(encode(response)))
