"""Content of media: media types by declaration and first bytes, ``data:`` URLs, and base64 inside the text of a tool result.

No I/O. Base64 is found in time linear in the text: in ``data:`` URLs, and bare where it is long. It may be in JSON, with its
escapes, and in lines of equal length. What is short or cannot be decoded stays as it is.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote_to_bytes

from patchbay.media.files import MediaRefusedError
from patchbay.tools.envelope import image_type

Kind = Literal["image", "audio", "video", "file"]

HEAD_BYTES: Final = 64
"""First bytes of a file that its type is detected from."""

OCTET_STREAM: Final = "application/octet-stream"

IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Images that models accept and browsers may display: none can hold a script."""

_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_FTYP: Final = {b"M4A ": "audio/mp4", b"avif": "image/avif", b"heic": "image/heic", b"qt  ": "video/quicktime"}
_SIGNATURES: Final = (
    *((mp3, "audio/mpeg") for mp3 in (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")),
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
_ALIASES: Final = {
    "image/jpg": "image/jpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/mp3": "audio/mpeg",
}


def detect_type(declared: str, head: bytes, filename: str = "") -> str:
    """Return the media type of a file: as declared unless its first bytes differ, else by its bytes, else by its name.

    A declared image or sound that its bytes do not confirm is a plain file: a model's server would refuse the whole request.
    """
    name = declared.partition(";")[0].strip().lower()
    name = _ALIASES.get(name, name)
    found = _sniff(head)
    if _TYPE.fullmatch(name):
        if name.startswith(("image/", "audio/", "video/")) and name != "image/svg+xml" and found != name:
            return found or (OCTET_STREAM if name in IMAGE_TYPES or name in ("audio/wav", "audio/mpeg") else name)
        return name
    if found:
        return found
    import mimetypes  # only programs with files need it

    return mimetypes.guess_type(filename, strict=False)[0] or OCTET_STREAM


def _sniff(head: bytes) -> str:
    """Return the media type by a file's first bytes, or ""."""
    if found := image_type(head):
        return found
    if head[:4] == b"RIFF":
        return {b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}.get(head[8:12], "")
    if head[4:8] == b"ftyp":
        return _FTYP.get(head[8:12], "video/mp4")
    return next((name for signature, name in _SIGNATURES if head.startswith(signature)), "")


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

MIN_BARE: Final = 2048
"""Minimum characters of bare base64 that is extracted."""

_MARK: Final = ";base64,"
_LONGEST_HEAD: Final = 200
# A run of MIN_BARE characters contains a stretch of _STEP characters that begins at a multiple of _STEP.
_STEP: Final = MIN_BARE // 2
_LETTERS: Final = r"A-Za-z0-9+/_\-\\\r\n"
_STRETCH: Final = re.compile(rf"[{_LETTERS}]{{{_STEP}}}")
_RUN: Final = re.compile(rf"[{_LETTERS}]*+")
_PADDING: Final = re.compile(r"(?:=|\\++u003[dD]){0,2}")
_HEAD: Final = re.compile(r"[A-Za-z0-9!#$&^_.+\-/\\;=]*+")
_LINE_END: Final = re.compile(r"\r?\n|(?:\\++r)?\\++n")  # (of JSON in JSON every backslash is two)
_MIXED: Final = tuple(re.compile(letters) for letters in ("[A-Z]", "[a-z]", "[0-9]"))
_NARROWEST: Final = 32


class Base64Match(NamedTuple):
    """Base64 in a text from ``start`` to ``end``, its bytes, and its media type ("" for bare base64)."""

    start: int
    end: int
    data: bytes
    media_type: str


def may_have_base64(text: str) -> bool:
    """Return whether a text may have base64 to extract; cheap for nearly all texts that do not."""
    if len(text) < MIN_URL:
        return False
    # A single character is found a hundred times as fast as a word.
    return (";" in text and _MARK in text) or (len(text) >= MIN_BARE and _has_long_run(text))


def find_base64(text: str) -> list[Base64Match]:
    """Return the base64 in a text that can be decoded, in order."""
    matches: list[Base64Match] = []
    begin = 0
    for start, end, match in (*_urls(text), (len(text), len(text), None)):
        matches.extend(_bare(text, begin, start))
        if match is not None:
            matches.append(match)
        begin = end
    return matches


def replace_base64(text: str, replacement: Callable[[Base64Match], str]) -> str:
    """Return a text with each piece of base64 replaced."""
    parts: list[str] = []
    place = 0
    for match in find_base64(text):
        parts += (text[place : match.start], replacement(match))
        place = match.end
    return "".join((*parts, text[place:]))


def drop_cut_base64(text: str) -> str:
    """Return a truncated text without the base64 that the cut went through, which must not become a file."""
    matched = _RUN.match(text[::-1])
    size = matched.end() if matched else 0
    rest = text[len(text) - size :]
    if size < MIN_URL or not _is_mixed(rest):
        return text
    return f"{text[: len(text) - size]}[{size} characters of base64 are left out: the rest is missing]"


def omission_note(match: Base64Match) -> str:
    """Return the text that replaces base64 which is not attached."""
    return f"[{match.media_type or 'file'}: {len(match.data)} bytes of base64 are left out]"


def _has_long_run(text: str) -> bool:
    match = _STRETCH.match
    for place in range(0, len(text) - _STEP + 1, _STEP):  # noqa: SIM110  (any() takes twice as long)
        if match(text, place) is not None:
            return True
    return False


def _urls(text: str) -> Iterator[tuple[int, int, Base64Match | None]]:
    """Yield start, end and match of each long ``data:`` URL; the match is None if it cannot be decoded."""
    mark, behind = text.find(_MARK), 0
    while mark >= 0:
        begin = mark + len(_MARK)
        stop = _end_of_run(text, begin, len(text))
        if text.startswith(":", stop) and text.endswith("data", begin, stop):
            stop -= len("data")  # of the next URL, close behind this one
        end = _padded(text, _unescaped(text, begin, stop))
        head = text.rfind("data:", max(behind, mark - _LONGEST_HEAD), mark)
        if head >= 0 and end - begin >= MIN_URL and _HEAD.fullmatch(text, head + 5, mark):
            end = _end_of_lines(text, begin, end)
            data = decode_base64(text[begin:end])
            name = text[head + 5 : mark].partition(";")[0].replace("\\/", "/")
            yield head, end, None if data is None else Base64Match(head, end, data, name)
            behind = end
        mark = text.find(_MARK, stop)


def _bare(text: str, begin: int, end: int) -> Iterator[Base64Match]:
    place = begin
    while place + _STEP <= end:
        if _STRETCH.match(text, place, end) is None:
            place += _STEP
            continue
        # No further back than a stretch: the one before did not match.
        before = text[max(begin, place - _STEP) : place][::-1]
        matched = _RUN.match(before)
        start = place - (matched.end() if matched else 0)
        stop = _end_of_run(text, place, end)
        for first, unpadded in _blocks(text, start, _unescaped(text, place, stop)):
            last = _padded(text, unpadded)
            if last - first >= MIN_BARE and (data := _decode_bare(text[first:last])) is not None:
                yield Base64Match(first, last, data, "")
        begin = place = stop


def _blocks(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield candidates in a run: a long line, or lines of equal length with a shorter last one."""
    first, width, last = start, 0, start
    for begin, end in _lines(text, start, stop):
        length = _width(text, begin, end)
        if length >= MIN_BARE:
            if width:
                yield first, last
            yield begin, end
            first, width, last = end, 0, end
        elif width and length == width:
            last = end
        elif width and 0 < length < width:
            yield first, end
            first, width, last = end, 0, end
        else:
            if width:
                yield first, last
            first, width, last = begin, length if length >= _NARROWEST else 0, end
    if width:
        yield first, last


def _width(text: str, begin: int, end: int) -> int:
    """Return the width of a line without the backslashes of JSON, which some encoders write before slashes."""
    return end - begin - text.count("\\", begin, end)


def _lines(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    place = start
    if text.find("\n", start, stop) < 0 and text.find("\\n", start, stop) < 0:
        yield start, stop  # a hundred times as fast as a search for all line ends
        return
    for line_end in _LINE_END.finditer(text, start, stop):
        yield place, line_end.start()
        place = line_end.end()
    yield place, stop


def _end_of_lines(text: str, begin: int, end: int) -> int:
    """Return where the base64 of a ``data:`` URL ends: with its line, or with the following lines of that width."""
    lines = list(islice(_lines(text, begin, end), 2))
    last = lines[0][1]
    width = _width(text, begin, last)
    if width >= MIN_URL or len(lines) == 1:
        return last
    # The first line is shorter by the head.
    width = max(width, _width(text, *lines[1]))
    if width >= MIN_URL:
        return last
    for start, stop in _lines(text, lines[1][0], end):
        here = _width(text, start, stop)
        if here > width:
            break
        last = stop
        if here < width:
            break
    return last


def _decode_bare(text: str) -> bytes | None:
    """Decode bare base64. Text of one case or without digits is not base64 (hex, rulers), nor is a mix of alphabets (paths)."""
    has_both = ("-" in text or "_" in text) and ("+" in text or "/" in text)
    return decode_base64(text) if not has_both and _is_mixed(text) else None


def _is_mixed(text: str) -> bool:
    return all(letters.search(text) for letters in _MIXED)


def _end_of_run(text: str, begin: int, end: int) -> int:
    matched = _RUN.match(text, begin, end)
    return matched.end() if matched else begin


def _unescaped(text: str, begin: int, end: int) -> int:
    """Return the end of a run without trailing backslashes, which escape a following quote in nested JSON."""
    return begin + len(text[begin:end].rstrip("\\"))


def _padded(text: str, end: int) -> int:
    matched = _PADDING.match(text, end)
    return matched.end() if matched else end
