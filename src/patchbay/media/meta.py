"""What is known of a file in a media store. Data only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from patchbay.media.errors import MediaGoneError
from patchbay.media.kinds import Kind, kind_of

DELETE: Final = "delete_on_cleanup"
FORGET: Final = "forget_only"

_PIECE: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class MediaMeta:
    """What is said of a file when it is stored.

    ``filename`` is what it is called to the user, ``content_type`` its media type (read from its first bytes where that is not
    said), ``source`` who gave it, ``session`` the session that it belongs to. ``cleanup`` is "delete_on_cleanup" (so is whatever
    is unknown) or "forget_only": what becomes of a file when nothing refers to it any more.
    """

    filename: str = ""
    content_type: str = ""
    source: str = ""
    cleanup: str = DELETE
    session: str = ""

    @property
    def keeps_file(self) -> bool:
        """Whether the file stays when it is forgotten."""
        return self.cleanup == FORGET


@dataclass(frozen=True, slots=True)
class Media:
    """A file of a store, as it was when it was stored: ``size`` in bytes. ``is_own`` says that the store wrote it itself."""

    ref: str
    path: Path
    meta: MediaMeta
    media_type: str
    size: int
    scope: str
    is_own: bool

    @property
    def kind(self) -> Kind:
        """An image, audio, video, or (all else) a file."""
        return kind_of(self.media_type)

    @property
    def filename(self) -> str:
        """What it is called to the user; never a path."""
        return self.meta.filename.replace("\\", "/").rpartition("/")[2] or ("" if self.is_own else self.path.name)

    @property
    def tag(self) -> str:
        """How a model is told of it: ``[image:PATH]``, or with the ref where the file is the store's own."""
        path = str(self.path)
        named = self.is_own or "]" in path or not path.isprintable()
        return f"[{self.kind}:{self.ref if named else path}]"


class OpenMedia:
    """A file of a store, open: read it with ``read`` or in ``pieces``, and close it (it is a context manager).

    ``size`` is how large it is, in bytes. What was opened stays what it is, also where the file is deleted meanwhile.
    """

    def __init__(self, media: Media, number: int, size: int) -> None:
        self.media = media
        self.size = size
        self._file = os.fdopen(number, "rb", buffering=0)

    def read(self) -> bytes:
        """Return all of it. Raises MediaGoneError where the file has been cut meanwhile."""
        return b"".join(self.pieces())

    def pieces(self, start: int = 0, count: int | None = None) -> Iterator[bytes]:
        """Read it piece by piece: ``count`` bytes from ``start`` on (None: to its end).

        Raises MediaGoneError where the file has been cut meanwhile.
        """
        self._file.seek(start)
        left = self.size - start if count is None else count
        while left:
            piece = self._file.read(min(left, _PIECE))
            if not piece:
                raise MediaGoneError(f"the file of {self.media.ref} was cut while it was read")
            left -= len(piece)
            yield piece

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
