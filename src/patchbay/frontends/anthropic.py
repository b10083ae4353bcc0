"""Anthropic Messages as a front-end: ``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from patchbay.errors import PatchbayError
from patchbay.frontends.anthropic_answer import MessagesEncoder, error_body
from patchbay.frontends.anthropic_request import decode_request
from patchbay.frontends.base import DecodedRequest
from patchbay.models.wire import encode


class AnthropicMessages:
    """See Frontend."""

    name = "Anthropic Messages"
    heartbeat = b'event: ping\ndata: {"type":"ping"}\n\n'

    def decode(self, body: bytes, _path: str) -> DecodedRequest:
        """See Frontend."""
        chat = decode_request(body)
        return DecodedRequest(chat, MessagesEncoder(chat["model"]))

    def encode_count(self, tokens: int) -> bytes:
        """See Frontend."""
        return encode({"input_tokens": tokens})

    def encode_models(self, models: Sequence[Mapping[str, Any]]) -> bytes:
        """Encode an OpenAI-compatible server's list of models in Anthropic's form."""
        data = [_model(each) for each in models]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return encode({"data": data, "has_more": False, **ends})

    def encode_model(self, model: Mapping[str, Any]) -> bytes:
        """Encode one of these models."""
        return encode(_model(model))

    def error_body(self, error: PatchbayError) -> bytes:
        """See Frontend."""
        return error_body(error)


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "model", "id": model["id"], "display_name": model["id"], "created_at": _date(model)}


def _date(model: Mapping[str, Any]) -> str:
    """Return a model's creation time; the epoch if its server does not send one."""
    created = model.get("created")
    seconds = created if type(created) is int and 0 <= created < 2**32 else 0
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
