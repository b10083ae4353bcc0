"""Tags in a growing text: one at a place, as models spell it, with blanks, without its closing bracket, in a family's name space.

Not XML: only the words that a format knows are tags, all else that looks like one is text. What a tag means is its format's
business (``xmlcalls``, ``keyvalues``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

from patchbay.formats.engine.source import Source, Steps

_BEGIN_ROOM = 64
_ROOM = 512
_BLANK = r"[ \t\u0120]{0,3}+"
_BLANKS = str.maketrans("", "", " \t\u0120")
"""What may stand between a tag's parts. Some models' tokenizers leave U+0120 where a blank should be."""
_END = re.compile(r"[<>\n]")
_NAMED = re.compile(r"""[ \t\u0120]*+(?:[^=]*[ \t\u0120])?name[ \t\u0120]*+=[ \t\u0120]*+(?:"([^"]*)"|'([^']*)'|([^\s"'/]+))""")
_STRING = re.compile(r"""\bstring[ \t]*+=[ \t]*+["']?(true|false)""")


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag: ``word`` is its kind, ``name`` what it names, as in ``<function=name>`` and ``<invoke name="name">``.

    ``prefix`` stands before the word, ``string`` is the attribute of that name, ``empty`` says that the tag closes itself,
    ``size`` is its length. In a tag that the text ended in nothing but ``closes`` is known.
    """

    word: str
    prefix: str = ""
    closes: bool = False
    name: str | None = None
    string: str = ""
    empty: bool = False
    size: int = 0

    @property
    def cut(self) -> bool:
        """The text ended inside of it."""
        return not self.word


class Tags:
    """The tags of some ``words``, with or without one of the prefixes ``spaces`` before the word."""

    def __init__(self, words: tuple[str, ...], spaces: tuple[str, ...]) -> None:
        longest_first = sorted(words, key=len, reverse=True)
        self._word = re.compile(
            f"<{_BLANK}(/?){_BLANK}((?:{'|'.join(map(re.escape, spaces))})?){_BLANK}({'|'.join(longest_first)})"
            r"""(?=[ \t\r\n\u0120=:/>"']|name[ \t]*+=)"""
        )
        whole = {f"<{slash}{space}{word}" for slash, space, word in product(("", "/"), ("", *spaces), words)}
        self._starts = frozenset(text[:length] for text in whole for length in range(1, len(text) + 1)) | {
            f"{text}{rest}" for text in whole for rest in ("n", "na", "nam", "name")
        }

    def at(self, source: Source) -> Steps[Tag | None]:
        """The tag that stands at ``pos``, None if none does; nothing is read."""
        if not (yield from source.peek()):
            return None
        while True:
            buf, pos = source.buf, source.pos
            found = self._word.match(buf, pos)
            if found:
                end = _END.search(buf, found.end(), pos + _ROOM)
                rest = buf[found.end() : end.start() if end else pos + _ROOM].strip(" \t\r\u0120")
                if found[1] and rest and rest[0] not in "=:":
                    return None  # nothing else stands in a closing tag
                if end:
                    return _tag(found, end)
                if len(buf) - pos >= _ROOM:
                    return None
            elif len(buf) - pos > _BEGIN_ROOM or buf[pos : pos + _BEGIN_ROOM].translate(_BLANKS) not in self._starts:
                return None
            if source.ended:
                return Tag("", closes="/" in buf[pos : pos + _BEGIN_ROOM])
            yield


def _tag(found: re.Match[str], end: re.Match[str]) -> Tag | None:
    """The tag between its word and what ends it. Only where it names something may its closing bracket be missing."""
    buf, begin = end.string, found.start()
    inside = buf[found.end() : end.start()].strip(" \t\r\u0120")
    closes, prefix, word = bool(found[1]), found[2], found[3]
    whole = buf[end.start()] == ">"
    empty = whole and inside.endswith("/") and not closes
    if empty:
        inside = inside[:-1].rstrip()
    if inside.startswith("="):
        name: str | None = inside[1:].strip(" \t\u0120\"'")
    else:
        named = _NAMED.match(inside)
        name = (named[1] or named[2] or named[3] or "") if named else None
    if not whole and (closes or not name):
        return None
    string = _STRING.search(inside)
    size = end.start() + whole - begin
    return Tag(word, prefix, closes=closes, name=name, string=string[1] if string else "", empty=empty, size=size)
