"""Gemini's generateContent as a front-end: ``POST /v1beta/models/MODEL:generateContent`` and its siblings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from patchbay.errors import InvalidRequestError, PatchbayError
from patchbay.frontends.base import KEEP_ALIVE, DecodedRequest
from patchbay.frontends.gemini_answer import GenerateContentEncoder, error_body
from patchbay.frontends.gemini_request import decode_request
from patchbay.models.wire import decode, encode

PATH: Final = re.compile(r"/v1(?:beta|alpha)?/models/(?P<model>.+):(?P<method>generateContent|streamGenerateContent|countTokens)")

MODELS_PATH: Final = re.compile(r"/v1(?:beta|alpha)/models(?:/(?P<model>.+))?")
_METHODS: Final = {"supportedGenerationMethods": ["generateContent", "countTokens"]}


class GenerateContent:
    """See Frontend."""

    name = "Gemini"
    heartbeat = KEEP_ALIVE

    def decode(self, body: bytes, path: str) -> DecodedRequest:
        """See Frontend."""
        model, method = _target(path)
        if method == "countTokens":
            try:
                value = decode(body)
            except (ValueError, RecursionError):
                value = None
            inner = value.get("generateContentRequest") if isinstance(value, dict) else None
            body = body if inner is None else encode(inner)
        chat = decode_request(body, model, stream=method == "streamGenerateContent")
        return DecodedRequest(chat, GenerateContentEncoder(model))

    def encode_count(self, tokens: int) -> bytes:
        """See Frontend."""
        return encode({"totalTokens": tokens})

    def encode_models(self, models: Sequence[Mapping[str, Any]]) -> bytes:
        """Encode an OpenAI-compatible server's list of models in Gemini's form."""
        return encode({"models": [_model(each) for each in models]})

    def encode_model(self, model: Mapping[str, Any]) -> bytes:
        """Encode one of these models."""
        return encode(_model(model))

    def error_body(self, error: PatchbayError) -> bytes:
        """See Frontend."""
        return error_body(error)


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": f"models/{model['id']}", "displayName": model["id"], **_METHODS}


def _target(path: str) -> tuple[str, str]:
    """Return the model and the method of a path."""
    found = PATH.fullmatch(path)
    if found is None:
        raise InvalidRequestError("The path must be /v1beta/models/MODEL:generateContent.")
    return unquote(found["model"]), found["method"]
