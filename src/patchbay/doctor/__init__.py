"""Checks of a model server and of the local configuration, each as a ``Finding``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.doctor.examination import examine as examine
    from patchbay.doctor.findings import Finding as Finding
    from patchbay.doctor.local import LocalSettings as LocalSettings
    from patchbay.doctor.local import check_local as check_local

__all__, __getattr__ = lazy_exports(
    __name__, {"examination": "examine", "findings": "Finding", "local": "LocalSettings check_local"}
)
