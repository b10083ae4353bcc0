"""Who may talk to a server that is this machine's alone: read off the head of a request, before a byte of its body.

What lives here: one check for each thing that a request says of where it comes from; the tool server's guard and the plugin
host's callback both make them. What does not: statuses, bodies and tokens, which are each door's own. No third-party package is
needed, so that a plugin host need not load what the tool server is made of.

What they keep out: other machines, web pages of other sites (which reach a local server through the user's browser: by a name
that resolves to it, or by a form), and what came through a proxy that nobody spoke of.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from patchbay.loopback import is_local_peer, is_this_machine

HeaderLists = dict[bytes, list[bytes]]
"""The headers of a request: all values of each lower-case name."""

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s/@,]+)(?::([0-9]{1,5}))?")
_FORWARDING: Final = frozenset({b"forwarded", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip"})
_JSON: Final = re.compile(rb"application/([a-z0-9.!#$&^_-]+\+)?json", re.IGNORECASE)


class NotAdmittedError(Exception):
    """A request may not come in. ``str`` says why in half a sentence; ``code`` is for programs, ``status`` for HTTP."""

    def __init__(self, status: int, code: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.code = code


def headers_of(scope: Any) -> HeaderLists:
    """Return the headers of an ASGI scope."""
    headers: HeaderLists = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.lower(), []).append(value)
    return headers


def peer_of(scope: Any) -> str:
    """Return the address that the connection of an ASGI scope comes from, "" where it is not known."""
    return str((scope.get("client") or ("", 0))[0])


def check_peer(peer: str, headers: HeaderLists) -> None:
    """Raise NotAdmittedError for what comes from another machine, or says that it came through a proxy."""
    if not is_local_peer(peer):
        raise NotAdmittedError(403, "not_local", "only programs on this machine are let in")
    for name in headers:
        if name in _FORWARDING or name.startswith(b"x-forwarded-"):
            raise NotAdmittedError(403, "unexpected_proxy", "this came through a proxy, and no proxy is configured here")


def check_host(headers: HeaderLists, allowed: Collection[str] = ()) -> None:
    """Raise NotAdmittedError unless there is one Host, this machine or one ``allowed`` (``*.example.com``: all below it)."""
    values = headers.get(b"host", [])
    name, is_local = _read_host(values[0]) if len(values) == 1 else (None, False)
    if name is None or not (is_local or any(_fits(name, pattern) for pattern in allowed)):
        raise NotAdmittedError(400, "untrusted_host", "Invalid Host header")


def check_origin(headers: HeaderLists, allowed: Collection[str] = ()) -> None:
    """Raise NotAdmittedError for a web page of another site, unless its origin is ``allowed`` (written in lower case)."""
    values = headers.get(b"origin")
    if values is None:
        return
    origin = values[0].decode("latin-1").lower()
    if len(values) > 1 or not (origin in allowed or _is_local_origin(origin)):
        raise NotAdmittedError(403, "untrusted_origin", "web pages of other sites are not let in")


def check_json(headers: HeaderLists) -> None:
    """Raise NotAdmittedError for a body that is not declared to be JSON: a form of another site can send all others."""
    kinds = headers.get(b"content-type", [])
    if len(kinds) != 1 or not _JSON.fullmatch(kinds[0].partition(b";")[0].strip()):
        raise NotAdmittedError(422, "not_json", "The body must be JSON: send Content-Type: application/json")


@lru_cache(maxsize=64)  # every request of a client has the same one
def _read_host(value: bytes) -> tuple[str | None, bool]:
    """Return the name in a Host header, None where it is none, and whether it is this machine's."""
    match = _HOST.fullmatch(value.decode("latin-1"))
    if match is None or not (match[2] is None or 0 < int(match[2]) < 65536):
        return None, False
    name = match[1].strip("[]").removesuffix(".").lower()
    return name, is_this_machine(name)


def _fits(name: str, pattern: str) -> bool:
    return name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern


def _is_local_origin(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    plain = parts.scheme in ("http", "https") and not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    return plain and host is not None and is_this_machine(host)
