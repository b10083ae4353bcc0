"""Hypothesis settings of tests in which the drawn input drives what happens in real time."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def repeated(**options: Any) -> settings:
    """Settings with which each run draws the same examples; with ``--hypothesis-profile nightly`` each run draws others.

    A failure of such a test depends on the machine as well, so an example database would keep what cannot be replayed.
    """
    return settings(derandomize=settings.get_current_profile_name() != "nightly", database=None, **options)
