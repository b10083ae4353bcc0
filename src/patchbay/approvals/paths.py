"""Patterns of paths: whether a text names a file that a pattern matches, however the text is written."""

from __future__ import annotations

import os
import posixpath
import re
import string
import sys
import unicodedata
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_IGNORES_CASE: Final = sys.platform in ("darwin", "win32")
_MAX_DECODINGS: Final = 5
"""A text that is percent-encoded more often is undecidable."""

_ENDS: Final = f"{string.whitespace}\0\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029\u3000\ufeff\u200b\"'"
"""Characters that tools strip from the ends of a path."""

_FILE: Final = re.compile(r"(?:[a-z][a-z0-9+.-]*:)*file:|[a-z]:(?=/)", re.IGNORECASE)
"""``file:``, ``jar:file:``, or a drive."""

_SERVER: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#]*", re.IGNORECASE)
_PROC_LINKS: Final = frozenset({"root", "cwd", "fd"})
"""Links below ``/proc/PROCESS`` to any folder."""

_WILDCARD: Final = re.compile(r"[*?\[]")
_REPLACED: Final = re.compile(r"[*?\[{$`]")
"""Characters that a tool or its shell may replace."""


class PathPattern:
    """A pattern of paths or URLs, in which ``*`` also matches ``/``; ``/etc/*`` may match ``/etc`` itself.

    A relative path is one in the working directory of this process. Links are not followed.
    """

    def __init__(self, pattern: str) -> None:
        is_url = _SERVER.match(pattern) is not None and not pattern.lower().startswith("file:///")
        self._forms = _url_forms if is_url else _path_forms
        self._patterns = {_folded(each) for each in (pattern, *(_url_forms(pattern) if is_url else [_located(pattern)]))}
        self._folders = {folder for each in self._patterns if (folder := _folder(each)).strip("*")}

    def results(self, text: str) -> set[bool | None]:
        """Return the results for the paths that a tool may take the text for; None where the path cannot be known."""
        found: set[bool | None] = set()
        for path in self._readings(text):
            if path is None:
                found.add(None)
                continue
            fits = {_fits(_folded(path), each) for each in self._patterns}
            found.add(True if True in fits else None if None in fits else False)
            found |= {_fits(_folded(path), each) for each in self._folders} - {False}
        return found

    def _readings(self, text: str) -> Iterator[str | None]:
        for _ in range(_MAX_DECODINGS):
            yield text
            yield from self._forms(text.strip(_ENDS).replace("\\", "/"))
            text, before = unquote(text), text
            if text == before:
                return
        yield None


def _fits(path: str, pattern: str) -> bool | None:
    """Return whether a path matches; None for one with a wildcard or variable, which may become one that does."""
    replaced = _REPLACED.search(path) if path.startswith("/") else None
    if replaced is None:
        return fnmatchcase(path, pattern)
    begin, (head, *wildcard) = path[: replaced.start()], _WILDCARD.split(pattern, maxsplit=1)
    if not wildcard or not begin.startswith(head):
        return None if head.startswith(begin) else False
    return True if pattern.rstrip("*") == head else None if head else fnmatchcase(path, pattern)


def _url_forms(url: str) -> Iterator[str]:
    """Yield the normal form of a URL."""
    if server := _SERVER.match(url):
        path = url[server.end() :]
        yield server[0].lower() + (_normal(path) if path else "")


def _path_forms(path: str) -> Iterator[str | None]:
    """Yield the normal forms of a path, or of the path in a file URL; None for one that depends on more than the text."""
    forms = {path}
    if scheme := _FILE.match(path):
        path = path[scheme.end() :]
        forms = {each for form in (path, _without_host(path)) for each in (form, re.split(r"[?#]", form, maxsplit=1)[0])}
    for each in forms:
        yield (normal := _normal(_in_home(each)))
        steps = each.split("/")
        if "\0" in each or each[:1] in ("$", "`", "{") or ("proc" in steps and not _PROC_LINKS.isdisjoint(steps)):
            yield None
        if not normal.startswith("/"):
            yield _absolute(normal)
            if normal.startswith(".."):  # the tool may have another working directory
                yield None


def _located(pattern: str) -> str:
    """Return a pattern of absolute paths in normal form, unless it begins with a wildcard."""
    scheme = _FILE.match(pattern)
    path = _normal(_in_home(_without_host(pattern[scheme.end() :]) if scheme else pattern))
    return path if path.startswith(("/", "*", "?", "[")) else _absolute(path)


def _without_host(path: str) -> str:
    return re.sub(r"\A//[^/]*", "", path)


def _in_home(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111  (Path would raise for an unknown user, and change the rest)


def _absolute(path: str) -> str:
    try:
        return _normal(f"{Path.cwd()}/{path}")
    except OSError:  # the working directory has been removed
        return _normal(f"/{path}")


def _normal(path: str) -> str:
    return re.sub(r"\A//", "/", posixpath.normpath(path))


def _folder(pattern: str) -> str:
    """Return the folder of a pattern for all that is in it, ``/etc`` of ``/etc/*``, or ""."""
    inside = pattern.rstrip("*")
    return inside.rstrip("/") if inside.endswith("/") else ""


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold() if _IGNORES_CASE else path
