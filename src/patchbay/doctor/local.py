"""Checks of this machine's configuration: hooks, plugins, MCP servers, the store, Python and packages."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import re
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from patchbay._text import plural
from patchbay.approvals.policy import parse_policy
from patchbay.constraints.schemas import compile_schema
from patchbay.database import reason_of
from patchbay.doctor.findings import Finding
from patchbay.errors import ConfigurationError
from patchbay.hooks.config import HooksConfig, read_server_config
from patchbay.hooks.process.doctor import examine as examine_hook
from patchbay.mcp.host import try_server
from patchbay.plugins.errors import PluginError
from patchbay.plugins.host.host import PluginHost, PluginStatus
from patchbay.plugins.host.server_api import Accepted, Listing, WantedTool
from patchbay.plugins.manifest import PluginSpec, find_plugins, spec_of
from patchbay.registrations import RegistrationStore

if TYPE_CHECKING:
    from patchbay.mcp.config import McpServer

_PACKAGE: Final = "patchbay-tools"
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[\w,]*\])?>=([\d.]+)(?:;.*extra==['\"](\w+))?")
_SECONDS: Final = 60.0
"""For all plugins to start."""
_SETTLED: Final = frozenset({"running", "frozen", "failed", "backoff", "stopped"})


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """What to check: a server's configuration file, its MCP servers, its plugins (a folder or MODULE:CLASS), its database.

    ``servers`` reads the MCP servers, and may raise ConfigurationError.
    """

    config: Path | None = None
    servers: Callable[[], Sequence[McpServer]] = tuple
    plugins: str | None = None
    store: str | None = None


async def check_local(
    settings: LocalSettings, *, begins: Callable[[str], object] = lambda _name: None
) -> AsyncGenerator[Finding, None]:
    """Check what ``settings`` have, and yield each finding as it comes; ``begins`` gets the name of each check.

    Hooks, plugins and MCP servers are started, and ended again. Plugins' tools are registered nowhere.
    """
    schemas: list[tuple[str, Any]] = []
    yield _check_python()
    yield _check_packages()
    if settings.config is not None:
        begins("config")
        finding, config = _read_config(settings.config)
        yield finding
        for spec in config.processes if config is not None and config.enabled else ():
            begins(f"hook:{spec.name}")
            verdicts = await examine_hook(spec.spec, modes=spec.spec.modes)
            bad = next((each for each in verdicts if each.outcome == "failure"), None)
            bad = bad or next((each for each in verdicts if each.outcome == "warning"), None)
            if bad is None:
                yield Finding(f"hook:{spec.name}", "ok", f"It starts and answers: {plural(len(verdicts), 'check')} passed.")
            else:
                seen = f"{bad.check}: {bad.words}"
                yield Finding(f"hook:{spec.name}", "problem" if bad.outcome == "failure" else "note", seen, bad.way_out)
    if settings.plugins is not None:
        begins("plugins")
        for finding in await _check_plugins(settings.plugins, schemas):
            yield finding
    begins("mcp")
    try:
        servers = settings.servers()
    except ConfigurationError as error:
        yield Finding("mcp", "problem", str(error), "Correct the file: patchbay mcp list reads it.")
    else:
        for server in servers:
            begins(f"mcp:{server.name}")
            yield await _check_mcp_server(server, schemas)
    if settings.store is not None:
        begins("store")
        yield await _check_store(settings.store)
    if schemas:
        yield _check_schemas(schemas)


def _check_python() -> Finding:
    version = importlib.metadata.version(_PACKAGE)
    return Finding("python", "ok", f"Patchbay {version} on Python {platform.python_version()}, {platform.platform(terse=True)}.")


def _check_packages() -> Finding:
    """Compare the installed packages with the versions that this one requires."""
    missing, extras = [], []
    for requirement in importlib.metadata.requires(_PACKAGE) or ():
        if (found := _REQUIREMENT.match(requirement.replace(" ", ""))) is None:
            continue
        name, least, extra = found.groups()
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        is_right = bool(version) and _numbers(version) >= _numbers(least)
        if extra is None and not is_right and not (name == "uvloop" and os.name == "nt"):
            missing.append(f"{name} {version or 'is missing'} (at least {least})")
        elif extra is not None and version:
            extras.append(f"{name} {version}" + ("" if is_right else f" (too old: at least {least})"))
    optional = f"optional: {', '.join(extras)}" if extras else "none of the optional ones"
    if missing:
        return Finding("packages", "problem", f"Wrong packages: {', '.join(missing)}.", f"pip install --upgrade {_PACKAGE}")
    is_old = any("too old" in each for each in extras)
    return Finding("packages", "note" if is_old else "ok", f"The required packages are installed; {optional}.")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version)[:3])


def _read_config(path: Path) -> tuple[Finding, HooksConfig | None]:
    try:
        config, policy = read_server_config(path)
        rules = parse_policy(policy).rules
    except ConfigurationError as error:
        return Finding("config", "problem", str(error), f"Correct {path}: a server does not start with it."), None
    hooks = f"{plural(len(config.processes), 'process hook')} and {plural(len(config.builtins), 'built-in one')}"
    seen = f"{path} has {hooks}, and {plural(len(rules), 'approval rule')}."
    if not config.enabled:
        return Finding("config", "note", f"{seen} hooks.enabled is false.", "Set it to true, or no hook runs."), config
    if config.notes:
        return Finding("config", "note", f"{seen} {'; '.join(config.notes)}", "Correct the names of keys."), config
    return Finding("config", "ok", seen), config


class _NoServer:
    """Accepts the tools of plugins, and keeps their schemas."""

    def __init__(self, schemas: list[tuple[str, Any]]) -> None:
        self._schemas = schemas

    async def listing(self) -> Listing | None:
        """Return an empty list first, as a new server does."""
        return Listing({})

    async def register(self, tool: WantedTool) -> Accepted:
        """Accept any tool."""
        self._schemas.append((tool.name, tool.parameters))
        return Accepted()

    async def unregister(self, name: str, *, role: str | None, source: str) -> None:
        """Forget nothing."""

    async def clear(self, source: str) -> None:
        """Forget nothing."""

    async def aclose(self) -> None:
        """Close nothing."""


def _find_plugins(target: str) -> tuple[tuple[PluginSpec, ...], list[Finding]]:
    """Read the manifests of a folder, or make the one of ``module:Class``."""
    folder = Path(target).expanduser()
    if not folder.exists() and ":" in target:
        try:
            return (spec_of(target, beside=Path.cwd()),), []
        except ConfigurationError as error:
            return (), [Finding("plugins", "problem", str(error), "Name it as patchbay plugins run does.")]
    found = find_plugins(folder)
    problems = [Finding("plugins", "problem", problem, "Correct its plugin.toml.") for problem in found.problems]
    if not found.specs and not problems:
        problems.append(Finding("plugins", "problem", f"There are no plugins in {target}.", "Name another --plugins."))
    return found.specs, problems


async def _check_plugins(target: str, schemas: list[tuple[str, Any]]) -> list[Finding]:
    """Start the plugins of a folder or a class, and end them again."""
    specs, findings = _find_plugins(target)
    with tempfile.TemporaryDirectory(prefix="patchbay-") as sockets:
        host = PluginHost(specs, api=_NoServer(schemas), callback="http://127.0.0.1", folder=Path(sockets))
        try:
            async with asyncio.timeout(_SECONDS):
                await host.start()
                await host.until(lambda: all(each.state in _SETTLED for each in host.status()))
                for each in host.status():
                    if each.state == "running":
                        await host.change_config(each.id)  # the answer to it comes after the plugin's tools
                await host.until(lambda: all(tool.state != "pending" for each in host.status() for tool in each.tools))
        except (TimeoutError, PluginError):
            pass  # the state says it
        findings += map(_plugin_finding, host.status())
        await host.aclose()
    return findings


def _plugin_finding(status: PluginStatus) -> Finding:
    name = f"plugin:{status.id}"
    if status.state == "running":
        return Finding(name, "ok", f"It starts, and offers {', '.join(each.name for each in status.tools) or 'no tool'}.")
    if status.state == "stopped":
        return Finding(name, "skipped", "It is not started automatically (auto_start).")
    advice = "Run patchbay plugins run with it: its output says more."
    return Finding(name, "problem", f"It does not start: {status.reason or status.state}.", advice)


async def _check_mcp_server(server: McpServer, schemas: list[tuple[str, Any]]) -> Finding:
    name = f"mcp:{server.name}"
    if server.disabled:
        return Finding(name, "skipped", "It is disabled.")
    try:
        status, tools = await try_server(server)
    except ConfigurationError as error:
        return Finding(name, "problem", str(error), "Correct it, or pip install 'patchbay-tools[mcp]'.")
    if status.state != "ready":
        return Finding(name, "problem", f"It cannot be connected: {status.problem}.", f"Try patchbay mcp test {server.name}.")
    schemas += [(each.name, each.parameters) for each in tools]
    return Finding(name, "ok", f"It connects, and lists {plural(len(tools), 'tool')}.")


async def _check_store(url: str) -> Finding:
    """Open the database of a server and write nothing into it, in a transaction."""
    try:
        store = RegistrationStore(url)
        file = store.database.file
        if file is not None and not file.exists():
            if not os.access(file.absolute().parent, os.W_OK):
                return Finding("store", "problem", f"{file} cannot be created.", "Use a folder that this user may write to.")
            return Finding("store", "ok", f"{file} does not exist yet, and can be created.")
        try:
            rows = len(await store.load())
            await store.database.write(lambda connection: connection.execute(sa.text("SELECT 1")).scalar())
        finally:
            await store.database.close()
    except (ConfigurationError, sa.exc.SQLAlchemyError) as error:
        return Finding(
            "store", "problem", f"The store cannot be used: {reason_of(error)}", "Correct --store, its rights, or its server."
        )
    return Finding("store", "ok", f"{store.database.display_url} can be written to, and has {plural(rows, 'registration')}.")


def _check_schemas(schemas: Iterable[tuple[str, Any]]) -> Finding:
    """Say what of the tools' schemas no constraint enforces."""
    compiled = {name: compile_schema(schema) for name, schema in schemas}
    left = [f"{name}: {', '.join(each.unenforced)}" for name, each in compiled.items() if each.unenforced]
    if not left:
        return Finding("tool_schemas", "ok", f"A constraint enforces all of the schemas of {plural(len(compiled), 'tool')}.")
    seen = f"{plural(len(compiled), 'tool')}; not enforced by a constraint, but checked after the answer: {'; '.join(left)}"
    return Finding("tool_schemas", "note", seen, "Use simpler keywords where a call must not be malformed: see schema_keywords.")
