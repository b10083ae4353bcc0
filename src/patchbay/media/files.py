"""File access of the media store: its errors, its folders, and opening files so that the checked file is the one that is read.

Between a check of a path and its opening another process may replace it. So a file is opened first, without following links and
without blocking (pipes, devices), and the open descriptor is checked. Below an allowed folder each directory of the path is
opened from its parent.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import uuid
import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePath
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from patchbay.errors import ConfigurationError, PatchbayError

if sys.platform != "win32":
    import fcntl

Identity = tuple[int, int, int, int]
"""Device, inode, modification time and size: the inode alone is used again after a deletion."""

_EXCERPT: Final = 200
_FILE: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_PREFIX: Final = "patchbay_media_"
_LOCK: Final = ".lock"
_HAS_DIR_FD: Final = os.open in os.supports_dir_fd


class MediaError(PatchbayError, RuntimeError):
    """A media file is not available."""

    code = "media_error"


class UnknownRefError(MediaError, LookupError):
    """The ref does not exist, or was released."""

    code = "unknown_media"
    status = 404

    def __init__(self, ref: Any) -> None:
        super().__init__(f"media store: unknown ref: {excerpt_of(ref)}")


class MediaRefusedError(MediaError, ValueError):
    """The given path, URL or data is not accepted; the message says why."""

    code = "media_refused"
    status = 400


class MediaGoneError(MediaError):
    """The file was deleted or replaced."""

    code = "media_gone"
    status = 410


def excerpt_of(entry: Any) -> str:
    """Return a short printable form of a path or URL for messages; a data URL without its data."""
    text = entry if isinstance(entry, str) else type(entry).__name__
    if text[:5].lower() == "data:":
        text = f"{text[:60].partition(',')[0]},..."
    if len(text) > _EXCERPT:
        text = f"{text[:_EXCERPT]}..."
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def open_file(path: str, root: str | None = None) -> tuple[int, os.stat_result]:
    """Open a regular file for reading; return its descriptor, which the caller closes, and its status.

    ``path`` and ``root`` are real paths; below ``root`` no link is followed, even one that was made meanwhile. Raises
    MediaGoneError if there is no file, MediaRefusedError for anything but a readable regular file.
    """
    try:
        with _open_parent(path, root) as (parent, name):
            number = os.open(name, _FILE, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        raise MediaGoneError(f"there is no file {excerpt_of(path)}") from None
    except (OSError, ValueError) as error:
        raise MediaRefusedError(f"{excerpt_of(path)} cannot be read: {_reason(error)}") from None
    status = os.fstat(number)
    if stat.S_ISREG(status.st_mode):
        return number, status
    os.close(number)
    raise MediaRefusedError(f"{excerpt_of(path)} is not a regular file")


def identity(status: os.stat_result) -> Identity:
    """Return the identity of an open file: device, inode, time and size."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def real_path(path: str) -> str:
    """Resolve all links of a path. Raises MediaRefusedError for an invalid path."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError) as error:
        raise MediaRefusedError(f"{excerpt_of(path)} cannot be a path: {_reason(error)}") from None


def path_of_url(url: str) -> str:
    """Return the path of a ``file:`` URL. Raises MediaRefusedError for one with another host or a query."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.lower()
    except ValueError:
        raise MediaRefusedError(f"{excerpt_of(url)} is not a URL") from None
    if host not in ("", "localhost") or parts.query or parts.fragment:
        raise MediaRefusedError(f"{excerpt_of(url)} is not a file of this machine")
    return unquote(parts.path)


def is_below(path: str, folder: str) -> bool:
    """Return whether a real path lies below a folder (a real path too)."""
    return path.startswith(folder if folder.endswith(os.sep) else folder + os.sep)


def create_file(path: str, data: bytes) -> None:
    """Write a new file that only this user can read. Raises OSError, also if the file exists."""
    number = os.open(path, _NEW, 0o600)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
    except BaseException:
        with suppress(OSError):
            Path(path).unlink()
        raise


def delete_file(path: str, file: Identity, root: str | None = None) -> None:
    """Delete a file if it is still the same one. Raises OSError if it cannot be deleted."""
    with suppress(FileNotFoundError, NotADirectoryError, MediaRefusedError), _open_parent(path, root) as (parent, name):
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and identity(status) == file:
            os.unlink(name, dir_fd=parent)


@contextmanager
def _open_parent(path: str, root: str | None) -> Iterator[tuple[int | None, str]]:
    """Open the directory of a file, step by step below ``root``; yield its descriptor and the file's name in it."""
    if not _HAS_DIR_FD:
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


class StoreFolders:
    """The folders of a media store, created on first use, private to this user, and deleted with the store.

    ``given`` is the parent folder (None: a new temporary one); a given folder and its ``incoming`` stay. Files may also be taken
    from the folders ``allowed``. Raises ConfigurationError for one that does not exist.
    """

    def __init__(
        self, owner: object, given: str | os.PathLike[str] | None, allowed: Iterable[str | os.PathLike[str]] = ()
    ) -> None:
        self._owner = weakref.ref(owner)
        self._given = Path(given) if given is not None else None
        if given is None:
            _sweep_dead(tempfile.gettempdir())
        self._allowed = tuple(map(_real_folder, allowed))
        self._removals: list[Callable[[], object]] = []
        self._home: Path | None = None
        self._own: str | None = None
        self._incoming_status: os.stat_result | None = None
        self.incoming: str | None = None
        """The folder where other programs put files; None until it is used."""

    def root_of(self, path: str) -> str | None:
        """Return the folder below which files may be taken and this real path lies, or None."""
        roots = self._allowed if self.incoming is None else (*self._allowed, self.incoming)
        return next((root for root in roots if is_below(path, root)), None)

    def new_path(self, suffix: str) -> str:
        """Return an unused path for a file of the store. Raises MediaRefusedError if its folder cannot be created."""
        if self._own is None:
            try:
                self._own = self._make(str(self._find_home()), "kept-")
            except OSError as error:
                raise MediaRefusedError(f"the media store has no folder: {error.strerror or error}") from None
        return f"{self._own}{os.sep}{uuid.uuid4().hex}{suffix}"

    def is_own(self, path: str) -> bool:
        """Return whether the store wrote the file at this real path."""
        return self._own is not None and is_below(path, self._own)

    def open_incoming(self) -> Path:
        """Return the folder where other programs put files. Raises MediaRefusedError if it cannot be created."""
        if self.incoming is None:
            try:
                path = self._find_home() / "incoming"
                path.mkdir(mode=0o700, exist_ok=True)
                self._incoming_status = path.stat()
                self.incoming = os.path.realpath(path)
            except OSError as error:
                raise MediaRefusedError(f"the media store has no folder for files: {error.strerror or error}") from None
        return Path(self.incoming)

    def sweep_incoming(self, oldest: float, keep: Container[str]) -> int:
        """Delete the files in ``incoming`` last written before ``oldest`` (seconds since 1970), but for the paths ``keep``.

        Returns their number. Leaves folders alone, and everything if the folder was replaced.
        """
        if self.incoming is None or self._incoming_status is None or not _HAS_DIR_FD:
            return 0
        deleted = 0
        with suppress(OSError):
            number = os.open(self.incoming, _FOLDER)
            try:
                if not os.path.samestat(os.fstat(number), self._incoming_status):
                    return 0
                with os.scandir(number) as found:
                    for each in found:
                        with suppress(OSError):
                            if each.is_dir(follow_symlinks=False) or f"{self.incoming}{os.sep}{each.name}" in keep:
                                continue
                            if each.stat(follow_symlinks=False).st_mtime <= oldest:
                                os.unlink(each.name, dir_fd=number)
                                deleted += 1
            finally:
                os.close(number)
        return deleted

    def remove(self) -> None:
        """Delete the folders that were created, with their files."""
        for remove in self._removals:
            remove()

    def _find_home(self) -> Path:
        if self._home is None:
            if self._given is None:
                self._home = Path(self._make(None, _PREFIX))
                self._hold(self._home)
            else:
                self._given.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._home = Path(os.path.realpath(self._given))
        return self._home

    def _hold(self, folder: Path) -> None:
        """Lock a temporary folder until the store is deleted, or its process ends: one with a free lock is swept."""
        if sys.platform == "win32" or (owner := self._owner()) is None:
            return
        with suppress(OSError):
            number = os.open(folder / f"{_LOCK}-new", _NEW, 0o600)
            self._removals.append(weakref.finalize(owner, os.close, number))
            fcntl.flock(number, fcntl.LOCK_EX)
            (folder / f"{_LOCK}-new").rename(folder / _LOCK)

    def _make(self, parent: str | None, prefix: str) -> str:
        path = os.path.realpath(tempfile.mkdtemp(prefix=prefix, dir=parent))
        if (owner := self._owner()) is not None:
            self._removals.append(weakref.finalize(owner, _remove, path, os.getpid()))
        return path


@cache
def _sweep_dead(parent: str) -> None:
    """Delete the temporary folders of stores whose process was killed, once per process: those of this user with a free lock."""
    if sys.platform == "win32":
        return
    with suppress(OSError), os.scandir(parent) as found:
        for each in found:
            if not each.name.startswith(_PREFIX):
                continue
            with suppress(OSError):  # there is no lock, or its process lives
                number = os.open(f"{each.path}{os.sep}{_LOCK}", _FILE)
                try:
                    if each.stat(follow_symlinks=False).st_uid == os.geteuid():
                        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(each.path, ignore_errors=True)
                finally:
                    os.close(number)


def _real_folder(path: str | os.PathLike[str]) -> str:
    real = os.path.realpath(path)
    if not Path(real).is_dir():
        raise ConfigurationError(f"{os.fspath(path)!r} is not a folder: files cannot be taken from it.")
    return real


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)
