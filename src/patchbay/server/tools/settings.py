"""What a tool server is told, checked when it is set. Plain data, but for the file that the token is read from."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from patchbay.errors import ConfigurationError
from patchbay.server.settings import MIB

_HOST = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]+", re.IGNORECASE)
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://([^\s/?#@:,*\[\]]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class ToolsSettings:
    """Who may come in, and what a tool server does with what it is sent. Raises ConfigurationError for what cannot work.

    ``token`` is what trusted callers show; without one everybody on this machine may do what they may. ``allowed_hosts`` are Host
    headers beside those of this machine (``*.example.com`` is all below it), ``allowed_origins`` Origin headers likewise.
    ``proxies`` are the addresses of reverse proxies: what comes through one must show the token. ``callback_ports`` are all that
    callbacks may have, None for any. Sizes are bytes, times seconds; ``body_timeout`` is for all of a request's body.

    ``strict_arguments``: calls whose arguments do not fit the tool's schema are answered with an error and not passed on.
    ``needs_secret``: who replaces or removes a tool must know its secret, or show the token.
    ``lease`` is how often callbacks are looked after (0: never; then what is hidden is shown again after 30 s); ``max_failures``
    how many connections in a row may fail before the tools of a plugin are dropped.
    """

    token: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    callback_ports: frozenset[int] | None = None
    strict_arguments: bool = False
    needs_secret: bool = False
    max_body_size: int = 16 * MIB
    max_result_size: int = MIB
    body_timeout: float = 30.0
    connect_timeout: float = 5.0
    sync_timeout: float = 5.0
    lease: float = 2.0
    max_failures: int = 3

    def __post_init__(self) -> None:
        settle = object.__setattr__  # the dataclass is frozen for everyone else
        settle(self, "allowed_hosts", tuple(_checked_host(host) for host in self.allowed_hosts if host != "*"))
        settle(self, "allowed_origins", tuple(_checked_origin(origin) for origin in self.allowed_origins))
        if self.token is not None and (len(self.token) < _SHORTEST_TOKEN or not self.token.isascii() or " " in self.token):
            raise ConfigurationError(f"the token must be at least {_SHORTEST_TOKEN} ASCII characters without blanks.")
        if self.proxies and self.token is None:
            raise ConfigurationError("a proxy needs a token too: what comes through it could come from anywhere.")
        for name in ("max_body_size", "max_result_size", "body_timeout", "connect_timeout", "sync_timeout", "max_failures"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be more than 0.")
        if not self.lease >= 0:
            raise ConfigurationError("lease must be 0 (never) or more seconds.")


def read_token(path: str | os.PathLike[str]) -> str:
    """Return the token in a file that only its owner can read (mode 0600 or less).

    Raises ConfigurationError where there is no such file, and where others could have read or changed it.
    """
    try:
        with Path(path).open(encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)  # of what is read, not of what the name means by then
            if mode & 0o077:
                raise ConfigurationError(f"others can get at the token file {path} (mode {mode:04o}): chmod 600 {path}")
            token = file.read(4096).strip()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise ConfigurationError(f"the token file {path} cannot be read: {reason}.") from None
    if not token:
        raise ConfigurationError(f"the token file {path} is empty.")
    return token


def listed(text: str | Iterable[str]) -> tuple[str, ...]:
    """Return the entries of a list with commas, without blanks and empty ones."""
    texts = [text] if isinstance(text, str) else text
    return tuple(entry.strip() for each in texts for entry in each.split(",") if entry.strip())


def _checked_origin(origin: str) -> str:
    text = origin.strip().rstrip("/").lower()
    if not _ORIGIN.fullmatch(text):
        raise ConfigurationError(
            f"{origin!r} is no origin: write https://app.example.com, with a port if it has one, and no path."
        )
    return text


def _checked_host(host: str) -> str:
    host = host.strip().rstrip(".").lower()
    if not _HOST.fullmatch(host):
        raise ConfigurationError(f"{host!r} is no host name: write tools.example.com, or *.example.com for all below it.")
    return host
