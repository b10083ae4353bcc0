"""What goes wrong with media. Nothing here does any work.

PatchbayError
└── MediaError              RuntimeError   "media_error"      a file for the user or the model cannot be had
    ├── UnknownRefError     LookupError    "unknown_media"    nothing has this ref (any more); HTTP 404
    ├── MediaRefusedError   ValueError     "media_refused"    what was given is not taken: a path elsewhere, no regular file
    └── MediaGoneError                     "media_gone"       the file was deleted, or another one is in its place; HTTP 410
"""

from __future__ import annotations

from typing import Any, Final

from patchbay.errors import PatchbayError

_SHOWN: Final = 200


class MediaError(PatchbayError, RuntimeError):
    """A file for the user or the model cannot be had."""

    code = "media_error"


class UnknownRefError(MediaError, LookupError):
    """Nothing has this ref, or it was released."""

    code = "unknown_media"
    status = 404

    def __init__(self, ref: Any) -> None:
        super().__init__(f"media store: unknown ref: {excerpt_of(ref)}")


class MediaRefusedError(MediaError, ValueError):
    """What was given is not taken; the message says why."""

    code = "media_refused"
    status = 400


class MediaGoneError(MediaError):
    """The file was deleted meanwhile, or another one has been put in its place."""

    code = "media_gone"
    status = 410


def excerpt_of(entry: Any) -> str:
    """Return what somebody gave for a file, fit to be shown: in one line, not too long, a data URL without its data."""
    text = entry if isinstance(entry, str) else type(entry).__name__
    if text[:5].lower() == "data:":
        text = f"{text[:60].partition(',')[0]},..."
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}..."
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
