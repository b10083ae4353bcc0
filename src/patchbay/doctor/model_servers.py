"""Kinds of model servers, those that run on this machine, and whether an upstream can be reached."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from patchbay._text import plural
from patchbay.errors import ConfigurationError
from patchbay.server.http_client import HttpClient
from patchbay.server.origin import ClientError, Origin

_SECONDS: Final = 1.0
_MAX_BODY: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class KnownServer:
    """A kind of model server: its usual port, how it is started, and its own answers.

    ``owner`` is the ``owned_by`` of its models. ``path`` is a path of its own, whose JSON object has the member ``member``.
    """

    name: str
    port: int
    start: str
    owner: str
    path: str
    member: str


KNOWN_SERVERS: Final = (
    KnownServer("Ollama", 11434, "ollama serve", "library", "/api/version", "version"),
    KnownServer("LM Studio", 1234, "lms server start", "organization_owner", "/api/v0/models", "data"),
    KnownServer("llama.cpp", 8080, "llama-server -m MODEL.gguf", "llamacpp", "/props", "default_generation_settings"),
    KnownServer("vLLM", 8000, "vllm serve MODEL", "vllm", "/version", "version"),
)
"""In the order in which one is chosen."""
UNKNOWN_SERVER: Final = "a server with OpenAI's API"


def owner_of(models: Sequence[Any]) -> KnownServer | None:
    """Return the kind of server that owns these models, None if they do not say."""
    owners = {each.get("owned_by") for each in models if isinstance(each, dict)}
    return next((each for each in KNOWN_SERVERS if each.owner in owners), None)


@dataclass(frozen=True)
class FoundServer:
    """A running model server: its kind, its base URL, and the number of its models (None: it lists them only with a key)."""

    name: str
    url: str
    models: int | None

    def __str__(self) -> str:
        return f"{self.name}, {'needs a key' if self.models is None else plural(self.models, 'model')}"


async def find_servers() -> list[FoundServer]:
    """Return the model servers that answer at the usual ports of this machine within a second."""
    found = await asyncio.gather(*map(_find, KNOWN_SERVERS))
    return [each for each in found if each is not None]


def choose_server() -> list[FoundServer]:
    """Return the model servers found, the chosen one first. Raises ConfigurationError if there is none."""
    if found := asyncio.run(find_servers()):
        return found
    tried = ", ".join(f"{each.name} (port {each.port}; start: {each.start})" for each in KNOWN_SERVERS)
    raise ConfigurationError(
        f"--upstream is missing, and no model server was found on this machine. Tried: {tried}. "
        "Start one, or use --upstream or UPSTREAM_BASE_URL for a model server's base URL."
    )


async def _find(known: KnownServer) -> FoundServer | None:
    origin = f"http://127.0.0.1:{known.port}"
    client = HttpClient(Origin(origin), connect_timeout=_SECONDS)
    try:
        async with asyncio.timeout(_SECONDS):
            status, listed = await _get_object(client, "/v1/models")
            models = listed.get("data") or []  # Ollama without models: null
            if status == 200 and "data" in listed and isinstance(models, list):
                kind = owner_of(models) or (known if known.member in (await _get_object(client, known.path))[1] else None)
                return FoundServer(UNKNOWN_SERVER if kind is None else kind.name, f"{origin}/v1", len(models))
            if status in (401, 403) and known.member in (await _get_object(client, known.path))[1]:
                return FoundServer(known.name, f"{origin}/v1", None)
    except (ClientError, TimeoutError):
        pass
    finally:
        await client.close()
    return None


async def _get_object(client: HttpClient, path: str) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON object of a response, {} for any other body. Raises ClientError."""
    response = await client.request(b"GET", path.encode(), [(b"accept", b"application/json")], None)
    try:
        body = json.loads(await response.read_up_to(_MAX_BODY))
    except (ValueError, RecursionError):
        body = None
    finally:
        response.close()
    return response.status, body if isinstance(body, dict) else {}


def warning_of_upstream(url: str) -> str:
    """Return a warning about an upstream that accepts no connection now, or whose API is below /v1; "" after a second."""
    target = urlsplit(url)
    address = target.hostname or "", target.port or (443 if target.scheme == "https" else 80)
    unreachable = f"the upstream {url} cannot be reached (%s): requests fail until it can"
    warning = unreachable % f"no connection within {_SECONDS:g} s"

    def check() -> None:
        nonlocal warning
        try:
            socket.create_connection(address, timeout=_SECONDS).close()
        except OSError as error:
            warning = unreachable % (error.strerror or str(error))
            return
        warning = ""
        if not target.path.endswith("/v1") and asyncio.run(_is_below_v1(url)):
            warning = f"the upstream {url} has no /models, but {url}/v1 has: use {url}/v1 as --upstream"

    attempt = threading.Thread(target=check, daemon=True)  # looking up a name may take longer, and cannot be stopped
    attempt.start()
    attempt.join(_SECONDS)
    return warning


async def _is_below_v1(url: str) -> bool:
    """Whether a server has OpenAI's API below ``url``/v1, and not below ``url``."""
    path = urlsplit(url).path
    client = HttpClient(Origin(url), connect_timeout=_SECONDS)
    try:
        async with asyncio.timeout(_SECONDS):
            if (await _get_object(client, f"{path}/models"))[0] != 404:
                return False
            return (await _get_object(client, f"{path}/v1/models"))[0] in (200, 401)  # 401: it wants a key
    except (ClientError, TimeoutError):
        return False
    finally:
        await client.close()
