"""Load formats and checkpoint files from disk. Parsing them is left to ``formats``, which does no I/O."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from patchbay.errors import ConfigurationError
from patchbay.formats.catalog import FORMATS
from patchbay.formats.detect import recognise
from patchbay.formats.spec import Format
from patchbay.formats.user_format import user_format

_FILES = ("tokenizer_config.json", "chat_template.json", "chat_template.jinja", "tokenizer.json")
"""Files read in a folder, in order of precedence."""

_MAX_BYTES = 64 * 1024 * 1024
"""Maximum size of a tokenizer's file: larger ones are weights, named by mistake."""


def load_format(path: str | os.PathLike[str]) -> Format:
    """Load the format in a file: a user's own (``.toml``), or the one that a checkpoint's file or folder shows.

    Use it in place of a format's name: ``parse(text, format=load_format("acme.toml"))``. Raises ConfigurationError.
    """
    path = Path(path)
    if path.suffix == ".toml":
        text = read_text(path)
        try:
            return user_format(text)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from None
    found = recognise(read_config(path))
    if found.format is None:
        raise ConfigurationError(f"{path} shows no format that is known.")
    return FORMATS[found.format]


def read_config(path: Path) -> dict[str, Any]:
    """Read the tokenizer configuration in a file or a checkpoint's folder. Raises ConfigurationError.

    A file may be ``tokenizer_config.json``, ``tokenizer.json``, ``chat_template.json`` or a template alone (``.jinja``). Those in
    a folder are merged.
    """
    if not path.is_dir():
        return _read(path)
    files = [path / name for name in _FILES if (path / name).is_file()]
    if not files:
        raise ConfigurationError(f"{path} holds none of {', '.join(_FILES)}.")
    config: dict[str, Any] = {}
    for file in files:
        config = _read(file) | config
    return config


def read_text(path: Path) -> str:
    """Read a file's text. Raises ConfigurationError."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigurationError(f"{path} is too large for a tokenizer's file.")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is no text in UTF-8.") from None


def _read(path: Path) -> dict[str, Any]:
    text = read_text(path)
    if path.suffix == ".jinja":
        return {"chat_template": text}
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is no JSON: {error}.") from None
    if not isinstance(config, dict):
        raise ConfigurationError(f"{path} holds no JSON object.")
    return config
