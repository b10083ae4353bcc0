"""OpenAI Responses as a front-end: ``POST /v1/responses`` and ``/v1/responses/compact``, and the items of stored responses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from patchbay.errors import InvalidRequestError
from patchbay.frontends.base import KEEP_ALIVE, DecodedRequest, member, refuse
from patchbay.frontends.responses_answer import CompactionEncoder, ResponsesEncoder, encode_error, new_id
from patchbay.frontends.responses_request import SUMMARIZE, decode, read_items
from patchbay.models.request import read_fields, read_json
from patchbay.models.wire import encode

_ITEM_PREFIXES: Final = {"function_call": "fc", "custom_tool_call": "ctc", "reasoning": "rs", "message": "msg"}
_REFUSED: Final = {
    "conversation": "conversations are not kept here; use 'previous_response_id', or send all items.",
    "prompt": "prompts are not kept here; send 'instructions' and 'input'.",
}
_WRITTEN: Final = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]{2,}")
_MOST_LISTED: Final = 100
_LISTED: Final = 20


@dataclass(frozen=True)
class StoredResponse:
    """A response with its input; ``items`` are the whole conversation before its output.

    ``lease``: the server that generates it is alive at least until then, in seconds since the epoch; None once it is complete.
    ``size`` is about the number of bytes of ``response`` as JSON; 0 if it was not encoded yet. ``owner`` is a digest of the
    caller that it is stored for.
    """

    response: dict[str, Any]
    items: list[dict[str, Any]]
    lease: float | None = None
    size: int = 0
    owner: str = ""

    @property
    def key(self) -> str:
        """Its key in a store."""
        return key_of(self.response["id"], self.owner)

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The items with its output."""
        return [*self.items, *self.response["output"]]


def key_of(response_id: str, owner: str) -> str:
    """Return the key of an owner's response: under another owner's key it is not found."""
    return f"{owner}:{response_id}" if owner else response_id


class OpenAIResponses:
    """OpenAI's Responses API. The server stores responses and passes the items of earlier ones."""

    name, protocol = "OpenAI Responses", "responses"
    heartbeat = KEEP_ALIVE
    encode_error = staticmethod(encode_error)

    def decode(self, body: bytes, _path: str) -> DecodedRequest:
        return self.decode_fields(self.read(body))

    def read(self, body: bytes) -> dict[str, Any]:
        """Read the members of a request; its tools stay JSON. Raises InvalidRequestError."""
        given = {name: raw if name == "tools" else read_json(bytes(raw)) for name, raw in read_fields(body).items()}
        member(given, "model", str, "", "a string")
        if given.get("previous_response_id") is not None:
            member(given, "previous_response_id", str, "", "a string")
        if given.get("input") is None and given.get("messages") is not None:
            raise InvalidRequestError("'messages' belong to chat completions: send them as 'input'.", param="input")
        refuse(given, _REFUSED)
        return given

    def decode_fields(self, given: dict[str, Any], before: Sequence[dict[str, Any]] = ()) -> DecodedRequest:
        """Decode a request; ``before`` are the items of the response that it continues. Raises InvalidRequestError."""
        if given.get("background") is True and given.get("store") is False:
            raise InvalidRequestError("'background' needs 'store': the response is asked for by its id.", param="store")
        request = decode(given, [*before, *read_items(given.get("input"))])
        is_empty = given.get("generate") is False and given.get("stream") is True
        return DecodedRequest(request.body, ResponsesEncoder(request), is_empty, request.hosted)

    def decode_compaction(self, given: dict[str, Any], before: Sequence[dict[str, Any]] = ()) -> DecodedRequest:
        """Decode a request for a summary of its items. Raises InvalidRequestError."""
        items = [*before, *read_items(given.get("input"))]
        if not items:
            raise InvalidRequestError("There is nothing to compact: 'input' is empty.", param="input")
        wanted = {name: given[name] for name in ("model", "instructions") if given.get(name) is not None}
        request = decode({**wanted, "store": False}, [*items, {"role": "user", "content": SUMMARIZE}])
        return DecodedRequest(request.body, CompactionEncoder(request, items))

    def encode_count(self, tokens: int) -> bytes:
        return encode({"object": "response.input_tokens", "input_tokens": tokens})


def response_of(item_id: Any) -> str | None:
    """Return the id of the response that wrote an item, from the item's own; None for any other id."""
    found = _WRITTEN.fullmatch(item_id) if isinstance(item_id, str) else None
    return None if found is None else f"resp_{found[1]}"


def with_ids(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return items to store: each with its type and an id."""
    stored = []
    unique = new_id("")
    for place, item in enumerate(items):
        kind = str(item.get("type") or "message")
        item_id = item["id"] if isinstance(item.get("id"), str) else f"{_ITEM_PREFIXES.get(kind, 'item')}{unique}{place:02x}"
        stored.append({**item, "id": item_id, "type": kind})
    return stored


def list_items(stored: StoredResponse, query: Mapping[str, Sequence[str]]) -> bytes:
    """Encode a page of the input items; the newest first unless ``order=asc``. Raises InvalidRequestError."""
    limit, order, after = (
        query.get(name, [default])[-1] for name, default in (("limit", str(_LISTED)), ("order", "desc"), ("after", ""))
    )
    if not (limit.isdecimal() and limit.isascii() and len(limit) < 4 and 1 <= int(limit) <= _MOST_LISTED):
        raise InvalidRequestError(f"'limit' must be a number from 1 to {_MOST_LISTED}.", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidRequestError("'order' must be 'asc' or 'desc'.", param="order")
    items = stored.items if order == "asc" else stored.items[::-1]
    begin = 0
    if after:
        begin = next((index + 1 for index, item in enumerate(items) if item["id"] == after), -1)
        if begin < 0:
            raise InvalidRequestError("'after' must be the id of an item of this response.", param="after")
    page = [_listed(item) for item in items[begin : begin + int(limit)]]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return encode({"object": "list", "data": page, **ends, "has_more": begin + len(page) < len(items)})


def _listed(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item for a client: the content of a message in parts."""
    if item["type"] != "message" or not isinstance(content := item.get("content"), str):
        return dict(item)
    part: dict[str, Any] = {"type": "input_text", "text": content}
    if item.get("role") == "assistant":
        part = {"type": "output_text", "text": content, "annotations": []}
    return {"status": "completed", **item, "content": [part]}
