"""Content of media: media types by declaration and first bytes, and ``data:`` URLs, also inside the text of a tool result.

No I/O. A URL in a text is found in time linear in the text; it may be in JSON, with its escapes. What is short or cannot be
decoded stays as it is.
"""

from __future__ import annotations

import base64
import binascii
import re
import string
from collections.abc import Callable
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote_to_bytes

from patchbay.media.files import MediaRefusedError

Kind = Literal["image", "audio", "video", "file"]

HEAD_BYTES: Final = 4096
"""First bytes of a file that its type is detected from."""

OCTET_STREAM: Final = "application/octet-stream"

IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Images that models accept and browsers may display: none can hold a script."""

_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_ALIASES: Final = {
    "image/jpg": "image/jpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/mp3": "audio/mpeg",
    "audio/x-flac": "audio/flac",
    "image/apng": "image/png",
}


def detect_type(declared: str, head: bytes, filename: str = "") -> str:
    """Return the media type of a file: as declared unless its first bytes differ, else by its bytes, else by its name.

    A declared image or sound that its bytes do not confirm is a plain file: a model's server would refuse the whole request.
    """
    import filetype  # only programs with files need it

    name = declared.partition(";")[0].strip().lower()
    name = _ALIASES.get(name, name)
    found = _ALIASES.get(mime := filetype.guess_mime(head) or "", mime)
    if _TYPE.fullmatch(name):
        if name.startswith(("image/", "audio/", "video/")) and name != "image/svg+xml" and found != name:
            return found or (OCTET_STREAM if name in IMAGE_TYPES or name in ("audio/wav", "audio/mpeg") else name)
        return name
    if found:
        return found
    import mimetypes

    return mimetypes.guess_type(filename, strict=False)[0] or OCTET_STREAM


def kind_of(media_type: str) -> Kind:
    """Return the kind of a media type: "image", "audio", "video", or "file" for any other, and for SVG."""
    kind = media_type.partition("/")[0]
    if kind not in ("image", "audio", "video") or media_type == "image/svg+xml":
        return "file"
    return kind  # type: ignore[return-value]


def suffix_of(media_type: str) -> str:
    """Return the file name suffix of a media type (".png"), or ""."""
    import mimetypes

    suffix = mimetypes.guess_extension(media_type, strict=False) or ""
    return suffix if re.fullmatch(r"\.[a-z0-9]{1,8}", suffix) else ""


_ESCAPES: Final = re.compile(r"\\++(?:[/nr]|u002[bBfF]|u003[dD])")
_MEANT: Final = {"/": "/", "n": "", "r": "", "b": "+", "B": "+", "f": "/", "F": "/", "d": "=", "D": "="}
_URL_ALPHABET: Final = str.maketrans("-_", "+/", "\r\n")


def decode_base64(text: str) -> bytes | None:
    """Decode base64 in either alphabet, with line ends, JSON escapes, and with or without padding; None if it is invalid."""
    if "\\" in text:
        text = _ESCAPES.sub(lambda found: _MEANT[found[0][-1]], text)
    text = text.translate(_URL_ALPHABET)
    if not text.endswith("="):
        text += "=" * (-len(text) % 4)
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        return None


def parse_data_url(url: str) -> tuple[bytes, str]:
    """Return the bytes of a ``data:`` URL and its media type ("" if there is none). Raises MediaRefusedError."""
    head, comma, body = url[5:].partition(",")
    if url[:5].lower() != "data:" or not comma:
        raise MediaRefusedError("this is not a data: URL")
    name, *parameters = head.split(";")
    if parameters and parameters[-1].strip().lower() == "base64":
        data = decode_base64(body.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=") if "%" in body else body)
        if data is None:
            raise MediaRefusedError("the base64 of this data: URL is not valid")
        return data, name.strip()
    return unquote_to_bytes(body), name.strip() or "text/plain"


def make_data_url(data: bytes, media_type: str) -> str:
    """Return bytes as a ``data:`` URL."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


MIN_URL: Final = 256
"""Minimum characters of base64 in a ``data:`` URL that is extracted."""

_MARK: Final = ";base64,"
_LETTERS: Final = r"(?:[A-Za-z0-9+/_-]|\\++(?:/|u002[bB]))"
_URL: Final = re.compile(
    r"data:(?P<type>[A-Za-z0-9!#$&^_.+/\\-]{0,130})(?:;[A-Za-z0-9!#$&^_.+=-]{1,100}){0,4};base64,"
    rf"(?P<data>{_LETTERS}{{{MIN_URL - 2},}}+(?:=|\\++u003[dD]){{0,2}})"
)
_BASE64: Final = string.ascii_letters + string.digits + "+/_-=\\"


class Base64Match(NamedTuple):
    """The bytes of a ``data:`` URL in a text, and its media type ("" for none)."""

    data: bytes
    media_type: str


def may_have_base64(text: str) -> bool:
    """Return whether a text may have base64 to extract; cheap for nearly all texts that do not."""
    # A single character is found a hundred times as fast as a word.
    return len(text) >= MIN_URL and ";" in text and _MARK in text


def replace_base64(text: str, replacement: Callable[[Base64Match], str]) -> str:
    """Return a text with each long ``data:`` URL replaced; one that cannot be decoded stays."""

    def replaced(url: re.Match[str]) -> str:
        data = decode_base64(url["data"])
        return url[0] if data is None else replacement(Base64Match(data, url["type"].replace("\\", "")))

    return _URL.sub(replaced, text)


def drop_cut_base64(text: str) -> str:
    """Return a truncated text without the base64 that the cut went through, which must not become a file."""
    whole = text.rstrip(_BASE64)
    size = len(text) - len(whole)
    rest = text[len(whole) :]
    is_mixed = any(map(str.isupper, rest)) and any(map(str.islower, rest)) and any(map(str.isdigit, rest))
    if size < MIN_URL or not is_mixed or not whole.endswith((_MARK, '"')):
        return text
    return f"{whole}[{size} characters of base64 are left out: the rest is missing]"


def omission_note(match: Base64Match) -> str:
    """Return the text that replaces base64 which is not attached."""
    return f"[{match.media_type or 'file'}: {len(match.data)} bytes of base64 are left out]"
