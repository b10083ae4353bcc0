"""HTTP client of ``/api/approvals``, and the interactive review loop of ``patchbay approvals watch``."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from patchbay._text import printable
from patchbay.approvals import ApprovalRequest, Permission, SessionGrant, State, Verdict
from patchbay.approvals.terminal import LineBuffer, discard_input, parse_answer, render, render_outcome, render_question
from patchbay.cli.http import ServerClient, ServerRefusedError, ServerUnavailableError
from patchbay.errors import ApprovalNotFoundError

if TYPE_CHECKING:
    from patchbay.approvals.permissions import Criterion
    from patchbay.approvals.request import Answer


T = TypeVar("T")

_MISSING: Final = "The server has no approvals: `patchbay serve` has them, `patchbay proxy` with --config."


class UnknownRequestError(ServerRefusedError):
    """The server does not know the request: it expired, or the server restarted without a database."""


class ApprovalsClient:
    """Client of ``/api/approvals`` at ``url``. Raises ConfigurationError."""

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        self._server = ServerClient(url, token_file)

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return self._server.url

    def requests(self, *, everything: bool = False) -> list[ApprovalRequest]:
        """Return pending requests, oldest first, or recent requests, newest first, with complete arguments."""
        requests = []
        for each in self._list("/api/approvals", "approvals", [("all", "1")] if everything else ()):
            with contextlib.suppress(UnknownRequestError):
                request = _parse(ApprovalRequest.from_json, each)
                requests.append(self.get(request.id) if each.get("is_cut") else request)
        return requests

    def get(self, request_id: str) -> ApprovalRequest:
        """Return a request with complete arguments. Raises UnknownRequestError, Server...Error."""
        return self._find("/api/approvals", request_id, ApprovalRequest.from_json, key="approval")

    def decide(
        self, request: ApprovalRequest, verdict: Verdict, *, reason: str, by: str, arguments: Any = None, permission: Any = None
    ) -> ApprovalRequest:
        """Decide a request if it is unchanged, and return its new state. Raises as ``get``."""
        body: dict[str, Any] = {"decision": verdict, "reason": reason, "by": by, "digest": request.digest}
        body |= {name: each for name, each in (("arguments", arguments), ("permission", permission)) if each is not None}
        return self._find("/api/approvals", request.id, ApprovalRequest.from_json, key="approval", body=body)

    def sessions(self) -> list[SessionGrant]:
        """Return active session approvals. Raises Server...Error."""
        return [_parse(SessionGrant.from_json, each) for each in self._list("/api/approvals/sessions", "sessions")]

    def proposal(self, request_id: str) -> tuple[Permission, Mapping[str, Mapping[str, Sequence[Criterion]]]]:
        """Return the narrowest standing permission for a request, and what each argument and fact may be. Raises as ``get``."""
        found = self._find("/api/approvals", request_id, dict, below="/permission")
        return _parse(Permission.from_json, found.get("permission")), _parse(dict, found.get("steps"))

    def permissions(self) -> list[Permission]:
        """Return the standing permissions. Raises Server...Error."""
        return [_parse(Permission.from_json, each) for each in self._list("/api/approvals/permissions", "permissions")]

    def revoke_permission(self, permission_id: str) -> Permission:
        """Revoke a standing permission. Raises UnknownRequestError, Server...Error."""
        return self._find("/api/approvals/permissions", permission_id, Permission.from_json, key="revoked", method="DELETE")

    def revoke(self, request_id: str) -> SessionGrant:
        """Revoke a session approval. Raises UnknownRequestError, Server...Error."""
        return self._find("/api/approvals/sessions", request_id, SessionGrant.from_json, key="revoked", method="DELETE")

    def _list(self, path: str, key: str, parameters: Iterable[tuple[str, str]] = ()) -> list[Any]:
        """Return the list in a response. Raises Server...Error."""
        found = self._server.read(path, parameters, missing=_MISSING).get(key)
        if not isinstance(found, list):
            raise ServerUnavailableError(f"{self.url} is not a Patchbay server.")
        return found

    def _find(
        self, path: str, request_id: str, read: Callable[[Any], T], *, key: str | None = None, below: str = "", **options: Any
    ) -> T:
        """Send a request about a request or a grant, and return it, or without ``key`` the whole answer.

        Raises UnknownRequestError, Server...Error.
        """
        try:
            found = self._server.read(f"{path}/{urllib.parse.quote(request_id, safe='')}{below}", missing=_MISSING, **options)
        except ServerRefusedError as error:
            if error.server_code == ApprovalNotFoundError.code:
                raise UnknownRequestError(str(error), is_transient=False, server_code=error.server_code) from None
            raise
        return _parse(read, found.get(key) if key else found)


def _parse(read: Callable[[Any], T], data: Any) -> T:
    """Return a part of a response. Raises ServerUnavailableError."""
    try:
        return read(data)
    except (ValueError, TypeError, AttributeError):
        raise ServerUnavailableError("Invalid response from the server: is it another version?") from None


_CHUNK: Final = 4096


class EndOfInputError(Exception):
    """Standard input was closed."""


class Watch:
    """Interactive review of pending requests, polled every ``interval`` seconds; decisions are recorded as made ``by``."""

    def __init__(self, client: ApprovalsClient, *, interval: float, by: str) -> None:
        self._client = client
        self._interval = interval
        self._by = by
        self._typed = LineBuffer()
        self._is_disconnected = False

    def run(self, *, as_json: bool) -> None:
        """Run until Ctrl-C or the end of the input. Raises ServerRefusedError, and on the first poll ServerUnavailableError."""
        pending = self._client.requests()  # an unreachable server is an error at first, later it is retried
        print(f"Watching {self._client.url}; Ctrl-C ends.", file=sys.stderr)
        if as_json:
            self._print_changes(pending)
        try:
            while True:
                for request in pending:
                    self._ask(request)
                pending = self._wait_and_poll() or []
        except EndOfInputError:
            return

    def _print_changes(self, pending: list[ApprovalRequest]) -> None:
        """Print each new request, and each request that was decided."""
        known: dict[str, ApprovalRequest] = {}
        while True:
            now = {each.id: each for each in pending}
            for each in pending:
                if each.id not in known:
                    _print_json(each)
            for request_id in known.keys() - now.keys():
                with contextlib.suppress(ServerUnavailableError, UnknownRequestError):
                    _print_json(self._client.get(request_id))
            known = now
            while (polled := self._wait_and_poll()) is None:
                pass
            pending = polled

    def _ask(self, request: ApprovalRequest) -> None:
        """Prompt for a decision until the request is decided, here or elsewhere."""
        if self._is_over(request, quietly=True):
            return
        print(f"\n{render(request)}")
        self._discard_input()
        self._prompt(request)
        while True:
            line = self._read_line()
            if line is None:
                if self._is_over(request):
                    return
                continue
            answer = parse_answer(line, request)
            if isinstance(answer, str):
                if answer:
                    print(answer)
                self._prompt(request)
                continue
            self._decide(request, answer)
            return

    def _decide(self, request: ApprovalRequest, answer: Answer) -> None:
        try:
            verdict, reason, arguments = answer.verdict, answer.reason, answer.arguments
            print(render_outcome(self._client.decide(request, verdict, reason=reason, by=self._by, arguments=arguments)))
        except (ServerRefusedError, ServerUnavailableError) as error:
            print(error)

    def _prompt(self, request: ApprovalRequest) -> None:
        print(render_question(request, time.time()), end="", flush=True)

    def _wait_and_poll(self) -> list[ApprovalRequest] | None:
        """Return pending requests after an interval, None while the server is unreachable."""
        time.sleep(self._interval)
        try:
            pending = self._client.requests()
        except ServerUnavailableError as error:
            if not self._is_disconnected:
                print(f"{error}; reconnecting", file=sys.stderr)
            self._is_disconnected = True
            return None
        if self._is_disconnected:
            print("Reconnected.", file=sys.stderr)
        self._is_disconnected = False
        return pending

    def _is_over(self, request: ApprovalRequest, *, quietly: bool = False) -> bool:
        """Return True, and print the outcome, once the request is decided; False while the server is unreachable."""
        try:
            current = self._client.get(request.id)
        except ServerUnavailableError:
            return False
        except UnknownRequestError:
            words = f"{request.id}  {printable(request.tool)}  is no longer known to the server"
        else:
            if current.state is State.PENDING:
                return False
            words = render_outcome(current)
        if not quietly:
            print(f"\n{words}")
        return True

    def _read_line(self) -> str | None:
        """Return the next line typed within the interval, else None. Raises EndOfInputError."""
        while (line := self._typed.next()) is None:
            if not select.select([sys.stdin.fileno()], [], [], self._interval)[0]:
                return None
            if not (chunk := os.read(sys.stdin.fileno(), _CHUNK)):
                print()
                raise EndOfInputError
            self._typed.feed(chunk)
        return line

    def _discard_input(self) -> None:
        """Discard what was typed before the prompt."""
        if sys.stdin.isatty():
            discard_input(sys.stdin.fileno())
            self._typed.clear()


def _print_json(request: ApprovalRequest) -> None:
    print(json.dumps(request.as_json()), flush=True)
