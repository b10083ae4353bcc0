"""``patchbay audit``: what is written down of calls, read from the database or from a server.

What lives here: flags, and what is printed. What does not: the audit itself (``patchbay.audit``).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from patchbay.cli.colour import in_colour
from patchbay.cli.failures import fail
from patchbay.cli.left import end_with_reader
from patchbay.cli.times import counted, moment, read_time, span
from patchbay.errors import ConfigurationError, PatchbayError
from patchbay.legible import printable

if TYPE_CHECKING:
    from patchbay.audit import AuditEntry, AuditPage, AuditQuery

SERVER: Final = "http://127.0.0.1:48911"

_WHICH = "Which calls"
_DECISIONS: Final = 4
"""How many decisions the table shows, each in ``_DECISION`` characters; ``--json`` has all of them, whole."""
_DECISION: Final = 80
_MISSING: Final = (
    "The server keeps no audit: `patchbay serve` keeps one unless it is started with --audit none, "
    "`patchbay proxy` one with --config."
)
_NOBODY: Final = "Start `patchbay serve`, name another server by --server, or read a database by --store."


def audit(
    context: typer.Context,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="PATCHBAY_AUDIT",
            help="The audit's database: sqlite:///audit.db, a file, postgresql://host/name.",
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", envvar="PATCHBAY_SERVER", help=f"Ask a server instead. Without both: {SERVER}."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="PATCHBAY_TOKEN_FILE", help="File of mode 0600 with the server's bearer token."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", rich_help_panel=_WHICH, help="From then on: 15m, 2h, 7d ago, or 2026-05-01T12:00."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", rich_help_panel=_WHICH, help="Before then.")] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", rich_help_panel=_WHICH, help="Of these tools: fs_read, 'fs_*'. May be repeated."),
    ] = None,
    source: Annotated[str | None, typer.Option(metavar="NAME", rich_help_panel=_WHICH, help="Of the tools of a source.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", rich_help_panel=_WHICH, help="Of an agent.")] = None,
    session: Annotated[str | None, typer.Option(metavar="KEY", rich_help_panel=_WHICH, help="Of a session.")] = None,
    turn: Annotated[
        str | None,
        typer.Option(metavar="ID", rich_help_panel=_WHICH, help="Of a turn, and of the sub-agents that worked for it."),
    ] = None,
    errors: Annotated[bool, typer.Option("--errors", rich_help_panel=_WHICH, help="That failed, in whatever way.")] = False,
    denied: Annotated[bool, typer.Option("--denied", rich_help_panel=_WHICH, help="That a hook or an approver refused.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="How many, the newest.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C; the oldest first.")
    ] = False,
    interval: Annotated[float, typer.Option(min=0.05, max=60, metavar="SECONDS", help="With --follow: how often to look.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print each entry as a line of JSON.")] = False,
) -> None:
    """Show the calls that were made: who asked, what ran, who decided, what became of it.

    [bold]Examples[/bold]

      patchbay audit --store sqlite:///audit.db --since 2h

      patchbay audit --server http://127.0.0.1:48911 --tool 'fs_*' --denied

      patchbay audit --store audit.db --session s1 --follow --json
    """  # fmt: skip
    from patchbay.audit import AuditQuery

    if not follow and _is_said(context, "interval"):
        raise ConfigurationError("--interval is how often to look with --follow: give both, or neither.")
    now = time.time()
    query = AuditQuery(
        since=read_time(since, now, "--since") if since is not None else None,
        until=read_time(until, now, "--until") if until is not None else None,
        tools=tuple(tool or ()),
        source=source,
        agent=agent,
        session=session,
        turn=turn,
        errors=errors,
        denied=denied,
    )
    if query.since is not None and query.until is not None and query.since >= query.until:
        raise ConfigurationError("--since is not before --until: no call can be of that time.")
    ask = _chosen(context, store, server, token_file)
    try:
        found = _newest(ask, query, limit)
        show: Callable[[Sequence[AuditEntry]], None] = _print_json if as_json else _Table().show
        show(found[::-1] if follow else found)
        if not found and not follow:
            print("No call fits." if query != AuditQuery() else "No call is written down yet.", file=sys.stderr)
        if follow:
            end_with_reader()
            _follow(ask, query, found[0].id if found else None, show, interval)
    except ConfigurationError:
        raise
    except PatchbayError as error:
        is_nobody = error.code == "server_unavailable" and store is None and server is None
        fail(f"{error}. {_NOBODY}" if is_nobody else str(error), 1)


def _chosen(
    context: typer.Context, store: str | None, server: str | None, token_file: Path | None
) -> Callable[[AuditQuery], AuditPage]:
    """Return what is asked; what was written on the command line goes before the environment."""
    if store is not None and server is not None:
        said = {name: _is_said(context, name) for name in ("store", "server")}
        if said["store"] and said["server"]:
            raise ConfigurationError("Give --store or --server, not both.")
        if said["server"]:
            store = None
    return _of_store(store) if store is not None else _of_server(server or SERVER, token_file)


def _is_said(context: typer.Context, name: str) -> bool:
    found = context.get_parameter_source(name)
    return found is not None and found.name == "COMMANDLINE"


def _of_store(url: str) -> Callable[[AuditQuery], AuditPage]:
    from sqlalchemy.exc import SQLAlchemyError

    from patchbay.audit import AuditLog
    from patchbay.cli.server_client import ServerGoneError

    log = AuditLog(url)
    if log.is_in_memory:
        raise ConfigurationError("There is no audit: --store names no file and no database.")

    async def asked(query: AuditQuery) -> AuditPage:
        try:
            return await log.query(query)
        finally:
            await log.aclose()

    def ask(query: AuditQuery) -> AuditPage:
        if log.is_missing:  # each time: to open it would make a file where one was taken away
            raise ConfigurationError("There is no audit: --store names a file that does not exist.")
        try:
            return asyncio.run(asked(query))
        except SQLAlchemyError as error:
            raise ServerGoneError(f"The audit cannot be read: {getattr(error, 'orig', None) or error}") from None

    return ask


def _of_server(url: str, token_file: Path | None) -> Callable[[AuditQuery], AuditPage]:
    from patchbay.audit import AuditEntry, AuditPage
    from patchbay.cli.server_client import ServerClient, ServerGoneError
    from patchbay.server.audit import as_parameters

    client = ServerClient(url, token_file)

    def ask(query: AuditQuery) -> AuditPage:
        told = client.read("/api/audit", as_parameters(query), missing=_MISSING)
        try:
            return AuditPage(tuple(AuditEntry.from_json(each) for each in told["entries"]), told["cursor"])
        except (KeyError, TypeError):
            raise ServerGoneError(f"The answer of {client.url} cannot be read: is it of another version?") from None

    return ask


def _newest(ask: Callable[[AuditQuery], AuditPage], query: AuditQuery, limit: int) -> list[AuditEntry]:
    """Return so many, however many pages that takes."""
    from patchbay.audit.entries import MAX_PAGE

    found: list[AuditEntry] = []
    cursor: int | None = None
    while len(found) < limit:
        page = ask(replace(query, limit=min(MAX_PAGE, limit - len(found)), before=cursor))
        found.extend(page.entries)
        if (cursor := page.cursor) is None:
            break
    return found


def _follow(
    ask: Callable[[AuditQuery], AuditPage],
    query: AuditQuery,
    last: int | None,
    show: Callable[[Sequence[AuditEntry]], None],
    interval: float,
) -> None:
    """Show what comes, until Ctrl-C. A server or a database that is gone is waited for."""
    from patchbay.audit.entries import MAX_PAGE
    from patchbay.cli.server_client import ServerGoneError, ServerRefusedError

    last = last or 0
    is_gone = False
    while True:
        time.sleep(interval)
        try:
            page = ask(replace(query, limit=MAX_PAGE, after=last))
        except (ServerGoneError, ServerRefusedError, ConfigurationError) as error:
            if isinstance(error, ServerRefusedError) and not error.may_pass:
                raise
            if not is_gone:
                print(f"{error}; waiting for it", file=sys.stderr)
            is_gone = True
            continue
        is_gone = False
        if page.entries:
            last = page.entries[-1].id
            show(page.entries)


def _print_json(entries: Sequence[AuditEntry]) -> None:
    for each in entries:
        print(json.dumps(each.as_json()))
    sys.stdout.flush()


class _Table:
    """A table on a terminal: its head is printed once, its columns are as wide as what is common."""

    _COLUMNS: Final = (("WHEN", 19), ("WHO", 24), ("TOOL", 24), ("OUTCOME", 18), ("TIME", 7), ("RESULT", 9), ("DECISIONS", 0))

    def __init__(self) -> None:
        self._has_head = False
        self._bold, self._red, self._plain = ("\x1b[1m", "\x1b[31m", "\x1b[0m") if in_colour(sys.stdout) else ("", "", "")

    def show(self, entries: Sequence[AuditEntry]) -> None:
        """Print them."""
        if entries and not self._has_head:
            self._has_head = True
            print(f"{self._bold}{self._line([name for name, _ in self._COLUMNS])}{self._plain}")
        for each in entries:
            mark = self._red if each.is_error or each.lost else ""
            line = f"{moment(each.time)}  {_lost(each)}" if each.lost else self._line(_cells(each))
            print(f"{mark}{line}{self._plain if mark else ''}")
        sys.stdout.flush()

    def _line(self, cells: Sequence[str]) -> str:
        padded = (_fitted(cell, width) for cell, (_, width) in zip(cells, self._COLUMNS, strict=False))
        return "  ".join(padded).rstrip()


def _cells(entry: AuditEntry) -> list[str]:
    who = "/".join(each for each in (entry.agent, entry.session_key, entry.sender) if each) or "-"
    tool = f"{entry.tool} ({entry.source})" if entry.source else entry.tool
    decisions = [f"{each.by}: {each.decision}" for each in entry.decisions[:_DECISIONS]]
    decisions = [each if len(each) <= _DECISION else f"{each[: _DECISION - 1]}~" for each in decisions]
    if (more := len(entry.decisions) - _DECISIONS) > 0:
        decisions.append(f"{more} more")
    cells = [
        moment(entry.time),
        who,
        tool,
        entry.code or "ok",
        span(entry.seconds) if entry.seconds else "-",
        f"{entry.result_chars:,}",
        "; ".join(decisions) or "-",
    ]
    return [printable(cell) for cell in cells]


def _lost(entry: AuditEntry) -> str:
    return f"({counted(entry.lost, 'call')} lost: the audit could not keep up)"


def _fitted(cell: str, width: int) -> str:
    """Return a cell as wide as its column on a terminal, where some characters are two wide and some none."""
    if not width:
        return cell
    if sum(map(_columns, cell)) > width:
        shown, left = "", width - 1
        for each in cell:
            if (left := left - _columns(each)) < 0:
                break
            shown += each
        cell = f"{shown}~"
    return cell + " " * (width - sum(map(_columns, cell)))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
