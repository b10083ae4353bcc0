"""The media store: files for the user and the model, by refs that stand for them.

What lives here: which refs there are, whose they are, when a file may go. What does not: how a file is opened (``files``), what
it is (``kinds``), what becomes of the refs in a tool's output (``outputs``). In memory only: refs end with the process.

The rules of a store:

- ``store`` neither copies nor moves a file. A ref stands for the file that was there then, as it was: one that is put in its
  place, or was written to since, is another one, and neither read nor deleted.
- A file is deleted when the last ref to it goes, and only if none of its refs was "forget_only". Nothing else is ever deleted,
  but for what lies in the store's own folder.
- What has not been used for ``max_age`` is forgotten; each use renews it. Where there is no room, what was used longest ago goes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from patchbay.errors import ConfigurationError
from patchbay.media.dataurls import read_data_url, written_data_url
from patchbay.media.errors import MediaGoneError, MediaRefusedError, UnknownRefError, excerpt_of
from patchbay.media.files import Identity, delete, identity, new_file, opened, path_of_url, real_path, root_of
from patchbay.media.folders import StoreFolders
from patchbay.media.kinds import HEAD, media_type, suffix_of
from patchbay.media.meta import FORGET, Media, MediaMeta, OpenMedia
from patchbay.media.sweep import Sweeper

SCHEME: Final = "media://"

MAX_AGE: Final = 30 * 60.0
"""Seconds after its last use when a file is forgotten."""

INTERVAL: Final = 5 * 60.0
"""Seconds from one sweep to the next."""

MAX_REFS: Final = 10_000
MAX_BYTES: Final = 1024 * 1024 * 1024
MAX_FILE: Final = 64 * 1024 * 1024

_logger = logging.getLogger(__name__)
_NO_META: Final = MediaMeta()


@dataclass(slots=True)
class _Entry:
    media: Media
    file: Identity
    root: str | None
    used: float


@dataclass(slots=True)
class _File:
    """What several refs of one path have in common."""

    file: Identity
    size: int
    """In bytes, of a file of the store's own; else 0."""
    refs: int = 0
    stays: bool = False


class MediaStore:
    """Files by their refs. For any thread.

    ``folder`` is where the store keeps what it is given as bytes (None: a private folder among the temporary ones, gone when the
    store is closed or the program ends). ``folders`` are those that files may be given from by their path (``admit``), beside
    ``media_dir``. At most ``max_refs`` refs are kept, and ``max_bytes`` bytes in files of the store's own, none of more than
    ``max_file``. ``max_age`` and ``interval`` are seconds; with None for ``max_age`` nothing is forgotten by its age. ``clock``
    says the time in seconds.

    Raises ConfigurationError for limits that cannot be kept and for folders that are not there.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        folders: Iterable[str | os.PathLike[str]] = (),
        max_age: float | None = MAX_AGE,
        interval: float = INTERVAL,
        max_refs: int = MAX_REFS,
        max_bytes: int = MAX_BYTES,
        max_file: int = MAX_FILE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = {"max_age": max_age, "interval": interval, "max_refs": max_refs, "max_bytes": max_bytes, "max_file": max_file}
        for name, limit in limits.items():
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0):
                raise ConfigurationError(f"{name} of a media store must be more than 0, not {limit!r}.")
        self.max_age = max_age
        self.max_refs = max_refs
        self.max_bytes = max_bytes
        self.max_file = min(max_file, max_bytes)
        self._clock = clock
        self._folders = StoreFolders(self, folder, folders)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # those used longest ago first
        self._files: dict[str, _File] = {}
        self._bytes = 0
        self._lock = threading.RLock()
        self._sweeper = Sweeper(self, interval) if max_age is not None else None
        self._is_closed = False

    # What goes in

    def store(self, path: str | os.PathLike[str], meta: MediaMeta | None = None, scope: str = "") -> str:
        """Return a new ref for a file, which stays where it is.

        By default (``MediaMeta.cleanup``) it is deleted when nothing refers to it any more. Raises MediaGoneError where there is
        none, MediaRefusedError for what is no regular file or cannot be read.
        """
        return self._register(real_path(os.fspath(path)), meta or _NO_META, scope, None)

    def put(self, data: bytes, meta: MediaMeta | None = None, scope: str = "") -> str:
        """Return a new ref for these bytes, in a file of the store's own. Raises MediaRefusedError where they are too many."""
        meta = meta or _NO_META
        if len(data) > self.max_file:
            raise MediaRefusedError(f"{len(data)} bytes are more than a file of the media store may have ({self.max_file})")
        name = media_type(meta.content_type, bytes(data[:HEAD]), meta.filename)
        with self._lock:
            self._check_open()
            path = self._folders.new_path(suffix_of(name))
        try:
            new_file(path, data)
        except OSError as error:
            raise MediaRefusedError(f"the media store cannot write: {error.strerror or error}") from None
        try:
            return self._register(path, meta, scope, None, is_own=True)
        except BaseException:  # closed meanwhile, perhaps
            Path(path).unlink(missing_ok=True)
            raise

    def admit(self, entry: str, *, meta: MediaMeta | None = None, scope: str = "") -> str:
        """Return a ref for what a tool or a hook names: a ref (as it is), a ``data:`` URL, a path in a folder that is allowed.

        A path is absolute, or a ``file://`` URL. What lies in ``media_dir`` is the store's from then on, and deleted when it is
        forgotten; files in other folders stay. Raises UnknownRefError, MediaGoneError, and MediaRefusedError with the reason.
        """
        meta = meta or _NO_META
        if not isinstance(entry, str):
            raise MediaRefusedError(f"media must be named by texts, not {type(entry).__name__}")
        if entry.startswith(SCHEME):
            return self.lookup(entry).ref
        if entry[:5].lower() == "data:":
            if len(entry) > 2 * self.max_file:
                raise MediaRefusedError("this data: URL is too long")
            data, said = read_data_url(entry)
            return self.put(data, _typed(meta, said), scope)
        path = path_of_url(entry) if entry[:5].lower() == "file:" else entry
        if not path.startswith("/"):
            raise MediaRefusedError(f"{excerpt_of(entry)} is no media:// ref, data: URL, or absolute path")
        path = real_path(path)
        root = root_of(path, self._folders.roots)
        if root is None:
            raise MediaRefusedError(f"{excerpt_of(entry)} is in no folder that files are taken from")
        if root != self._folders.incoming:
            meta = replace(meta, cleanup=FORGET)
        return self._register(path, meta, scope, root)

    # What comes out; each of these is a use

    def lookup(self, ref: str) -> Media:
        """Return what is known of a ref. Raises UnknownRefError."""
        with self._lock:
            return self._used(ref).media

    def resolve(self, ref: str) -> Path:
        """Return the path of a ref's file. Raises UnknownRefError."""
        return self.lookup(ref).path

    def resolve_with_meta(self, ref: str) -> tuple[Path, MediaMeta]:
        """Return the path of a ref's file, and what was said of it. Raises UnknownRefError."""
        media = self.lookup(ref)
        return media.path, media.meta

    def open(self, ref: str) -> OpenMedia:
        """Open a ref's file. Raises UnknownRefError, MediaGoneError, MediaRefusedError; close what is returned."""
        with self._lock:
            entry = self._used(ref)
            number, what = opened(str(entry.media.path), entry.root)
        if identity(what) != entry.file:
            os.close(number)
            raise MediaGoneError(f"the file of {ref} is another one now")
        return OpenMedia(entry.media, number, what.st_size)

    def read(self, ref: str, *, limit: int | None = None) -> bytes:
        """Return a ref's bytes. Raises as ``open``, and MediaRefusedError where they are more than ``limit``."""
        with self.open(ref) as file:
            if limit is not None and file.size > limit:
                raise MediaRefusedError(f"{ref} has {file.size} bytes, and may have {limit} here")
            return file.read()

    def data_url(self, ref: str, *, limit: int | None = None) -> str:
        """Return a ref's bytes as a ``data:`` URL. Raises as ``read``."""
        return written_data_url(self.read(ref, limit=limit), self.lookup(ref).media_type)

    # What goes

    def release(self, ref: str) -> None:
        """Forget a ref; nothing where there is none."""
        with self._lock:
            if (entry := self._entries.pop(ref, None)) is not None:
                self._forget(entry)

    def release_all(self, scope: str) -> int:
        """Forget all refs of a scope; return how many there were."""
        return self._release(lambda media: media.scope == scope)

    def release_session(self, session: str) -> int:
        """Forget all refs of a session that has ended; return how many there were."""
        return self._release(lambda media: media.meta.session == session)

    def sweep(self) -> int:
        """Forget what has not been used for ``max_age``, delete what was left in ``media_dir`` for as long; return how many."""
        if self.max_age is None:
            return 0
        swept = 0
        with self._lock:
            oldest = self._clock() - self.max_age
            while self._entries and next(iter(self._entries.values())).used <= oldest:
                self._forget(self._entries.popitem(last=False)[1])
                swept += 1
            return swept + self._folders.sweep_incoming(time.time() - self.max_age, self._files)

    def close(self) -> None:
        """Forget everything, and delete what is the store's own. It can be called again."""
        with self._lock:
            self._is_closed = True
            while self._entries:
                self._forget(self._entries.popitem()[1])
            if self._sweeper is not None:
                self._sweeper.stop()
            self._folders.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def count(self) -> int:
        """How many refs there are."""
        return len(self._entries)

    @property
    def held_bytes(self) -> int:
        """How many bytes are in files of the store's own."""
        return self._bytes

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing that could have to be swept."""
        return not self._entries and self._folders.incoming is None

    @property
    def media_dir(self) -> Path:
        """A folder where others, such as hook processes, leave files for ``admit``; made when it is first asked for.

        What lies there is the store's: what nobody names is deleted after ``max_age``.
        """
        with self._lock:
            self._check_open()
            folder = self._folders.open_incoming()
            self._watch()
            return folder

    # The rest is done with the lock held

    def _register(self, path: str, meta: MediaMeta, scope: str, root: str | None, *, is_own: bool = False) -> str:
        ref = f"{SCHEME}{uuid.uuid4()}"
        with self._lock:
            self._check_open()
            number, what = opened(path, root)
            try:
                head = os.read(number, HEAD)
            except OSError as error:
                raise MediaRefusedError(f"{excerpt_of(path)} cannot be read: {error.strerror}") from None
            finally:
                os.close(number)
            name = media_type(meta.content_type, head, meta.filename or path)
            is_new, is_own = is_own, is_own or self._folders.is_kept(path)
            media = Media(ref, Path(path), meta, name, what.st_size, scope, is_own)
            file = self._files.get(path)
            if file is None or file.file != identity(what):
                # Refs of a file that was there before are of that one, and no reason to keep or delete this one.
                file = self._files[path] = _File(identity(what), what.st_size if is_new else 0)
                self._bytes += file.size
            file.refs += 1
            file.stays = file.stays or (meta.keeps_file and not is_own)
            self._entries[ref] = _Entry(media, file.file, root, self._clock())
            self._make_room(ref)
            self._watch()
        return ref

    def _used(self, ref: str) -> _Entry:
        try:
            entry = self._entries[ref]
        except (KeyError, TypeError):
            raise UnknownRefError(ref) from None
        entry.used = self._clock()
        self._entries.move_to_end(ref)
        return entry

    def _release(self, is_meant: Callable[[Media], bool]) -> int:
        with self._lock:
            refs = [ref for ref, entry in self._entries.items() if is_meant(entry.media)]
            for ref in refs:
                self._forget(self._entries.pop(ref))
        return len(refs)

    def _forget(self, entry: _Entry) -> None:
        path = str(entry.media.path)
        file = self._files.get(path)
        if file is None or file.file != entry.file:
            return
        file.refs -= 1
        if file.refs:
            return
        del self._files[path]
        self._bytes -= file.size
        if not file.stays:
            try:
                delete(path, file.file, entry.root)
            except OSError as error:
                _logger.warning("The media store could not delete %s: %s", path, error.strerror or error)

    def _make_room(self, newest: str) -> None:
        """Forget what was used longest ago until the limits are kept; of bytes only those of the store's own files count."""
        while len(self._entries) > self.max_refs:
            self._forget(self._entries.popitem(last=False)[1])
        if self._bytes > self.max_bytes:
            for ref in [ref for ref, entry in self._entries.items() if entry.media.is_own and ref != newest]:
                self._forget(self._entries.pop(ref))
                if self._bytes <= self.max_bytes:
                    return

    def _check_open(self) -> None:
        if self._is_closed:
            raise MediaRefusedError("the media store is closed")

    def _watch(self) -> None:
        if self._sweeper is not None:
            self._sweeper.start()


def _typed(meta: MediaMeta, said: str) -> MediaMeta:
    return meta if meta.content_type else replace(meta, content_type=said)
