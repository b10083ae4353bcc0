"""OpenAI Responses as a front-end: ``POST /v1/responses``, and responses that were stored."""

from __future__ import annotations

from typing import Any

from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.frontends.base import DecodedRequest, checked, estimate_tokens, member, read_body
from patchbay.frontends.response_store import ResponseStore, StoredResponse
from patchbay.frontends.responses_answer import ResponsesEncoder, error_body
from patchbay.frontends.responses_request import ResponsesRequest, decode, read_items
from patchbay.models.wire import encode


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
