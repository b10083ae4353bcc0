"""The clients of the ``openai`` package, which is not imported for this: its methods, and the HTTP library under it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import MethodType, ModuleType
from typing import Any, Final

from patchbay.errors import ConfigurationError
from patchbay.models.wire import decode

BEARER: Final = {"security": {"bearer_auth": True}}
"""The option of a request that is sent with the client's key."""

REQUEST_OPTIONS: Final = {"extra_headers": "headers", "extra_query": "params", "timeout": "timeout"}
"""Options of a request, by the arguments of ``create`` that set them and are no members of the body."""


def library_of(http_client: type) -> ModuleType:
    """Return the library of an HTTP client, httpx or httpx2. Raises ConfigurationError."""
    for base in http_client.__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("httpx2", "httpx"):
            return importlib.import_module(root)
    raise ConfigurationError(f"wrap does not know the HTTP client {http_client.__name__}.")


def is_sdks_own(create: Any) -> bool:
    """Whether this is the SDK's own method, not a wrapper around it (a tracer's, say) that must see all arguments."""
    return type(create) is MethodType and str(create.__func__.__globals__["__name__"]).startswith("openai.")


def takes_bytes(client: Any) -> bool:
    """Whether a client accepts its body as bytes; subclasses of the SDK's clients may have to read it (Azure's, for its URL)."""
    sdk = importlib.import_module("openai")
    return type(client) in (sdk.OpenAI, sdk.AsyncOpenAI) and "content" in inspect.signature(client.post).parameters


def raw_post(client: Any) -> Callable[[bytes, Mapping[str, Any]], Any] | None:
    """Return a function that sends a body of chat completions, and returns the HTTP response before its body is read.

    Its second argument are arguments of ``create`` that are no part of the body. None for a client that is not the SDK's.
    """
    if not is_sdks_own(client.chat.completions.create):
        return None
    post, as_bytes, response = client.post, takes_bytes(client), library_of(type(client._client)).Response  # noqa: SLF001

    def send(body: bytes, call: Mapping[str, Any]) -> Any:
        given = {"content": body} if as_bytes else {"body": decode(body)}
        options = {**BEARER, **{REQUEST_OPTIONS[name]: value for name, value in call.items()}}
        return post("/chat/completions", cast_to=response, options=options, stream=True, **given)

    return send
