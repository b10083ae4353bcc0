"""Reading keys of a configuration: each of its type, or a ConfigurationError that says where it is and what it should be."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from patchbay.errors import ConfigurationError
from patchbay.hooks.process.shapes import kind_of

_MOST_NUMBER: Final = 2**53
"""So many milliseconds nobody waits; no clock is asked to count more."""


class Table:
    """An object of a configuration; ``path`` is where it is. Null is as good as left out."""

    def __init__(self, value: Any, path: str) -> None:
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise wrong(path, "an object", value)
        for key in value:
            if not isinstance(key, str):  # YAML reads off, on, yes and no as true or false
                raise ConfigurationError(
                    f"{path or 'the configuration'} has the key {key!r}, which is no text: put it in quotes."
                )
        self.path = path
        self._values: Mapping[str, Any] = value

    def at(self, key: str) -> str:
        """Return where a key is."""
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str) -> Any:
        """Return what is there, whatever it is; None where nothing is."""
        return self._values.get(key)

    def table(self, key: str) -> Table:
        """Return the object of a key, an empty one where there is none."""
        return Table(self._values.get(key), self.at(key))

    def tables(self, key: str) -> Iterator[tuple[str, Table]]:
        """Return the objects in the object of a key, by their names."""
        inner = self.table(key)
        return ((name, inner.table(name)) for name in sorted(inner.keys()))

    def keys(self) -> Collection[str]:
        """Return the keys that are there."""
        return self._values.keys()

    def items(self) -> Collection[tuple[str, Any]]:
        """Return the keys that are there, and what is."""
        return self._values.items()

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        return bool(self._read(key, bool, "true or false", default))

    def text(self, key: str, default: str = "") -> str:
        """Return a text."""
        return str(self._read(key, str, "a text", default))

    def whole(self, key: str, default: int) -> int:
        """Return a whole number."""
        value = self._values.get(key)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return int(self._read(key, int, "a whole number", default))

    def seconds(self, key: str, default: float) -> float:
        """Return so many milliseconds in seconds; zero or less stands for the default."""
        value = self._values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST_NUMBER <= value <= _MOST_NUMBER:
            raise wrong(self.at(key), "a number of milliseconds", value)
        return value / 1000 if value > 0 else default

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of texts, None where there is none."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise wrong(self.at(key), "a list of texts", value)
        return tuple(value)

    def pairs(self, key: str) -> dict[str, str]:
        """Return an object whose values are texts. They may be secrets: what is wrong is said without them."""
        value = self._values.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"{self.at(key)} must be an object of texts, not {kind_of(value)}.")
        for name, text in Table(value, self.at(key)).items():
            if not isinstance(text, str):
                raise ConfigurationError(f"{self.at(key)}.{name} must be a text, not {kind_of(text)}: put it in quotes.")
        return dict(value)

    def unknown(self, known: Collection[str]) -> Iterator[str]:
        """Return what is to be said of keys that are not known."""
        for key in self._values:
            if key not in known:
                meant = difflib.get_close_matches(key, known, n=1)
                hint = f": is {meant[0]!r} meant?" if meant else ""
                yield f"{self.at(key)} is not known, and is passed over{hint}"

    def _read(self, key: str, kind: type, words: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            return default
        if type(value) is not kind:
            raise wrong(self.at(key), words, value)
        return value


def wrong(path: str, wanted: str, value: Any) -> ConfigurationError:
    """Return the error for a value of another type than it should be."""
    shown = repr(value)
    shown = shown if isinstance(value, str | int | float) and len(shown) <= 80 else kind_of(value)
    return ConfigurationError(f"{path or 'the configuration'} must be {wanted}, not {shown}.")
