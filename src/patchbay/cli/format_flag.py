"""What ``--format`` of the commands means: a format by its name, or the format in a file or a checkpoint's folder."""

from __future__ import annotations

from pathlib import Path

from patchbay.formats.rows import Format
from patchbay.formats.table import FORMATS, is_path


def given_format(value: str) -> str | Format:
    """The name as it was given, or the format that was read from a file. A name goes before a file that is called the same.

    Raises ConfigurationError for a file that cannot be read or shows no format; whether a name is known is not looked at.
    """
    if value == "auto" or value in FORMATS or not (is_path(value) or Path(value).exists()):
        return value
    from patchbay.checkpoint import load_format  # only who names a file pays for reading checkpoints

    return load_format(value)
