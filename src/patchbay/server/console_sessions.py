"""The console's sign-in: a cookie in the place of the token, for the pages of this origin alone."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from patchbay.server.auth import HeaderLists, headers_of

_MAX_SESSIONS: Final = 100
_SESSION_SECONDS: Final = 12 * 3600.0
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


class ConsoleSessions:
    """The browsers that have sent the token, each known by the random value of a cookie until the process ends.

    A cookie counts for this origin's own pages only. The oldest of 100 sessions ends for a new one, each after 12 hours.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._expiry: dict[bytes, float] = {}
        """By the digest of the value: how long a look-up takes says nothing of the value itself."""

    def begin(self, scope: Any) -> bytes:
        """Begin a session; return the cookie's header."""
        value = secrets.token_urlsafe(32)
        self._expiry[_digest(value.encode())] = self._clock() + _SESSION_SECONDS
        while len(self._expiry) > _MAX_SESSIONS:
            del self._expiry[next(iter(self._expiry))]
        return _cookie(scope, value, _SESSION_SECONDS)

    def end(self, scope: Any) -> bytes:
        """End the session of a request, if it has one; return the header that removes the cookie."""
        for value in _cookie_values(headers_of(scope)):
            self._expiry.pop(_digest(value), None)
        return _cookie(scope, "", 0)

    def admits(self, scope: Any, headers: HeaderLists) -> bool:
        """Return whether a request of this origin's own pages has the cookie of a session."""
        values = _cookie_values(headers) if self._expiry else []
        expiry = max((self._expiry.get(_digest(value), 0.0) for value in values), default=0.0)
        return self._clock() < expiry and is_same_origin(scope, headers)


def is_same_origin(scope: Any, headers: HeaderLists) -> bool:
    """Return whether a request comes from this origin's own pages, as its browser says.

    Pages of other ports of this machine are of the same site, and their requests have its cookies. Reading needs no such header:
    the response is only for pages of this origin.
    """
    sites, origins, hosts = (headers.get(name, []) for name in (b"sec-fetch-site", b"origin", b"host"))
    if any(site not in (b"same-origin", b"none") for site in sites):
        return False
    if origins:
        return len(origins) == len(hosts) == 1 and origins[0].lower().partition(b"://")[2] == hosts[0].lower()
    return b"same-origin" in sites or (scope["type"] == "http" and scope["method"] in _SAFE_METHODS)


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def _cookie_name(headers: HeaderLists) -> bytes:
    """Return the cookie's name, with the port: browsers send cookies to all ports of a host."""
    port = headers.get(b"host", [b""])[0].rpartition(b":")[2]
    return b"patchbay_console_" + port if port.isdigit() else b"patchbay_console"


def _cookie_values(headers: HeaderLists) -> list[bytes]:
    name = _cookie_name(headers)
    pairs = [pair.strip().partition(b"=") for line in headers.get(b"cookie", []) for pair in line.split(b";")]
    return [value for key, _, value in pairs if key == name]


def _cookie(scope: Any, value: str, seconds: float) -> bytes:
    secure = b"; Secure" if scope.get("scheme") == "https" else b""
    name = _cookie_name(headers_of(scope))
    return b"%b=%b; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict%b" % (name, value.encode(), seconds, secure)
