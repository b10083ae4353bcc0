"""Jinja source cut up without running it: into pieces, and an expression into the texts that it can stand for.

No Jinja: loops, calls, filters and what a conversation holds are not worked out, they are ``UNKNOWN``. What is made of the pieces
is in ``chattemplate``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

UNKNOWN = "\0"
"""Stands for what only a conversation tells."""


@dataclass(frozen=True)
class Choice:
    """One of several ways on, each under its condition (as written; "" under all that the others leave)."""

    ways: tuple[tuple[str, tuple[Node, ...]], ...]


@dataclass(frozen=True)
class Loop:
    """What is written any number of times."""

    nodes: tuple[Node, ...]


Node = str | Choice | Loop

_STRING = r"'(?:[^'\\]|\\.)*'|" + r'"(?:[^"\\]|\\.)*"'
_TAG = re.compile(r"\{[{%#][-+]?")
_END = {
    "{": re.compile(rf"{_STRING}|[-+]?\}}\}}", re.DOTALL),
    "%": re.compile(rf"{_STRING}|[-+]?%\}}", re.DOTALL),
    "#": re.compile(r"[-+]?#\}"),
}
_KINDS = {"{": "output", "%": "statement", "#": "comment"}
_INDENT = re.compile(r"(?:(?<=\n)|\A)[ \t]+\Z")


def pieces(source: str) -> Iterator[tuple[str, str]]:
    """Cut into ``text``, ``output`` (the inside of ``{{ }}``), ``statement`` (of ``{% %}``) and ``comment``.

    White space is trimmed as it is where chat templates are run: a line break behind a statement and the indent before one go.
    """
    at, strip = 0, ""
    while found := _TAG.search(source, at):
        sort = found.group()[1]
        end = next((one for one in _END[sort].finditer(source, found.end()) if one.group()[0] not in "'\""), None)
        if end is None:
            break
        text = _stripped(source[at : found.start()], strip)
        if found.group().endswith("-"):
            text = text.rstrip()
        elif sort != "{" and not found.group().endswith("+"):
            text = _INDENT.sub("", text)
        yield "text", text
        yield _KINDS[sort], source[found.end() : end.start()].strip()
        strip = "all" if end.group().startswith("-") else "" if sort == "{" or end.group().startswith("+") else "break"
        at = end.end()
    yield "text", _stripped(source[at:], strip)


def _stripped(text: str, strip: str) -> str:
    return text.lstrip() if strip == "all" else text.removeprefix("\n") if strip else text


_TOKEN = re.compile(rf"{_STRING}|\w+|\s+|.", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_MAX_DEPTH = 50


def texts(expression: str, constants: Mapping[str, str | None]) -> list[Node]:
    """What an expression stands for: strings, named constants, what is joined of them, one or the other."""
    return _read(_TOKEN.findall(expression), constants, 0)


def _read(tokens: Sequence[str], constants: Mapping[str, str | None], depth: int) -> list[Node]:
    if depth == _MAX_DEPTH:
        return [UNKNOWN]
    at = _find(tokens, ("if",))
    if at >= 0:
        told = tokens[at + 1 :]
        other = _find(told, ("else",))
        condition, rest = (told[:other], told[other + 1 :]) if other >= 0 else (told, [])
        first, second = (tuple(_read(part, constants, depth + 1)) for part in (tokens[:at], rest))
        return [Choice((("".join(condition).strip(), first), ("", second)))]
    nodes: list[Node] = []
    while True:
        at = _find(tokens, ("+", "~"))
        for node in _one(tokens[: at if at >= 0 else None], constants, depth):
            if isinstance(node, str) and nodes and isinstance(nodes[-1], str):
                nodes[-1] += node
            else:
                nodes.append(node)
        if at < 0:
            return nodes
        tokens = tokens[at + 1 :]


def _one(tokens: Sequence[str], constants: Mapping[str, str | None], depth: int) -> list[Node]:
    tokens = [token for token in tokens if not token.isspace()]
    if not tokens:
        return []
    if all(token[0] in "'\"" and len(token) > 1 for token in tokens):
        return ["".join(_ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), token[1:-1]) for token in tokens)]
    if len(tokens) == 1:
        return [constants.get(tokens[0]) or UNKNOWN]
    if tokens[0] == "(" and [index for index, _ in _outside(tokens)] == [0, len(tokens) - 1]:
        return _read(tokens[1:-1], constants, depth + 1)
    return [UNKNOWN]


def _find(tokens: Sequence[str], words: tuple[str, ...]) -> int:
    return next((index for index, token in _outside(tokens) if token in words), -1)


def _outside(tokens: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The tokens that stand in no bracket, and the brackets around the others."""
    depth = 0
    for index, token in enumerate(tokens):
        depth -= token in (")", "]", "}")
        if not depth:
            yield index, token
        depth += token in ("(", "[", "{")
