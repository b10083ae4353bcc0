"""Which plugins' files have changed: looked at from time to time, in a thread.

What lives here: what a folder's sources look like, and telling when that changes. What does not: what is done then (``host``).
Files are looked at and not subscribed to: plugins are few small folders, and this works on every system and file system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

SUFFIXES: Final = frozenset({".py", ".toml", ".json", ".yaml", ".yml"})
_IGNORED: Final = frozenset({"__pycache__", "node_modules", "venv"})
_MOST_FILES: Final = 5000

Look = frozenset[tuple[str, int, int]]
"""The sources of a folder: path, time of change in nanoseconds, and size of each."""


def look_at(folder: Path) -> Look:
    """Return what a folder's sources look like now; hidden folders and those of caches are passed over."""
    found: set[tuple[str, int, int]] = set()
    waiting = [folder]
    while waiting and len(found) < _MOST_FILES:
        try:
            entries = list(waiting.pop().iterdir())
        except OSError:
            continue  # it is being changed right now, or is gone
        for entry in entries:
            try:
                if entry.is_dir():
                    if not entry.name.startswith(".") and entry.name not in _IGNORED and not entry.is_symlink():
                        waiting.append(entry)
                elif entry.suffix in SUFFIXES:
                    about = entry.stat()
                    found.add((str(entry), about.st_mtime_ns, about.st_size))
            except OSError:
                continue
    return frozenset(found)


async def watch(
    folders: Callable[[], Mapping[str, Path]],
    changed: Callable[[Mapping[str, set[str]]], object],
    *,
    interval: float = 0.5,
) -> None:
    """Look at all folders each ``interval`` seconds, for ever, and tell ``changed`` of those that have changed: key, and files.

    What changes in several steps (an editor that saves, a checkout) is told when one look is like the one before.
    """
    known: dict[str, Look] = {}
    unsettled: dict[str, set[str]] = {}
    while True:
        looks = await asyncio.to_thread(lambda: {key: look_at(folder) for key, folder in folders().items()})
        moved = {key for key, look in looks.items() if key in known and known[key] != look}
        settled = {key: files for key, files in sorted(unsettled.items()) if key in looks and key not in moved}
        unsettled = {key: unsettled.get(key, set()) | {path for path, _, _ in looks[key] ^ known[key]} for key in moved}
        known = looks
        if settled:
            changed(settled)
        await asyncio.sleep(interval)
