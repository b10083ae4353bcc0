"""Settings of the proxy, the tool server and serving, with their command-line flags. Validated when created."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from patchbay._flags import flag
from patchbay._redaction import Redactor, protect
from patchbay.errors import ConfigurationError
from patchbay.models.options import TextOptions
from patchbay.server.callback_hosts import CallbackHosts

if TYPE_CHECKING:  # a plain proxy does not load the executor
    from patchbay.executor import Budget
    from patchbay.tools import ToolSearch

MIB = 1024 * 1024
_UNITS = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "kib": 1024,
    "m": 1000**2, "mb": 1000**2, "mib": 1024**2,
    "g": 1000**3, "gb": 1000**3, "gib": 1024**3,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd])")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING_HEADERS = frozenset({"connection", "content-length", "expect", "te", "trailer", "transfer-encoding", "upgrade"})
_MIN_LOG_BYTES = 4096
_MIN_TOKEN_CHARS = 16


def parse_size(text: str) -> int:
    """Parse ``1048576``, ``10mb`` (powers of 1000) or ``10MiB`` (powers of 1024) as bytes. Raises ConfigurationError."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ConfigurationError(f"{text!r} is not a size: use 1048576, 10MiB or 10mb.")
    size = int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]
    if size < 1:
        raise ConfigurationError(f"{text!r}: the size must be at least one byte.")
    return size


def parse_duration(text: str) -> float:
    """Parse ``90s``, ``30m``, ``12h`` or ``7d`` as seconds. Raises ConfigurationError."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or not float(match[1]) > 0:
        raise ConfigurationError(f"{text!r} is not a duration: use 30m, 12h or 7d.")
    return float(match[1]) * _SECONDS[match[2]]


def require_positive(settings: object, *names: str) -> None:
    """Raise ConfigurationError for a field that is not more than 0."""
    for name in names:
        if not getattr(settings, name) > 0:
            raise ConfigurationError(f"{name} must be more than 0.")


Verbosity = Literal["quiet", "normal", "verbose"]
"""Log level: errors; also failed requests and detected model capabilities; also every request."""


LogFormat = Literal["text", "json"]


@dataclass(frozen=True)
class ServeOptions:
    """Address, workers and log of a server. Times are seconds.

    At shutdown requests are accepted for ``drain_delay`` while ``/readyz`` says that the server stops; then the running ones have
    ``drain_timeout`` to finish.
    """

    host: str = field(default="127.0.0.1", metadata=flag("Address to listen on.", env=("HOST", "PATCHBAY_HOST"), metavar="HOST"))
    port: int = field(
        default=8787,
        metadata=flag("Port to listen on; 0 picks a free one.", env=("PORT", "PATCHBAY_PORT"), metavar="PORT", min=0, max=65535),
    )
    workers: int = field(default=1, metadata=flag("Number of worker processes.", metavar="N", min=1, max=256))
    drain_timeout: int = field(
        default=30, metadata=flag("Time for running requests to finish at shutdown.", metavar="SECONDS", min=0)
    )
    drain_delay: int = field(
        default=0,
        metadata=flag(
            "Time before that in which requests are accepted while /readyz answers 503, for load balancers.",
            metavar="SECONDS",
            min=0,
        ),
    )
    log_format: LogFormat = field(
        default="text",
        metadata=flag("Format of the log on stderr; json: an object per line, also for each request.", type=LogFormat),
    )
    otel: bool = field(
        default=False, metadata=flag("Send traces by OpenTelemetry's OTLP; where to is in its own variables, OTEL_*.")
    )
    otel_content: bool = field(
        default=False, metadata=flag("Put what models were sent and wrote into the traces, without known secrets.")
    )
    log: Verbosity = "normal"


_HOST = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]+", re.IGNORECASE)
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://([^\s/?#@:,*\[\]]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


def listed(text: str | Iterable[str]) -> tuple[str, ...]:
    """Return the entries of a comma-separated list, without blanks and empty ones."""
    texts = [text] if isinstance(text, str) else text
    return tuple(entry.strip() for each in texts for entry in each.split(",") if entry.strip())


_LIST: Final[dict[str, Any]] = {"type": list[str], "default": None, "parse": listed}
"""A flag that may be repeated, or hold a comma-separated list."""


@dataclass(frozen=True, kw_only=True)
class AccessSettings:
    """What a server accepts beside this machine's names and pages. Raises ConfigurationError for impossible ones.

    ``allowed_hosts`` are Host headers (``*.example.com`` is all below it), ``allowed_origins`` Origin headers of web pages.
    """

    allowed_hosts: tuple[str, ...] = field(
        default=(),
        metadata=flag(
            "Additional Host header to accept: tools.example.com, *.example.com.",
            name="allow-host",
            env=("PATCHBAY_ALLOWED_HOSTS", "NEKO_TRUSTED_HOSTS"),
            metavar="NAME",
            **_LIST,
        ),
    )
    allowed_origins: tuple[str, ...] = field(
        default=(),
        metadata=flag(
            "Additional origin of web pages to accept: https://app.example.com.",
            name="allow-origin",
            env=("PATCHBAY_ALLOWED_ORIGINS", "NEKO_TRUSTED_ORIGINS"),
            metavar="ORIGIN",
            **_LIST,
        ),
    )

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen for others
        set_field(self, "allowed_hosts", tuple(_checked_host(host) for host in self.allowed_hosts if host != "*"))
        set_field(self, "allowed_origins", tuple(_checked_origin(origin) for origin in self.allowed_origins))


def _checked_origin(origin: str) -> str:
    text = origin.strip().rstrip("/").lower()
    if not _ORIGIN.fullmatch(text):
        raise ConfigurationError(
            f"{origin!r} is not an origin: use https://app.example.com, with a port if it has one, and no path."
        )
    return text


def _checked_host(host: str) -> str:
    host = host.strip().rstrip(".").lower()
    if not _HOST.fullmatch(host):
        raise ConfigurationError(f"Invalid host name {host!r}: use tools.example.com, or *.example.com for all below it.")
    return host


@dataclass(frozen=True, kw_only=True)
class TurnSettings:
    """How long ended turns are kept in the server's database, in seconds; None: in memory only, the last ones."""

    keep_turns: float | None = field(
        default=None,
        metadata=flag(
            "Keep ended turns for the console in the --store so long: 12h, 7d; at most 1 GiB. Default: the last 200, in memory.",
            metavar="DURATION",
            type=str,
            parse=parse_duration,
        ),
    )
    keep_content: bool = field(
        default=False,
        metadata=flag("With --keep-turns: keep messages, texts and arguments too, and not only who called what, and when."),
    )

    def check_store(self, store: str | None) -> None:
        """Raise ConfigurationError where turns cannot be kept in the database at ``store``."""
        if self.keep_turns is not None and not self.keep_turns > 0:
            raise ConfigurationError("keep_turns must be more than 0 seconds.")
        if self.keep_turns is not None and store is None:
            raise ConfigurationError("--keep-turns needs a database: --store sqlite:///turns.db")
        if self.keep_content and self.keep_turns is None:
            raise ConfigurationError("--keep-content needs --keep-turns 7d, or another duration.")


@dataclass(frozen=True)
class ProxySettings(AccessSettings, TurnSettings):
    """Settings of a proxy. Raises ConfigurationError for impossible ones.

    ``upstream`` is the base URL of an OpenAI-compatible API, such as ``http://127.0.0.1:11434/v1``. Sizes are bytes, times
    seconds. ``upstream_timeout`` limits the time without data from the upstream (0: no limit); after ``heartbeat`` an idle stream
    to the client gets a comment line.

    Responses of the Responses API are stored in the database at ``response_store`` (None: in the memory of each process, the last
    1,000) for ``response_days`` days.
    """

    upstream: str
    upstream_key: str | None = field(
        default=None,
        repr=False,
        metadata=flag(
            "API key for the upstream; by default each client's own key is forwarded. "
            "Prefer the environment variable: flags are visible in the process list.",
            env=("UPSTREAM_API_KEY", "PATCHBAY_UPSTREAM_KEY"),
            metavar="KEY",
            type=str,
        ),
    )
    upstream_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_key: str | None = field(
        default=None,
        repr=False,
        metadata=flag(
            "Bearer token that clients must send. Prefer the environment variable.",
            env=("PROXY_API_KEY", "PATCHBAY_API_KEY"),
            metavar="KEY",
            type=str,
        ),
    )
    base_path: str = field(default="/v1", metadata=flag("Path prefix of the API.", metavar="PATH"))
    cors: bool = field(default=False, metadata=flag("Allow web pages of any origin."))
    allow_unguarded: bool = field(
        default=False,
        metadata=flag(
            "Pass requests to models on that hooks do not see, such as POST /v1/embeddings, although a hook checks models."
        ),
    )
    max_body_size: int = field(
        default=10 * MIB,
        metadata=flag(
            "Maximum body of a chat request: 10MiB, 10mb, 1048576.", metavar="SIZE", type=str, default="10MiB", parse=parse_size
        ),
    )
    log_file: str | None = field(
        default=None,
        metadata=flag(
            "Append requests and responses to this file as JSON lines, without keys or headers.",
            env=("PROXY_LOG_FILE", "PATCHBAY_LOG_FILE"),
            metavar="FILE",
            type=str,
        ),
    )
    max_log_size: int = field(
        default=100 * MIB,
        metadata=flag(
            "Maximum total size of FILE and FILE.1; the older one is dropped.",
            metavar="SIZE",
            type=str,
            default="100MiB",
            parse=parse_size,
        ),
    )
    upstream_timeout: float = field(
        default=600.0,
        metadata=flag("Maximum time without data from the upstream; 0: no limit.", metavar="SECONDS", min=0),
    )
    connect_timeout: float = 10.0
    heartbeat: float = 15.0
    response_store: str | None = None
    response_days: float = field(
        default=30.0,
        metadata=flag("How long responses of the Responses API are stored; 0: for ever.", metavar="DAYS", min=0),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        set_field = object.__setattr__  # the dataclass is frozen for others
        set_field(self, "upstream", check_upstream(self.upstream))
        set_field(self, "base_path", normalise_base_path(self.base_path))
        for name in ("upstream_key", "api_key"):
            key = getattr(self, name)
            if key is not None:
                set_field(self, name, _check_key(key, name))
        for name, value in self.upstream_headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _printable(value):
                raise ConfigurationError(f"upstream header {name!r} is not a valid HTTP header.")
            if name.lower() in _FRAMING_HEADERS:
                raise ConfigurationError(f"upstream header {name!r} belongs to each request and cannot be given.")
        require_positive(self, "max_body_size", "connect_timeout", "heartbeat")
        if not self.upstream_timeout >= 0:
            raise ConfigurationError("upstream_timeout must be 0 (no limit) or more seconds.")
        self.check_store(self.response_store)
        if not self.response_days >= 0:
            raise ConfigurationError("response_days must be 0 (for ever) or more days.")
        if self.log_file is not None and not Path(self.log_file).name:
            raise ConfigurationError(f"log_file must be the path of a file, not {self.log_file!r}.")
        if self.log_file is not None and self.max_log_size < _MIN_LOG_BYTES:
            raise ConfigurationError(f"max_log_size must be at least {_MIN_LOG_BYTES} bytes.")


def check_upstream(url: str) -> str:
    """Return the base URL without trailing slashes. Raises ConfigurationError."""
    url = url.strip()
    shown = Redactor().text(url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError as error:
        raise ConfigurationError(f"the upstream {shown!r} is not a URL: {Redactor().text(str(error))}.") from None
    if parts.scheme not in ("http", "https"):
        raise ConfigurationError(f"the upstream {shown!r} must begin with http:// or https://.")
    if not host or port == 0 or any(char.isspace() or ord(char) < 32 for char in url):
        raise ConfigurationError(f"the upstream {shown!r} names no usable host.")
    if parts.username is not None or parts.password is not None:
        # Not echoed: it holds a password.
        raise ConfigurationError("the upstream must not hold a user or password: give its key as the upstream key.")
    if parts.query or parts.fragment:
        base = url.partition("?")[0].partition("#")[0]  # what follows may be a key
        raise ConfigurationError(f"the upstream {base!r} must be a base URL, without '?' or '#' and what follows.")
    if parts.path.rstrip("/").endswith("/chat/completions"):
        raise ConfigurationError(f"the upstream {url!r} must be the base URL: leave '/chat/completions' out.")
    return url.rstrip("/")


def normalise_base_path(path: str) -> str:
    """Return ``/v1`` for ``v1``, ``/v1`` and ``/v1/``; an empty string is the root."""
    segments = [segment for segment in path.strip().split("/") if segment]
    for segment in segments:
        if segment in (".", "..") or not re.fullmatch(r"[A-Za-z0-9._~-]+", segment):
            raise ConfigurationError(f"the base path {path!r} may hold only letters, digits, '-', '.', '_' and '~'.")
    return "".join("/" + segment for segment in segments)


def _check_key(key: str, name: str) -> str:
    key = key.strip()
    if not key:
        raise ConfigurationError(f"{name} is empty: leave it out, or give a key.")
    if not _printable(key) or " " in key:
        raise ConfigurationError(f"{name} holds characters that cannot travel in an HTTP header.")
    return key


def _printable(value: str) -> bool:
    return value.isascii() and value.isprintable()


def read_token(path: str | os.PathLike[str]) -> str:
    """Return the token in a file that only its owner can read (mode 0600 or less).

    Raises ConfigurationError for a missing file, and for one that others could have read or changed.
    """
    try:
        with Path(path).open(encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)  # of the open file, not of what the name means by then
            if mode & 0o077:
                raise ConfigurationError(f"others can get at the token file {path} (mode {mode:04o}): chmod 600 {path}")
            token = file.read(4096).strip()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise ConfigurationError(f"the token file {path} cannot be read: {reason}.") from None
    if not token:
        raise ConfigurationError(f"the token file {path} is empty.")
    protect(token)
    return token


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
class ToolsSettings(AccessSettings, TurnSettings):
    """Settings of a tool server. Raises ConfigurationError for impossible ones.

    Trusted callers send ``token``; without one every program on this machine is trusted. ``proxies`` are addresses of reverse
    proxies, whose requests must carry the token. ``callback_ports`` are the allowed ports of callbacks, None for any, and
    ``callback_hosts`` the names and networks that they may be at beside this machine. Sizes are bytes, times seconds;
    ``body_timeout`` is for a request's whole body.

    ``strict_arguments``: calls whose arguments do not match the tool's schema are rejected. ``needs_secret``: replacing or
    removing a tool takes its secret, or the token. ``lease`` is the interval of health checks of callbacks (0: none; hidden tools
    are shown again after 30 s); after ``max_failures`` failed connections in a row the tools of a plugin are dropped.
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
    proxies: tuple[str, ...] = field(
        default=(),
        metadata=flag(
            "Address of a reverse proxy, whose requests must carry the token.",
            name="proxy",
            env=("PATCHBAY_PROXIES",),
            metavar="ADDRESS",
            **_LIST,
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
    callback_hosts: tuple[str, ...] = field(
        default=(),
        metadata=flag(
            "Other machines that callbacks may be on, by name, address or network: tools.example.com, 10.0.0.0/8.",
            name="callback-hosts",
            env=("PATCHBAY_CALLBACK_HOSTS",),
            metavar="HOSTS",
            **_LIST,
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
        super().__post_init__()
        if self.token is not None and (len(self.token) < _MIN_TOKEN_CHARS or not self.token.isascii() or " " in self.token):
            raise ConfigurationError(f"the token must be at least {_MIN_TOKEN_CHARS} ASCII characters without blanks.")
        if self.proxies and self.token is None:
            raise ConfigurationError("--proxy also needs --token-file: requests through a proxy can come from any machine.")
        CallbackHosts(self.callback_hosts)
        require_positive(
            self, "max_body_size", "max_result_size", "body_timeout", "connect_timeout", "sync_timeout", "max_failures"
        )
        if not self.lease >= 0:
            raise ConfigurationError("lease must be 0 (never) or more seconds.")


@dataclass(frozen=True)
class ChatSettings:
    """Settings of chats with tools. Raises ConfigurationError for impossible ones.

    ``options`` is how tools reach the model, as in the proxy. A turn ends after ``max_iterations`` rounds, ``max_calls`` calls of
    the registry's tools or ``max_seconds`` (None: no limit). The first two apply to chat sessions as well.

    A call that gave the same result ``max_identical_calls`` times since the last message of the user, with nothing new between,
    is not run again (0: always run); after ``max_identical_client_calls`` one of a client's tool is not handed out any more (0:
    always).

    ``attachments`` are the kinds ("image", "audio", "file") that the upstream's models accept of what tools return.

    Between two requests of a conversation the server stores what its client does not see: at most ``max_kept`` turns,
    ``max_kept_size`` bytes, each for ``kept_for`` seconds after its last use.
    """

    options: TextOptions = field(default_factory=TextOptions)
    max_iterations: int = field(default=10, metadata=flag("Maximum model requests per turn.", metavar="N", min=1))
    max_identical_calls: int = field(
        default=2,
        metadata=flag(
            "Maximum runs of one call in a turn with the same result; further ones are answered with a note. 0: no limit.",
            metavar="N",
            min=0,
        ),
    )
    max_identical_client_calls: int = field(
        default=0,
        metadata=flag(
            "The same for calls of a client's own tools, which are answered in its place from then on. 0: never.",
            metavar="N",
            min=0,
        ),
    )
    max_calls: int | None = None
    max_seconds: float | None = None
    attachments: tuple[str, ...] = field(
        default=(),
        metadata=flag(
            "Send images that tools return to the models.",
            name="images",
            type=bool,
            default=False,
            parse=lambda images: ("image",) if images else (),
        ),
    )
    search_above: int = field(
        default=40,
        metadata=flag("Offer models a search instead of all tools where there are more than this; 0: never.", metavar="N", min=0),
    )
    pinned_tools: tuple[str, ...] = field(
        default=(),
        metadata=flag(
            "Tools that are offered beside that search, comma-separated: get_time,mcp__files__*.",
            metavar="NAMES",
            type=str,
            default=None,
            parse=listed,
        ),
    )
    web_search: str | None = field(
        default=None,
        metadata=flag(
            "Registered tool that searches where a client asks for its vendor's web search.",
            name="web-search",
            metavar="TOOL",
            type=str,
        ),
    )
    max_kept: int = 1000
    max_kept_size: int = 64 * MIB
    kept_for: float = 3600.0

    def __post_init__(self) -> None:
        from patchbay.tools.output import checked_kinds
        from patchbay.tools.tool import checked_count

        if checked_count(self.max_iterations, "max_iterations") is None:
            raise ConfigurationError("max_iterations must be a number: an unattended turn needs an end.")
        self.budget()
        checked_kinds(self.attachments)
        for name in ("max_identical_calls", "max_identical_client_calls", "max_kept", "max_kept_size", "kept_for"):
            if not getattr(self, name) >= 0:
                raise ConfigurationError(f"{name} must be 0 or more.")

    def tool_search(self) -> ToolSearch | None:
        """Return when models are offered a search instead of all tools."""
        from patchbay.tools.search import ToolSearch

        pinned = self.pinned_tools if self.web_search is None else (*self.pinned_tools, self.web_search)
        return ToolSearch(self.search_above, pinned=pinned) if self.search_above else None

    @property
    def hidden_turn_limits(self) -> dict[str, Any]:
        """The limits of what clients do not see, as a HiddenTurnStore takes them."""
        return {"most": self.max_kept, "most_bytes": self.max_kept_size, "seconds": self.kept_for}

    def budget(self) -> Budget:
        """Return the budget of one turn."""
        from patchbay.executor import Budget

        return Budget(max_calls=self.max_calls, max_seconds=self.max_seconds)
