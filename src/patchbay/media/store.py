"""The media store: files that accompany tool results, for the user or the model, named by refs (``media://...``).

- A ref is for one file in its state at the time: one that was replaced or modified is neither read nor deleted.
- A file is deleted with its last ref, unless one of its refs was "forget_only". Only files in the store's own folders are deleted
  otherwise.
- A ref expires ``max_age`` after its last use; beyond the limits the least recently used one goes. Refs end with the process.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from patchbay.errors import ConfigurationError
from patchbay.media.content import HEAD_BYTES, Kind, detect_type, kind_of, make_data_url, parse_data_url, suffix_of
from patchbay.media.files import (
    Identity,
    MediaGoneError,
    MediaRefusedError,
    StoreFolders,
    UnknownRefError,
    create_file,
    delete_file,
    excerpt_of,
    identity,
    open_file,
    path_of_url,
    real_path,
)

SCHEME: Final = "media://"
DELETE: Final = "delete_on_cleanup"
FORGET: Final = "forget_only"

MAX_AGE: Final = 30 * 60.0
"""Seconds after its last use when a ref expires."""

INTERVAL: Final = 5 * 60.0
"""Seconds between two sweeps."""

MAX_REFS: Final = 10_000
MAX_BYTES: Final = 1024 * 1024 * 1024
MAX_FILE: Final = 64 * 1024 * 1024

_CHUNK: Final = 256 * 1024

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MediaMeta:
    """Metadata that is given with a file.

    ``filename`` is its name for the user, ``content_type`` its media type (by default detected from its first bytes), ``source``
    who gave it, ``session`` the session that it belongs to. ``cleanup`` is "delete_on_cleanup" (as is any unknown value) or
    "forget_only": what happens to the file with its last ref.
    """

    filename: str = ""
    content_type: str = ""
    source: str = ""
    cleanup: str = DELETE
    session: str = ""


@dataclass(frozen=True, slots=True)
class Media:
    """A file of a store at the time it was added; ``size`` is in bytes. ``is_own``: the store wrote it."""

    ref: str
    path: Path
    meta: MediaMeta
    media_type: str
    size: int
    scope: str
    is_own: bool

    @property
    def kind(self) -> Kind:
        """Its kind: "image", "audio", "video" or "file"."""
        return kind_of(self.media_type)

    @property
    def filename(self) -> str:
        """Its name for the user; never a path."""
        return self.meta.filename.replace("\\", "/").rpartition("/")[2] or ("" if self.is_own else self.path.name)

    @property
    def tag(self) -> str:
        """The text that names it to a model: ``[image:PATH]``, or with the ref if the store wrote it."""
        path = str(self.path)
        uses_ref = self.is_own or "]" in path or not path.isprintable()
        return f"[{self.kind}:{self.ref if uses_ref else path}]"


class OpenMedia:
    """An open file of a store; a context manager. ``size`` is in bytes; a deletion does not affect it."""

    def __init__(self, media: Media, number: int, size: int) -> None:
        self.media = media
        self.size = size
        self._file = os.fdopen(number, "rb", buffering=0)

    def read(self) -> bytes:
        """Return all bytes. Raises MediaGoneError if the file was truncated."""
        return b"".join(self.pieces())

    def pieces(self, start: int = 0, count: int | None = None) -> Iterator[bytes]:
        """Yield ``count`` bytes from ``start`` (None: to the end) in chunks. Raises MediaGoneError if the file was truncated."""
        self._file.seek(start)
        left = self.size - start if count is None else count
        while left:
            chunk = self._file.read(min(left, _CHUNK))
            if not chunk:
                raise MediaGoneError(f"the file of {self.media.ref} was cut while it was read")
            left -= len(chunk)
            yield chunk

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class _Entry:
    media: Media
    file: Identity
    root: str | None
    used: float


@dataclass(slots=True)
class _File:
    """State that the refs of one path share; ``size`` is 0 unless the store wrote the file."""

    file: Identity
    size: int
    refs: int = 0
    stays: bool = False


class MediaStore:
    """Files by their refs; thread-safe.

    ``folder`` is for the files that the store writes (None: a private temporary folder, deleted with the store). ``folders`` are
    those from which files may be taken by their path (``admit``), beside ``media_dir``. There are at most ``max_refs`` refs, and
    ``max_bytes`` bytes in files that the store wrote, each of at most ``max_file``. ``max_age`` and ``interval`` are in seconds;
    a ``max_age`` of None means no expiry. ``clock`` returns seconds.

    Raises ConfigurationError for limits that are not positive, and for folders that do not exist.
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
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first
        self._files: dict[str, _File] = {}
        self._bytes = 0
        self._lock = threading.RLock()
        self._sweeper = _Sweeper(self, interval) if max_age is not None else None
        self._is_closed = False

    # Adding files

    def store(self, path: str | os.PathLike[str], meta: MediaMeta | None = None, scope: str = "") -> str:
        """Return a new ref for a file, which is neither copied nor moved, and by default deleted with its last ref.

        Raises MediaGoneError if there is no file, MediaRefusedError for anything but a readable regular file.
        """
        return self._register(real_path(os.fspath(path)), meta or MediaMeta(), scope, None)

    def put(self, data: bytes, meta: MediaMeta | None = None, scope: str = "") -> str:
        """Write bytes to a file of the store, and return a new ref. Raises MediaRefusedError if they are too many."""
        meta = meta or MediaMeta()
        if len(data) > self.max_file:
            raise MediaRefusedError(f"{len(data)} bytes are more than a file of the media store may have ({self.max_file})")
        media_type = detect_type(meta.content_type, bytes(data[:HEAD_BYTES]), meta.filename)
        with self._lock:
            self._check_open()
            path = self._folders.new_path(suffix_of(media_type))
        try:
            create_file(path, data)
        except OSError as error:
            raise MediaRefusedError(f"the media store cannot write: {error.strerror or error}") from None
        try:
            return self._register(path, meta, scope, None, is_own=True)
        except BaseException:  # such as a store that was closed meanwhile
            Path(path).unlink(missing_ok=True)
            raise

    def admit(self, entry: str, *, meta: MediaMeta | None = None, scope: str = "") -> str:
        """Return a ref for an entry of a tool or hook: a ref, a ``data:`` URL, or a path in an allowed folder.

        A path is absolute, or a ``file://`` URL. A file in ``media_dir`` is deleted with its last ref; files in other folders
        stay. Raises UnknownRefError, MediaGoneError, and MediaRefusedError with the reason.
        """
        meta = meta or MediaMeta()
        if not isinstance(entry, str):
            raise MediaRefusedError(f"media must be named by texts, not {type(entry).__name__}")
        if entry.startswith(SCHEME):
            return self.lookup(entry).ref
        if entry[:5].lower() == "data:":
            if len(entry) > 2 * self.max_file:
                raise MediaRefusedError("this data: URL is too long")
            data, declared = parse_data_url(entry)
            return self.put(data, meta if meta.content_type else replace(meta, content_type=declared), scope)
        path = path_of_url(entry) if entry[:5].lower() == "file:" else entry
        if not path.startswith("/"):
            raise MediaRefusedError(f"{excerpt_of(entry)} is not a media:// ref, data: URL or absolute path")
        path = real_path(path)
        root = self._folders.root_of(path)
        if root is None:
            raise MediaRefusedError(f"{excerpt_of(entry)} is in no folder that files are taken from")
        if root != self._folders.incoming:
            meta = replace(meta, cleanup=FORGET)
        return self._register(path, meta, scope, root)

    # Using files; each of these renews the ref

    def lookup(self, ref: str) -> Media:
        """Return the Media of a ref. Raises UnknownRefError."""
        with self._lock:
            return self._use(ref).media

    def resolve(self, ref: str) -> Path:
        """Return the path of a ref's file. Raises UnknownRefError."""
        return self.lookup(ref).path

    def resolve_with_meta(self, ref: str) -> tuple[Path, MediaMeta]:
        """Return the path of a ref's file, and the metadata it was given. Raises UnknownRefError."""
        media = self.lookup(ref)
        return media.path, media.meta

    def open(self, ref: str) -> OpenMedia:
        """Open a ref's file; the caller closes it. Raises UnknownRefError, MediaGoneError, MediaRefusedError."""
        with self._lock:
            entry = self._use(ref)
            number, status = open_file(str(entry.media.path), entry.root)
        if identity(status) != entry.file:
            os.close(number)
            raise MediaGoneError(f"the file of {ref} is another one now")
        return OpenMedia(entry.media, number, status.st_size)

    def read(self, ref: str, *, limit: int | None = None) -> bytes:
        """Return a ref's bytes. Raises as ``open``, and MediaRefusedError if there are more than ``limit``."""
        with self.open(ref) as file:
            if limit is not None and file.size > limit:
                raise MediaRefusedError(f"{ref} has {file.size} bytes, and may have {limit} here")
            return file.read()

    def data_url(self, ref: str, *, limit: int | None = None) -> str:
        """Return a ref's bytes as a ``data:`` URL. Raises as ``read``."""
        return make_data_url(self.read(ref, limit=limit), self.lookup(ref).media_type)

    # Removing files

    def release(self, ref: str) -> None:
        """Remove a ref if it exists."""
        with self._lock:
            if (entry := self._entries.pop(ref, None)) is not None:
                self._forget(entry)

    def release_all(self, scope: str) -> int:
        """Remove all refs of a scope; return their number."""
        return self._release(lambda media: media.scope == scope)

    def release_session(self, session: str) -> int:
        """Remove all refs of a session; return their number."""
        return self._release(lambda media: media.meta.session == session)

    def sweep(self) -> int:
        """Remove expired refs, and files in ``media_dir`` of that age; return their number."""
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
        """Remove all refs and the store's own folders; can be called again."""
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
        """Number of refs."""
        return len(self._entries)

    @property
    def stored_bytes(self) -> int:
        """Number of bytes in files that the store wrote."""
        return self._bytes

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to sweep, now or later."""
        return not self._entries and self._folders.incoming is None

    @property
    def media_dir(self) -> Path:
        """A folder in which other programs, such as hook processes, put files for ``admit``; created on first use.

        Files in it that are not admitted are deleted after ``max_age``.
        """
        with self._lock:
            self._check_open()
            folder = self._folders.open_incoming()
            self._start_sweeper()
            return folder

    # With the lock held, but for ``_register`` and ``_release``

    def _register(self, path: str, meta: MediaMeta, scope: str, root: str | None, *, is_own: bool = False, ref: str = "") -> str:
        ref = ref or f"{SCHEME}{uuid.uuid4()}"
        with self._lock:
            self._check_open()
            number, status = open_file(path, root)
            try:
                head = os.read(number, HEAD_BYTES)
            except OSError as error:
                raise MediaRefusedError(f"{excerpt_of(path)} cannot be read: {error.strerror}") from None
            finally:
                os.close(number)
            media_type = detect_type(meta.content_type, head, meta.filename or path)
            is_new, is_own = is_own, is_own or self._folders.is_own(path)
            media = Media(ref, Path(path), meta, media_type, status.st_size, scope, is_own)
            file = self._files.get(path)
            if file is None or file.file != identity(status):
                # Refs of an earlier file at this path neither keep nor delete this one.
                file = self._files[path] = _File(identity(status), status.st_size if is_new else 0)
                self._bytes += file.size
            file.refs += 1
            file.stays = file.stays or (meta.cleanup == FORGET and not is_own)
            self._entries[ref] = _Entry(media, file.file, root, self._clock())
            self._make_room(ref)
            self._start_sweeper()
        return ref

    def _use(self, ref: str) -> _Entry:
        try:
            entry = self._entries[ref]
        except (KeyError, TypeError):
            raise UnknownRefError(ref) from None
        entry.used = self._clock()
        self._entries.move_to_end(ref)
        return entry

    def _release(self, matches: Callable[[Media], bool]) -> int:
        with self._lock:
            refs = [ref for ref, entry in self._entries.items() if matches(entry.media)]
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
                delete_file(path, file.file, entry.root)
            except OSError as error:
                _logger.warning("The media store could not delete %s: %s", path, error.strerror or error)

    def _make_room(self, newest: str) -> None:
        """Remove the least recently used refs until the limits hold; only files that the store wrote count as bytes."""
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

    def _start_sweeper(self) -> None:
        if self._sweeper is not None:
            self._sweeper.start()


class _Sweeper:
    """A thread that sweeps a store every ``interval`` seconds while the store exists and is not idle."""

    def __init__(self, store: MediaStore, interval: float) -> None:
        self._store = weakref.ref(store)
        self._interval = interval
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """True if the thread runs."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread unless it runs."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="patchbay-media", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._interval) and self._sweep():
            pass

    def _sweep(self) -> bool:
        """Sweep once; return False if the thread ends."""
        store = self._store()
        if store is None:
            return False
        try:
            store.sweep()
        except Exception:
            _logger.exception("The media store could not be swept")
        with self._lock:
            if store.is_idle:
                self._thread = None  # under the lock: a later start begins a new thread
                return False
        return True


_shared_lock = threading.Lock()
_shared: MediaStore | None = None


def shared_store() -> MediaStore:
    """Return the process's default store, which is deleted when the program ends."""
    global _shared  # noqa: PLW0603  (one per process)
    with _shared_lock:
        if _shared is None:
            _shared = MediaStore()
        return _shared


def stores_in_use(more: Iterable[MediaStore] = ()) -> list[MediaStore]:
    """Return those of ``more`` and the process's default store that have refs."""
    with _shared_lock:
        own = _shared
    return [store for store in {*more, *([own] if own is not None else [])} if store.count]
