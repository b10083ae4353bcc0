"""Anthropic Messages as a front-end: ``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from patchbay.errors import PatchbayError
from patchbay.frontends.anthropic_answer import MessagesEncoder, error_body
from patchbay.frontends.anthropic_request import decode_request
from patchbay.frontends.base import DecodedRequest
from patchbay.models.wire import encode


class AnthropicMessages:
    """See Frontend."""

    name = "Anthropic Messages"

    def decode(self, body: bytes, _path: str) -> DecodedRequest:
        """See Frontend."""
        chat = decode_request(body)
        return DecodedRequest(chat, MessagesEncoder(chat["model"]))

    def encode_count(self, tokens: int) -> bytes:
        """See Frontend."""
        return encode({"input_tokens": tokens})

    def error_body(self, error: PatchbayError) -> bytes:
        """See Frontend."""
        return error_body(error)
