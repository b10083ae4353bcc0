"""Where a path leads: health, chat completions, through to the upstream, or nowhere. Pure: text in, a route out.

A path is passed on as the client wrote it (an encoded slash in a model's name stays encoded), so everything that could climb out
of the upstream's base is refused here, however often it is encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

CHAT = "/chat/completions"
_ENCODINGS = 4


def own_path(scope: Mapping[str, Any]) -> str:
    """Return the request's path below where the app is mounted, still percent-encoded.

    Servers differ: ``raw_path`` may be missing, and ``path`` may or may not begin with ``root_path``.
    """
    raw: bytes | None = scope.get("raw_path")
    path = raw.decode("latin-1").partition("?")[0] if raw else quote(scope["path"])
    root = scope.get("root_path") or ""
    for prefix in (root, quote(root)):
        if prefix and path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
            return path[len(prefix) :] or "/"
    return path


def find_tail(path: str, base: str) -> str | None:
    """Return what follows the base path ("/models", ""), without trailing slashes; None where the path leads nowhere."""
    if not path.startswith(base):
        return None
    tail = path[len(base) :].rstrip("/")
    if tail and not tail.startswith("/"):
        return None
    return None if climbs(tail) else tail


def is_chat(tail: str) -> bool:
    """Say whether ``tail`` is chat completions, also where it is written with percent signs."""
    return tail == CHAT or ("%" in tail and unquote(tail).rstrip("/") == CHAT)


def climbs(tail: str) -> bool:
    """Say whether a path could leave its base: dot segments, plain or encoded any number of times, backslashes, controls."""
    if "%" in tail:
        for _ in range(_ENCODINGS):
            tail, encoded = unquote(tail), tail
            if tail == encoded:
                break
        else:  # nobody encodes so often in good faith, and each further pass costs the length of the path
            return True
    if "." not in tail and "\\" not in tail and tail.isprintable():
        return False
    segments = tail.replace("\\", "/").split("/")
    # ";" ends a segment for servers that know path parameters.
    dots = any(segment.partition(";")[0] in (".", "..") for segment in segments)
    return dots or any(ord(char) < 32 or ord(char) == 127 for char in tail)
