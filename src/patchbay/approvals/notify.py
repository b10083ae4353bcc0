"""Notes to an address of the operator: one signed POST for each request for approval that begins to wait.

A note has names and times, and neither arguments nor links: what a model writes does not leave the server by it, and nothing in
it can be decided with.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import json
import logging
import os
import re
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from patchbay._backoff import Backoff
from patchbay._config import Table
from patchbay._redaction import protect
from patchbay.approvals.request import ApprovalRequest
from patchbay.errors import ConfigurationError
from patchbay.loopback import ADDRESSES_OF_LOCALHOST, LOCALHOST, is_this_machine
from patchbay.tools.threads import run_in_thread

MAX_QUEUED: Final = 100
"""Notes that wait to be sent; further ones are dropped."""

TIMEOUT: Final = 10.0
"""Seconds of one attempt."""

RETRIES: Final = 2
FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 10.0
"""Seconds between attempts."""

SILENT: Final = 600.0
"""Seconds after a logged failure in which further ones are not."""

TIMESTAMP: Final = "X-Patchbay-Timestamp"
SIGNATURE: Final = "X-Patchbay-Signature"

_MIN_SECRET_CHARS: Final = 16
_RETRIED: Final = frozenset({408, 425, 429})
_NO_NAME: Final = re.compile(r"[^\w.:@+-]+")
_KEYS: Final = ("notify", "notify_secret_env", "notify_secret_file")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """Where notes go, and the secret that signs them. Raises ConfigurationError."""

    url: str = field(repr=False)  # of some services it is a secret
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port = "", None
        is_safe = bool(host) and port != 0 and (parts.scheme == "https" or (parts.scheme == "http" and is_this_machine(host)))
        if not is_safe or parts.username is not None or not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise ConfigurationError(
                "approvals.notify must be an https:// address, or an http:// address of this machine, without a user name."
            )
        if len(self.secret) < _MIN_SECRET_CHARS:
            raise ConfigurationError(f"The secret of approvals.notify must have {_MIN_SECRET_CHARS} characters or more.")
        protect(self.secret)


def read_notify(table: Table) -> NotifySettings | None:
    """Read ``notify`` and its secret from the value of ``approvals``; None without it. Raises ConfigurationError."""
    url, variable, path = (table.text(key) for key in _KEYS)
    if not url:
        if variable or path:
            raise ConfigurationError(
                f"{table.at(_KEYS[1] if variable else _KEYS[2])} is for {table.at('notify')}, which is missing."
            )
        return None
    if bool(variable) == bool(path):
        raise ConfigurationError(f"{table.at('notify')} needs a secret to sign with: {_KEYS[1]} or {_KEYS[2]}, one of them.")
    if path:
        return NotifySettings(url, _read_secret(Path(path).expanduser()))
    if (secret := os.environ.get(variable)) is None:
        raise ConfigurationError(f"{table.at(_KEYS[1])}: there is no environment variable {variable!r:.99}.")
    return NotifySettings(url, secret)


def _read_secret(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            if mode := os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigurationError(f"others can get at the secret of approvals.notify (mode {mode:03o}): chmod 600 {path}")
            return file.read().strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"The secret of approvals.notify cannot be read: {error}") from error


class Notifier:
    """Sends notes one after the other, in a task of its own. ``put`` neither waits nor raises; for one event loop at a time."""

    def __init__(self) -> None:
        self._queue: deque[tuple[NotifySettings, ApprovalRequest]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._silent_until = 0.0

    def put(self, settings: NotifySettings, request: ApprovalRequest) -> None:
        """Queue the note about a request, or drop it where too many wait."""
        if len(self._queue) >= MAX_QUEUED:
            self._log(f"{MAX_QUEUED} notes wait to be sent, and further ones are dropped")
            return
        self._queue.append((settings, request))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send_all())

    async def aclose(self) -> None:
        """Stop sending."""
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _send_all(self) -> None:
        while self._queue:
            settings, request = self._queue.popleft()
            if problem := await _send(settings, request):
                self._log(problem)
            else:
                self._silent_until = 0.0

    def _log(self, problem: str) -> None:
        if time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + SILENT
            _logger.warning("approvals.notify: %s (logged every %d minutes at most)", problem, SILENT // 60)


async def _send(settings: NotifySettings, request: ApprovalRequest) -> str:
    """Post the note about a request, a few times if need be; return what went wrong."""
    backoff = Backoff(FIRST_DELAY, LONGEST_DELAY, retries=RETRIES)
    while True:
        try:
            async with asyncio.timeout(TIMEOUT):
                status = await run_in_thread(lambda: _post(settings, note_of(request, now=int(time.time()))))
            problem = "" if 200 <= status < 300 else f"the address answered HTTP {status}"
            if not problem or (status < 500 and status not in _RETRIED):
                return problem
        except TimeoutError:
            problem = f"the address did not answer within {TIMEOUT:g} s"
        except Exception as error:  # noqa: BLE001  (a note that fails must not end the sending of the next)
            problem = f"the address cannot be reached: {type(error).__name__}: {error}"
        delay = backoff.fail()
        if backoff.is_exhausted:
            return problem
        await asyncio.sleep(delay)


def note_of(request: ApprovalRequest, *, now: int) -> dict[str, Any]:
    """Return the note about a request. ``text`` is what chat services show."""
    names = {
        "tool": request.tool,
        "source": request.source,
        "role": request.role,
        "agent": request.agent,
        "session": request.session_key,
        "rule": request.rule,
    }
    shown = {name: _NO_NAME.sub(" ", value)[:200].strip() for name, value in names.items()}
    tool = shown["tool"] if re.fullmatch(r"[A-Za-z0-9_-]{1,100}", shown["tool"]) else "a tool"
    times = {"time": now, "created": request.created, "deadline": request.deadline, "at_deadline": request.at_deadline}
    return {"type": "approval.requested", "id": request.id, **shown, **times, "text": f"A call of {tool} waits for approval."}


def _post(settings: NotifySettings, note: dict[str, Any]) -> int:
    """Post a note and return the status. A redirect is not followed. Blocks; raises OSError, HTTPException."""
    parts = urlsplit(settings.url)
    body = json.dumps(note).encode()
    host = parts.hostname or ""
    host = ADDRESSES_OF_LOCALHOST[0] if host == LOCALHOST else host  # whatever the system's resolver says
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = make(host, parts.port, timeout=TIMEOUT)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "patchbay",
            TIMESTAMP: str(note["time"]),
            SIGNATURE: f"sha256={hmac.new(settings.secret.encode(), body, hashlib.sha256).hexdigest()}",
        }
        connection.request("POST", target, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()
