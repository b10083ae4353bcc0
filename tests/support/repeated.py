"""Hypothesis settings of tests whose examples cost much, and of those in which the drawn input drives what happens in real time."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def _is_nightly() -> bool:
    return settings.get_current_profile_name() == "nightly"


def examples(count: int) -> int:
    """So many examples in a usual run, and as many as other tests have with ``--hypothesis-profile nightly``."""
    return settings().max_examples if _is_nightly() else count


def repeated(**options: Any) -> settings:
    """Settings with which each run draws the same examples; with ``--hypothesis-profile nightly`` each run draws others.

    A failure of such a test depends on the machine as well, so an example database would keep what cannot be replayed.
    """
    return settings(derandomize=not _is_nightly(), database=None, **options)
