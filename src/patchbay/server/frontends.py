"""Requests of other protocols: which front-end decodes them, and how they look to the rest of the proxy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

from patchbay.errors import InvalidRequestError
from patchbay.frontends import AnthropicMessages, Frontend, GenerateContent, OpenAIResponses, ResponseStore
from patchbay.frontends.gemini import PATH as GEMINI_PATH
from patchbay.models.wire import encode
from patchbay.server.errors import NotFoundError
from patchbay.server.http import VENDOR_KEYS, Headers

_OWN_PREFIXES: Final = (b"anthropic-", b"x-stainless-", b"x-goog-", b"openai-beta")


@dataclass(frozen=True)
class FrontendRoute:
    """A request for a front-end; ``counts``: it asks for the size of a prompt only."""

    frontend: Frontend
    path: str
    counts: bool = False


class Frontends:
    """The front-ends of one proxy, and the responses that they keep."""

    def __init__(self, base_path: str) -> None:
        self._base = base_path
        self._responses = OpenAIResponses(ResponseStore())
        self._gemini = GenerateContent()
        messages = AnthropicMessages()
        self._routes: dict[str, FrontendRoute] = {
            f"{base_path}/messages": FrontendRoute(messages, ""),
            f"{base_path}/messages/count_tokens": FrontendRoute(messages, "", counts=True),
            f"{base_path}/responses": FrontendRoute(self._responses, ""),
            f"{base_path}/responses/input_tokens": FrontendRoute(self._responses, "", counts=True),
        }

    def route(self, scope: Mapping[str, Any], path: str) -> FrontendRoute | None:
        """Return the route of a request; None where it is none of a front-end's. Raises InvalidRequestError."""
        if scope["method"] != "POST":
            return None
        path = path.rstrip("/")
        if (route := self._routes.get(path)) is not None or ":" not in path:
            return route
        if (found := GEMINI_PATH.fullmatch(path)) is None:
            return None
        if found["method"] == "streamGenerateContent" and _query(scope).get("alt") != ["sse"]:
            raise InvalidRequestError("Streams are served as events only: add ?alt=sse.")
        return FrontendRoute(self._gemini, path, counts=found["method"] == "countTokens")

    def stored(self, method: str, path: str) -> bytes | None:
        """Answer a request for a stored response; None for any other path. Raises NotFoundError."""
        prefix = f"{self._base}/responses/"
        if method not in ("GET", "DELETE") or not path.startswith(prefix):
            return None
        response_id, _, part = path[len(prefix) :].rstrip("/").partition("/")
        stored = self._responses.stored(response_id)
        if stored is None or part not in ("", "input_items") or (part and method == "DELETE"):
            raise NotFoundError(f"Response with id {response_id!r} not found.")
        if method == "DELETE":
            self._responses.delete(response_id)
            return encode({"id": response_id, "object": "response", "deleted": True})
        if part:
            ends = {"first_id": None, "last_id": None, "has_more": False}
            return encode({"object": "list", "data": stored.items, **ends})
        return encode(stored.response)


def chat_scope(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scope of a front-end's request as one of chat completions.

    The key comes as a bearer; the vendor's own headers and its query say nothing to the upstream.
    """
    headers: Headers = []
    key: bytes | None = None
    has_bearer = False
    for name, value in scope["headers"]:
        if name in VENDOR_KEYS:
            key = value
        elif not name.startswith(_OWN_PREFIXES):
            has_bearer = has_bearer or name == b"authorization"
            headers.append((name, value))
    if key is None and (keys := _query(scope).get("key")):
        key = keys[0].encode("latin-1")
    if key is not None and not has_bearer:
        headers.append((b"authorization", b"Bearer " + key))
    return {**scope, "headers": headers, "query_string": b""}


def _query(scope: Mapping[str, Any]) -> dict[str, list[str]]:
    return parse_qs(scope.get("query_string", b"").decode("latin-1"))
