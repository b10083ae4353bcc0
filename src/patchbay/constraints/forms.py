"""Forms: the values that a grammar, or a schema of ours, allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True)
class TextForm:
    """A string.

    ``pattern``: a regular expression that it matches. ``described``: the pattern of a date or a time that the description speaks
    of, and the schema does not demand. ``copied``: it may be copied from the conversation, but for the words that are ``taken``
    by other arguments.
    """

    least: int = 0
    most: int | None = None
    pattern: str | None = None
    copied: bool = False
    described: str | None = None
    taken: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NumberForm:
    """A number; the bounds, both inclusive, are those of an integer. ``positive``: it is not below zero."""

    integer: bool = False
    least: int | None = None
    most: int | None = None
    positive: bool = False


@dataclass(frozen=True, slots=True)
class ConstantForm:
    """One of several values, given as JSON texts."""

    values: tuple[str, ...]


class Member(NamedTuple):
    """A member of an object."""

    name: str
    form: Form
    required: bool


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """An object: its members in this order. ``extra``: the form of all values, where no member is named."""

    members: tuple[Member, ...] = ()
    extra: Form | None = None


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """An array. ``items`` is the form of those after ``first``, None if there are none."""

    first: tuple[Form, ...] = ()
    items: Form | None = None
    least: int = 0
    most: int = 0


@dataclass(frozen=True, slots=True)
class ChoiceForm:
    """A value of one of several forms."""

    options: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class AnyForm:
    """Any JSON value, nested at most ``depth`` levels deep."""

    depth: int = 3


Form: TypeAlias = TextForm | NumberForm | ConstantForm | ObjectForm | ArrayForm | ChoiceForm | AnyForm

ANY_OBJECT: Final = ObjectForm(extra=AnyForm())

MAX_TEXT: Final = 65_535
"""Maximum length of a string in characters, where the schema has a greater one or none."""
