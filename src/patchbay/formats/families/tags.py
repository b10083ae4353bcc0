"""Openers of calls that are tags: they begin the call itself, and are read where the wrapper around them was left out."""

from __future__ import annotations

from patchbay.formats.rows import Wrapper

_ALL = 64
"""More than an opener has characters: all of it belongs to the call."""

FUNCTION = Wrapper(
    openers=(
        "<function=",
        "<function =",
        "< function=",
        "< function =",
        "<function name=",
        "<function\u0120name=",
        "<functionname=",
    ),
    closers=("</function>",),
    keeps=_ALL,
)
INVOKE = Wrapper(openers=("<invoke name=", "<invoke>"), closers=("</invoke>",), keeps=_ALL)


def opening(*openers: str, closers: tuple[str, ...]) -> Wrapper:
    """A family's own spelling of a call's opener."""
    return Wrapper(openers=openers, closers=closers, keeps=_ALL)
