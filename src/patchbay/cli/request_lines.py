"""One line on the terminal for each finished request to a model."""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.style import Style

from patchbay._redaction import Redactor
from patchbay._text import one_line, plural, printable
from patchbay.cli.terminal import format_duration, supports_colour

if TYPE_CHECKING:
    from patchbay.models.request_record import RequestRecord
    from patchbay.server.proxy import ProxyApp
    from patchbay.server.settings import Verbosity

_MAX_WAITING: Final = 1000
_MAX_NAME_CHARS: Final = 150
_MIN_MODEL_CELLS: Final = 12
_MAX_ERROR_CHARS: Final = 400
_MAX_NAMES: Final = 10
_FLUSH_SECONDS: Final = 1.0

Pieces = list[tuple[str, str]]
"""Parts of a line, each with the name of its style ("" for none)."""


def show_requests(proxy: ProxyApp, log: Verbosity) -> None:
    """Print a line on stderr for each request that ``proxy`` has finished: on a terminal, and with -v anywhere; not with -q."""
    if log == "verbose" or (log == "normal" and sys.stderr.isatty()):
        proxy.observers.append(RequestLines(verbose=log == "verbose"))
        proxy.logs_failures = False


class RequestLines:
    """Prints the records that it is called with, in a thread: a terminal that is not read must not block the server."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._records: queue.SimpleQueue[RequestRecord | None] = queue.SimpleQueue()
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def __call__(self, record: RequestRecord) -> None:
        """Queue a record; with too many in the queue, count it only."""
        if self._records.qsize() >= _MAX_WAITING:
            self._dropped += 1
            return
        if self._thread is None:  # not earlier: a server forks its workers after it was set up
            self._thread = threading.Thread(target=self._run, name="patchbay-request-lines", daemon=True)
            self._thread.start()
            atexit.register(self._flush, self._thread)
        self._records.put(record)

    def _flush(self, thread: threading.Thread) -> None:
        self._records.put(None)
        thread.join(_FLUSH_SECONDS)

    def _run(self) -> None:
        stream = sys.stderr
        is_terminal, has_colour = stream.isatty(), supports_colour(stream)
        has_arrow = (stream.encoding or "").lower().startswith("utf")
        while (record := self._records.get()) is not None:
            clock = time.strftime("%H:%M:%S" if is_terminal else "%Y-%m-%d %H:%M:%S", time.localtime(record.time))
            dropped, self._dropped = self._dropped, 0
            more = f"... ({plural(dropped, 'request')} left out)\n" if dropped else ""
            try:
                columns = os.get_terminal_size(stream.fileno()).columns if is_terminal and not self._verbose else 0
                width = columns - len(clock) - 1 if columns else None
                pieces = [(clock, "dim"), *describe_request(vars(record), width=width, verbose=self._verbose)]
                line = " ".join(_styled(text, style, has_colour) for text, style in pieces)
                line = line if has_arrow else line.replace("\u2192", "->")
                stream.write(f"{more}{Redactor().text(line)}\n")
                stream.flush()
            except (OSError, ValueError):  # the terminal was closed
                return


def describe_request(record: Mapping[str, Any], *, width: int | None = None, verbose: bool = False) -> Pieces:
    """Return the line of a record. The model's name is cut for a line of ``width`` columns. Never raises on the record's content.

    ``verbose``: also the names of the called tools, and the reasons.
    """
    model, mode, status = (_text(record.get(name)) for name in ("model", "mode", "status"))
    calls, tools, seconds = [_text(name) for name in _list(record.get("calls"))], record.get("tools"), record.get("seconds")
    error = printable(one_line(str(record.get("error") or ""), _MAX_ERROR_CHARS))
    pieces: Pieces = [(_text(record.get("protocol")), "cyan")]
    if model:  # otherwise the request was rejected before it was read
        pieces += [
            (model, "bold"),
            (mode, "yellow" if mode == "text" else ""),
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
    pieces = [piece for piece in pieces if piece[0]]
    if width is not None and model:
        others = sum(cell_len(text) + 1 for text, _ in pieces) - cell_len(model)
        pieces[1] = (_fit(model, max(width - others, _MIN_MODEL_CELLS)), "bold")
    return pieces


def format_tokens(usage: Mapping[str, Any]) -> str:
    """Return the tokens of a prompt and an answer in words; "" where they were not counted."""
    given, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return f"{given:,} \u2192 {written:,} tokens" if isinstance(given, int) and isinstance(written, int) else ""


def _fit(text: str, columns: int) -> str:
    return text if cell_len(text) <= columns else f"{set_cell_size(text, columns - 3).rstrip()}..."


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _text(value: Any) -> str:
    return printable(one_line(str(value), _MAX_NAME_CHARS)) if value else ""


def _styled(text: str, style: str, has_colour: bool) -> str:
    return Style.parse(style).render(text, color_system=ColorSystem.STANDARD) if has_colour and style else text
