"""The shapes that replies must have: types are held to, member names count whatever their case, null is as good as left out.

What lives here: reading a value by a shape. A wrong type anywhere refuses the whole value; members that a shape does not know are
taken note of (``Findings``) and passed over, but for data of others, such as a message, which keep theirs. What does not: which
shape a method's reply has (``answers``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol


class WrongTypeError(ValueError):
    """A value has not the type that its place calls for."""


@dataclass(slots=True)
class Findings:
    """What was odd about a reply, in words: by what it is about, so that each is told once.

    ``lost`` are those by which something was meant that has no effect. ``meant`` has the known members that unknown ones
    were probably to be.
    """

    found: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    meant: dict[str, str] = field(default_factory=dict)

    def note(self, about: str, words: str, *, is_lost: bool = False) -> None:
        """Take note of something."""
        self.found.setdefault(about, words)
        if is_lost:
            self.lost.add(about)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.found.items())


class Shape(Protocol):
    """Reads a value."""

    def read(self, value: Any, path: str, findings: Findings, /) -> Any:
        """Return the value as this shape has it. Raises WrongTypeError."""


@dataclass(frozen=True, slots=True)
class Plain:
    """A value of one of Python's types for JSON, taken as it is."""

    kinds: tuple[type, ...]
    words: str

    def read(self, value: Any, path: str, findings: Findings, /) -> Any:
        """Return the value itself."""
        del findings
        if type(value) not in self.kinds:
            raise wrong(path, self.words, value)
        return value


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list whose items all have one shape."""

    item: Shape

    def read(self, value: Any, path: str, findings: Findings, /) -> list[Any]:
        """Return a list of what its items are read as."""
        if type(value) is not list:
            raise wrong(path, "a list", value)
        return [self.item.read(item, f"{path}[{index}]", findings) for index, item in enumerate(value)]


@dataclass(frozen=True)
class Members:
    """An object of known members. ``ignored`` are known too, and are not looked at; ``keeps`` those that are not known."""

    known: Mapping[str, Shape]
    ignored: frozenset[str] = frozenset()
    keeps: bool = False

    def read(self, value: Any, path: str, findings: Findings, /) -> dict[str, Any]:
        """Return the known members by their names as they should be."""
        if type(value) is not dict:
            raise wrong(path, "an object", value)
        read: dict[str, Any] = {}
        for given, item in value.items():
            name = given if given in self.known else given.lower()
            shape = self.known.get(name)
            if shape is not None:
                if item is not None:
                    read[name] = shape.read(item, f"{path}.{name}" if path else name, findings)
            elif self.keeps:
                read[given] = item
            elif name not in self.ignored:
                about = f"{path}.{given}" if path else given
                findings.note(about, "")
                if (near := next((each for each in self.known if _letters(each) == _letters(given)), None)) is not None:
                    findings.meant[about] = f"{path}.{near}" if path else near
        return read


def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


TEXT: Final = Plain((str,), "a text")
FLAG: Final = Plain((bool,), "true or false")
NUMBER: Final = Plain((int, float), "a number")
OBJECT: Final = Plain((dict,), "an object")
TEXTS: Final = ListOf(TEXT)


def wrong(path: str, wanted: str, value: Any) -> WrongTypeError:
    """Return the error for a value of another type than it should be."""
    return WrongTypeError(f"{path or 'the result'} must be {wanted}, not {kind_of(value)}")


def kind_of(value: Any) -> str:
    """Return what JSON calls a value of this type."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
