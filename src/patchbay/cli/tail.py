"""``patchbay tail``: a server's turns as they go, until Ctrl-C.

What lives here: flags, and the connection, which is made again. What does not: how an event is shown (``tail_shown``).
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from patchbay.cli.colour import in_colour
from patchbay.cli.failures import fail
from patchbay.cli.left import end_with_reader
from patchbay.errors import ConfigurationError

if TYPE_CHECKING:
    from patchbay.cli.server_client import Events, ServerClient

_WAITS: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_MISSING: Final = "The server tells no events."
_DROPPED: Final = "stream.dropped"  # of the stream alone: it happens in no turn


def tail(
    server: Annotated[
        str, typer.Option("--server", metavar="URL", envvar="PATCHBAY_SERVER", help="The server.")
    ] = "http://127.0.0.1:48911",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="PATCHBAY_TOKEN_FILE", help="File of mode 0600 with the server's bearer token."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only events of this kind: agent.turn.end, 'agent.tool.*'. May be repeated."),
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="KEY", help="Only of this session.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON, whole.")] = False,
) -> None:
    """Show a server's turns as they go: who asked, each round, each call, who decided, what came of it. Ctrl-C ends.

    [bold]Examples[/bold]

      patchbay tail

      patchbay tail --server http://127.0.0.1:9000 --session s1

      patchbay tail --kind 'agent.tool.*' --json
    """  # fmt: skip
    from patchbay.cli.server_client import ServerClient, ServerGoneError, ServerRefusedError
    from patchbay.cli.tail_shown import Trace

    _refuse_unknown(kind or ())
    parameters = [("kind", each) for each in kind or ()] + ([("session", session)] if session is not None else [])
    tailing = _Tailing(ServerClient(server, token_file), parameters)
    trace = None if as_json else Trace(in_colour=in_colour(sys.stdout), plain_marks=not _can_be_said("\u2192\u2713\u00b7"))
    try:
        tailing.begin()
        end_with_reader()
        while True:
            for event in tailing.events():
                if trace is None:
                    print(json.dumps(event), flush=True)
                else:
                    for line in trace.lines(event):
                        print(line)
                    sys.stdout.flush()
    except ConfigurationError:
        raise
    except (ServerGoneError, ServerRefusedError) as error:
        fail(str(error), 1)


class _Tailing:
    """The stream of a server, opened again whenever it ends."""

    def __init__(self, client: ServerClient, parameters: list[tuple[str, str]]) -> None:
        self._client = client
        self._parameters = parameters
        self._last_id = ""
        self._opened: Events | None = None

    def begin(self) -> None:
        """Open it: a server that was never there is a mistake, one that is gone is not. Raises as ServerClient does."""
        self._opened = self._open()
        print(f"Tailing {self._client.url}; Ctrl-C ends.", file=sys.stderr)

    def events(self) -> Any:
        """Yield events until the stream ends; then wait until it can be opened again. Raises ServerRefusedError."""
        from patchbay.cli.server_client import ServerGoneError

        assert self._opened is not None
        why = f"{self._client.url} ended the stream"
        try:
            with contextlib.closing(self._opened) as opened:
                for event in opened:
                    self._last_id = opened.last_id or self._last_id
                    yield event
        except ServerGoneError as error:
            why = str(error)
        print(f"{why}; waiting for it", file=sys.stderr)
        self._opened = self._open_again()
        print("It is back.", file=sys.stderr)

    def _open(self) -> Events:
        return self._client.events("/api/events", self._parameters, last_id=self._last_id, missing=_MISSING)

    def _open_again(self) -> Events:
        from patchbay.cli.server_client import ServerGoneError, ServerRefusedError

        tries = 0
        while True:
            # Not all at the same moment, where several tail one server.
            time.sleep(_WAITS[min(tries, len(_WAITS) - 1)] * random.uniform(0.7, 1.0))  # noqa: S311  (no secret)
            tries += 1
            try:
                return self._open()
            except ServerGoneError:
                continue
            except ServerRefusedError as error:
                if not error.may_pass:
                    raise


def _refuse_unknown(patterns: Sequence[str]) -> None:
    """Raise ConfigurationError for a pattern that fits no kind of event: it would be waited for without end."""
    from patchbay.hooks.process.kinds import KINDS

    known = KINDS | {_DROPPED}
    for each in patterns:
        if not any(fnmatchcase(kind, each) for kind in known):
            ours = ", ".join(sorted(kind for kind in known if kind.startswith("agent.")))
            raise ConfigurationError(f"--kind {each!r} fits no kind of event: there are {ours}; 'agent.tool.*' is several.")


def _can_be_said(marks: str) -> bool:
    try:
        marks.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
