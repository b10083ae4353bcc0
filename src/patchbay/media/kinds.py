"""What a file is: its media type by what was said of it and by its first bytes, and what of that a model or a browser may have.

Pure: bytes and names in, names out.
"""

from __future__ import annotations

import mimetypes
import re
from typing import Final, Literal

from patchbay.tools.images import image_type

Kind = Literal["image", "audio", "video", "file"]

HEAD: Final = 64
"""How many of a file's first bytes are looked at."""

UNKNOWN: Final = "application/octet-stream"

SHOWABLE: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Images that models take, and that a browser can be given to show: none of them can hold a script."""

_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_MP3: Final = (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")
_SIGNATURES: Final = (
    (b"%PDF-", "application/pdf"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
)
_OTHER_NAMES: Final = {
    "image/jpg": "image/jpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/mp3": "audio/mpeg",
}


def by_bytes(head: bytes) -> str:
    """Return the media type that a file's first bytes speak of, "" where they do not."""
    if found := image_type(head):
        return found
    if head[:4] == b"RIFF":
        return {b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}.get(head[8:12], "")
    if head[4:8] == b"ftyp":
        return {b"M4A ": "audio/mp4", b"avif": "image/avif", b"heic": "image/heic", b"qt  ": "video/quicktime"}.get(
            head[8:12], "video/mp4"
        )
    if head.startswith(_MP3):
        return "audio/mpeg"
    return next((name for signature, name in _SIGNATURES if head.startswith(signature)), "")


def media_type(declared: str, head: bytes, filename: str = "") -> str:
    """Return what a file is: as declared, where its bytes do not speak against it; else by them, else by its name.

    Images and sound are what a model's server reads, and one that is none would be refused with all else in the request: what
    is declared as one, and begins as no such thing that a model takes, is a file.
    """
    said = declared.partition(";")[0].strip().lower()
    said = _OTHER_NAMES.get(said, said)
    found = by_bytes(head)
    if _TYPE.fullmatch(said):
        if said.startswith(("image/", "audio/", "video/")) and said != "image/svg+xml" and found != said:
            return found or (UNKNOWN if said in SHOWABLE or said in ("audio/wav", "audio/mpeg") else said)
        return said
    return found or mimetypes.guess_type(filename, strict=False)[0] or UNKNOWN


def kind_of(name: str) -> Kind:
    """Return the kind of a media type: "image", "audio", "video", or "file" for all else; SVG is a file."""
    first = name.partition("/")[0]
    if first == "image":
        return "file" if name == "image/svg+xml" else "image"
    return first if first in ("audio", "video") else "file"  # type: ignore[return-value]


def suffix_of(name: str) -> str:
    """Return how the name of a file of this type ends (".png"), "" where that is not known."""
    suffix = mimetypes.guess_extension(name, strict=False) or ""
    return suffix if re.fullmatch(r"\.[a-z0-9]{1,8}", suffix) else ""
