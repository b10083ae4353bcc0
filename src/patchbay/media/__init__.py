"""Media: files that accompany tool results, for the user or the model, named by refs (``media://...``).

Modules are imported on first use: most programs have no files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.media.files import MediaError as MediaError
    from patchbay.media.files import MediaGoneError as MediaGoneError
    from patchbay.media.files import MediaRefusedError as MediaRefusedError
    from patchbay.media.files import UnknownRefError as UnknownRefError
    from patchbay.media.shared import SharedMediaStore as SharedMediaStore
    from patchbay.media.store import DELETE as DELETE
    from patchbay.media.store import FORGET as FORGET
    from patchbay.media.store import SCHEME as SCHEME
    from patchbay.media.store import Media as Media
    from patchbay.media.store import MediaMeta as MediaMeta
    from patchbay.media.store import MediaStore as MediaStore
    from patchbay.media.store import OpenMedia as OpenMedia
    from patchbay.media.store import shared_store as shared_store


__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "files": "MediaError MediaGoneError MediaRefusedError UnknownRefError",
        "shared": "SharedMediaStore",
        "store": "DELETE FORGET SCHEME Media MediaMeta MediaStore OpenMedia shared_store",
    },
)
