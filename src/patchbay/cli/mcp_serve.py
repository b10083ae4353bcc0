"""``patchbay mcp serve``: the registry for MCP clients that start a process."""

from __future__ import annotations

import asyncio
import secrets
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer

from patchbay.cli.options import GOVERNANCE, SERVER, AuditDays, Config, Server, TokenFile, is_explicit
from patchbay.cli.terminal import fail
from patchbay.errors import ConfigurationError

if TYPE_CHECKING:
    from patchbay.server.governance import Governance
    from patchbay.tools import Tool

Role = Annotated[str, typer.Option("--role", metavar="NAME", help="Whose tools; default: the server's first role.")]
Tools = Annotated[
    list[str],
    typer.Option(
        "--tools",
        metavar="MODULE[:NAME]",
        help="Serve these tools, without a server: all of a Python module that are made by @tool, or one name in it.",
    ),
]

_Audit = Annotated[
    str | None,
    typer.Option(
        "--audit",
        metavar="URL",
        envvar="PATCHBAY_AUDIT",
        rich_help_panel=GOVERNANCE,
        help="Database of the audit log, with --tools; default: none. memory: one day, in memory.",
    ),
]

_OF_SERVERS: Final = {"--server": "server", "--token-file": "token_file", "--role": "role"}


def serve(
    context: typer.Context,
    server: Server = SERVER,
    token_file: TokenFile = None,
    role: Role = "",
    tools: Tools = [],  # noqa: B006  (typer reads it)
    config: Config = None,
    audit: _Audit = None,
    audit_days: AuditDays = 90.0,
) -> None:
    """Speak MCP at standard input and output, for clients that start a process.

    It passes messages on to the running patchbay serve. With --tools it needs no server: the tools run in this process, with the
    hooks and rules of --config. Calls that a person must approve are then denied, unless their rule has who = ["mcp"].

    [bold]Examples[/bold]

      claude mcp add patchbay -- patchbay mcp serve

      claude mcp add weather -- patchbay mcp serve --tools weather.py

      patchbay mcp serve --server http://127.0.0.1:9000 --role ann --token-file ~/.config/patchbay/token
    """  # fmt: skip
    try:
        import mcp  # noqa: F401
    except ModuleNotFoundError:
        from patchbay.mcp.host import EXTRA

        raise ConfigurationError(f"patchbay mcp serve needs the official SDK: {EXTRA}") from None
    from patchbay.server.runtime import log_to_stderr

    log_to_stderr()
    if tools:
        if given := [flag for flag, name in _OF_SERVERS.items() if is_explicit(context, name)]:
            raise ConfigurationError(f"{' and '.join(given)}: not with --tools, which serves without a server.")
        from patchbay.cli.serving import make_governance

        with redirect_stdout(sys.stderr):  # standard output is the protocol's
            found = [each for target in tools for each in load_tools(target)]
        asyncio.run(_serve_tools(found, make_governance(config, audit or "none", audit_days, store=None)))
    elif config is not None or audit is not None:
        raise ConfigurationError("--config and --audit are for --tools: a running server has its own.")
    else:
        _bridge(server, token_file, role)


def load_tools(target: str) -> list[Tool]:
    """Return the tools in ``MODULE``, ``FILE.py`` or ``MODULE:NAME``. Raises ConfigurationError.

    A name may be a tool, a function, or a list of them.
    """
    from patchbay.cli.serving import load_object
    from patchbay.tools import Tool
    from patchbay.tools.function import collect_tools

    module, found = load_object(target, "--tools")
    if found is None:
        found = [each for each in vars(module).values() if isinstance(each, Tool)]
    tools = list(collect_tools(found if isinstance(found, list | tuple) else [found]).values())
    if not tools:
        raise ConfigurationError(f"--tools {target}: there are no tools: decorate functions with @tool, or name one.")
    return tools


async def _serve_tools(tools: list[Tool], governance: Governance) -> None:
    from patchbay import __version__
    from patchbay.mcp.server import RegistryServer
    from patchbay.mcp.stdio_server import serve_stdio
    from patchbay.tools.registry import DEFAULT_ROLE, Registration, ToolRegistry

    registry = ToolRegistry([DEFAULT_ROLE])
    for each in tools:
        registry.register(Registration.of(each), inside=True)
    try:
        await governance.open()
        server = RegistryServer(
            registry,
            DEFAULT_ROLE,
            version=__version__,
            hooks=governance.hooks,
            media=governance.media,
            approvals=governance.approvals,
            session=f"mcp-{secrets.token_hex(8)}",
        )
        await serve_stdio(server)
    finally:
        await governance.aclose()


def _bridge(url: str, token_file: Path | None, role: str) -> None:
    """Pass messages on to a running server. Raises Server...Error where there is none."""
    import httpx2

    from patchbay.cli.http import ServerClient
    from patchbay.mcp.stdio_server import bridge_stdio

    client = ServerClient(url, token_file)
    client.read("/health", missing="This is not a patchbay serve: start one, or serve tools of a module by --tools.")
    target = f"{client.url}/mcp{f'?role={quote(role)}' if role else ''}"
    try:
        asyncio.run(bridge_stdio(target, client.headers))
    except* httpx2.HTTPError as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        fail(f"the server at {client.url} does not answer: {first or type(first).__name__}", 1)
