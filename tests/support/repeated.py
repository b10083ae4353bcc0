"""How many examples a run tries: few, others in each run, and all of them with ``--hypothesis-profile nightly``."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, TypeVar

from hypothesis import settings

T = TypeVar("T")


def _is_nightly() -> bool:
    return settings.get_current_profile_name() == "nightly"


def examples(count: int) -> int:
    """Return ``count``, or the profile's number of examples with ``--hypothesis-profile nightly``."""
    return settings().max_examples if _is_nightly() else count


def sampled(items: Iterable[T], count: int) -> list[T]:
    """Return ``count`` of the items in their order, drawn by the run's seed (pytest-randomly), and all of them in a nightly run."""
    rows = list(items)
    if _is_nightly() or count >= len(rows):
        return rows
    return [rows[at] for at in sorted(random.sample(range(len(rows)), count))]


def repeated(**options: Any) -> settings:
    """Settings with which each run draws the same examples; with ``--hypothesis-profile nightly`` each run draws others.

    A failure of such a test depends on the machine as well, so an example database would keep what cannot be replayed.
    """
    return settings(derandomize=not _is_nightly(), database=None, **options)
