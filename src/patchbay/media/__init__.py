"""Media: files that go along with what tools say, for the user or the model, named by refs (``media://...``).

What lives here: the store, what a file is and how it is opened safely, and the base64 in tools' texts that becomes a file. What
does not: who is shown what and when (``patchbay.executor``, ``patchbay.loop``), and how a client fetches a file over HTTP
(``patchbay.server.media``).

Nothing of it is imported until a name is used: most programs have tools that speak in words only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.media.errors import MediaError, MediaGoneError, MediaRefusedError, UnknownRefError
    from patchbay.media.meta import DELETE, FORGET, Media, MediaMeta, OpenMedia
    from patchbay.media.shared import shared_store
    from patchbay.media.store import SCHEME, MediaStore

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

_ERRORS = dict.fromkeys(("MediaError", "MediaGoneError", "MediaRefusedError", "UnknownRefError"), "patchbay.media.errors")
_META = dict.fromkeys(("DELETE", "FORGET", "Media", "MediaMeta", "OpenMedia"), "patchbay.media.meta")
_STORE = dict.fromkeys(("SCHEME", "MediaStore"), "patchbay.media.store")
__getattr__ = lazy_exports(__name__, {**_ERRORS, **_META, **_STORE, "shared_store": "patchbay.media.shared"})
