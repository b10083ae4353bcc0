"""``patchbay tail``: follow a server's turns and tool calls."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from patchbay._backoff import Backoff
from patchbay._text import one_line, printable
from patchbay.cli.http import Events, ServerClient, ServerRefusedError, ServerUnavailableError
from patchbay.cli.options import SERVER, Server, TokenFile
from patchbay.cli.request_lines import describe_request, format_tokens
from patchbay.cli.terminal import escape_unencodable, exit_when_stdout_closes, format_clock, format_duration, make_console
from patchbay.errors import ConfigurationError

_FIRST_DELAY: Final = 0.25
_LONGEST_DELAY: Final = 10.0
_MISSING: Final = "This is no patchbay serve and no patchbay proxy: it has no events."
_PROXY_URL: Final = " (http://127.0.0.1:8787 for a proxy with the default port)"
DROPPED: Final = "stream.dropped"  # an event of the stream itself, in no turn
REQUEST: Final = "server.request"  # of each request to a model, also without a turn
REQUEST_BEGIN: Final = "server.request.begin"


def tail(
    server: Server = SERVER,
    token_file: TokenFile = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only events of this kind, such as agent.turn.end or 'agent.tool.*'; repeatable."),
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="KEY", help="Only events of this session.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
) -> None:
    """Follow a server's turns and requests to models, one line for each event. Ctrl-C ends.

    A proxy without --config has no turns: it shows one line per request.

    [bold]Examples[/bold]

      patchbay tail

      patchbay tail --server http://127.0.0.1:8787

      patchbay tail --session s1

      patchbay tail --kind 'agent.tool.*' --json
    """  # fmt: skip
    _check_kinds(kind or ())
    parameters = [("kind", each) for each in kind or ()] + ([("session", session)] if session is not None else [])
    client = ServerClient(server, token_file)
    exit_when_stdout_closes()
    escape_unencodable()
    console = make_console(sys.stdout)
    for event in _follow(client, parameters):
        if as_json:
            print(json.dumps(event), flush=True)
        else:
            console.print(describe_event(event))


def _follow(client: ServerClient, parameters: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield a server's events; reconnect with backoff when the stream ends. Raises if the server is unreachable at first."""
    last_id = ""

    def connect() -> Events:
        return client.events("/api/events", parameters, last_id=last_id, missing=_MISSING)

    try:
        stream = connect()
    except ServerUnavailableError as error:
        if error.hint:
            error.hint += _PROXY_URL
        raise
    print(f"Tailing {client.url}; Ctrl-C ends.", file=sys.stderr)
    while True:
        reason = f"{client.url} ended the stream"
        try:
            with contextlib.closing(stream):
                for event in stream:
                    last_id = stream.last_id or last_id
                    yield event
        except ServerUnavailableError as error:
            reason = str(error)
        print(f"{reason}; reconnecting", file=sys.stderr)
        stream = _reconnect(connect)
        print("Reconnected.", file=sys.stderr)


def _reconnect(connect: Callable[[], Events]) -> Events:
    backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
    while True:
        time.sleep(backoff.fail())
        try:
            return connect()
        except ServerUnavailableError:
            continue
        except ServerRefusedError as error:
            if not error.is_transient:
                raise


def _check_kinds(patterns: Sequence[str]) -> None:
    """Raise ConfigurationError for a pattern that matches no kind of event."""
    from patchbay.hooks.process.protocol import KINDS

    known = KINDS | {DROPPED, REQUEST, REQUEST_BEGIN}
    for each in patterns:
        if not any(fnmatchcase(kind, each) for kind in known):
            ours = ", ".join(sorted(kind for kind in known if kind.startswith("agent.")))
            raise ConfigurationError(f"--kind {each!r} matches no event kind: use one of {ours}, or a pattern: 'agent.tool.*'.")


_HIDDEN: Final = frozenset({"FinalContentLen", "ToolExecutions", "Deadline", "AtDeadline"})
_SCOPE: Final = ("sender_id", "channel", "agent_id", "session_key")
_COLOURS: Final = {"error": "red", "warn": "yellow"}
_LABEL_CHARS: Final = 8
_KIND_CHARS: Final = 23
_MAX_CHARS: Final = 100
_MAX_FIELDS: Final = 20


def describe_event(event: Mapping[str, Any]) -> Text:
    """Return an event's time, the end of its turn's id, its kind, and its fields that are not empty. Never raises on its content.

    Text of users, models and tools is cut and escaped: no control character reaches the terminal.
    """
    kind, scope, payload, attrs = _text(event.get("kind")), *(_mapping(event.get(key)) for key in ("scope", "payload", "attrs"))
    label = _text(scope.get("turn_id"))[-_LABEL_CHARS:]
    pieces = [(_time(event.get("time")), "dim"), (label.ljust(_LABEL_CHARS), "dim")]
    if kind == REQUEST:
        return Text(" ").join([*(Text(*piece) for piece in pieces), describe_request(payload, verbose=True)])
    fields = {**({name: scope.get(name) for name in _SCOPE} if kind == "agent.turn.start" else {}), **payload}
    pieces.append((kind.ljust(_KIND_CHARS), _COLOURS.get(_text(event.get("severity")), "bold" if ".turn." in kind else "")))
    shown = [(_text(name), value) for name, value in fields.items() if value and name not in _HIDDEN]
    pieces += [(f"{name}={_value(name, value)}", "") for name, value in shown[:_MAX_FIELDS]]
    pieces.append((format_tokens(_mapping(attrs.get("usage"))), ""))
    if attrs.get("call_id"):
        pieces.append((f"call={_value('', attrs['call_id'])}", "dim"))
    if attrs.get("decisions"):
        pieces.append((f"decisions={_value('', attrs['decisions'])}", ""))
    return Text(" ").join(Text(*piece) for piece in pieces if piece[0])


def _value(name: str, value: Any) -> str:
    if name == "Duration" and isinstance(value, int | float):
        return format_duration(value / 1e9)
    if isinstance(value, str) and not any(char.isspace() or char == "=" for char in value):
        return _text(value)
    return _text(json.dumps(value, ensure_ascii=False))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    """Return a value on one line, cut where it is long, without control characters."""
    return printable(one_line("" if value is None else str(value), _MAX_CHARS))


def _time(value: Any) -> str:
    try:
        return format_clock(datetime.fromisoformat(f"{str(value)[:26].rstrip('Z')}Z").timestamp())
    except (ValueError, OverflowError, OSError):
        return "-" * 12
