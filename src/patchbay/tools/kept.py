"""The former name of ``patchbay.tools.result_store``: importable for one more release, with a DeprecationWarning."""

from __future__ import annotations

import warnings
from typing import Any

from patchbay.tools import result_store


def __getattr__(name: str) -> Any:
    value = getattr(result_store, name)
    message = f"patchbay.tools.kept.{name} is patchbay.tools.result_store.{name} now; the old name ends with the next release."
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return value
