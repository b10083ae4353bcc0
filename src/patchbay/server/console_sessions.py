"""The console's sign-in: a cookie in the place of the token, for the pages of this origin alone."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from patchbay.server.auth import HeaderLists, headers_of

_MAX_ENDED: Final = 1000
_SESSION_SECONDS: Final = 12 * 3600.0
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


class ConsoleSessions:
    """Signs a cookie for each browser that has sent the token, and admits those cookies for 12 hours.

    A cookie counts for this origin's own pages only. ``key`` signs: it is random, so that cookies end with the process, unless
    several servers have one in common. A session that is ended here is not admitted here any more.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.key = secrets.token_bytes(32)
        self._clock = clock
        self._ended: dict[bytes, None] = {}

    def begin(self, scope: Any) -> bytes:
        """Begin a session; return the cookie's header."""
        value = f"{int(self._clock() + _SESSION_SECONDS)}.{secrets.token_urlsafe(16)}".encode()
        return _cookie(scope, b"%b.%b" % (value, self._signature(value)), _SESSION_SECONDS)

    def end(self, scope: Any) -> bytes:
        """End the session of a request, if it has one; return the header that removes the cookie."""
        for value in _cookie_values(headers_of(scope)):
            if self._is_valid(value):
                self._ended[value] = None
        while len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        return _cookie(scope, b"", 0)

    def admits(self, scope: Any, headers: HeaderLists) -> bool:
        """Return whether a request of this origin's own pages has the cookie of a session."""
        return any(map(self._is_valid, _cookie_values(headers))) and is_same_origin(scope, headers)

    def _is_valid(self, value: bytes) -> bool:
        signed, _, signature = value.rpartition(b".")
        expires = signed.partition(b".")[0]
        return (
            hmac.compare_digest(self._signature(signed), signature) and self._clock() < int(expires) and value not in self._ended
        )

    def _signature(self, signed: bytes) -> bytes:
        return hmac.digest(self.key, b"console " + signed, "sha256").hex().encode()


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


def _cookie_name(headers: HeaderLists) -> bytes:
    """Return the cookie's name, with the port: browsers send cookies to all ports of a host."""
    port = headers.get(b"host", [b""])[0].rpartition(b":")[2]
    return b"patchbay_console_" + port if port.isdigit() else b"patchbay_console"


def _cookie_values(headers: HeaderLists) -> list[bytes]:
    name = _cookie_name(headers)
    pairs = [pair.strip().partition(b"=") for line in headers.get(b"cookie", []) for pair in line.split(b";")]
    return [value for key, _, value in pairs if key == name]


def _cookie(scope: Any, value: bytes, seconds: float) -> bytes:
    secure = b"; Secure" if scope.get("scheme") == "https" else b""
    name = _cookie_name(headers_of(scope))
    return b"%b=%b; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict%b" % (name, value, seconds, secure)
