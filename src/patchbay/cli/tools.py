"""``patchbay tools``: list, show and call the tools of a running server."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from patchbay._text import escape_controls, json_object, one_line, plural
from patchbay.cli.http import ServerClient, ServerRefusedError, ServerUnavailableError
from patchbay.cli.options import CONTEXT, SERVER, Json, Server, TokenFile, command_group
from patchbay.cli.terminal import escape_unencodable, print_json, styles
from patchbay.errors import ConfigurationError

_MISSING: Final = "The server has no tools of its own: `patchbay serve` has."
_MAX_DESCRIPTION: Final = 100

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the tool.", show_default=False)]
_Role = Annotated[str, typer.Option(metavar="NAME", help="Role whose tools to use; default: the server's first.")]

tools = command_group(
    "tools",
    "List, show and call the tools of a running server (patchbay serve).",
    epilog="[bold]Exit status[/bold]: 0 success; 1 the result is an error, there is no such tool, or no server; 2 usage error.",
)


@tools.callback()
def _prepare() -> None:
    escape_unencodable()


@tools.command("list", context_settings=CONTEXT)
def list_(
    role: Annotated[str, typer.Option(metavar="NAME", help="Only the tools of this role.")] = "",
    server: Server = SERVER,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """List the tools of each role: name, source, description.

    [bold]Examples[/bold]

      patchbay tools list

      patchbay tools list --role ann --json
    """  # fmt: skip
    found = list_tools(ServerClient(server, token_file), role)
    if as_json:
        print_json(found)
        return
    bold, dim, plain = styles(sys.stdout)
    for name, listed in found.items():
        print(f"{bold}{_safe(name)}{plain}  {plural(len(listed), 'tool')}")
        width = max((len(each["name"]) for each in listed), default=0)
        for each in listed:
            about = [one_line(each["description"], _MAX_DESCRIPTION), f"({_problem(each)})" if _problem(each) else ""]
            print(f"  {_safe(each['name']):{width}}  {dim}{_safe(each['source'])}{plain}  {_safe(' '.join(about))}".rstrip())


@tools.command(context_settings=CONTEXT)
def show(name: _Name, role: _Role = "", server: Server = SERVER, token_file: TokenFile = None, as_json: Json = False) -> None:
    """Show a tool: description, parameters, source, state.

    [bold]Example[/bold]

      patchbay tools show get_weather
    """  # fmt: skip
    listed = list_tools(ServerClient(server, token_file), role)
    role = role or next(iter(listed), "")
    tool = next((each for each in listed.get(role, ()) if each["name"] == name), None)
    if tool is None:
        raise ServerRefusedError(f"The role {role!r} has no tool {name!r}: see patchbay tools list.", is_transient=False)
    if as_json:
        print_json(tool)
        return
    bold, dim, plain = styles(sys.stdout)
    print(f"{bold}{_safe(name)}{plain}")
    for line in tool["description"].splitlines():
        print(f"  {_safe(line)}")
    rows = {
        "source": tool["source"],
        "roles": tool["role"] or "all",
        "state": tool["state"],
        "problem": tool["problem"],
        "callback": tool["callback_url"] if "instances" not in tool else "",
        "instances": ", ".join(
            f"{each['instance']} {each['callback_url']} ({each['state']})" for each in tool.get("instances", ())
        ),
        "timeout": f"{tool['timeout_seconds']:g} s" if tool["timeout_seconds"] is not None else "",
        "annotations": ", ".join(f"{key}={json.dumps(value)}" for key, value in tool["annotations"].items()),
    }
    for label, value in rows.items():
        if value:
            print(f"  {dim}{label}{plain} {_safe(value)}")
    print(_safe(json.dumps(tool["parameters"], indent=2, ensure_ascii=False)))


@tools.command(context_settings=CONTEXT)
def call(
    name: _Name,
    arguments: Annotated[str, typer.Argument(metavar="ARGS", help="Arguments: a JSON object.")] = "{}",
    role: _Role = "",
    server: Server = SERVER,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Run a tool, with the server's hooks and approvals, and print the result that a model would get.

    [bold]Examples[/bold]

      patchbay tools call get_weather '{"city": "Rome"}'

      patchbay tools call delete_file '{"path": "/tmp/x"}' --role ann --json
    """  # fmt: skip
    parsed = json_object(arguments)
    if parsed is None:
        raise ConfigurationError(f'ARGS must be a JSON object, such as \'{{"city": "Rome"}}\', not {arguments!r:.100}.')
    body = {"name": name, "arguments": parsed, "role": role}
    answer = ServerClient(server, token_file).read("/api/tools/call", missing=_MISSING, body=body, timeout=None)
    if as_json:
        print_json(answer)
    else:
        content = str(answer.get("content"))
        print(_safe(content) if sys.stdout.isatty() else content)
    sys.exit(int(answer.get("is_error") is not False))


def list_tools(client: ServerClient, role: str = "") -> dict[str, Sequence[dict[str, Any]]]:
    """Return the tools of a server by role, or those of ``role`` alone. Raises Server...Error."""
    answer = client.read("/api/tools", [("role", role)] if role else (), missing=_MISSING)
    found = answer.get("tools_by_role")
    if not isinstance(found, dict):
        raise ServerUnavailableError(f"Invalid response from {client.url}: is it another version?")
    return found


def _problem(tool: dict[str, Any]) -> str:
    return tool["problem"] or ("hidden: its callback does not answer" if tool["state"] == "hidden" else "")


def _safe(text: str) -> str:
    return "\n".join(map(escape_controls, text.split("\n")))
