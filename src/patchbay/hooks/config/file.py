"""Configuration files: JSON, YAML or TOML, by the file's name.

What lives here: a file as data. What does not: what the data mean (``settings``).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from patchbay.errors import ConfigurationError
from patchbay.hooks.config.root import policy_in
from patchbay.hooks.config.settings import HooksConfig, parse_hooks_config

SUFFIXES: Final = (".json", ".yaml", ".yml", ".toml")


def read_hooks_config(path: str | Path) -> HooksConfig:
    """Read the ``hooks`` of a configuration file. Raises ConfigurationError, with the file's name."""
    found = read_config(path)
    with _named(path):
        return parse_hooks_config(found)


def read_server_config(path: str | Path) -> tuple[HooksConfig, Any]:
    """Read a server's file once: its ``hooks``, and what it says of approvals, as data. Raises ConfigurationError with its name.

    The approvals are its ``approvals``, or all of a file that is a policy and nothing else.
    """
    found = read_config(path)
    with _named(path):
        return parse_hooks_config(found), policy_in(found)


@contextmanager
def _named(path: str | Path) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def read_config(path: str | Path) -> Any:
    """Read a configuration file, ``.json``, ``.yaml``, ``.yml`` or ``.toml``. Raises ConfigurationError.

    A key that stands twice in one object is a mistake in all three: of two approvers of a name one would be lost. What is wrong
    is said with its place, and without the text that stands there, which may be a secret.
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
    """Return an object of its members. Raises ValueError where two have the same name."""
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
