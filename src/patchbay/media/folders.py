"""The folders of a media store: where it keeps what it is given as bytes, and where others leave files for it.

Made when they are first needed, private to this user, and gone with the store: but for a folder that the store was given, which
stays with what others have left in it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Container, Iterable
from pathlib import Path

from patchbay.errors import ConfigurationError
from patchbay.media.errors import MediaRefusedError
from patchbay.media.files import Identity, delete_older, identity, is_below


class StoreFolders:
    """The folders of ``owner``, which removes them when it ends. ``given`` is where they are (None: among the temporary ones).

    ``allowed`` are folders of others that files may be taken from. Raises ConfigurationError where there is no such folder.
    """

    def __init__(
        self, owner: object, given: str | os.PathLike[str] | None, allowed: Iterable[str | os.PathLike[str]] = ()
    ) -> None:
        self._owner = weakref.ref(owner)
        self._given = Path(given) if given is not None else None
        self._allowed = tuple(_real_folder(each) for each in allowed)
        self._removals: list[Callable[[], object]] = []
        self._home: Path | None = None
        self._kept: str | None = None
        self._as_made: Identity | None = None
        self.incoming: str | None = None
        """Where others leave files; None until somebody has asked for it."""

    @property
    def roots(self) -> tuple[str, ...]:
        """The folders that files are taken from."""
        return self._allowed if self.incoming is None else (*self._allowed, self.incoming)

    def new_path(self, suffix: str) -> str:
        """Return the path of a file that is not there yet. Raises MediaRefusedError where there can be no folder for it."""
        if self._kept is None:
            try:
                self._kept = self._made(str(self._found_home()), "kept-")
            except OSError as error:
                raise MediaRefusedError(f"the media store has no folder: {error.strerror or error}") from None
        return f"{self._kept}{os.sep}{uuid.uuid4().hex}{suffix}"

    def is_kept(self, path: str) -> bool:
        """Whether a real path is a file that the store wrote."""
        return self._kept is not None and is_below(path, self._kept)

    def open_incoming(self) -> Path:
        """Return the folder where others leave files. Raises MediaRefusedError where there can be none."""
        if self.incoming is None:
            try:
                path = self._found_home() / "incoming"
                path.mkdir(mode=0o700, exist_ok=True)
                self._as_made = identity(path.stat())
                self.incoming = os.path.realpath(path)
            except OSError as error:
                raise MediaRefusedError(f"the media store has no folder for files: {error.strerror or error}") from None
        return Path(self.incoming)

    def sweep_incoming(self, oldest: float, wanted: Container[str]) -> int:
        """Delete files that were left before ``oldest`` (seconds since the epoch) and are not ``wanted``; return how many.

        Only what lies in the folder itself, and no folder.
        """
        if self.incoming is None or self._as_made is None:
            return 0
        try:
            return delete_older(self.incoming, self._as_made, oldest, wanted)
        except OSError:  # the folder is gone, or something else is in its place
            return 0

    def remove(self) -> None:
        """Delete the folders, and what is in them."""
        for remove in self._removals:
            remove()

    def _found_home(self) -> Path:
        if self._home is None:
            if self._given is None:
                self._home = Path(self._made(None, "patchbay_media_"))
            else:
                self._given.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._home = Path(os.path.realpath(self._given))
        return self._home

    def _made(self, within: str | None, prefix: str) -> str:
        path = os.path.realpath(tempfile.mkdtemp(prefix=prefix, dir=within))
        if (owner := self._owner()) is not None:
            self._removals.append(weakref.finalize(owner, _remove, path, os.getpid()))
        return path


def _real_folder(path: str | os.PathLike[str]) -> str:
    real = os.path.realpath(path)
    if not Path(real).is_dir():
        raise ConfigurationError(f"{os.fspath(path)!r} is no folder that files could be taken from.")
    return real


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # and not a child that was forked from it
        shutil.rmtree(folder, ignore_errors=True)
