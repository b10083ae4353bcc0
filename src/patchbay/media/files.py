"""Files opened so that what was checked is what is read.

A path is a wish: between a look at it and its opening anybody may put something else there. So a file is opened first, never
through a link and never waiting (a pipe, a device), and then looked at by what was opened. Below an allowed folder every step of
the way is opened from the one before.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Final
from urllib.parse import unquote, urlsplit

from patchbay.media.errors import MediaGoneError, MediaRefusedError, excerpt_of

Identity = tuple[int, int, int, int]
"""Which file it is, whatever its name, and as what: its device and number there, when it was last written to, and its bytes.

The number alone does not say: file systems give that of a file which was deleted to the next one.
"""

_FILE: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_CAN_WALK: Final = os.open in os.supports_dir_fd


def opened(path: str, root: str | None = None) -> tuple[int, os.stat_result]:
    """Open a regular file to be read; return its descriptor, which the caller closes, and what it is.

    ``path`` is a real path (no links in it). Below ``root``, a real path too, no link is followed, whatever becomes of the way
    meanwhile. Raises MediaGoneError where there is nothing (any more), MediaRefusedError for what is no regular file.
    """
    try:
        with _parent(path, root) as (parent, name):
            number = os.open(name, _FILE, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        raise MediaGoneError(f"there is no file {excerpt_of(path)}") from None
    except (OSError, ValueError) as error:
        raise MediaRefusedError(f"{excerpt_of(path)} cannot be read: {_reason(error)}") from None
    what = os.fstat(number)
    if stat.S_ISREG(what.st_mode):
        return number, what
    os.close(number)
    raise MediaRefusedError(f"{excerpt_of(path)} is no regular file")


def identity(what: os.stat_result) -> Identity:
    """Return which file this is."""
    return what.st_dev, what.st_ino, what.st_mtime_ns, what.st_size


def real_path(path: str) -> str:
    """Return the path with all links followed. Raises MediaRefusedError for what can be no path."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError) as error:
        raise MediaRefusedError(f"{excerpt_of(path)} can be no path: {_reason(error)}") from None


def root_of(path: str, roots: Iterable[str]) -> str | None:
    """Return which of the folders a real path lies in, None for none."""
    return next((root for root in roots if is_below(path, root)), None)


def path_of_url(url: str) -> str:
    """Return the path of a ``file:`` URL. Raises MediaRefusedError for one of another machine, or with a query."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.lower()
    except ValueError:
        raise MediaRefusedError(f"{excerpt_of(url)} is no URL") from None
    if host not in ("", "localhost") or parts.query or parts.fragment:
        raise MediaRefusedError(f"{excerpt_of(url)} is no file of this machine")
    return unquote(parts.path)


def is_below(path: str, folder: str) -> bool:
    """Whether a real path lies in a folder, itself a real path; a folder does not lie in itself."""
    return path.startswith(folder if folder.endswith(os.sep) else folder + os.sep)


def new_file(path: str, data: bytes) -> str:
    """Write a file that only this user may read, and return its path. Raises OSError, also where there is one already."""
    number = os.open(path, _NEW, 0o600)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
    except BaseException:
        with suppress(OSError):
            Path(path).unlink()
        raise
    return path


def delete(path: str, file: Identity, root: str | None = None) -> None:
    """Delete a file, if it is still that one; nothing where it is not. Raises OSError where that cannot be done."""
    try:
        with _parent(path, root) as (parent, name):
            what = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISREG(what.st_mode) and identity(what) == file:
                os.unlink(name, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError, MediaRefusedError):
        return


def delete_older(folder: str, as_made: Identity, oldest: float, wanted: Container[str]) -> int:
    """Delete the files in a folder that were last written to before ``oldest`` (seconds since the epoch); return how many.

    Not those whose path is ``wanted``, no folders, and nothing where the folder is not the one that was made (only which one it
    is counts of ``as_made``): somebody may have put another in its place, or a link to one.
    """
    if not _CAN_WALK:
        return 0
    deleted = 0
    number = os.open(folder, _FOLDER)
    try:
        if identity(os.fstat(number))[:2] != as_made[:2]:
            return 0
        with os.scandir(number) as found:
            for each in found:
                with suppress(OSError):
                    if each.is_dir(follow_symlinks=False) or f"{folder}{os.sep}{each.name}" in wanted:
                        continue
                    if each.stat(follow_symlinks=False).st_mtime <= oldest:
                        os.unlink(each.name, dir_fd=number)
                        deleted += 1
    finally:
        os.close(number)
    return deleted


@contextmanager
def _parent(path: str, root: str | None) -> Iterator[tuple[int | None, str]]:
    """Open the folder that a file lies in, below ``root`` step by step; yield it and the file's name there."""
    if not _CAN_WALK:
        if root is not None:
            raise MediaRefusedError("files cannot be taken by their path on this system")
        yield None, path
        return
    folder, name = os.path.split(path)
    steps = PurePath(folder).relative_to(root).parts if root is not None else ()
    here = os.open(root if root is not None else folder, _FOLDER)
    try:
        for step in steps:
            below = os.open(step, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        yield here, name
    finally:
        os.close(here)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
