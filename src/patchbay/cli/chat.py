"""``patchbay chat``: a session with a role's model in the terminal or from a script."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from patchbay._text import one_line, plural, printable
from patchbay.cli.http import ServerClient, ServerRefusedError, ServerUnavailableError
from patchbay.cli.options import SERVER, Server, TokenFile
from patchbay.cli.terminal import escape_unencodable, fail, supports_colour
from patchbay.errors import ConfigurationError

_AGENT = "patchbay-agent"
"""The owner of agents among the models (``patchbay.server.chat.agents``)."""
_MAX_CHOICES = 40
_MAX_TOOLS = 300


def chat(
    role: Annotated[str, typer.Option(metavar="NAME", help="Role name.")] = "default",
    realtime: Annotated[
        bool, typer.Option("--realtime", help="Use the server's realtime model instead of a model of its upstream.")
    ] = False,
    model: Annotated[
        str,
        typer.Option(metavar="NAME", help="Model instead of the server's default: qwen3:8b; with --realtime: gemini/NAME."),
    ] = "",
    server: Server = SERVER,
    token_file: TokenFile = None,
    instructions: Annotated[str, typer.Option(metavar="TEXT", help="System instructions.")] = "",
    session: Annotated[str, typer.Option(metavar="KEY", help="Session key for approvals and hooks.")] = "",
    takeover: Annotated[bool, typer.Option("--takeover", help="Take over the role's current session.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
) -> None:
    """Chat with a role of a server: each line is a message to its model, which has the role's tools.

    The response is streamed to standard output; tool calls and results go to standard error. On a terminal the model and the
    role's tools are shown at the start, and without --model one of several can be chosen. Ctrl-C interrupts a response, and then
    ends the session. Lines from a pipe are sent one at a time; Ctrl-C ends the session. Exit status: 1 after an error or if
    the server ended the session, 130 after Ctrl-C.

    [bold]Examples[/bold]

      patchbay chat

      patchbay chat --role ann --realtime

      patchbay chat --role ann --model qwen3:8b --instructions "You are brief."

      echo "How is the weather in Rome?" | patchbay chat --role ann

      patchbay chat --server http://127.0.0.1:9000 --token-file ~/.config/patchbay/token --json
    """  # fmt: skip
    from patchbay.cli.chat_session import ChatSession, JsonView, TextView

    if not role.strip():
        raise ConfigurationError("--role needs a name.")
    client = ServerClient(server, token_file)
    escape_unencodable()
    interactive = sys.stdin is not None and sys.stdin.isatty()
    tools = ""
    if interactive and not as_json:
        described = _describe_tools(client, role)
        # Without a description, opening the session tells why there is no such role.
        owners = {} if realtime or described is None else _list_models(client)
        model = model or _choose_model(list(owners))
        if owners.get(model) != _AGENT:  # which has tools of its own
            tools = described or ""
    query = {"realtime": model, "output": "text"} if realtime else {"model": model}
    query |= {name: value for name, value in (("instructions", instructions), ("session", session)) if value}
    if takeover:
        query["takeover"] = "1"
    url = f"ws{client.url.removeprefix('http')}/api/sessions/{quote(role, safe='')}?{urlencode(query)}"
    view = (
        JsonView(sys.stdout)
        if as_json
        else TextView(sys.stdout, sys.stderr, prompts=interactive, colour=supports_colour(sys.stderr), tools=tools)
    )

    async def run() -> int:
        return await ChatSession(url, client.headers, view, interactive=interactive).run()

    try:
        status = asyncio.run(run())
    except (ServerUnavailableError, ServerRefusedError):
        view.close()
        raise
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the final flush must not fail again
        fail(f"cannot write the output: {error.strerror or error}", 1)
    view.close()
    sys.exit(status)


def _list_models(client: ServerClient) -> dict[str, Any]:
    """Return the owners of the server's models by name, {} where they are not known."""
    try:
        found = client.read("/v1/models", missing="The server has no models.").get("data")
    except (ServerRefusedError, ServerUnavailableError):  # opening the session tells why
        return {}
    models = (each for each in found or () if isinstance(each, dict) and isinstance(each.get("id"), str))
    return {each["id"]: each.get("owned_by") for each in models}


def _choose_model(names: list[str]) -> str:
    """Ask for one of several models; return the only one, or "" for none. Raises typer.Abort."""
    if len(names) < 2:
        return "".join(names)
    for number, name in enumerate(names[:_MAX_CHOICES], 1):
        print(f"{number:>4}  {printable(name)}", file=sys.stderr)
    if more := names[_MAX_CHOICES:]:
        print(f"      and {plural(len(more), 'other')}", file=sys.stderr)
    while True:
        chosen = str(typer.prompt("Model (number or name)", err=True)).strip()
        if chosen.isdecimal() and 0 < int(chosen) <= len(names) and chosen not in names:
            return names[int(chosen) - 1]
        if chosen in names:
            return chosen
        print(f"There is no model {printable(chosen)!r:.100}: enter a number up to {len(names)}, or a name.", file=sys.stderr)


def _describe_tools(client: ServerClient, role: str) -> str | None:
    """Return the names of a role's tools as a phrase, None where they are not known."""
    from patchbay.cli.tools import list_tools

    try:
        found = list_tools(client, role).get(role, ())
    except (ServerRefusedError, ServerUnavailableError):
        return None
    names = ", ".join(each["name"] for each in found)
    return one_line(f"{plural(len(found), 'tool')}: {names}", _MAX_TOOLS) if names else "no tools"
