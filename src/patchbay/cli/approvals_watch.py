"""``patchbay approvals watch``: each call that waits is put to whoever sits here, one after the other.

The question stands until it is answered here or elsewhere; what is typed before it stands is dropped. A server that is gone is
waited for: it may be back, with the requests that it had.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Final

from patchbay.approvals import ApprovalRequest, State
from patchbay.approvals.terminal import LineBuffer, parse_answer, render, render_outcome, render_question, reply_to
from patchbay.cli.approvals_client import NoSuchRequestError
from patchbay.cli.server_client import ServerGoneError, ServerRefusedError
from patchbay.legible import printable

if TYPE_CHECKING:
    from patchbay.approvals.request import Answer
    from patchbay.cli.approvals_client import ApprovalsClient

_PIECE: Final = 4096


class EndOfInputError(Exception):
    """Whoever typed is gone."""


class Watch:
    """Looks at what is pending every ``interval`` seconds; answers are ``by`` whom."""

    def __init__(self, client: ApprovalsClient, *, interval: float, by: str) -> None:
        self._client = client
        self._interval = interval
        self._by = by
        self._typed = LineBuffer()
        self._is_gone = False

    def run(self, *, as_json: bool) -> None:
        """Go on until Ctrl-C, or the end of the input. Raises ServerRefusedError, and at first ServerGoneError."""
        pending = self._client.listed()  # a server that was never there is a mistake, one that is gone is not
        print(f"Watching {self._client.url}; Ctrl-C ends.", file=sys.stderr)
        if as_json:
            self._tell(pending)
        try:
            while True:
                for request in pending:
                    self._ask(request)
                time.sleep(self._interval)
                pending = self._looked() or []
        except EndOfInputError:
            return

    def _tell(self, pending: list[ApprovalRequest]) -> None:
        """Print each request as it comes, and what became of it."""
        known: dict[str, ApprovalRequest] = {}
        while True:
            now = {each.id: each for each in pending}
            for each in pending:
                if each.id not in known:
                    _print_json(each)
            for request_id in known.keys() - now.keys():
                with contextlib.suppress(ServerGoneError, NoSuchRequestError):
                    _print_json(self._client.get(request_id))
            known = now
            while (looked := self._looked_later()) is None:
                pass
            pending = looked

    def _ask(self, request: ApprovalRequest) -> None:
        """Put a request to whoever sits here, until it is decided, here or elsewhere; not one that is decided by now."""
        if self._is_over(request, quietly=True):
            return
        print(f"\n{render(request)}")
        self._drop()
        self._prompt(request)
        while True:
            line = self._line()
            if line is None:
                if self._is_over(request):
                    return
                continue
            answer = parse_answer(line, request)
            if isinstance(answer, str):
                if reply := reply_to(answer, line, request):
                    print(reply)
                self._prompt(request)
                continue
            self._decide(request, answer)
            return

    def _decide(self, request: ApprovalRequest, answer: Answer) -> None:
        try:
            print(
                render_outcome(
                    self._client.decide(request, answer.verdict, reason=answer.reason, by=self._by, arguments=answer.arguments)
                )
            )
        except (ServerRefusedError, ServerGoneError) as error:
            print(error)

    def _prompt(self, request: ApprovalRequest) -> None:
        print(render_question(request, time.time()), end="", flush=True)

    def _looked_later(self) -> list[ApprovalRequest] | None:
        time.sleep(self._interval)
        return self._looked()

    def _looked(self) -> list[ApprovalRequest] | None:
        """Return what is pending, None where the server is gone."""
        try:
            pending = self._client.listed()
        except ServerGoneError as error:
            if not self._is_gone:
                print(f"{error}; waiting for it", file=sys.stderr)
            self._is_gone = True
            return None
        if self._is_gone:
            print("It is back.", file=sys.stderr)
        self._is_gone = False
        return pending

    def _is_over(self, request: ApprovalRequest, *, quietly: bool = False) -> bool:
        """Say whether there is nothing left to answer, and what became of it. A server that is gone has not said."""
        try:
            standing = self._client.get(request.id)
        except ServerGoneError:
            return False
        except NoSuchRequestError:
            words = f"{request.id}  {printable(request.tool)}  is not known to the server any more"
        else:
            if standing.state is State.PENDING:
                return False
            words = render_outcome(standing)
        if not quietly:
            print(f"\n{words}")
        return True

    def _line(self) -> str | None:
        """Return the next line that is typed within the interval, None where there is none. Raises EndOfInputError."""
        while (line := self._typed.next()) is None:
            if not self._wait():
                return None
            if not (piece := os.read(sys.stdin.fileno(), _PIECE)):
                print()
                raise EndOfInputError
            self._typed.feed(piece)
        return line

    def _wait(self) -> bool:
        """Wait for an interval, or until there is something to read; say whether there is."""
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], self._interval)
        return bool(readable)

    def _drop(self) -> None:
        """Drop what was typed before the question stood."""
        if sys.stdin.isatty():
            import termios

            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
            self._typed.clear()


def _print_json(request: ApprovalRequest) -> None:
    print(json.dumps(request.as_json()), flush=True)
