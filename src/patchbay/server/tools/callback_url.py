"""Where a tool may be called back: on this machine, and nowhere that a name or a trick of notation could lead to.

What lives here: the rule, and what a request to such a URL needs. What does not: any request. A URL that passed cannot come to
mean another machine later: it holds an address, or ``localhost``, which is never looked up.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urlsplit

from patchbay.loopback import ADDRESSES_OF_LOCALHOST, LOCALHOST, is_loopback_address

_USUAL_PORTS = {"http": 80, "https": 443}
_KEPT = "%/:?#[]@!$&'()*+,;=-._~"
"""What stands in a request's target as it is. All else is written with percent signs."""


class CallbackUrlError(ValueError):
    """A URL that no tool may be called back at; its message says why, for whoever registers the tool."""


@dataclass(frozen=True)
class CallbackUrl:
    """A URL that was checked. ``origin`` is its ``scheme://host:port``; ``addresses`` are all that may be connected to.

    ``target`` is what stands in the request line.
    """

    origin: str
    port: int
    addresses: tuple[str, ...]
    target: bytes


def read_callback_url(url: str) -> CallbackUrl:
    """Check a URL and take it apart; raises CallbackUrlError."""
    parts, port = _split(url)
    if parts.scheme not in _USUAL_PORTS:
        raise CallbackUrlError(f"callback_url must begin with http:// or https://, not {parts.scheme!r}")
    host = parts.hostname
    if not host:
        raise CallbackUrlError("callback_url has no host")
    if host != LOCALHOST and not is_loopback_address(host):
        raise CallbackUrlError(f"callback_url must lead to this machine (127.0.0.0/8, ::1 or localhost), not to {host!r}")
    if "@" in parts.netloc:
        raise CallbackUrlError("callback_url must not hold a user or a password")
    if port == 0:
        raise CallbackUrlError("callback_url has a port that cannot be connected to: 0")
    port = port if port is not None else _USUAL_PORTS[parts.scheme]
    shown = f"[{host}]" if ":" in host else host
    target = quote(parts.path or "/", safe=_KEPT) + (f"?{quote(parts.query, safe=_KEPT)}" if parts.query else "")
    addresses = ADDRESSES_OF_LOCALHOST if host == LOCALHOST else (host,)
    return CallbackUrl(f"{parts.scheme}://{shown}:{port}", port, addresses, target.encode())


def check_port(callback: CallbackUrl, *, own: Collection[int], allowed: Collection[int] | None) -> None:
    """Raise CallbackUrlError for a port of this server (``own``), and, where a list is given, for one that is not ``allowed``."""
    if callback.port in own:
        raise CallbackUrlError(f"callback_url has this server's own port, {callback.port}")
    if allowed is not None and callback.port not in allowed:
        raise CallbackUrlError(f"callback_url has the port {callback.port}, which callbacks may not have here")


def _split(url: str) -> tuple[SplitResult, int | None]:
    # urlsplit takes line breaks and tabs out of a URL, and browsers read a backslash as a slash: others would see another URL.
    if "\\" in url or url != url.strip() or any(ord(char) < 32 or ord(char) == 127 for char in url):
        raise CallbackUrlError("callback_url holds a control character, a backslash, or blanks around it")
    try:
        parts = urlsplit(url)
        _ = parts.hostname
    except ValueError as error:
        raise CallbackUrlError(f"callback_url cannot be read: {error}") from None
    try:
        return parts, parts.port
    except ValueError:
        raise CallbackUrlError("callback_url has a port that is no number from 1 to 65535") from None
