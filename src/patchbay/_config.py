"""Configuration files (JSON, YAML or TOML by suffix) and typed access to their keys, with errors that name the key's path."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from patchbay.errors import ConfigurationError

_MOST_NUMBER: Final = 2**53
"""The largest accepted number of milliseconds."""


class Table:
    """An object of a configuration at ``path``. Null is the same as absent. ``known`` are the keys that were looked for."""

    def __init__(self, value: Any, path: str) -> None:
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise wrong(path, "an object", value)
        for key in value:
            if not isinstance(key, str):  # YAML reads off, on, yes and no as booleans
                raise ConfigurationError(
                    f"{path or 'the configuration'} has the key {key!r}, which is not a string: put it in quotes."
                )
        self.path = path
        self.known: dict[str, None] = {}
        self.values: Mapping[str, Any] = value

    def at(self, key: str) -> str:
        """Return the path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str) -> Any:
        """Return a key's value of any type, None if absent."""
        self.known[key] = None
        return self.values.get(key)

    def table(self, key: str) -> Table:
        """Return a key's object, empty if absent."""
        return Table(self.get(key), self.at(key))

    def tables(self, key: str) -> Iterator[tuple[str, Table]]:
        """Return the objects in a key's object, by name."""
        inner = self.table(key)
        return ((name, inner.table(name)) for name in sorted(inner.values))

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean."""
        return bool(self._read(key, bool, "true or false", default))

    def text(self, key: str, default: str = "") -> str:
        """Return a string."""
        return str(self._read(key, str, "a string", default))

    def whole(self, key: str, default: int) -> int:
        """Return an integer."""
        value = self.get(key)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return int(self._read(key, int, "an integer", default))

    def seconds(self, key: str, default: float) -> float:
        """Return milliseconds as seconds; zero or less is the default."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST_NUMBER <= value <= _MOST_NUMBER:
            raise wrong(self.at(key), "a number of milliseconds", value)
        return value / 1000 if value > 0 else default

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of strings, None if absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise wrong(self.at(key), "a list of strings", value)
        return tuple(value)

    def pairs(self, key: str) -> dict[str, str]:
        """Return an object of strings. They may be secrets: errors do not show them."""
        value = self.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"{self.at(key)} must be an object of strings, not {json_kind(value)}.")
        for name, text in Table(value, self.at(key)).values.items():
            if not isinstance(text, str):
                raise ConfigurationError(f"{self.at(key)}.{name} must be a string, not {json_kind(text)}: put it in quotes.")
        return dict(value)

    def one_of(self, key: str, values: Collection[str], default: str = "") -> Any:
        """Return a string that is one of ``values``; without a default the key is required."""
        if not default and self.get(key) is None:
            raise ConfigurationError(f"{self.at(key)} is missing: write one of {', '.join(values)}.")
        value = self.text(key, default)
        if value not in values:
            raise wrong(self.at(key), f"one of {', '.join(values)}", value)
        return value

    def unknown(self) -> Iterator[str]:
        """Return notes about the keys that were not looked for, once all others were."""
        for key in self.values:
            if key not in self.known:
                meant = difflib.get_close_matches(key, self.known, n=1)
                hint = f": is {meant[0]!r} meant?" if meant else ""
                yield f"{self.at(key)} is not known, and is passed over{hint}"

    def _read(self, key: str, kind: type, words: str, default: Any) -> Any:
        value = self.get(key)
        if value is None:
            return default
        if type(value) is not kind:
            raise wrong(self.at(key), words, value)
        return value


def json_kind(value: Any) -> str:
    """Return the JSON name of a value's type, with its article."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def wrong(path: str, wanted: str, value: Any) -> ConfigurationError:
    """Return the error for a value of the wrong type."""
    text = repr(value)
    text = text if isinstance(value, str | int | float) and len(text) <= 80 else json_kind(value)
    return ConfigurationError(f"{path or 'the configuration'} must be {wanted}, not {text}.")


SUFFIXES: Final = (".json", ".yaml", ".yml", ".toml")


def read_config(path: str | Path) -> Any:
    """Read a configuration file, ``.json``, ``.yaml``, ``.yml`` or ``.toml``. Raises ConfigurationError."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}.") from None
    return parse_config(path, data)


def parse_config(path: Path, data: bytes) -> Any:
    """Parse the content of a configuration file by its suffix. Raises ConfigurationError.

    Duplicate keys are an error in all formats: of two approvers of one name one would be lost. Errors give the place but not
    the text there, which may be a secret.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigurationError(f"{path}: unknown file type: the name must end with one of {', '.join(SUFFIXES)}.")
    try:
        text = data.decode("utf-8-sig")
        if suffix == ".json":
            return json.loads(text, object_pairs_hook=_each_once) if text.strip() else {}
        return tomllib.loads(text) if suffix == ".toml" else _read_yaml(text)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: the file is not UTF-8 ({error.reason} at byte {error.start}).") from None
    except (ValueError, RecursionError) as error:
        kind = {".json": "JSON", ".toml": "TOML"}.get(suffix, "YAML")
        why = "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise ConfigurationError(f"{path}: this is not {kind}: {why}.") from None


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object. Raises ValueError for a duplicate name."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return members


def _read_yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # it has no types
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            _each_once([(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
            return node

    try:
        return yaml.load(text, Loader)  # noqa: S506  (it is a safe loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ValueError(f"{error.problem or error.context}{place}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
