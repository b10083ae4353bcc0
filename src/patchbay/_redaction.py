"""Secrets in texts for logs and clients, replaced."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

REDACTED = b"[redacted]"
# Placeholders for servers that check no key: not secrets, and words of error messages.
_PLACEHOLDERS = frozenset(
    {"ollama", "empty", "none", "null", "dummy", "test", "local", "vllm", "lm-studio", "not-needed", "no-key", "key"}
)
_MIN_SECRET_CHARS = 4
_MIN_PROTECTED_CHARS = 8
# A word of prose has none of these: a digit, a capital behind a small letter, or a plus, slash or dot between letters, "==".
_BEARER = re.compile(
    rb"(?:(?<=[Bb]earer )|(?<=BEARER ))(?=[^\s\"',]*?(?:[0-9]|[a-z][A-Z]|[A-Za-z][+/~.][A-Za-z]|==))[A-Za-z0-9._~+/=-]{8,}"
)
_SECRET_NAME = re.compile(r"auth(?!or(?!iz))|cookie|key|token|secret|pass|pwd|credential|(?:^|[-_])(?:pat|pin|dsn)$")
_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#:@]*:([^/?#@]+)@")
_URL_PASSWORD = re.compile(rb"(:(?:\\?/){2}[^\s/:@\"'<>]{0,256}:)(?!\*+@)[^\s/\"'<>\\]{1,256}(?=@)")
_SK = re.compile(rb"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{16,}")


class Redactor:
    """Replaces secrets by ``[redacted]``: those given, those that this process protects, and what looks like one.

    That is ``Bearer …``, ``sk-…`` and the password in a URL. It works on bytes, so that a body without secrets stays as it is.
    Prose such as "token: 5000" is kept.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.given = tuple(secrets)
        self._forms: tuple[bytes, ...] | None = None  # for most requests never needed

    def including(self, secrets: Sequence[str]) -> Redactor:
        """Return one that replaces these secrets as well; itself if there are none."""
        return Redactor((*self.given, *secrets)) if secrets else self

    def __call__(self, data: bytes) -> bytes:
        """Return ``data`` without secrets."""
        if self._forms is None:
            self._forms = _forms_of(self.given, _MIN_SECRET_CHARS)
        found = [secret for secret in (*self._forms, *_protected) if secret in data]
        for secret in sorted(found, key=len, reverse=True):  # one may contain another
            data = data.replace(secret, REDACTED)
        # The plain searches first: they cost a hundredth of the patterns on a body of megabytes.
        if b"sk-" in data:
            data = _SK.sub(REDACTED, data)
        if b"earer " in data or b"EARER " in data:
            data = _BEARER.sub(REDACTED, data)
        if b"@" in data and (b"://" in data or b":\\/\\/" in data):
            data = _URL_PASSWORD.sub(rb"\1" + REDACTED, data)
        return data

    def text(self, text: str) -> str:
        """Return ``text`` without secrets."""
        return self(text.encode("utf-8", "replace")).decode()


_protected: list[bytes] = []


def protect(*secrets: str | None) -> None:
    """Have every Redactor of this process replace these secrets, from now on. Short ones may be words, and are left out."""
    _protected.extend(set(_forms_of(tuple(filter(None, secrets)), _MIN_PROTECTED_CHARS)) - {*_protected})


@lru_cache(64)  # a client sends the same key with each request
def _forms_of(secrets: tuple[str, ...], least: int) -> tuple[bytes, ...]:
    """Return the spellings of secrets of at least so many characters."""
    forms: set[bytes] = set()
    for secret in secrets:
        if len(secret) >= least and secret.lower() not in _PLACEHOLDERS:
            forms.add(secret.encode("utf-8", "surrogatepass"))
            forms.add(json.dumps(secret)[1:-1].encode())  # as escaped in a JSON string
            forms.add(secret.replace("/", "\\/").encode("utf-8", "surrogatepass"))  # and as PHP escapes it
    return tuple(forms)


def is_secret_name(name: str) -> bool:
    """Return whether a header, a variable or an argument of this name holds a credential."""
    return _SECRET_NAME.search(name.lower()) is not None


def secret_values(values: Mapping[str, str]) -> list[str]:
    """Return the values of headers or variables whose names are those of credentials, and the passwords of URLs.

    Those of headers come with and without their scheme ("Bearer").
    """
    secrets = []
    for name, value in values.items():
        if is_secret_name(name):
            secrets += [value, value.rpartition(" ")[2]]
        if found := _PASSWORD.match(value):
            secrets += [value, found[1]]
    return secrets


def values_of_environment(env: Mapping[str, str]) -> list[str]:
    """Return what is hidden in the output of a process that gets ``env``: all values but short ones, which may be words."""
    return [*secret_values(env), *(value for value in env.values() if len(value) >= _MIN_PROTECTED_CHARS)]
