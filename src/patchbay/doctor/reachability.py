"""Probes of a server: whether it is reached, what it is, and whether it has the model."""

from __future__ import annotations

import asyncio
import difflib
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from patchbay._text import plural
from patchbay.constraints.backends import Backend
from patchbay.doctor.findings import Result
from patchbay.doctor.model_servers import KNOWN_SERVERS, UNKNOWN_SERVER, owner_of
from patchbay.doctor.server import ExaminedServer
from patchbay.errors import UpstreamError
from patchbay.loopback import is_this_machine
from patchbay.models.capabilities import Capabilities
from patchbay.models.providers import provider_at

_DAY: Final = 24 * 3600.0
_SOON: Final = 21
"""Days before the end of a certificate from which it is a note."""
_MOST_SKEW: Final = 60.0
_KEY: Final = "Set UPSTREAM_API_KEY (or --upstream-key) to a key of this server."
Probe: TypeAlias = Callable[[ExaminedServer], Awaitable[Result]]
HELLO: Final = [{"role": "user", "content": "Say hello."}]


async def connect(server: ExaminedServer) -> Result:
    """Connect, and ask for the list of models."""
    started = time.monotonic()
    try:
        server.models = await server.fetch("/models")
    except UpstreamError as error:
        server.facts.unusable = True
        if "certificate" in str(error).lower():
            return "problem", str(error), "Renew the certificate, or set SSL_CERT_FILE to the authority that has signed it."
        return (
            "problem",
            str(error),
            "Start the server, or correct --upstream; a firewall or a container's network may be between.",
        )
    seconds = time.monotonic() - started
    return "ok", f"{server.url} answers HTTP {server.models.status} in {seconds * 1000:.0f} ms.", ""


async def read_certificate(server: ExaminedServer) -> Result:
    """Read the end of the server's certificate, which the connection has verified."""
    parts = urlsplit(server.url)
    host = parts.hostname or ""
    if parts.scheme == "http":
        if is_this_machine(host):
            return "skipped", "The server is on this machine, without TLS.", ""
        return "note", "Requests, and the key, go over the network unencrypted.", "Use an https:// URL, or a tunnel."
    connecting = asyncio.open_connection(host, parts.port or 443, ssl=ssl.create_default_context())
    _, writer = await server.in_time(connecting)
    try:
        found: Any = writer.get_extra_info("peercert")
    finally:
        writer.transport.abort()
    days = (ssl.cert_time_to_seconds(found["notAfter"]) - time.time()) / _DAY
    seen = f"The certificate is trusted, and ends on {found['notAfter']}, in {days:.0f} days."
    return ("note", seen, "Renew it soon: requests fail afterwards.") if days < _SOON else ("ok", seen, "")


async def read_list(server: ExaminedServer) -> Result:
    """Judge the answer to the request for the list of models."""
    answer = server.models
    if isinstance(answer.value, Mapping) and answer.status == 200 and "data" in answer.value:
        rows = answer.value["data"]
        server.facts.models = [each for each in rows if isinstance(each, Mapping)] if isinstance(rows, list) else []
        return "ok", f"It lists {plural(len(server.facts.models), 'model')}.", ""
    if answer.status in (401, 403):
        server.facts.unusable = True
        return "problem", f"The key is refused (HTTP {answer.status}: {answer.text}).", _KEY
    if answer.status == 404 and not urlsplit(server.url).path.endswith("/v1"):
        below = await server.fetch("/v1/models")
        if below.status in (200, 401):
            server.facts.unusable = True
            return "problem", "The API is not at this URL, but below /v1.", f"Use --upstream {server.url}/v1."
    return "note", f"There is no list of models (HTTP {answer.status}: {answer.text}).", "Name the model with --model."


async def compare_clocks(server: ExaminedServer) -> Result:
    """Compare the clocks by the response's Date, which has whole seconds."""
    try:
        skew = time.time() - parsedate_to_datetime(server.models.date).timestamp()
    except ValueError:
        return "skipped", "The server sends no Date.", ""
    if abs(skew) <= _MOST_SKEW:
        return "ok", "This machine's clock is that of the server, within a minute.", ""
    direction = "ahead of" if skew > 0 else "behind"
    seen = f"This machine's clock is {abs(skew):.0f} s {direction} the server's."
    return "note", seen, "Synchronise the clocks (timedatectl): tokens and signatures with times are refused otherwise."


async def identify(server: ExaminedServer) -> Result:
    """Find out what the server is, and how it takes a constraint."""
    facts = server.facts
    properties = await server.fetch("/props", at_root=True)
    is_llama = properties.status == 200 and isinstance(properties.value, Mapping)
    facts.description = properties.value if is_llama else (server.models.value or {})
    capabilities = Capabilities()
    capabilities.learn_description(facts.description)
    facts.backend = capabilities.server.backend if capabilities.server is not None else None
    known = owner_of(facts.models)
    if known is None and facts.backend is not Backend.SGLANG:
        for each in KNOWN_SERVERS:
            if await server.member(each.path, each.member) is not None:
                known = each
                break
    facts.kind = "SGLang" if facts.backend is Backend.SGLANG else "" if known is None else known.name
    paths = {"vLLM": ("/version", "version"), "Ollama": ("/api/version", "version"), "llama.cpp": ("/props", "build_info")}
    version = await server.member(*paths[facts.kind]) if facts.kind in paths else None
    if not facts.kind:
        provider = provider_at(server.url).name
        return "ok", f"It is {f'the API of {provider}' if provider else f'{UNKNOWN_SERVER}, of no kind that is known here'}.", ""
    return "ok", f"It is {facts.kind}{f' {version}' if isinstance(version, str) else ''}.", ""


async def find_model(server: ExaminedServer) -> Result:
    """Look for the model in the server's list; without a name take the first that is not for embeddings."""
    names = [str(each.get("id")) for each in server.facts.models]
    if not server.model:
        chosen = next((each for each in names if "embed" not in each.lower()), "")
        if not chosen:
            server.facts.unusable = True
            return "problem", "No model is named, and the server lists none.", "Name one with --model."
        server.model = chosen
        others = f", the first of {len(names)}" if len(names) > 1 else ""
        return "ok", f"The model {chosen} is examined{others}.", "Name another with --model." if others else ""
    if server.model in names:
        return "ok", f"The server lists the model {server.model}.", ""
    if not names:
        return "skipped", "There is no list to look in.", ""
    near = difflib.get_close_matches(server.model, names, n=3, cutoff=0.4) or names[:3]
    if server.facts.kind == "llama.cpp":
        return "note", f"The server has {names[0]}, and answers for any name, such as {server.model}.", ""
    server.facts.unusable = True
    return "problem", f"The server does not list the model {server.model}.", f"Use --model with a listed name: {', '.join(near)}."


async def ask_plainly(server: ExaminedServer) -> Result:
    """Ask for a few words."""
    server.facts.unusable = True  # unless there is an answer, in time
    asked = await server.send(messages=HELLO, max_tokens=16)
    if asked.error is not None and "temperature" in str(asked.error):
        server.sampling = {}
        asked = await server.send(messages=HELLO, max_tokens=16)
    if asked.error is None:
        server.facts.unusable = False
        return "ok", f"The model answers in {asked.seconds:.1f} s.", ""
    status = getattr(asked.error, "upstream_status", None)
    advice = _KEY if status in (401, 403) else "Correct this first: nothing else can be examined (the server's log may say more)."
    return "problem", f"A plain chat request fails: {asked.error}", advice


PROBES: Final = {
    "connection": connect,
    "certificate": read_certificate,
    "api": read_list,
    "clock": compare_clocks,
    "server": identify,
    "model": find_model,
    "chat": ask_plainly,
}
