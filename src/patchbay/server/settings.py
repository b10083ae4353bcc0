"""What a proxy is told, checked when it is set. Plain data; nothing is opened or connected here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from patchbay.errors import ConfigurationError

MIB = 1024 * 1024
_UNITS = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "kib": 1024,
    "m": 1000**2, "mb": 1000**2, "mib": 1024**2,
    "g": 1000**3, "gb": 1000**3, "gib": 1024**3,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = frozenset({"connection", "content-length", "expect", "te", "trailer", "transfer-encoding", "upgrade"})
_SMALLEST_LOG = 4096


@dataclass(frozen=True)
class ProxySettings:
    """How a proxy behaves towards its client, its upstream and its log. Raises ConfigurationError for what cannot work.

    ``upstream`` is the base URL of an OpenAI-compatible API, such as ``http://127.0.0.1:11434/v1``. Sizes are bytes, times
    seconds. ``upstream_timeout`` is how long the upstream may send nothing at all (0: as long as it likes); ``heartbeat`` is
    after how long an idle stream to the client gets a comment line.
    """

    upstream: str
    upstream_key: str | None = field(default=None, repr=False)
    upstream_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_key: str | None = field(default=None, repr=False)
    base_path: str = "/v1"
    cors: bool = False
    max_body_size: int = 10 * MIB
    log_file: str | None = None
    max_log_size: int = 100 * MIB
    upstream_timeout: float = 600.0
    connect_timeout: float = 10.0
    heartbeat: float = 15.0

    def __post_init__(self) -> None:
        settle = object.__setattr__  # the dataclass is frozen for everyone else
        settle(self, "upstream", check_upstream(self.upstream))
        settle(self, "base_path", normalise_base_path(self.base_path))
        for name in ("upstream_key", "api_key"):
            key = getattr(self, name)
            if key is not None:
                settle(self, name, _check_key(key, name))
        for name, value in self.upstream_headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _printable(value):
                raise ConfigurationError(f"upstream header {name!r} is not a valid HTTP header.")
            if name.lower() in _FRAMING:
                raise ConfigurationError(f"upstream header {name!r} belongs to each request and cannot be given.")
        for name in ("max_body_size", "connect_timeout", "heartbeat"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be more than 0.")
        if not self.upstream_timeout >= 0:
            raise ConfigurationError("upstream_timeout must be 0 (no limit) or more seconds.")
        if self.log_file is not None and not Path(self.log_file).name:
            raise ConfigurationError(f"log_file must be the path of a file, not {self.log_file!r}.")
        if self.log_file is not None and self.max_log_size < _SMALLEST_LOG:
            raise ConfigurationError(f"max_log_size must be at least {_SMALLEST_LOG} bytes.")


def check_upstream(url: str) -> str:
    """Return the base URL without its trailing slashes; raises ConfigurationError that says what is wrong with it."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError as error:
        raise ConfigurationError(f"the upstream {url!r} is not a URL: {error}.") from None
    if parts.scheme not in ("http", "https"):
        raise ConfigurationError(f"the upstream {url!r} must begin with http:// or https://.")
    if not host or port == 0 or any(char.isspace() or ord(char) < 32 for char in url):
        raise ConfigurationError(f"the upstream {url!r} names no usable host.")
    if parts.username is not None or parts.password is not None:
        # Not echoed: it holds a password.
        raise ConfigurationError("the upstream must not hold a user or password: give its key as the upstream key.")
    if parts.query or parts.fragment:
        base = url.partition("?")[0].partition("#")[0]  # what stands behind may be a key
        raise ConfigurationError(f"the upstream {base!r} must be a base URL, without '?' or '#' and what stands behind.")
    if parts.path.rstrip("/").endswith("/chat/completions"):
        raise ConfigurationError(f"the upstream {url!r} must be the base URL: leave '/chat/completions' out.")
    return url.rstrip("/")


def normalise_base_path(path: str) -> str:
    """Return ``/v1`` for ``v1``, ``/v1`` and ``/v1/``; the empty string stands for the root."""
    segments = [segment for segment in path.strip().split("/") if segment]
    for segment in segments:
        if segment in (".", "..") or not re.fullmatch(r"[A-Za-z0-9._~-]+", segment):
            raise ConfigurationError(f"the base path {path!r} may hold only letters, digits, '-', '.', '_' and '~'.")
    return "".join("/" + segment for segment in segments)


def parse_size(text: str) -> int:
    """Read ``1048576``, ``10mb`` (powers of 1000) or ``10MiB`` (powers of 1024) as bytes; raises ConfigurationError."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ConfigurationError(f"{text!r} is not a size: write 1048576, 10MiB or 10mb.")
    size = int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]
    if size < 1:
        raise ConfigurationError(f"{text!r}: the size must be at least one byte.")
    return size


def _check_key(key: str, name: str) -> str:
    key = key.strip()
    if not key:
        raise ConfigurationError(f"{name} is empty: leave it out, or give a key.")
    if not _printable(key) or " " in key:
        raise ConfigurationError(f"{name} holds characters that cannot travel in an HTTP header.")
    return key


def _printable(value: str) -> bool:
    return value.isascii() and value.isprintable()
