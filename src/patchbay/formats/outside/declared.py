"""What somebody declared in JSON or TOML, read field by field: the wrong field is named by its path.

Nothing here knows what is declared. ``responsetemplate`` and ``userformat`` read their declarations with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import NoReturn

from patchbay.errors import ConfigurationError

_KINDS: Mapping[type, str] = {dict: "a table", list: "a list", str: "text", bool: "true or false"}


def kind_of(value: object) -> str:
    """What a declared value is, in words: ``a list``, ``text``, ``nothing``."""
    return "nothing" if value is None else _KINDS.get(type(value), "a number" if isinstance(value, int | float) else "a date")


class Declared:
    """One table of a declaration and its path, such as ``response_template.fields.tool_calls``.

    Each reading takes a field out; ``done`` names those that nobody took. All raise ConfigurationError.
    """

    def __init__(self, value: object, path: str) -> None:
        self.path = path
        if not isinstance(value, Mapping):
            refuse(path, f"must be a table, not {kind_of(value)}")
        self._fields: dict[str, object] = {str(key): field for key, field in value.items()}
        self._taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def at(self, key: str) -> str:
        """The path of one field."""
        return f"{self.path}.{key}" if self.path else key

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Refuse the declaration because of one field."""
        refuse(self.at(key), problem)

    def take(self, key: str, default: object = None) -> object:
        """The value as it was declared."""
        self._taken.add(key)
        return self._fields.get(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty; without a default it is due."""
        value = self.take(key, default)
        if value is None:
            self.refuse(key, "is missing")
        if not isinstance(value, str) or not value:
            self.refuse(key, f"must be text that is not empty, not {kind_of(value) if value != '' else 'an empty one'}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            self.refuse(key, f"must be true or false, not {kind_of(value)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """One text or a list of them, none empty, doubles left out; () where the field is not there."""
        value = self.take(key)
        if value is None:
            return ()
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
            self.refuse(key, f"must be text or a list of texts, none of them empty, not {kind_of(value)}")
        return tuple(dict.fromkeys(found))

    def one_of(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """One of some words."""
        value = self.text(key, default)
        if value not in allowed:
            self.refuse(key, f"is {value!r}, which is not one of {', '.join(allowed)}{_nearest(value, allowed)}")
        return value

    def table(self, key: str) -> Declared:
        """A table inside this one; an empty one where the field is not there."""
        return Declared(self.take(key, {}), self.at(key))

    def tables(self, key: str) -> Iterator[Declared]:
        """The tables of a list, or the one that stands there instead of a list; none where the field is not there."""
        value = self.take(key, [])
        if isinstance(value, Mapping):
            yield Declared(value, self.at(key))
            return
        if not isinstance(value, list):
            self.refuse(key, f"must be a table or a list of tables, not {kind_of(value)}")
        for index, one in enumerate(value):
            yield Declared(one, f"{self.at(key)}[{index}]")

    def named(self) -> Iterator[str]:
        """The names of all fields."""
        yield from self._fields

    def done(self) -> None:
        """Refuse fields that nobody took: a name that is spelled wrongly would be without effect."""
        self.only(*self._taken)

    def only(self, *known: str) -> None:
        """Refuse fields that are none of ``known``: before any is read, so that a name spelled wrongly is not called missing."""
        for key in self._fields:
            if key not in known:
                self.refuse(key, f"is not known here{_nearest(key, known)}")


def refuse(path: str, problem: str) -> NoReturn:
    """Refuse a declaration because of the field at ``path``."""
    raise ConfigurationError(f"{path} {problem}.")


def _nearest(word: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
