"""``patchbay chat``: a session of a role, held in a terminal or by a script.

What lives here: flags, and where the session is. What does not: the talk (``chat_talk``), and how it is shown (``chat_shown``).
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlencode

import typer

from patchbay.cli.colour import in_colour
from patchbay.cli.failures import fail
from patchbay.errors import ConfigurationError


def chat(
    role: Annotated[str, typer.Option(metavar="NAME", help="The role to talk to.")] = "default",
    realtime: Annotated[
        bool, typer.Option("--realtime", help="Talk to the server's realtime model; without it, to a model of its upstream.")
    ] = False,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Another model than the server's own: qwen3:8b, or with --realtime gemini/NAME.")
    ] = "",
    server: Annotated[
        str, typer.Option("--server", metavar="URL", envvar="PATCHBAY_SERVER", help="The server.")
    ] = "http://127.0.0.1:48911",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="PATCHBAY_TOKEN_FILE", help="File of mode 0600 with the server's bearer token."),
    ] = None,
    instructions: Annotated[str, typer.Option(metavar="TEXT", help="What the model is told first.")] = "",
    session: Annotated[str, typer.Option(metavar="KEY", help="The session's key, for approvals and hooks.")] = "",
    takeover: Annotated[bool, typer.Option("--takeover", help="Take over from the session that the role has.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON, whole.")] = False,
) -> None:
    """Talk to a role of a server: each line is said to its model, which has the role's tools; the answer comes as it is written.

    Tools that are called, and their results, are shown beside it (on standard error). Ctrl-C ends an answer, and then the talk.
    Lines that come from a pipe are said one after the other; Ctrl-C says no further one. The exit status is 1 where something
    failed or the server ended the talk, 130 after Ctrl-C.

    [bold]Examples[/bold]

      patchbay chat

      patchbay chat --role ann --realtime

      patchbay chat --role ann --model qwen3:8b --instructions "You are brief." --takeover

      echo "How is the weather in Rome?" | patchbay chat --role ann

      patchbay chat --server http://127.0.0.1:9000 --token-file ~/.config/patchbay/token --json
    """  # fmt: skip
    from patchbay.cli.chat_shown import AsJson, AsText
    from patchbay.cli.chat_talk import Talk
    from patchbay.cli.server_client import ServerClient, ServerGoneError, ServerRefusedError

    if not role.strip():
        raise ConfigurationError("--role needs a name.")
    at = ServerClient(server, token_file)
    asked = {"realtime": model, "output": "text"} if realtime else {"model": model}
    asked |= {name: value for name, value in (("instructions", instructions), ("session", session)) if value}
    if takeover:
        asked["takeover"] = "1"
    url = f"ws{at.url.removeprefix('http')}/api/sessions/{quote(role, safe='')}?{urlencode(asked)}"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what cannot be shown here is no reason to end the talk
            stream.reconfigure(errors="backslashreplace")
    typing = sys.stdin is not None and sys.stdin.isatty()
    shown = AsJson(sys.stdout) if as_json else AsText(sys.stdout, sys.stderr, prompts=typing, in_colour=in_colour(sys.stderr))

    async def talk() -> int:
        return await Talk(url, at.headers, shown, typing=typing).run()

    try:
        status = asyncio.run(talk())
    except (ServerGoneError, ServerRefusedError) as error:
        shown.end()
        fail(str(error), 1)
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left of it need not fail again
        fail(f"the output cannot be written: {error.strerror or error}", 1)
    shown.end()
    sys.exit(status)
