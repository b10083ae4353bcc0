"""Hypothesis settings for expensive examples, and for tests whose input drives real-time behaviour."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def _is_nightly() -> bool:
    return settings.get_current_profile_name() == "nightly"


def examples(count: int) -> int:
    """Return ``count``, or the profile's number of examples with ``--hypothesis-profile nightly``."""
    return settings().max_examples if _is_nightly() else count


def repeated(**options: Any) -> settings:
    """Settings with which each run draws the same examples; with ``--hypothesis-profile nightly`` each run draws others.

    A failure of such a test depends on the machine as well, so an example database would keep what cannot be replayed.
    """
    return settings(derandomize=not _is_nightly(), database=None, **options)
