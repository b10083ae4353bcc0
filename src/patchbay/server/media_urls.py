"""Signed, short-lived paths of ``/api/media``: what a browser can fetch, which sends no token with an image or a link.

The key is the process's own: refs end with the process too.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from typing import Any, Final

from patchbay.media import SCHEME

PATH: Final = "/api/media/"
SECONDS: Final = 900
"""How long a signed path is good for."""

_KEY: Final = os.urandom(32)
_QUERY: Final = re.compile(rb"expires=([0-9]{1,12})&signature=([0-9a-f]{64})")


def signed_path(ref: str) -> str:
    """Return the path and query at which the file of ``ref`` can be fetched without a token for SECONDS."""
    name = ref.removeprefix(SCHEME)
    expires = int(time.time()) + SECONDS
    return f"{PATH}{name}?expires={expires}&signature={_signature(name, expires)}"


def is_signed(scope: Any) -> bool:
    """Whether an HTTP scope asks for a file by a signed path that has not expired."""
    match = _QUERY.fullmatch(scope.get("query_string", b""))
    before, _, name = scope["path"].rpartition("/")
    if match is None or not f"{before}/".endswith(PATH):
        return False
    expires = int(match[1])
    return hmac.compare_digest(_signature(name, expires).encode(), match[2]) and time.time() < expires


def _signature(name: str, expires: int) -> str:
    return hmac.new(_KEY, f"{name}\n{expires}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()
