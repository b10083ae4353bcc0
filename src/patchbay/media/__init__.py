"""Media: files that accompany tool results, for the user or the model, named by refs (``media://...``).

Modules are imported on first use: most programs have no files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.media.files import MediaError, MediaGoneError, MediaRefusedError, UnknownRefError
    from patchbay.media.store import DELETE, FORGET, SCHEME, Media, MediaMeta, MediaStore, OpenMedia, shared_store

__all__ = [
    "DELETE",
    "FORGET",
    "SCHEME",
    "Media",
    "MediaError",
    "MediaGoneError",
    "MediaMeta",
    "MediaRefusedError",
    "MediaStore",
    "OpenMedia",
    "UnknownRefError",
    "shared_store",
]

_ERRORS = {"MediaError", "MediaGoneError", "MediaRefusedError", "UnknownRefError"}

__getattr__ = lazy_exports(__name__, {name: f"patchbay.media.{'files' if name in _ERRORS else 'store'}" for name in __all__})
