"""Atomic replacement of the user's small files: servers, accepted definitions, tokens."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from patchbay.errors import ConfigurationError


def write_private(path: Path, content: bytes) -> None:
    """Replace a file's content at once, for its owner alone (mode 0600). Raises ConfigurationError where that is not possible."""
    target = Path(os.path.realpath(path))  # a link stays one
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}.") from None
