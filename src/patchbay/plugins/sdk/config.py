"""A plugin's own part of its ``plugin.toml``.

What lives here: the view that a plugin has of it. What does not: reading the file (``manifest``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

_MISSING: Any = object()


class PluginConfig(Mapping[str, Any]):
    """The sections of ``plugin.toml`` that are not the host's, as a read-only mapping.

    ``config["weather"]["units"]`` and ``config["weather.units"]`` are the same; ``config.get("weather.units", "C")`` where it may
    be missing. It is a view: after a change of the file it shows the new values. ``snapshot()`` is a copy that stays.
    """

    def __init__(self, sections: Mapping[str, Any] | None = None) -> None:
        self._sections: Mapping[str, Any] = dict(sections or {})

    def __getitem__(self, key: str) -> Any:
        value = _find(self._sections, key)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)

    def __repr__(self) -> str:
        return f"PluginConfig({', '.join(self._sections)})"  # not the values: they may be secret

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of all of it."""
        return deepcopy(dict(self._sections))

    def replace(self, sections: Mapping[str, Any]) -> None:
        """Show these from now on. For whoever runs the plugin."""
        self._sections = dict(sections)


def _find(sections: Mapping[str, Any], key: str) -> Any:
    if key in sections:
        return sections[key]
    first, dot, rest = key.partition(".") if isinstance(key, str) else (key, "", "")
    inner = sections.get(first) if dot else None
    return _find(inner, rest) if isinstance(inner, Mapping) else _MISSING
