"""``patchbay chat``: a session with a role's model in the terminal or from a script."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated
from urllib.parse import quote, urlencode

import typer

from patchbay.cli.options import SERVER, Server, TokenFile
from patchbay.cli.terminal import escape_unencodable, fail, supports_colour
from patchbay.errors import ConfigurationError


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

    The response is streamed to standard output; tool calls and results go to standard error. Ctrl-C interrupts a response, and
    then ends the session. Lines from a pipe are sent one at a time; Ctrl-C ends the session. Exit status: 1 after an error or if
    the server ended the session, 130 after Ctrl-C.

    [bold]Examples[/bold]

      patchbay chat

      patchbay chat --role ann --realtime

      patchbay chat --role ann --model qwen3:8b --instructions "You are brief."

      echo "How is the weather in Rome?" | patchbay chat --role ann

      patchbay chat --server http://127.0.0.1:9000 --token-file ~/.config/patchbay/token --json
    """  # fmt: skip
    from patchbay.cli.chat_session import ChatSession, JsonView, TextView
    from patchbay.cli.http import ServerClient, ServerRefusedError, ServerUnavailableError

    if not role.strip():
        raise ConfigurationError("--role needs a name.")
    client = ServerClient(server, token_file)
    query = {"realtime": model, "output": "text"} if realtime else {"model": model}
    query |= {name: value for name, value in (("instructions", instructions), ("session", session)) if value}
    if takeover:
        query["takeover"] = "1"
    url = f"ws{client.url.removeprefix('http')}/api/sessions/{quote(role, safe='')}?{urlencode(query)}"
    escape_unencodable()
    interactive = sys.stdin is not None and sys.stdin.isatty()
    view = (
        JsonView(sys.stdout)
        if as_json
        else TextView(sys.stdout, sys.stderr, prompts=interactive, colour=supports_colour(sys.stderr))
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
