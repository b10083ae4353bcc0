"""Configuration files (JSON, YAML or TOML by suffix) and typed access to their keys, with errors that name the key's path."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from patchbay.errors import ConfigurationError
from patchbay.hooks.process.replies import kind_of

_MOST_NUMBER: Final = 2**53
"""The largest accepted number of milliseconds."""


class Table:
    """An object of a configuration at ``path``. Null is the same as absent."""

    def __init__(self, value: Any, path: str) -> None:
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise wrong(path, "an object", value)
        for key in value:
            if not isinstance(key, str):  # YAML reads off, on, yes and no as booleans
                raise ConfigurationError(
                    f"{path or 'the configuration'} has the key {key!r}, which is no text: put it in quotes."
                )
        self.path = path
        self._values: Mapping[str, Any] = value

    def at(self, key: str) -> str:
        """Return the path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str) -> Any:
        """Return a key's value of any type, None if absent."""
        return self._values.get(key)

    def table(self, key: str) -> Table:
        """Return a key's object, empty if absent."""
        return Table(self._values.get(key), self.at(key))

    def tables(self, key: str) -> Iterator[tuple[str, Table]]:
        """Return the objects in a key's object, by name."""
        inner = self.table(key)
        return ((name, inner.table(name)) for name in sorted(inner.keys()))

    def keys(self) -> Collection[str]:
        """Return the keys."""
        return self._values.keys()

    def items(self) -> Collection[tuple[str, Any]]:
        """Return the keys and values."""
        return self._values.items()

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean."""
        return bool(self._read(key, bool, "true or false", default))

    def text(self, key: str, default: str = "") -> str:
        """Return a string."""
        return str(self._read(key, str, "a text", default))

    def whole(self, key: str, default: int) -> int:
        """Return an integer."""
        value = self._values.get(key)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return int(self._read(key, int, "a whole number", default))

    def seconds(self, key: str, default: float) -> float:
        """Return milliseconds as seconds; zero or less is the default."""
        value = self._values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST_NUMBER <= value <= _MOST_NUMBER:
            raise wrong(self.at(key), "a number of milliseconds", value)
        return value / 1000 if value > 0 else default

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of strings, None if absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise wrong(self.at(key), "a list of texts", value)
        return tuple(value)

    def pairs(self, key: str) -> dict[str, str]:
        """Return an object of strings. They may be secrets: errors do not show them."""
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
        """Return notes about unknown keys."""
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
    """Return the error for a value of the wrong type."""
    shown = repr(value)
    shown = shown if isinstance(value, str | int | float) and len(shown) <= 80 else kind_of(value)
    return ConfigurationError(f"{path or 'the configuration'} must be {wanted}, not {shown}.")


HOOKS: Final = "hooks"
APPROVALS: Final = "approvals"

_NEAR: Final[Mapping[str, float]] = {HOOKS: 0.85, APPROVALS: 0.75}
"""Similarity from which another key counts as misspelled: ``hook``, ``approval``, ``Approvals``, ``approvers``."""

POLICY_KEYS: Final = frozenset({"rules", "default", "deadline", "at_deadline", "who", "respond_approval", "protected"})
"""Root keys of a file that is only an approval policy."""

_HOOKS_KEYS: Final = frozenset({"processes", "builtins", "policy"})


def check_root(found: Any) -> None:
    """Raise ConfigurationError for a root key that resembles one of ours.

    The file may belong to another program too, so other keys are ignored. But a misspelled ``hooks`` or ``approvals`` would
    silently let everything through.
    """
    if not isinstance(found, Mapping):
        return
    is_ours = HOOKS in found or APPROVALS in found
    for key in found:
        if not isinstance(key, str) or key in _NEAR:
            continue
        for ours, likeness in _NEAR.items():
            if difflib.SequenceMatcher(None, key.strip().lower(), ours).ratio() >= likeness:
                raise ConfigurationError(
                    f"{key} is not known: is {ours!r} meant? What is another program's needs a name that is less like it."
                )
        if is_ours and (key in POLICY_KEYS or key in _HOOKS_KEYS):
            place = APPROVALS if key in POLICY_KEYS else HOOKS
            raise ConfigurationError(f"{key} stands beside 'hooks' or 'approvals', where nobody reads it: write {place}.{key}.")


def policy_in(found: Any) -> Any:
    """Return the approval policy in a configuration: its ``approvals``, or all of a file that is nothing but a policy.

    Raises ConfigurationError for a file with nothing for us.
    """
    if not isinstance(found, Mapping) or not found:
        return found
    if APPROVALS in found:
        return found[APPROVALS]
    if HOOKS in found:
        return {}
    if POLICY_KEYS.isdisjoint(found):
        raise ConfigurationError("there is neither 'hooks' nor 'approvals' in it: nothing would be governed.")
    return found


SUFFIXES: Final = (".json", ".yaml", ".yml", ".toml")


def read_config(path: str | Path) -> Any:
    """Read a configuration file, ``.json``, ``.yaml``, ``.yml`` or ``.toml``. Raises ConfigurationError.

    Duplicate keys are an error in all three: of two approvers of one name one would be lost. Errors give the place but not
    the text there, which may be a secret.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigurationError(f"{path}: what kind of file it is, is told by its name: {', '.join(SUFFIXES)}.")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: the file is not UTF-8 ({error.reason} at byte {error.start}).") from None
    try:
        if suffix == ".json":
            return json.loads(text, object_pairs_hook=_each_once) if text.strip() else {}
        return tomllib.loads(text) if suffix == ".toml" else _read_yaml(text)
    except (ValueError, RecursionError) as error:
        kind = {".json": "JSON", ".toml": "TOML"}.get(suffix, "YAML")
        why = "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise ConfigurationError(f"{path}: this is no {kind}: {why}.") from None


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
