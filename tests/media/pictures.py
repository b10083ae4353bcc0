"""Small files of each kind, as they begin."""

from __future__ import annotations

import struct
import zlib


def png(width: int = 2, height: int = 1, *, filler: int = 0) -> bytes:
    """A PNG that says it is so large, with ``filler`` bytes of something in it."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + b"\x10\x20\x30" * width for _ in range(height))) if width * height < 1000 else b""
    noise = b"".join(zlib.crc32(bytes([index % 256, index // 256])).to_bytes(4, "big") for index in range(filler // 4))
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"nOiS", noise) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def jpeg(width: int = 2, height: int = 1, *, marker: int = 0xC0) -> bytes:
    """The head of a JPEG that says it is so large."""
    app0 = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0" + bytes(9)
    tables = b"\xff\xc4" + struct.pack(">H", 5) + bytes(3)
    frame = bytes((0xFF, marker)) + struct.pack(">HBHHB", 11, 8, height, width, 1) + bytes(3)
    return b"\xff\xd8" + app0 + b"\xff" + tables + frame + b"\xff\xda\0\x02data\xff\xd9"


WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(16)
PDF = b"%PDF-1.7\n" + bytes(20)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
