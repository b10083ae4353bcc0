"""One line on the terminal for each finished request to a model."""

from __future__ import annotations

import atexit
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.text import Text

from patchbay._redaction import Redactor
from patchbay._text import one_line, plural, printable
from patchbay.cli.terminal import format_duration, make_console

if TYPE_CHECKING:
    from patchbay.models.request_record import RequestRecord
    from patchbay.server.proxy import ProxyApp
    from patchbay.server.settings import ServeOptions

_MAX_WAITING: Final = 1000
_MAX_NAME_CHARS: Final = 150
_MAX_ERROR_CHARS: Final = 400
_MAX_NAMES: Final = 10
_FLUSH_SECONDS: Final = 1.0


def show_requests(proxy: ProxyApp, options: ServeOptions) -> None:
    """Print a line on stderr for each request that ``proxy`` has finished.

    On a terminal, and anywhere with -v or as JSON; not with -q.
    """
    log, as_json = options.log, options.log_format == "json"
    if log == "verbose" or (log == "normal" and (as_json or sys.stderr.isatty())):
        proxy.observers.append(RequestLines(verbose=log == "verbose", as_json=as_json))
        proxy.logs_failures = False


class RequestLines:
    """Prints the records that it is called with, in a thread: a terminal that is not read must not block the server.

    With 1,000 records in the queue, more are left out.
    """

    def __init__(self, *, verbose: bool, as_json: bool = False) -> None:
        self._verbose = verbose
        self._as_json = as_json
        self._records: queue.Queue[RequestRecord | None] = queue.Queue(_MAX_WAITING)
        self._thread: threading.Thread | None = None

    def __call__(self, record: RequestRecord) -> None:
        """Queue a record."""
        if self._thread is None:  # not earlier: a server forks its workers after it was set up
            self._thread = threading.Thread(target=self._run, name="patchbay-request-lines", daemon=True)
            self._thread.start()
            atexit.register(self._flush, self._thread)
        if not self._records.full():
            self._records.put_nowait(record)

    def _flush(self, thread: threading.Thread) -> None:
        try:
            self._records.put_nowait(None)
        except queue.Full:
            return
        thread.join(_FLUSH_SECONDS)

    def _run(self) -> None:
        if self._as_json:
            self._write_json()
        else:
            self._print()

    def _write_json(self) -> None:
        redactor = Redactor()
        while (record := self._records.get()) is not None:
            at = datetime.fromtimestamp(record.time, UTC).isoformat(timespec="milliseconds")
            level = "error" if record.status >= 500 else "warning" if record.error else "info"
            members = {"time": at, "level": level, "logger": "patchbay.requests", **_fields_of(record)}
            try:
                sys.stderr.write(f"{redactor.text(msgspec.json.encode(members).decode())}\n")
                sys.stderr.flush()
            except (OSError, ValueError):
                return

    def _print(self) -> None:
        console = make_console(sys.stderr)
        clock = "%H:%M:%S" if console.is_terminal else "%Y-%m-%d %H:%M:%S"
        while (record := self._records.get()) is not None:
            at = Text(time.strftime(clock, time.localtime(record.time)), "dim")
            try:
                console.print(at, describe_request(msgspec.structs.asdict(record), verbose=self._verbose))
            except (OSError, ValueError):  # the terminal was closed
                return


def describe_request(record: Mapping[str, Any], *, verbose: bool = False) -> Text:
    """Return the line of a record, without keys and tokens. Never raises on the record's content.

    ``verbose``: also the names of the called tools, and the reasons.
    """
    model, mode, status = (_text(record.get(name)) for name in ("model", "mode", "status"))
    constraint = _text(record.get("constraint"))
    calls, tools, seconds = [_text(name) for name in _list(record.get("calls"))], record.get("tools"), record.get("seconds")
    error = printable(one_line(str(record.get("error") or ""), _MAX_ERROR_CHARS))
    pieces = [(_text(record.get("protocol")), "cyan")]
    if model:  # otherwise the request was rejected before it was read
        pieces += [
            (model, "bold"),
            (f"{mode}+{constraint}" if constraint else mode, "yellow" if mode == "text" else ""),
            ("stream" if record.get("stream") else "whole", ""),
            (plural(tools, "tool") if isinstance(tools, int) and tools else "no tools", ""),
            (plural(len(calls), "call") if tools else "", "green" if calls else ""),
            (format_tokens(record), ""),
        ]
    pieces.append((format_duration(seconds) if isinstance(seconds, int | float) else "", ""))
    pieces.append((f"{status or '-'} {error}".rstrip(), "red" if error else "green"))
    if verbose and calls:
        pieces.append((f"[{', '.join(calls[:_MAX_NAMES])}{', ...' if len(calls) > _MAX_NAMES else ''}]", ""))
    if verbose and (reasons := _list(record.get("reasons"))):
        pieces.append((f"({'; '.join(map(_text, reasons))})", "dim"))
    pieces.append((f"[{record_id}]" if (record_id := _text(record.get("id"))) else "", "dim"))
    redactor = Redactor()
    return Text(" ").join(Text(redactor.text(text), style) for text, style in pieces if text)


def _fields_of(record: RequestRecord) -> dict[str, Any]:
    fields = msgspec.structs.asdict(record)
    del fields["time"]
    return fields


def format_tokens(usage: Mapping[str, Any]) -> str:
    """Return the tokens of a prompt and an answer in words; "" where they were not counted."""
    given, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return f"{given:,} \u2192 {written:,} tokens" if isinstance(given, int) and isinstance(written, int) else ""


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _text(value: Any) -> str:
    return printable(one_line(str(value), _MAX_NAME_CHARS)) if value else ""
