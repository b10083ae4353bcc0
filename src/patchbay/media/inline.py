"""Base64 in the text of a tool's result: found, and something short put in its place.

What lives here: finding it, in time linear in the text. What does not: where it is kept (``outputs``). Pure: text in, text out.

Two things are looked for: ``data:`` URLs, and bare base64 that is long. Either may stand in JSON, with its escapes, and in lines
of equal length. What is short, and what can not be decoded, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from patchbay.media.dataurls import decoded

SHORTEST_URL: Final = 256
"""How many characters of base64 a ``data:`` URL has at least that is put elsewhere."""

SHORTEST: Final = 2048
"""The same of base64 that nothing says to be that."""

MOST: Final = 32
"""How many of them are kept of one result; those behind are left out."""

_MARK: Final = ";base64,"
_LONGEST_HEAD: Final = 200
# A run of SHORTEST characters holds a whole stretch of half as many that begins at a multiple of that.
_STEP: Final = SHORTEST // 2
_LETTERS: Final = r"A-Za-z0-9+/_\-\\\r\n"
_STRETCH: Final = re.compile(rf"[{_LETTERS}]{{{_STEP}}}")
_RUN: Final = re.compile(rf"[{_LETTERS}]*+")
_PADDING: Final = re.compile(r"(?:=|\\++u003[dD]){0,2}")
_HEAD: Final = re.compile(r"[A-Za-z0-9!#$&^_.+\-/\\;=]*+")
_LINE_END: Final = re.compile(r"\r?\n|(?:\\++r)?\\++n")  # (of JSON in JSON every backslash is two)
_MIXED: Final = tuple(re.compile(letters) for letters in ("[A-Z]", "[a-z]", "[0-9]"))
_NARROWEST: Final = 32


class Piece(NamedTuple):
    """Base64 in a text, from ``start`` to ``end``, and what it stands for. ``media_type`` is "" where nothing is said of it."""

    start: int
    end: int
    data: bytes
    media_type: str


def may_hold_inline(text: str) -> bool:
    """Whether it is worth looking for base64 in a text; cheap where it is not, which is nearly always."""
    if len(text) < SHORTEST_URL:
        return False
    # A single character is found a hundred times as fast as a word.
    return (";" in text and _MARK in text) or (len(text) >= SHORTEST and _holds_a_stretch(text))


def find_inline(text: str) -> list[Piece]:
    """Return the base64 in a text that can be decoded, in the order in which it stands there."""
    urls = list(_urls(text))
    pieces: list[Piece] = []
    begin = 0
    for start, end, piece in (*urls, (len(text), len(text), None)):
        pieces.extend(_bare(text, begin, start))
        if piece is not None:
            pieces.append(piece)
        begin = end
    return pieces


def without_inline(text: str, put: Callable[[Piece], str]) -> str:
    """Return a text with what ``put`` makes of it in the place of each piece of base64."""
    written: list[str] = []
    place = 0
    for piece in find_inline(text):
        written += (text[place : piece.start], put(piece))
        place = piece.end
    return "".join((*written, text[place:]))


def without_half(text: str) -> str:
    """Return a text that was cut without the base64 that it was cut in: it is no file any more, and none is to be made of it."""
    matched = _RUN.match(text[::-1])
    size = matched.end() if matched else 0
    half = text[len(text) - size :]
    if size < SHORTEST_URL or not _is_mixed(half):
        return text
    return f"{text[: len(text) - size]}[{size} characters of base64 are left out: the rest is missing]"


def left_out(piece: Piece) -> str:
    """Return what is said of base64 that is shown nowhere."""
    return f"[{piece.media_type or 'file'}: {len(piece.data)} bytes of base64 are left out]"


def _holds_a_stretch(text: str) -> bool:
    match = _STRETCH.match
    for place in range(0, len(text) - _STEP + 1, _STEP):  # noqa: SIM110  (any() takes twice as long)
        if match(text, place) is not None:
            return True
    return False


def _urls(text: str) -> Iterator[tuple[int, int, Piece | None]]:
    """Yield each ``data:`` URL with base64 that is long: from, to, and what it holds, None where it can not be decoded."""
    mark, behind = text.find(_MARK), 0
    while mark >= 0:
        begin = mark + len(_MARK)
        stop = _end_of_run(text, begin, len(text))
        if text.startswith(":", stop) and text.endswith("data", begin, stop):
            stop -= len("data")  # of the next URL, close behind this one
        end = _padded(text, _unescaped(text, begin, stop))
        head = text.rfind("data:", max(behind, mark - _LONGEST_HEAD), mark)
        if head >= 0 and end - begin >= SHORTEST_URL and _HEAD.fullmatch(text, head + 5, mark):
            end = _end_of_lines(text, begin, end)
            data = decoded(text[begin:end])
            name = text[head + 5 : mark].partition(";")[0].replace("\\/", "/")
            yield head, end, None if data is None else Piece(head, end, data, name)
            behind = end
        mark = text.find(_MARK, stop)


def _bare(text: str, begin: int, end: int) -> Iterator[Piece]:
    place = begin
    while place + _STEP <= end:
        if _STRETCH.match(text, place, end) is None:
            place += _STEP
            continue
        # Not further back than a stretch: the one before was looked at, and is none.
        before = text[max(begin, place - _STEP) : place][::-1]
        matched = _RUN.match(before)
        start = place - (matched.end() if matched else 0)
        stop = _end_of_run(text, place, end)
        for first, unpadded in _blocks(text, start, _unescaped(text, place, stop)):
            last = _padded(text, unpadded)
            if last - first >= SHORTEST and (data := _likely(text[first:last])) is not None:
                yield Piece(first, last, data, "")
        begin = place = stop


def _blocks(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield where base64 may stand in a run: a long line by itself, or lines of one length and a shorter one that ends them."""
    first, width, last = start, 0, start
    for begin, end in _lines(text, start, stop):
        length = _width(text, begin, end)
        if length >= SHORTEST:
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
    """Return how wide a line was before JSON wrote backslashes into it, as some do before slashes."""
    return end - begin - text.count("\\", begin, end)


def _lines(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    place = start
    if text.find("\n", start, stop) < 0 and text.find("\\n", start, stop) < 0:
        yield start, stop  # a hundred times as fast as to look for all of its line ends
        return
    for line_end in _LINE_END.finditer(text, start, stop):
        yield place, line_end.start()
        place = line_end.end()
    yield place, stop


def _end_of_lines(text: str, begin: int, end: int) -> int:
    """Return where the base64 of a ``data:`` URL ends: with its line, or with the lines of that length that follow."""
    lines = list(islice(_lines(text, begin, end), 2))
    last = lines[0][1]
    width = _width(text, begin, last)
    if width >= SHORTEST_URL or len(lines) == 1:
        return last
    # The head takes its place in the first line.
    width = max(width, _width(text, *lines[1]))
    if width >= SHORTEST_URL:
        return last
    for start, stop in _lines(text, lines[1][0], end):
        here = _width(text, start, stop)
        if here > width:
            break
        last = stop
        if here < width:
            break
    return last


def _likely(text: str) -> bytes | None:
    """Return what bare base64 stands for.

    Of one case, or without a digit, it is something else: hex, a ruler; and so it is with letters of both alphabets: a path.
    """
    is_of_two = ("-" in text or "_" in text) and ("+" in text or "/" in text)
    return decoded(text) if not is_of_two and _is_mixed(text) else None


def _is_mixed(text: str) -> bool:
    return all(letters.search(text) for letters in _MIXED)


def _end_of_run(text: str, begin: int, end: int) -> int:
    matched = _RUN.match(text, begin, end)
    return matched.end() if matched else begin


def _unescaped(text: str, begin: int, end: int) -> int:
    """Return where a run ends without the backslashes at its end: they belong to a quote behind it, of JSON in JSON."""
    return begin + len(text[begin:end].rstrip("\\"))


def _padded(text: str, end: int) -> int:
    matched = _PADDING.match(text, end)
    return matched.end() if matched else end
