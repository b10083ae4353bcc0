"""A media store whose refs other servers can read: each file is copied into a folder that they share."""

from __future__ import annotations

import logging
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from typing_extensions import override

from patchbay.errors import ConfigurationError
from patchbay.media.content import suffix_of
from patchbay.media.files import MediaError, UnknownRefError, create_file
from patchbay.media.store import SCHEME, MediaMeta, MediaStore

SHARED_AGE: Final = 24 * 3600.0
"""Seconds after which a copy is deleted from the shared folder."""

_COPY: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:\.json|\.new)?")

_logger = logging.getLogger(__name__)


class _About(msgspec.Struct):
    """What is written beside a copy."""

    media_type: str
    filename: str
    source: str
    session: str
    scope: str


class SharedMediaStore(MediaStore):
    """A store that copies each file into the folder ``shared``, and finds those of other servers there by their refs.

    A copy is deleted after a day, the oldest earlier where the folder has more than ``max_bytes``. One that cannot be written is
    logged: its ref is known to this server alone. Raises ConfigurationError for a folder that cannot be used.
    """

    def __init__(self, shared: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(**options)
        self._shared = Path(shared)
        try:
            self._shared.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"The folder {shared} for media cannot be used: {error.strerror or error}.") from None

    @override
    def sweep(self) -> int:
        copies: list[tuple[float, int, Path]] = []
        for path in self._shared.iterdir():
            with suppress(OSError):
                if not _COPY.fullmatch(path.name):
                    continue
                copies.append(((status := path.stat()).st_mtime, status.st_size, path))
        size, oldest = 0, time.time() - SHARED_AGE
        for modified, length, path in sorted(copies, reverse=True):
            size += length
            if modified <= oldest or size > self.max_bytes:
                with suppress(OSError):  # another server has deleted it
                    path.unlink()
        return super().sweep()

    @override
    def _register(self, path: str, meta: MediaMeta, scope: str, root: str | None, *, is_own: bool = False, ref: str = "") -> str:
        if ref:
            return super()._register(path, meta, scope, root, is_own=is_own, ref=ref)
        ref = super()._register(path, meta, scope, root, is_own=is_own)
        try:
            self._copy(ref)
        except (OSError, MediaError) as error:
            _logger.warning("A file could not be copied into %s: %s", self._shared, error)
        return ref

    def _copy(self, ref: str) -> None:
        with self.open(ref) as file:
            media = file.media
            about = _About(media.media_type, media.filename, media.meta.source, media.meta.session, media.scope)
            name = ref.removeprefix(SCHEME)
            create_file(str(self._shared / f"{name}.json"), msgspec.json.encode(about))
            create_file(str(self._shared / f"{name}.new"), file.read())
        (self._shared / f"{name}.new").rename(self._shared / name)

    @override
    def _use(self, ref: str) -> Any:
        name = ref.removeprefix(SCHEME) if isinstance(ref, str) else ""
        if (found := _COPY.fullmatch(name)) and found[1] == name and ref not in self._entries:
            self._adopt(ref, self._shared / name)
        return super()._use(ref)

    def _adopt(self, ref: str, copy: Path) -> None:
        """Take the file of another server's ref into this store. Raises UnknownRefError."""
        try:
            about = msgspec.json.decode(copy.with_suffix(".json").read_bytes(), type=_About)
            data = copy.read_bytes()
            path = self._folders.new_path(suffix_of(about.media_type))
            create_file(path, data)
        except (OSError, msgspec.MsgspecError):
            raise UnknownRefError(ref) from None
        meta = MediaMeta(about.filename, about.media_type, about.source, session=about.session)
        self._register(path, meta, about.scope, None, is_own=True, ref=ref)
