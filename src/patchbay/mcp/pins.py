"""Accepted definitions of tools: one that a server changes afterwards is not used before a person accepts it."""

from __future__ import annotations

import hashlib
import json
import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from patchbay._config import read_config
from patchbay.errors import ConfigurationError
from patchbay.mcp.config import McpServer, default_file
from patchbay.mcp.files import write_private

ACCEPTED: Final = "accepted"
CHANGED: Final = "changed"

_logger = logging.getLogger(__name__)


class Pins:
    """The definitions in a file, by server and tool. Several processes may use it; the last writer wins per file.

    A server's first definition of a tool is accepted, since the operator has added the server. Where the file cannot be read or
    written, definitions are pinned for the life of this object, and that is logged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path if path is not None else default_file().with_name("mcp-accepted.json")
        self._content: dict[str, dict[str, dict[str, Any]]] = {}
        self._stamp: tuple[int, int] | None = None
        self._problem = ""
        self.reload()

    def reload(self) -> bool:
        """Read the file again if it has changed; return whether it has."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            content = read_config(self.path)
            if not isinstance(content, dict) or not all(isinstance(each, dict) for each in content.values()):
                raise ConfigurationError(f"{self.path}: it has another form than this program writes: move it away.")  # noqa: TRY301
        except ConfigurationError as error:
            self._report(str(error))
            return False
        self._content = content
        return True

    def check(self, server: McpServer, definitions: Mapping[str, Mapping[str, Any]]) -> set[str]:
        """Pin the definitions of a server's new tools; return the names of those that have changed and are not accepted."""
        self.reload()
        entry = self._content.setdefault(_key(server), {ACCEPTED: {}, CHANGED: {}})
        before = json.dumps(entry, sort_keys=True)
        accepted = entry.setdefault(ACCEPTED, {})
        for name, definition in definitions.items():
            accepted.setdefault(name, definition)
        entry[CHANGED] = {name: new for name, new in definitions.items() if digest(accepted[name]) != digest(new)}
        if json.dumps(entry, sort_keys=True) != before:
            self._write()
        return set(entry[CHANGED])

    def changed(self, server: McpServer) -> dict[str, tuple[Any, Any]]:
        """Return the accepted and the new definition of each tool that waits to be accepted."""
        entry = self._content.get(_key(server), {})
        return {name: (entry.get(ACCEPTED, {}).get(name), new) for name, new in entry.get(CHANGED, {}).items()}

    def accept(self, server: McpServer, shown: str) -> None:
        """Accept all changed definitions, whose ``digest(changed(server))`` a person was shown.

        Raises ConfigurationError where they are others now, or the file cannot be written.
        """
        self.reload()
        if digest(self.changed(server)) != shown:
            raise ConfigurationError(
                f"The definitions of {server.name} are not those of this digest: they have changed since, or are accepted. "
                f"Look at them again: patchbay mcp accept {shlex.quote(server.name)} --show"
            )
        entry = self._content[_key(server)]
        entry[ACCEPTED] |= entry[CHANGED]
        entry[CHANGED] = {}
        self._write(must=True)

    def forget(self, server: McpServer) -> None:
        """Remove a server's definitions."""
        if self._content.pop(_key(server), None) is not None:
            self._write()

    def _write(self, *, must: bool = False) -> None:
        try:
            write_private(self.path, json.dumps(self._content, indent=1, sort_keys=True, ensure_ascii=False).encode())
            found = self.path.stat()
            self._stamp = (found.st_mtime_ns, found.st_ino)
        except (ConfigurationError, OSError) as error:
            if must:
                raise
            self._report(f"accepted definitions are not stored: {error}")

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _logger.warning("%s", problem)


def digest(value: Any) -> str:
    """Return a digest of JSON data, in which 1, 1.0 and true differ."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _key(server: McpServer) -> str:
    """Return a name that changes when the server becomes another one."""
    address = json.dumps([server.command, list(server.args), server.cwd, server.url])
    return f"{server.name}@{hashlib.sha256(address.encode()).hexdigest()[:12]}"
