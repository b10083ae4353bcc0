"""Secrets in texts for logs and clients, replaced."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

REDACTED = b"[redacted]"
# Placeholders for servers that check no key: not secrets, and words of error messages.
_PLACEHOLDERS = frozenset(
    {"ollama", "empty", "none", "null", "dummy", "test", "local", "vllm", "lm-studio", "not-needed", "no-key", "key"}
)
_MIN_SECRET_CHARS = 4
# A word of prose has none of these: a digit, a capital behind a small letter, or a plus, slash or dot between letters, "==".
_BEARER = re.compile(
    rb"(?:(?<=[Bb]earer )|(?<=BEARER ))(?=[^\s\"',]*?(?:[0-9]|[a-z][A-Z]|[A-Za-z][+/~.][A-Za-z]|==))[A-Za-z0-9._~+/=-]{8,}"
)
_SECRET_NAME = re.compile(r"auth(?!or(?!iz))|cookie|key|token|secret|pass|pwd|credential|(?:^|[-_])(?:pat|pin|dsn)$")
_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#:@]*:([^/?#@]+)@")
_SK = re.compile(rb"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{16,}")


class Redactor:
    """Replaces the given secrets, and everything that looks like a key (``Bearer …``, ``sk-…``), by ``[redacted]``.

    It works on bytes, so that a body without secrets stays as it is. Prose such as "token: 5000" is kept.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = set()
        for secret in secrets:
            if len(secret) >= _MIN_SECRET_CHARS and secret.lower() not in _PLACEHOLDERS:
                forms.add(secret.encode())
                forms.add(json.dumps(secret)[1:-1].encode())  # as escaped in a JSON string
                forms.add(secret.replace("/", "\\/").encode())  # and as PHP escapes it
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


def secret_values(values: Mapping[str, str]) -> list[str]:
    """Return the values of headers or variables whose names are those of credentials, and the passwords of URLs.

    Those of headers come with and without their scheme ("Bearer").
    """
    secrets = []
    for name, value in values.items():
        if _SECRET_NAME.search(name.lower()):
            secrets += [value, value.rpartition(" ")[2]]
        if found := _PASSWORD.match(value):
            secrets += [value, found[1]]
    return secrets
