"""What commands that serve have in common: settings from the values of flags, and checks of addresses."""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchbay._text import one_line
from patchbay.cli.terminal import styles
from patchbay.errors import ConfigurationError

if TYPE_CHECKING:
    from types import ModuleType

    from patchbay.agents import BaseAgent
    from patchbay.doctor import Finding
    from patchbay.formats.spec import Format
    from patchbay.mcp.config import McpServer
    from patchbay.models.options import TextOptions
    from patchbay.server.governance import Governance
    from patchbay.server.settings import ProxySettings
    from patchbay.server.upstream import Examine

NONE = "none"
MEMORY = "memory"
_IN_MEMORY = "sqlite://"
_DAY = 24 * 3600.0
_EXAMINATION = 300.0


def print_monitors(url: str, governance: Governance | None, *, needs_token: bool) -> None:
    """Print the address of a server's console, and the commands that watch it from another terminal."""
    from patchbay.server.auth import CONSOLE_PATH

    commands = ["patchbay tail"]
    if governance is not None and governance.settings.config is not None:
        commands.append("patchbay approvals watch")
    token = " --token-file FILE" if needs_token else ""
    _, dim, plain = styles(sys.stdout)
    print(f"  {dim}console{plain} {url}{CONSOLE_PATH}")
    print(f"  {dim}monitor{plain} {'; '.join(f'{each} --server {url}{token}' for each in commands)}", flush=True)


def text_options(values: dict[str, Any]) -> TextOptions:
    """Create the options of text and tools from values of flags. Raises ConfigurationError."""
    from patchbay._flags import build
    from patchbay.models.options import TextOptions

    return build(TextOptions, values, format=load_format(values["format"]))


def load_format(value: str) -> str | Format:
    """Resolve ``--format``: a name unchanged, or the format in a file or a checkpoint's folder.

    A name takes precedence over a file of the same name; unknown names are not checked here. Raises ConfigurationError.
    """
    from patchbay.formats.catalog import FORMATS, is_path

    if value == "auto" or value in FORMATS or not (is_path(value) or Path(value).exists()):
        return value
    from patchbay.checkpoint import load_format as load_checkpoint_format  # only imported for files

    return load_checkpoint_format(value)


def make_governance(
    config: Path | None, audit: str | None, days: float, *, store: str | None, media_folder: Path | None = None
) -> Governance:
    """Create hooks, approvals and audit from flags. ``store`` is the default database, None for memory.

    An audit log in memory keeps at most one day, so that it does not grow without bound. Raises ConfigurationError.
    """
    from patchbay.server.governance import Governance, GovernanceSettings

    if config is not None and config.expanduser().is_dir():
        raise ConfigurationError(f"--config: {config} is a folder.")
    if config is not None and not config.expanduser().is_file():
        raise ConfigurationError(f"--config: no such file {config}.")
    database = store if audit is None else audit
    if database is None or database == MEMORY:
        database = _IN_MEMORY
    if database == _IN_MEMORY:
        days = min(days, 1.0) or 1.0
    governance = Governance(
        GovernanceSettings(
            config=config.expanduser() if config is not None else None,
            approvals=store,
            audit=None if database == NONE else database,
            audit_kept=days * _DAY if days else None,
            media_folder=media_folder,
        )
    )
    file = governance.audit.file if audit is not None and governance.audit is not None else None
    if file is not None and not file.parent.is_dir():  # records would wait for it
        raise ConfigurationError(f"--audit: no such folder {file.parent}.")
    return governance


def mcp_servers(file: Path | None, config: Path | None) -> tuple[McpServer, ...]:
    """Return the MCP servers of ``--mcp-config`` (none: no file; default: the user's file, if there is one) and ``--config``.

    Raises ConfigurationError.
    """
    from patchbay.mcp.config import default_file, read_servers, unique

    files = [each.expanduser() for each in (file, config) if each is not None and str(each) != NONE]
    if file is None and (found := default_file()).is_file():
        files.insert(0, found)
    return unique(server for each in files for server in read_servers(each))


def load_object(target: str, flag: str) -> tuple[ModuleType, Any]:
    """Import ``MODULE``, ``FILE.py`` or ``MODULE:NAME``; return the module and what the name means, None without one.

    Raises ConfigurationError.
    """
    place, _, name = target.partition(":")
    path = Path(place)
    if path.suffix == ".py" and not path.is_file():
        raise ConfigurationError(f"{flag} {target}: no such file.")
    sys.path.insert(0, str(path.parent.resolve() if path.suffix == ".py" else Path.cwd()))
    try:
        module = importlib.import_module(path.stem if path.suffix == ".py" else place)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{flag} {target}: {error}.") from None
    except Exception as error:
        raise ConfigurationError(f"{flag} {target}: {one_line(f'{type(error).__name__}: {error}', 300)}") from error
    found = getattr(module, name, None) if name else None
    if name and found is None:
        raise ConfigurationError(f"{flag} {target}: there is no {name!r} in {place}.")
    return module, found


def load_agent(target: str, option: str = "--agent") -> BaseAgent:
    """Return the agent of ``MODULE:NAME`` or ``FILE.py:NAME``, as ``option`` has it. Raises ConfigurationError."""
    from patchbay.agents import BaseAgent

    _, found = load_object(target, option)
    if not isinstance(found, BaseAgent):
        raise ConfigurationError(f"{option} {target}: that is no agent of patchbay.agents: name one, as in forecaster.py:agent.")
    return found


def examination_of(settings: ProxySettings) -> Examine:
    """Return what examines the upstream of a server for its console, as ``patchbay doctor`` does, in five minutes at most."""

    async def examine(model: str, *, begins: Callable[[str, str], object]) -> AsyncGenerator[Finding, None]:
        doctor = await asyncio.to_thread(importlib.import_module, "patchbay.doctor.examination")  # its imports take long
        async with aclosing(doctor.examine(settings, model, limit=_EXAMINATION, begins=begins)) as findings:
            async for finding in findings:
                yield finding

    return examine


def reject_itself(upstream: str, host: str, port: int) -> None:
    """Raise ConfigurationError if the upstream is this server: requests would loop until connections run out."""
    from urllib.parse import urlsplit

    target = urlsplit(upstream)
    if target.port == port and (target.hostname == host or (is_loopback(target.hostname or "") and is_loopback(host))):
        raise ConfigurationError(f"the upstream {upstream!r} is this server itself.")


def is_loopback(host: str) -> bool:
    """Whether ``host`` is an address of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
