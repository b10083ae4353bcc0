"""Whose a chat request is: which role it is for (its header, else its ``user``, else the first role), and of which session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from patchbay.errors import ConfigurationError, InvalidRequestError, UnknownRoleError

ROLE_HEADER: Final = "X-Patchbay-Role"
SESSION_HEADER: Final = "X-Patchbay-Session"

_LONGEST_SESSION: Final = 200


def role_of(header: bytes | None, user: Any, roles: Sequence[str]) -> str:
    """Return one of ``roles``.

    A header must name one, in UTF-8 or, for clients that send nothing but ASCII, percent-encoded. A ``user`` may be anything:
    only if it happens to be a role's name it says which. Raises UnknownRoleError, and ConfigurationError where there is no role.
    """
    if not roles:
        raise ConfigurationError("This server has no role.")
    if header:
        name = header.decode("utf-8", "replace")
        for each in (name, unquote(name)):
            if each in roles:
                return each
        raise UnknownRoleError(name)
    return user if isinstance(user, str) and user in roles else roles[0]


def session_of(header: bytes | None) -> str:
    """Return the key of the session that a client says it is in, "" where it says none. Raises InvalidRequestError."""
    return checked_session(unquote(header.decode("utf-8", "replace")) if header else "")


def checked_session(session: str) -> str:
    """Return a session's key as it is. Raises InvalidRequestError."""
    if len(session) > _LONGEST_SESSION or not session.isprintable():
        raise InvalidRequestError(f"{SESSION_HEADER} must be up to {_LONGEST_SESSION} printable characters.")
    return session
