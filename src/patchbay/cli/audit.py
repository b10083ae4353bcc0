"""``patchbay audit``: show past tool calls from the database or from a server."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from patchbay._text import plural, printable
from patchbay.cli.options import SERVER, TokenFile, is_explicit, server_option
from patchbay.cli.terminal import (
    exit_when_stdout_closes,
    format_datetime,
    format_duration,
    parse_time,
    supports_colour,
)
from patchbay.errors import ConfigurationError

if TYPE_CHECKING:
    from patchbay.audit import AuditEntry, AuditPage, AuditQuery

_FILTERS = "Filters"
_MAX_DECISIONS: Final = 4
_MAX_DECISION_CHARS: Final = 80
_MISSING: Final = (
    "The server has no audit log: `patchbay serve` has one unless it runs with --audit none, `patchbay proxy` one with --config."
)


def _filter(help: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, rich_help_panel=_FILTERS, help=help)


def audit(
    context: typer.Context,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="PATCHBAY_AUDIT",
            help="Audit database: sqlite:///audit.db, a file, postgresql://host/name.",
        ),
    ] = None,
    server: Annotated[
        str | None,
        server_option(f"Query a server instead. Default: {SERVER}."),
    ] = None,
    token_file: TokenFile = None,
    since: Annotated[str | None, _filter("Not before: 15m, 2h, 7d ago, or 2026-05-01T12:00.", metavar="TIME")] = None,
    until: Annotated[str | None, _filter("Before this time.", metavar="TIME")] = None,
    tool: Annotated[list[str] | None, _filter("Tool name or pattern: fs_read, 'fs_*'; repeatable.", metavar="PATTERN")] = None,
    source: Annotated[str | None, _filter("Source of the tool.", metavar="NAME")] = None,
    agent: Annotated[str | None, _filter("Agent name.", metavar="NAME")] = None,
    session: Annotated[str | None, _filter("Session key.", metavar="KEY")] = None,
    turn: Annotated[str | None, _filter("Turn id, including turns of its sub-agents.", metavar="ID")] = None,
    errors: Annotated[bool, _filter("Failed calls.", "--errors")] = False,
    denied: Annotated[bool, _filter("Calls denied by a hook or approver.", "--denied")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="Number of calls, newest first.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new calls until Ctrl-C, oldest first.")] = False,
    interval: Annotated[float, typer.Option(min=0.05, max=60, metavar="SECONDS", help="Poll interval of --follow.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print each entry as a line of JSON.")] = False,
) -> None:
    """Show past tool calls: time, caller, tool, outcome, duration, size of the result, decisions.

    The audit log stores neither arguments nor results.

    [bold]Examples[/bold]

      patchbay audit --store sqlite:///audit.db --since 2h

      patchbay audit --server http://127.0.0.1:48911 --tool 'fs_*' --denied

      patchbay audit --store audit.db --session s1 --follow --json
    """  # fmt: skip
    from patchbay.audit import AuditQuery
    from patchbay.cli.http import ServerUnavailableError

    if not follow and is_explicit(context, "interval"):
        raise ConfigurationError("--interval needs --follow.")
    if follow and until is not None:
        raise ConfigurationError("--follow and --until cannot go together: new calls have no end.")
    now = time.time()
    query = AuditQuery(
        since=parse_time(since, now, "--since") if since is not None else None,
        until=parse_time(until, now, "--until") if until is not None else None,
        tools=tuple(tool or ()),
        source=source,
        agent=agent,
        session=session,
        turn=turn,
        errors=errors,
        denied=denied,
    )
    if query.since is not None and query.until is not None and query.since >= query.until:
        raise ConfigurationError("--since must be before --until.")
    fetch = _source(context, store, server, token_file)
    try:
        found = _newest(fetch, query, limit)
        show: Callable[[Sequence[AuditEntry]], None] = _print_json if as_json else _Table().show
        show(found[::-1] if follow else found)
        if not found and not follow:
            print("No matching calls." if query != AuditQuery() else "The audit log is empty.", file=sys.stderr)
        if follow:
            exit_when_stdout_closes()
            follow_calls(fetch, query, found[0].id if found else None, show, interval)
    except ServerUnavailableError as error:
        if store is None and server is None and error.hint:
            error.hint += " or --store"
        raise


def _source(
    context: typer.Context, store: str | None, server: str | None, token_file: Path | None
) -> Callable[[AuditQuery], AuditPage]:
    """Return a query function. The command line takes precedence over the environment."""
    if store is not None and server is not None:
        explicit = {name for name in ("store", "server") if is_explicit(context, name)}
        if len(explicit) == 2:
            raise ConfigurationError("Use --store or --server, not both.")
        if "server" in explicit:
            store = None
    return query_store(store) if store is not None else _query_server(server or SERVER, token_file)


def query_store(url: str) -> Callable[[AuditQuery], AuditPage]:
    """Return a query function of a database. Raises ConfigurationError."""
    from sqlalchemy.exc import SQLAlchemyError

    from patchbay.audit import AuditLog
    from patchbay.cli.http import ServerUnavailableError
    from patchbay.database import reason_of

    log = AuditLog(url)
    if log.is_in_memory:
        raise ConfigurationError("--store must be a file or a database URL.")

    async def query_and_close(query: AuditQuery) -> AuditPage:
        try:
            return await log.query(query)
        finally:
            await log.aclose()

    def fetch(query: AuditQuery) -> AuditPage:
        if log.is_missing:  # on each query: opening would recreate a deleted file
            raise ConfigurationError(f"--store: no such file {url.removeprefix('sqlite:///')}.")
        try:
            return asyncio.run(query_and_close(query))
        except SQLAlchemyError as error:
            raise ServerUnavailableError(f"Cannot read the audit log: {reason_of(error)}") from None

    return fetch


def _query_server(url: str, token_file: Path | None) -> Callable[[AuditQuery], AuditPage]:
    from patchbay.audit import AuditEntry, AuditPage
    from patchbay.cli.http import ServerClient, ServerUnavailableError

    client = ServerClient(url, token_file)

    def fetch(query: AuditQuery) -> AuditPage:
        page = client.read("/api/audit", query.parameters(), missing=_MISSING)
        try:
            return AuditPage(tuple(AuditEntry.from_json(each) for each in page["entries"]), page["cursor"])
        except (KeyError, TypeError):
            raise ServerUnavailableError(f"Invalid response from {client.url}: is it another version?") from None

    return fetch


def _newest(fetch: Callable[[AuditQuery], AuditPage], query: AuditQuery, limit: int) -> list[AuditEntry]:
    """Return the newest ``limit`` entries, from as many pages as needed."""
    from patchbay.audit.entries import MAX_PAGE

    found: list[AuditEntry] = []
    cursor: int | None = None
    while len(found) < limit:
        page = fetch(replace(query, limit=min(MAX_PAGE, limit - len(found)), before=cursor))
        found.extend(page.entries)
        if (cursor := page.cursor) is None:
            break
    return found


def follow_calls(
    fetch: Callable[[AuditQuery], AuditPage],
    query: AuditQuery,
    last: int | None,
    show: Callable[[Sequence[AuditEntry]], None],
    interval: float,
) -> None:
    """Show new entries until Ctrl-C; retry while the server or the database is unreachable."""
    from patchbay.audit.entries import MAX_PAGE
    from patchbay.cli.http import ServerRefusedError, ServerUnavailableError

    last = last or 0
    is_disconnected = False
    while True:
        time.sleep(interval)
        try:
            page = fetch(replace(query, limit=MAX_PAGE, after=last))
        except (ServerUnavailableError, ServerRefusedError, ConfigurationError) as error:
            if isinstance(error, ServerRefusedError) and not error.is_transient:
                raise
            if not is_disconnected:
                print(f"{error}; retrying", file=sys.stderr)
            is_disconnected = True
            continue
        is_disconnected = False
        if page.entries:
            last = page.entries[-1].id
            show(page.entries)


def _print_json(entries: Sequence[AuditEntry]) -> None:
    for each in entries:
        print(json.dumps(each.as_json()))
    sys.stdout.flush()


class _Table:
    """A table with fixed column widths; its header is printed once."""

    _COLUMNS: Final = (
        ("WHEN", 19),
        ("WHO", 24),
        ("TOOL", 24),
        ("OUTCOME", 18),
        ("TIME", 7),
        ("RESULT", 9),
        ("TOKENS", 11),
        ("DECISIONS", 0),
    )

    def __init__(self) -> None:
        self._has_header = False
        self._bold, self._red, self._plain = ("\x1b[1m", "\x1b[31m", "\x1b[0m") if supports_colour(sys.stdout) else ("", "", "")

    def show(self, entries: Sequence[AuditEntry]) -> None:
        """Print rows."""
        if entries and not self._has_header:
            self._has_header = True
            print(f"{self._bold}{self._line([name for name, _ in self._COLUMNS])}{self._plain}")
        for each in entries:
            mark = self._red if each.is_error or each.lost else ""
            line = f"{format_datetime(each.time)}  {_lost(each)}" if each.lost else self._line(_cells(each))
            print(f"{mark}{line}{self._plain if mark else ''}")
        sys.stdout.flush()

    def _line(self, cells: Sequence[str]) -> str:
        padded = (_fit(cell, width) for cell, (_, width) in zip(cells, self._COLUMNS, strict=False))
        return "  ".join(padded).rstrip()


def _cells(entry: AuditEntry) -> list[str]:
    who = "/".join(each for each in (entry.agent, entry.session_key, entry.sender) if each) or "-"
    tool = f"{entry.tool} ({entry.source})" if entry.source else entry.tool
    decisions = [f"{each.by}: {each.decision}" for each in entry.decisions[:_MAX_DECISIONS]]
    decisions = [each if len(each) <= _MAX_DECISION_CHARS else f"{each[: _MAX_DECISION_CHARS - 1]}~" for each in decisions]
    if (more := len(entry.decisions) - _MAX_DECISIONS) > 0:
        decisions.append(f"{more} more")
    cells = [
        format_datetime(entry.time),
        who,
        tool,
        entry.code or "ok",
        format_duration(entry.seconds) if entry.seconds else "-",
        f"{entry.result_chars:,}",
        f"{entry.prompt_tokens}+{entry.completion_tokens}" if entry.prompt_tokens or entry.completion_tokens else "-",
        "; ".join(decisions) or "-",
    ]
    return [printable(cell) for cell in cells]


def _lost(entry: AuditEntry) -> str:
    return f"({plural(entry.lost, 'call')} lost: the audit log was overloaded)"


def _fit(cell: str, width: int) -> str:
    """Pad or cut a cell to its width on a terminal, where characters are up to two columns wide."""
    if not width:
        return cell
    from rich.cells import cell_len, set_cell_size

    if cell_len(cell) > width:
        cell = f"{set_cell_size(cell, width - 1).rstrip()}~"
    return set_cell_size(cell, width)
