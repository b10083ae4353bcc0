"""What the commands of ``patchbay approvals`` ask of the server: ``/api/approvals``, as anybody may ask it over HTTP."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from patchbay.approvals import ApprovalRequest, SessionGrant, Verdict
from patchbay.cli.server_client import ServerClient, ServerGoneError, ServerRefusedError
from patchbay.errors import ApprovalNotFoundError

_MISSING: Final = "It has no approvals."


class NoSuchRequestError(ServerRefusedError):
    """The server does not know the request: it has forgotten it, or was started anew without a database."""


class ApprovalsClient:
    """Asks the server at ``url``, showing the token of ``token_file``. Raises ConfigurationError."""

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        self._server = ServerClient(url, token_file)

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._server.url

    def listed(self, *, everything: bool = False) -> list[ApprovalRequest]:
        """Return what is pending, the oldest first; or the last requests, the newest first. Raises Server...Error.

        All of them with all of their arguments: what is cut is asked for by itself, unless it is gone meanwhile.
        """
        found = self._server.read("/api/approvals", [("all", "1")] if everything else (), missing=_MISSING).get("approvals", ())
        requests = []
        for each in found if isinstance(found, list) else ():
            with contextlib.suppress(NoSuchRequestError):
                request = _request(each)
                requests.append(self.get(request.id) if each.get("is_cut") else request)
        return requests

    def get(self, request_id: str) -> ApprovalRequest:
        """Return a request with all of its arguments. Raises NoSuchRequestError, Server...Error."""
        return self._one(request_id)

    def decide(
        self, request: ApprovalRequest, verdict: Verdict, *, reason: str, by: str, arguments: Any = None
    ) -> ApprovalRequest:
        """Decide a request, if it still is what was looked at, and return it as it is then. Raises as ``get``."""
        edited = {} if arguments is None else {"arguments": arguments}
        return self._one(request.id, {"decision": verdict, "reason": reason, "by": by, "digest": request.digest, **edited})

    def sessions(self) -> list[SessionGrant]:
        """Return the approvals for a session that hold. Raises Server...Error."""
        found = self._server.read("/api/approvals/sessions", missing=_MISSING).get("sessions")
        return [_grant(each) for each in (found if isinstance(found, list) else ())]

    def revoke(self, request_id: str) -> SessionGrant:
        """Take back an approval for a session. Raises NoSuchRequestError, Server...Error."""
        path = f"/api/approvals/sessions/{urllib.parse.quote(request_id, safe='')}"
        with _no_such_request():
            return _grant(self._server.read(path, missing=_MISSING, method="DELETE").get("revoked"))

    def _one(self, request_id: str, body: Mapping[str, Any] | None = None) -> ApprovalRequest:
        path = f"/api/approvals/{urllib.parse.quote(request_id, safe='')}"
        with _no_such_request():
            return _request(self._server.read(path, missing=_MISSING, body=body).get("approval"))


@contextlib.contextmanager
def _no_such_request() -> Iterator[None]:
    try:
        yield
    except ServerRefusedError as error:
        if error.said == ApprovalNotFoundError.code:
            raise NoSuchRequestError(str(error), may_pass=False, said=error.said) from None
        raise


def _request(told: Any) -> ApprovalRequest:
    with _readable():
        return ApprovalRequest.from_json(told)


def _grant(told: Any) -> SessionGrant:
    with _readable():
        return SessionGrant.from_json(told)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, AttributeError):
        raise ServerGoneError("The server's answer cannot be read: is it of another version?") from None
