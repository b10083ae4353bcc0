"""``patchbay mcp``: the MCP servers whose tools ``patchbay serve`` offers, and the registry as such a server."""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchbay._redaction import Redactor, secret_values
from patchbay._text import escape_controls, one_line, plural
from patchbay.cli.mcp_serve import serve
from patchbay.cli.options import CONTEXT, Json, McpConfig, command_group
from patchbay.cli.terminal import escape_unencodable, fail, print_json
from patchbay.errors import ConfigurationError

if TYPE_CHECKING:
    from patchbay.mcp.config import McpServer, ServersFile

_HEADER = re.compile(r"\A([^=:]+):\s*")
"""The beginning of a header as other clients write it, ``NAME: VALUE``."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="The server's name.", show_default=False)]

mcp = command_group("mcp", "Use the tools of MCP servers, manage the servers, and be one.")
mcp.command("serve", context_settings=CONTEXT)(serve)


@mcp.callback()
def _prepare() -> None:
    escape_unencodable()


@mcp.command(context_settings={**CONTEXT, "allow_interspersed_args": True})
def add(
    name: Name,
    target: Annotated[
        list[str],
        typer.Argument(metavar="URL | -- COMMAND...", help="A server's URL, or after -- its command.", show_default=False),
    ],
    config: McpConfig = None,
    env: Annotated[list[str], typer.Option("--env", metavar="NAME=VALUE", help="Variable of the command's environment.")] = [],  # noqa: B006
    header: Annotated[
        list[str], typer.Option("--header", metavar="NAME=VALUE", help="Header of each request; also NAME: VALUE.")
    ] = [],  # noqa: B006
    cwd: Annotated[str | None, typer.Option("--cwd", metavar="FOLDER", help="Working directory of the command.")] = None,
    allow: Annotated[list[str], typer.Option("--allow", metavar="PATTERN", help="Offer only these tools, as read_*.")] = [],  # noqa: B006
    deny: Annotated[list[str], typer.Option("--deny", metavar="PATTERN", help="Do not offer these tools.")] = [],  # noqa: B006
    role: Annotated[list[str], typer.Option("--role", metavar="NAME", help="Role that gets the tools; default: all.")] = [],  # noqa: B006
    resources: Annotated[bool, typer.Option("--resources", help="Offer a tool that reads the server's resources.")] = False,
    prompts: Annotated[bool, typer.Option("--prompts", help="Offer a tool that reads the server's prompts.")] = False,
    overwrite: Annotated[bool, typer.Option("--replace", help="Replace a server of this name.")] = False,
) -> None:
    """Add a server to the file of MCP servers. It is not started.

    Values may have ${NAME}, an environment variable that is read when the server starts.

    [bold]Examples[/bold]

      patchbay mcp add files -- npx -y @modelcontextprotocol/server-filesystem /srv/shared

      patchbay mcp add tracker https://example.com/mcp --header 'Authorization=Bearer ${TRACKER_TOKEN}'

      patchbay mcp add git --allow 'git_log' --allow 'git_diff*' -- uvx mcp-server-git
    """  # fmt: skip
    from patchbay.mcp.config import McpServer

    is_url = len(target) == 1 and target[0].startswith(("http://", "https://"))
    server = McpServer(
        name=name,
        command="" if is_url else target[0],
        args=() if is_url else tuple(target[1:]),
        url=target[0] if is_url else "",
        env=_pairs(env, "--env"),
        headers=_pairs([_HEADER.sub(r"\1=", each) for each in header], "--header"),
        cwd=cwd,
        allow=tuple(allow) or None,
        deny=tuple(deny),
        roles=tuple(role),
        resources=resources,
        prompts=prompts,
    )
    if is_url and (env or cwd):
        raise ConfigurationError("--env and --cwd are for a command; a URL has --header.")
    if not is_url and "://" in target[0]:
        raise ConfigurationError(
            f"{one_line(target[0], 100)!r} is neither a command nor a URL that begins with http:// or https://."
        )
    if header and not is_url:
        raise ConfigurationError("--header is for a URL; a command has --env.")
    file = _file(config)
    if name in file.servers and not overwrite:
        raise ConfigurationError(f"there is an MCP server {name!r} in {file.path}: choose another name, or --replace it.")
    file.put(server)
    print(f"Added {name} to {file.path}.")
    print(f"Check it: patchbay mcp test {shlex.quote(name)}", file=sys.stderr)


@mcp.command("import", context_settings=CONTEXT)
def import_(
    client: Annotated[
        str,
        typer.Argument(metavar="CLIENT", help="claude-desktop, claude-code, codex, cursor or vscode.", show_default=False),
    ],
    config: McpConfig = None,
    file: Annotated[Path | None, typer.Option("--from", metavar="FILE", help="The client's file, if it is elsewhere.")] = None,
    overwrite: Annotated[bool, typer.Option("--replace", help="Replace servers of the same names.")] = False,
) -> None:
    """Copy the servers of another client: those of the user, and those of the current folder.

    [bold]Examples[/bold]

      patchbay mcp import claude-desktop

      patchbay mcp import codex --from ~/backup/config.toml
    """  # fmt: skip
    from patchbay.mcp.other_clients import CLIENTS, import_servers

    if client not in CLIENTS:
        raise ConfigurationError(f"{client!r} is not known: choose {', '.join(CLIENTS)}.")
    found = import_servers(client, path=file)
    if not found:
        raise ConfigurationError(f"no file of {CLIENTS[client].title} was found: name it with --from FILE.")
    ours = _file(config)
    for each in found:
        for server in each.servers:
            if server.name in ours.servers and not overwrite:
                print(f"{server.name} is left out: {ours.path} has a server of this name (--replace).", file=sys.stderr)
                continue
            ours.put(server)
            print(f"Added {server.name} from {each.path}.")
        for note in each.notes:
            print(escape_controls(note), file=sys.stderr)


@mcp.command("list", context_settings=CONTEXT)
def list_(config: McpConfig = None, as_json: Json = False) -> None:
    """List the servers, and the tools whose changed definition waits to be accepted. Nothing is started.

    With --json as in the file, with the values of env and headers.
    """
    from patchbay.mcp.pins import Pins

    file, pins = _file(config), Pins()
    if as_json:
        print_json({each.name: each.to_json() for each in file})
        return
    width = max((len(each.name) for each in file), default=0)
    for each in file:
        print(f"{each.name:<{width}}  {_describe(each)}")
        if changed := sorted(pins.changed(each)):
            print(f"{'':<{width}}  changed, and not used before you accept it: {escape_controls(', '.join(changed))}")
    if not file.servers:
        print(f"No MCP servers in {file.path}.", file=sys.stderr)


@mcp.command(context_settings=CONTEXT)
def accept(
    name: Name,
    config: McpConfig = None,
    show: Annotated[bool, typer.Option("--show", help="Show what has changed, and accept nothing.")] = False,
    shown: Annotated[
        str | None,
        typer.Option("--digest", metavar="DIGEST", help="Accept without a question what --show has printed this digest of."),
    ] = None,
) -> None:
    """Show what a server has changed in its tools' definitions since they were accepted, ask, and accept it.

    The first definition of a tool is accepted when its server is first connected. A running server takes the new ones over.

    [bold]Examples[/bold]

      patchbay mcp accept files

      patchbay mcp accept files --show
    """  # fmt: skip
    from patchbay.mcp.pins import Pins, digest

    server, pins = _file(config).get(name), Pins()
    changed = pins.changed(server)
    for tool, definitions in sorted(changed.items()):
        before, after = (json.dumps(each, indent=2, sort_keys=True, ensure_ascii=False).splitlines() for each in definitions)
        for line in difflib.unified_diff(before, after, f"{tool} (accepted)", f"{tool} (now)", n=1, lineterm=""):
            print(escape_controls(line))
    if not changed:
        print(f"No changed tools of {name}.", file=sys.stderr)
        return
    command = f"patchbay mcp accept {shlex.quote(name)} --digest {digest(changed)}"
    if show:
        print(f"To accept exactly this: {command}")
        return
    if shown is None:
        try:
            typer.confirm(f"Accept {plural(len(changed), 'changed tool')} of {name}?", abort=True)
        except typer.Abort:
            fail(f"nothing is accepted. To accept exactly this without a question: {command}", 1)
    pins.accept(server, shown or digest(changed))
    print(f"Accepted {plural(len(changed), 'changed tool')} of {name}.")


@mcp.command(context_settings=CONTEXT)
def remove(name: Name, config: McpConfig = None) -> None:
    """Remove a server from the file.

    [bold]Example[/bold]

      patchbay mcp remove files
    """  # fmt: skip
    from patchbay.mcp.pins import Pins

    file = _file(config)
    Pins().forget(file.get(name))
    file.remove(name)
    print(f"Removed {name} from {file.path}.")


@mcp.command("test", context_settings=CONTEXT)
def check(name: Name, config: McpConfig = None, as_json: Json = False) -> None:
    """Connect to a server and list its tools. Exit status 1: it cannot be connected.

    [bold]Example[/bold]

      patchbay mcp test files
    """  # fmt: skip
    from patchbay.mcp.host import try_server

    server = _file(config).get(name)
    logging.getLogger("patchbay.mcp.connection").setLevel(logging.ERROR)  # the status says it
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    status, found = asyncio.run(try_server(server))
    tools = {each.name: each.description for each in found}
    if as_json:
        print_json({"name": name, "state": status.state, "problem": status.problem, "tools": tools})
    elif status.state == "ready":
        print(f"{name} is ready: {plural(len(tools), 'tool')}.")
        for tool, description in tools.items():
            print(f"  {tool}  {escape_controls(one_line(description, 100))}")
    if status.state != "ready":
        fail(f"the MCP server {name!r} cannot be connected: {status.problem}", 1)


@mcp.command(context_settings=CONTEXT)
def login(name: Name, config: McpConfig = None) -> None:
    """Log in to a server with a URL (OAuth). Open the printed URL in a browser of this machine.

    Where the login is not at the server's own origin, it asks whether to go there.

    The tokens are stored encrypted in ~/.config/patchbay/mcp-tokens, and refreshed as long as the server allows it.

    [bold]Example[/bold]

      patchbay mcp login tracker
    """  # fmt: skip
    from patchbay.mcp.host import import_sdk

    server = _file(config).get(name)
    asyncio.run(import_sdk())
    from patchbay.mcp.connection import describe_failure
    from patchbay.mcp.login import login as log_in

    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # the error says it

    def agree(origin: str) -> bool:
        try:
            return typer.confirm(f"{name} leads to {escape_controls(origin)}. Log in there?")
        except typer.Abort:
            return False

    try:
        done = asyncio.run(log_in(server, lambda url: print(f"Open this URL to log in to {name}:\n  {url}", flush=True), agree))
    except Exception as error:  # noqa: BLE001  (the SDK raises groups of any exceptions)
        fail(f"the login to {name!r} failed: {describe_failure(error, server)}", 1)
    print(f"Logged in to {name}." if done else f"{name} asks for no login.")


def _describe(server: McpServer) -> str:
    parts = [_without_secrets([server.command, *server.args]) if server.command else server.address]
    if server.roles:
        parts.append(f"for {', '.join(server.roles)}")
    if server.disabled:
        parts.append("disabled")
    return "; ".join(parts)


def _without_secrets(command: list[str]) -> str:
    """Return a command line without the values of arguments whose names are those of credentials."""
    named = (dict(pairwise(command)), dict(each.partition("=")[::2] for each in command))
    secrets = [value for each in named for value in secret_values(each) if not value.startswith("${")]
    return Redactor(secrets).text(shlex.join(command))


def _file(config: Path | None) -> ServersFile:
    from patchbay.mcp.config import ServersFile, default_file

    return ServersFile(config.expanduser() if config is not None else default_file())


def _pairs(given: list[str], option: str) -> dict[str, str]:
    pairs = dict(each.partition("=")[::2] for each in given)
    if any("=" not in each for each in given) or "" in pairs:
        raise ConfigurationError(f"{option} needs NAME=VALUE.")
    return pairs
