"""Plugins of ``patchbay serve --plugins``: a plugin host in the server's process."""

from __future__ import annotations

import json
import logging
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from pydantic import ValidationError

from patchbay.cli.plugins import resolve_plugins
from patchbay.cli.terminal import plain
from patchbay.errors import ConfigurationError, UnknownRoleError
from patchbay.plugins.host.control import make_host, serve_host
from patchbay.plugins.host.host import PluginHost
from patchbay.plugins.host.process import LogLine
from patchbay.plugins.host.server_api import Accepted, Listing, Refused, ServerUnavailableError, WantedTool
from patchbay.server.errors import RegistrationConflictError
from patchbay.server.registry_models import ClearBody, RegisterBody, UnregisterBody
from patchbay.server.registry_service import RegistryService
from patchbay.server.runtime import listen_on

_logger = logging.getLogger(__name__)


class LocalToolsApi:
    """The registry of this process, for a plugin host. Registers tools with ``secret``, which signs their calls.

    They are this server's alone, and not stored: other servers with the store have plugins of their own.
    """

    def __init__(self, service: RegistryService, secret: str) -> None:
        self._service = service
        self._secret = secret
        self._etag = ""

    async def listing(self) -> Listing | None:
        """Return all tools; None where nothing has changed since the last listing."""
        etag = self._service.etag(None, trusted=True)
        if etag == self._etag:
            return None
        self._etag = etag
        return Listing(json.loads(self._service.listing(None, trusted=True))["tools_by_role"], self._service.instance_id)

    async def register(self, tool: WantedTool) -> Accepted | Refused:
        """Register a tool, in place of one of its name and source."""
        names = ("name", "description", "parameters", "callback_url", "role", "source", "timeout_seconds", "annotations")
        try:
            body = RegisterBody(secret=self._secret, **{name: getattr(tool, name) for name in names})
            with _retried():
                answer = await self._service.register(body, trusted=True, is_local=True)
        except (ValidationError, ConfigurationError, UnknownRoleError) as error:
            return Refused(str(error))
        if answer["ok"]:
            return Accepted(signed=True, roles=tuple(answer["affected_roles"]))
        problems = (f"{each['role']}: {each['error']}" for each in answer["failed_roles"])
        return Refused("; ".join(problems) or answer.get("error", ""))

    async def unregister(self, name: str, *, role: str | None, source: str) -> None:
        """Remove a tool of this source."""
        body = UnregisterBody(name=name, role=role, expected_source=source, secret=self._secret)
        with _retried():
            await self._service.unregister(body, trusted=True)

    async def clear(self, source: str) -> None:
        """Remove all tools of a source."""
        with _retried():
            await self._service.clear(ClearBody(source=source, role=None, secret=self._secret), trusted=True)

    async def aclose(self) -> None:
        """Keep the registry, which the server closes."""


@contextmanager
def _retried() -> Iterator[None]:
    """Turn a conflict with another server into an error after which the host tries again."""
    try:
        yield
    except RegistrationConflictError as error:
        raise ServerUnavailableError(str(error)) from None


class ServedPlugins:
    """The plugins of ``target`` (a folder, or module:Class), whose calls come to ``port``. Raises ConfigurationError."""

    def __init__(self, target: str, port: int) -> None:
        self._specs, self._folder = resolve_plugins(target)
        self._listener: socket.socket = listen_on("127.0.0.1", port)
        self._host: PluginHost | None = None

    @property
    def names(self) -> str:
        """The ids of the plugins."""
        return ", ".join(spec.id for spec in self._specs) or "none"

    @property
    def port(self) -> int:
        """The port of their host."""
        return int(self._listener.getsockname()[1])

    def restarts(self) -> list[tuple[str, int]]:
        """Return the plugins, with how often each was started again after it ended by itself."""
        return [(name, each.restarts) for name, each in self._host.plugins.items()] if self._host is not None else []

    def close(self) -> None:
        """Stop listening, also where the server could not start."""
        self._listener.close()

    @asynccontextmanager
    async def run(self, service: RegistryService) -> AsyncIterator[None]:
        """Run the plugins during the block; then remove their tools, wait for running calls, and end their processes."""
        secret = secrets.token_hex(32)
        host = make_host(
            self._specs,
            self._listener,
            api=LocalToolsApi(service, secret),
            secret=secret,
            plugins=self._folder,
            registered=_log_registered,
        )
        host.book.subscribe(_log_line)
        self._host = host
        async with serve_host(host, self._listener, stop=partial(signal.raise_signal, signal.SIGTERM)):
            yield
            await host.aclose()


def _log_line(line: LogLine) -> None:
    """Log a plugin's line, as a warning from that level on: lines below ERROR are rate-limited."""
    level = logging.WARNING if line.level >= logging.WARNING else logging.INFO
    _logger.log(level, "[%s] %s", line.plugin, plain(line.text))


def _log_registered(plugin_id: str, names: Sequence[str], roles: Sequence[str]) -> None:
    _logger.info("%s: %s registered%s", plugin_id, ", ".join(names), f" for {', '.join(roles)}" if roles else "")
