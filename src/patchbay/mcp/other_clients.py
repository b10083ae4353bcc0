"""MCP servers in the configuration files of other clients: Claude Desktop, Claude Code, Codex, Cursor, VS Code."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from patchbay._config import read_config
from patchbay.errors import ConfigurationError
from patchbay.mcp.config import McpServer, parse_servers

_INPUT: Final = re.compile(r"\$\{input:([A-Za-z0-9_.\-]+)\}")
_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class ImportedServers:
    """The servers in a file, and notes about those that cannot be imported."""

    path: Path
    servers: tuple[McpServer, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForeignClient:
    """A client's configuration files, and the conversion of its entries to ours."""

    title: str
    files: Callable[[Path, Path], Iterator[Path]]
    entries: Callable[[Any, Path], Mapping[str, Any]]


def import_servers(
    client: str, *, path: Path | None = None, home: Path | None = None, folder: Path | None = None
) -> list[ImportedServers]:
    """Return the servers of a client of CLIENTS, by file: ``path``, or those of its usual places that exist.

    ``folder`` is the project whose own file is read too. An entry that cannot be used is a note. Raises ConfigurationError for a
    file that cannot be read.
    """
    known = CLIENTS[client]
    home, folder = home if home is not None else Path.home(), folder if folder is not None else Path.cwd()
    paths = [path] if path is not None else [each for each in known.files(home, folder) if each.is_file()]
    return [_found(known, each, folder) for each in paths]


def _found(client: ForeignClient, path: Path, folder: Path) -> ImportedServers:
    content = _read(path)
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"{path}: it must be an object.")
    servers: list[McpServer] = []
    notes: list[str] = []
    for name, entry in client.entries(content, folder).items():
        try:
            servers += parse_servers({name: _without_inputs(entry)})
        except ConfigurationError as error:
            notes.append(f"{name} is left out: {error}")
    return ImportedServers(path, tuple(servers), tuple(notes))


def _read(path: Path) -> Any:
    """Read JSON, also with comments and commas at the end, as editors write it, or TOML."""
    if path.suffix == ".toml":
        return read_config(path)
    try:
        return json.loads(_without_comments(path.read_text("utf-8-sig")) or "{}")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: this is not JSON: {error}.") from None


_JSONC: Final = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|,(?=\s*(?://[^\n]*\s*|/\*.*?\*/\s*)*[}\]])', re.DOTALL)


def _without_comments(text: str) -> str:
    return _JSONC.sub(lambda found: found[0] if found[0].startswith('"') else "", text).strip()


def _without_inputs(value: Any) -> Any:
    """Return an entry with VS Code's inputs, which it asks its user for, as environment variables."""
    if isinstance(value, str):
        return _INPUT.sub(lambda found: "${" + _NOT_NAME.sub("_", found[1]).upper() + "}", value)
    if isinstance(value, Mapping):
        return {key: _without_inputs(item) for key, item in value.items()}
    return [_without_inputs(item) for item in value] if isinstance(value, list) else value


def _mcp_servers(content: Any, _folder: Path) -> Mapping[str, Any]:
    return _mapping(content.get("mcpServers"))


def _claude_code(content: Any, folder: Path) -> Mapping[str, Any]:
    """The user's servers, and those of this project, which win."""
    project = _mapping(_mapping(content.get("projects")).get(str(folder)))
    return {**_mapping(content.get("mcpServers")), **_mapping(project.get("mcpServers"))}


def _vs_code(content: Any, _folder: Path) -> Mapping[str, Any]:
    """``servers`` of an mcp.json, or ``mcp.servers`` of the settings."""
    inner = content.get("mcp", content)
    return _mapping(_mapping(inner).get("servers"))


def _codex(content: Any, _folder: Path) -> Mapping[str, Any]:
    return {name: _from_codex(_mapping(entry)) for name, entry in _mapping(content.get("mcp_servers")).items()}


def _from_codex(entry: Mapping[str, Any]) -> dict[str, Any]:
    headers = dict(_mapping(entry.get("http_headers")))
    headers |= {name: f"${{{variable}}}" for name, variable in _mapping(entry.get("env_http_headers")).items()}
    if token := entry.get("bearer_token_env_var"):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    passed = {name: f"${{{name}:-}}" for name in entry.get("env_vars") or () if isinstance(name, str)}
    ours = {
        **{key: entry[key] for key in ("command", "args", "cwd", "url") if key in entry},
        "env": {**passed, **_mapping(entry.get("env"))},
        "headers": headers,
        "toolFilter": {"allow": entry.get("enabled_tools"), "deny": entry.get("disabled_tools")},
        "disabled": entry.get("enabled") is False,
        "timeout": _milliseconds(entry.get("tool_timeout_sec")),
        "startTimeout": _milliseconds(entry.get("startup_timeout_sec")),
    }
    return {key: value for key, value in ours.items() if value is not None}


def _milliseconds(seconds: Any) -> Any:
    return seconds * 1000 if isinstance(seconds, int | float) and not isinstance(seconds, bool) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _application_folder(home: Path) -> Path:
    """Return the folder of desktop applications' settings."""
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    return Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming") if sys.platform == "win32" else home / ".config"


CLIENTS: Final[Mapping[str, ForeignClient]] = {
    "claude-desktop": ForeignClient(
        "Claude Desktop",
        lambda home, _: iter([_application_folder(home) / "Claude" / "claude_desktop_config.json"]),
        _mcp_servers,
    ),
    "claude-code": ForeignClient(
        "Claude Code", lambda home, folder: iter([home / ".claude.json", folder / ".mcp.json"]), _claude_code
    ),
    "codex": ForeignClient(
        "Codex", lambda home, folder: iter([home / ".codex" / "config.toml", folder / ".codex" / "config.toml"]), _codex
    ),
    "cursor": ForeignClient(
        "Cursor", lambda home, folder: iter([home / ".cursor" / "mcp.json", folder / ".cursor" / "mcp.json"]), _mcp_servers
    ),
    "vscode": ForeignClient(
        "VS Code",
        lambda home, folder: iter([_application_folder(home) / "Code" / "User" / "mcp.json", folder / ".vscode" / "mcp.json"]),
        _vs_code,
    ),
}
"""The clients by their names on the command line."""
