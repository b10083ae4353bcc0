"""Settings of a tool server, with their command-line flags. Checked when they are set."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from patchbay._flags import flag
from patchbay.errors import ConfigurationError
from patchbay.server.settings import MIB, parse_size

_HOST = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]+", re.IGNORECASE)
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://([^\s/?#@:,*\[\]]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_SHORTEST_TOKEN = 16


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


def parse_ports(text: str) -> frozenset[int]:
    """Parse ``9000-9100,48916``. Raises ConfigurationError."""
    ports: set[int] = set()
    for entry in text.split(","):
        first, dash, last = entry.strip().partition("-")
        ends = (first, last if dash else first)
        if not all(end.isdecimal() and end.isascii() and 0 < int(end) < 65536 for end in ends) or int(ends[0]) > int(ends[1]):
            raise ConfigurationError(f"Invalid port or range of ports {entry.strip()!r}: use 9000-9100,48916.")
        ports.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(ports)


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

    token: str | None = field(
        default=None,
        repr=False,
        metadata=flag(
            "File (mode 0600) with the bearer token that callers must send to register tools of plugins; by default anyone may.",
            name="token-file",
            metavar="FILE",
            type=str,
            parse=lambda path: read_token(Path(path).expanduser()),
        ),
    )
    allowed_hosts: tuple[str, ...] = field(
        default=(),
        metadata=flag(
            "Additional Host header to accept: tools.example.com, *.example.com.",
            name="allow-host",
            env=("PATCHBAY_ALLOWED_HOSTS", "NEKO_TRUSTED_HOSTS"),
            metavar="NAME",
            type=list[str],
            default=None,
            parse=listed,
        ),
    )
    allowed_origins: tuple[str, ...] = field(
        default=(),
        metadata=flag(
            "Additional origin of web pages to accept: https://app.example.com.",
            name="allow-origin",
            env=("PATCHBAY_ALLOWED_ORIGINS", "NEKO_TRUSTED_ORIGINS"),
            metavar="ORIGIN",
            type=list[str],
            default=None,
            parse=listed,
        ),
    )
    proxies: tuple[str, ...] = field(
        default=(),
        metadata=flag(
            "Address of a reverse proxy, whose requests must carry the token.",
            name="proxy",
            env=("PATCHBAY_PROXIES",),
            metavar="ADDRESS",
            type=list[str],
            default=None,
            parse=listed,
        ),
    )
    callback_ports: frozenset[int] | None = field(
        default=None,
        metadata=flag(
            "Allowed ports of callbacks: 9000-9100,48916. Default: all but this server's own.",
            metavar="PORTS",
            type=str,
            parse=parse_ports,
        ),
    )
    strict_arguments: bool = field(default=False, metadata=flag("Reject calls whose arguments do not match the tool's schema."))
    needs_secret: bool = field(
        default=False, metadata=flag("Require the tool's secret or the token to replace or remove a tool.", name="need-secrets")
    )
    max_body_size: int = 16 * MIB
    max_result_size: int = field(
        default=MIB,
        metadata=flag("Maximum size of a callback's response.", metavar="SIZE", type=str, default="1MiB", parse=parse_size),
    )
    body_timeout: float = 30.0
    connect_timeout: float = 5.0
    sync_timeout: float = 5.0
    lease: float = field(
        default=2.0, metadata=flag("Interval of health checks of callbacks; 0: never.", metavar="SECONDS", min=0)
    )
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
