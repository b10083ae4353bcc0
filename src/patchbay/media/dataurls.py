"""``data:`` URLs, read and written.

Base64 as tools write it: with line ends, in the alphabet for URLs, without its padding, and with what JSON escapes in it.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final
from urllib.parse import unquote_to_bytes

from patchbay.media.errors import MediaRefusedError

_ESCAPES: Final = re.compile(r"\\++(?:[/nr]|u002[bBfF]|u003[dD])")
_MEANT: Final = {"/": "/", "n": "", "r": "", "b": "+", "B": "+", "f": "/", "F": "/", "d": "=", "D": "="}
_URL_ALPHABET: Final = str.maketrans("-_", "+/", "\r\n")


def decoded(text: str) -> bytes | None:
    """Return what a base64 text stands for, None where it is none."""
    if "\\" in text:
        text = _ESCAPES.sub(lambda found: _MEANT[found[0][-1]], text)
    text = text.translate(_URL_ALPHABET)
    if not text.endswith("="):
        text += "=" * (-len(text) % 4)
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        return None


def read_data_url(url: str) -> tuple[bytes, str]:
    """Return the bytes of a ``data:`` URL and its media type ("" where it says none). Raises MediaRefusedError for none."""
    head, comma, body = url[5:].partition(",")
    if url[:5].lower() != "data:" or not comma:
        raise MediaRefusedError("this is no data: URL")
    name, *parameters = head.split(";")
    if parameters and parameters[-1].strip().lower() == "base64":
        data = decoded(body.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=") if "%" in body else body)
        if data is None:
            raise MediaRefusedError("the base64 of this data: URL is not valid")
        return data, name.strip()
    return unquote_to_bytes(body), name.strip() or "text/plain"


def written_data_url(data: bytes, media_type: str) -> str:
    """Return bytes as a ``data:`` URL."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
