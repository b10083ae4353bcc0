"""Keeps secrets out of what is shown or logged. Works on bytes, so that a body stays as it is where it holds none.

Two kinds are covered: the proxy's own keys, wherever they stand, and what is a key by its look (``Bearer …``, ``sk-…``). Words
such as "token: 5000" are not keys and stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

REDACTED = b"[redacted]"
# What people write where a server wants some key but checks none. Not secrets, and words that error messages need.
_PLACEHOLDERS = frozenset(
    {"ollama", "empty", "none", "null", "dummy", "test", "local", "vllm", "lm-studio", "not-needed", "no-key", "key"}
)
_SHORTEST_SECRET = 4
# A word of prose has none of these: a digit, a capital behind a small letter, or a plus, slash or dot between letters, "==".
_BEARER = re.compile(
    rb"(?:(?<=[Bb]earer )|(?<=BEARER ))(?=[^\s\"',]*?(?:[0-9]|[a-z][A-Z]|[A-Za-z][+/~.][A-Za-z]|==))[A-Za-z0-9._~+/=-]{8,}"
)
_SK = re.compile(rb"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{16,}")


class Redactor:
    """Replaces the given secrets, and whatever looks like a key, by ``[redacted]``."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = set()
        for secret in secrets:
            if len(secret) >= _SHORTEST_SECRET and secret.lower() not in _PLACEHOLDERS:
                forms.add(secret.encode())
                forms.add(json.dumps(secret)[1:-1].encode())  # as it stands inside a JSON string
                forms.add(secret.replace("/", "\\/").encode())  # and as PHP writes it there
        self._secrets = sorted(forms, key=len, reverse=True)

    def __call__(self, data: bytes) -> bytes:
        """Return ``data`` without secrets."""
        for secret in self._secrets:
            if secret in data:
                data = data.replace(secret, REDACTED)
        # The plain searches first: they cost a hundredth of the patterns on a body of megabytes.
        if b"sk-" in data:
            data = _SK.sub(REDACTED, data)
        if b"earer " in data or b"EARER " in data:
            data = _BEARER.sub(REDACTED, data)
        return data

    def text(self, text: str) -> str:
        """Return ``text`` without secrets."""
        return self(text.encode("utf-8", "replace")).decode()


def secret_headers(headers: Mapping[str, str]) -> list[str]:
    """Return the values of ``headers`` that are credentials, with and without their scheme ("Bearer")."""
    secrets = []
    for name, value in headers.items():
        lowered = name.lower()
        if lowered in ("authorization", "cookie") or any(word in lowered for word in ("key", "token", "secret")):
            secrets += [value, value.rpartition(" ")[2]]
    return secrets
