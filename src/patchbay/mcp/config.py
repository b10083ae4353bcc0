"""MCP servers as settings: the ``mcpServers`` of a configuration file, in the format that other clients use."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from patchbay._config import Table, read_config, wrong
from patchbay._redaction import Redactor, secret_values, values_of_environment
from patchbay._subprocess import inherited
from patchbay.errors import ConfigurationError
from patchbay.mcp.files import write_private
from patchbay.tools.tool import checked_timeout

SERVERS: Final = "mcpServers"
"""The key of a configuration file."""

_FOREIGN_KEYS: Final = {"servers": "vscode", "mcp_servers": "codex"}
"""The keys of clients with another format, by which a file would have no servers."""

Transport = Literal["stdio", "http", "sse"]

_TRANSPORTS: Final[Mapping[str, Transport]] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
    "sse": "sse",
}
_MAX_NAME: Final = 64
_MAX_TOOL_NAME: Final = 64
"""Maximum length of a tool's name for all providers."""
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*")
_HASH_CHARS: Final = 8
_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """An MCP server: a ``command`` that speaks over its standard streams, or a ``url``. Raises ConfigurationError.

    ``${NAME}`` and ``${NAME:-default}`` in texts of the command, the URL and the login are environment variables; they are read
    when the server is connected.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)  # they may hold secrets, as do the next ones
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for the command. It also gets a few of ours, such as PATH and HOME, and no others."""
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_id: str = ""
    """For a login (OAuth) where the server does not register clients; an https URL is that of a client metadata document."""
    client_secret: str = field(default="", repr=False)
    transport: Transport | None = None
    allow: tuple[str, ...] | None = None
    """Patterns (``read_*``) of its tools' own names; None: all."""
    deny: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    """The roles that get its tools; empty: all roles."""
    prefix: str | None = None
    """Replaces ``mcp__NAME__`` before the names of its tools."""
    timeout: float = 60.0
    """The limit of a call, in seconds."""
    start_timeout: float = 30.0
    """Seconds from the start to the list of tools."""
    idle_timeout: float = 0.0
    """Seconds without a call after which the connection is closed until the next one; 0: never."""
    resources: bool = False
    """Whether to offer a tool that reads its resources."""
    prompts: bool = False
    """Whether to offer a tool that reads its prompts."""
    disabled: bool = False

    def __post_init__(self) -> None:
        name = self.name
        if not isinstance(name, str) or not name.strip() or len(name) > _MAX_NAME or not name.isprintable():
            raise ConfigurationError(f"the name of an MCP server must be 1 to {_MAX_NAME} printable characters, not {name!r}.")
        if bool(self.command) == bool(self.url):
            raise ConfigurationError(f"the MCP server {name!r} needs either a command or a url.")
        if self.url and "${" not in self.url and not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"the url of the MCP server {name!r} must begin with http:// or https://.")
        transport = self.transport or ("http" if self.url else "stdio")
        if (transport == "stdio") == bool(self.url):
            raise ConfigurationError(f"the MCP server {name!r} has the type {transport!r}, which does not go with its address.")
        object.__setattr__(self, "transport", transport)
        for limit in ("timeout", "start_timeout"):
            checked_timeout(getattr(self, limit), f"{limit} of the MCP server {name!r}")
        if self.idle_timeout:
            checked_timeout(self.idle_timeout, f"idle_timeout of the MCP server {name!r}")

    @property
    def source(self) -> str:
        """The source of its tools in the registry."""
        return f"mcp:{self.name}"

    @property
    def address(self) -> str:
        """Its command or URL without arguments, which may hold secrets; as configured, with the names of variables."""
        if self.command:
            return self.command
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()

    @property
    def secrets(self) -> list[str]:
        """The secrets in ``env`` and ``headers``, by their names, and that of its login."""
        return [*secret_values(self.env), *secret_values(self.headers), self.client_secret]

    @property
    def redact(self) -> Redactor:
        """Replaces its secrets and other values of ``env`` in what it says."""
        return Redactor([*self.secrets, *values_of_environment(self.env)])

    def tool_name(self, tool: str) -> str:
        """Return a tool's name in the registry: ``mcp__SERVER__TOOL``, or with the server's own prefix.

        Two tools never get the same name: where a name has other characters than letters, digits, ``_`` and ``-``, is too long,
        or could be read in two ways, those are replaced, and a digest of both names ends it.
        """
        is_plain = self.prefix is not None or _PLAIN_NAME.fullmatch(self.name) is not None
        prefix = self.prefix if self.prefix is not None else f"mcp__{self.name}__"
        name = f"{prefix}{tool}"
        if is_plain and len(name) <= _MAX_TOOL_NAME and _TOOL_NAME.fullmatch(name):
            return name
        digest = hashlib.sha256(json.dumps([self.name, prefix, tool]).encode()).hexdigest()[:_HASH_CHARS]
        cleaned = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: _MAX_TOOL_NAME - _HASH_CHARS - 1]
        return f"{cleaned}_{digest}"

    def offers(self, tool: str) -> bool:
        """Whether its tool of this name passes the filters."""
        if self.allow is not None and not any(fnmatchcase(tool, pattern) for pattern in self.allow):
            return False
        return not any(fnmatchcase(tool, pattern) for pattern in self.deny)

    def expanded(self, environ: Mapping[str, str] | None = None) -> Self:
        """Return it with its variables replaced by their values. Raises ConfigurationError for one that is not set."""
        variables = os.environ if environ is None else environ

        def value_of(found: re.Match[str]) -> str:
            value = variables.get(found[1]) or found[2]
            if value is None:
                raise ConfigurationError(f"the MCP server {self.name!r} needs the environment variable {found[1]}: set it.")
            return value

        def expand(text: str) -> str:
            return _VARIABLE.sub(value_of, text)

        return replace(
            self,
            command=os.path.expanduser(expand(self.command)),  # noqa: PTH111  (a bare name stays one)
            args=tuple(map(expand, self.args)),
            env={name: expand(value) for name, value in self.env.items()},
            cwd=os.path.expanduser(expand(self.cwd)) if self.cwd else None,  # noqa: PTH111
            url=expand(self.url),
            headers={name: expand(value) for name, value in self.headers.items()},
            client_id=expand(self.client_id),
            client_secret=expand(self.client_secret),
        )

    def environment(self) -> dict[str, str]:
        """Return the environment of its process: ``env``, and the variables of ours that hold no secrets."""
        return {**inherited(), **self.env}

    def to_json(self) -> dict[str, Any]:
        """Return its entry in ``mcpServers``, without what has its default."""
        entry: dict[str, Any] = {} if self.transport == "stdio" else {"type": self.transport}
        for path, name, kind in _KEYS:
            if (value := getattr(self, name)) not in (_DEFAULTS[name], []):
                outer, _, key = path.rpartition(".")
                (entry.setdefault(outer, {}) if outer else entry)[key] = kind.write(value)
        return entry


@dataclass(frozen=True)
class _FieldFormat:
    """How a field is read from JSON and written. A None that is read keeps the default."""

    read: Callable[[Table, str], Any]
    write: Callable[[Any], Any] = lambda value: value


_TEXT: Final = _FieldFormat(Table.text)
_TEXTS: Final = _FieldFormat(Table.texts, list)
_PAIRS: Final = _FieldFormat(Table.pairs, dict)
_FLAG: Final = _FieldFormat(lambda table, key: table.flag(key, default=False))
_MILLISECONDS: Final = _FieldFormat(lambda table, key: table.seconds(key, 0.0) or None, lambda seconds: round(seconds * 1000))

_KEYS: Final = (
    ("command", "command", _TEXT),
    ("args", "args", _TEXTS),
    ("env", "env", _PAIRS),
    ("cwd", "cwd", _FieldFormat(lambda table, key: table.text(key) or None)),
    ("url", "url", _TEXT),
    ("headers", "headers", _PAIRS),
    ("oauth.clientId", "client_id", _TEXT),
    ("oauth.clientSecret", "client_secret", _TEXT),
    ("toolFilter.allow", "allow", _TEXTS),
    ("toolFilter.deny", "deny", _TEXTS),
    ("roles", "roles", _TEXTS),
    ("prefix", "prefix", _TEXT),
    ("timeout", "timeout", _MILLISECONDS),
    ("startTimeout", "start_timeout", _MILLISECONDS),
    ("idleTimeout", "idle_timeout", _MILLISECONDS),
    ("resources", "resources", _FLAG),
    ("prompts", "prompts", _FLAG),
    ("disabled", "disabled", _FLAG),
)
"""The keys of an entry, with the fields of McpServer that they set; "type" is the transport."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    each.name: {} if each.default_factory is dict else each.default for each in fields(McpServer)
}


def parse_servers(value: Any, path: str = SERVERS) -> tuple[McpServer, ...]:
    """Return the servers of ``mcpServers`` as JSON data. Unknown keys, which other clients may have, are ignored.

    Raises ConfigurationError.
    """
    return tuple(_parse(name, Table(entry, f"{path}.{name}")) for name, entry in Table(value, path).values.items())


def read_servers(file: str | Path) -> tuple[McpServer, ...]:
    """Return the servers in a JSON, YAML or TOML file; none without ``mcpServers``. Raises ConfigurationError."""
    return _read_servers(file)[1]


def _read_servers(file: str | Path) -> tuple[Mapping[str, Any], tuple[McpServer, ...]]:
    """Return a file's content and its servers. Raises ConfigurationError."""
    found = read_config(file)
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"{file}: {wrong('', 'an object', found)}")
    for key, client in _FOREIGN_KEYS.items():
        if SERVERS not in found and isinstance(found.get(key), Mapping):
            way = f"patchbay mcp import {client} --from {shlex.quote(str(file))}"
            raise ConfigurationError(f"{file}: it has {key!r}, and {SERVERS!r} is expected: rename it, or {way}")
    try:
        return found, parse_servers(found.get(SERVERS))
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from None


def as_servers(given: Any) -> tuple[McpServer, ...]:
    """Return servers given as a list of McpServer, a file's path, or the mapping of ``mcpServers``. Raises ConfigurationError."""
    if isinstance(given, McpServer):
        return (given,)
    if isinstance(given, str | Path):
        return read_servers(given)
    if isinstance(given, Mapping):
        return parse_servers(given.get(SERVERS, given))
    servers = tuple(given)
    for each in servers:
        if not isinstance(each, McpServer):
            raise ConfigurationError(f"an MCP server must be an McpServer, not {type(each).__name__}.")
    return unique(servers)


def unique(servers: Iterable[McpServer]) -> tuple[McpServer, ...]:
    """Return servers as they are. Raises ConfigurationError for two of one name."""
    found: dict[str, McpServer] = {}
    for each in servers:
        if found.setdefault(each.name, each) is not each:
            raise ConfigurationError(f"there are two MCP servers of the name {each.name!r}: rename one of them.")
    return tuple(found.values())


def checked(servers: Iterable[McpServer]) -> tuple[McpServer, ...]:
    """Return the servers that are not disabled. Raises ConfigurationError for two of one name, and for a missing variable."""
    found = tuple(each for each in unique(servers) if not each.disabled)
    for each in found:
        each.expanded()
    return found


def _parse(name: str, entry: Table) -> McpServer:
    given = entry.text("type")
    if given and given not in _TRANSPORTS:
        raise wrong(entry.at("type"), f"one of {', '.join(_TRANSPORTS)}", given)
    values: dict[str, Any] = {}
    for path, field_name, kind in _KEYS:
        outer, _, key = path.rpartition(".")
        table = entry.table(outer) if outer else entry
        if table.get(key) is not None and (value := kind.read(table, key)) is not None:
            values[field_name] = value
    try:
        return McpServer(name=name, transport=_TRANSPORTS.get(given), **values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{entry.path}: {error}") from None


class ServersFile:
    """A JSON file of servers that commands change; its other keys stay as they are. Raises ConfigurationError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content, servers = _read_servers(path) if path.exists() else ({}, ())
        self._content: dict[str, Any] = dict(content)
        self._entries: dict[str, Any] = dict(content.get(SERVERS) or {})
        self.servers: Mapping[str, McpServer] = {each.name: each for each in servers}

    def __iter__(self) -> Iterator[McpServer]:
        return iter(self.servers.values())

    def put(self, server: McpServer) -> None:
        """Add a server, or replace one of its name."""
        self._entries[server.name] = server.to_json()
        self._write()

    def get(self, name: str) -> McpServer:
        """Return a server. Raises ConfigurationError for an unknown name."""
        if name not in self.servers:
            known = ", ".join(self.servers) or "none"
            raise ConfigurationError(f"there is no MCP server {name!r} in {self.path}; there are: {known}.")
        return self.servers[name]

    def remove(self, name: str) -> None:
        """Remove a server. Raises ConfigurationError for an unknown name."""
        self.get(name)
        del self._entries[name]
        self._write()

    def _write(self) -> None:
        if self.path.suffix.lower() != ".json":
            raise ConfigurationError(f"{self.path}: only JSON files are written; edit this one by hand.")
        self._content[SERVERS] = self._entries
        write_private(self.path, json.dumps(self._content, indent=2, ensure_ascii=False).encode() + b"\n")
        self.servers = {each.name: each for each in parse_servers(self._entries)}


def default_file() -> Path:
    """Return the file of servers that ``patchbay mcp add`` writes: ``mcp.json`` in the user's configuration folder."""
    root = os.environ.get("XDG_CONFIG_HOME")
    return (Path(root) if root else Path.home() / ".config") / "patchbay" / "mcp.json"
