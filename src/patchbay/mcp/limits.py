"""Bounds of what an MCP server may send."""

from __future__ import annotations

from typing import Final

import mcp_types as types

MAX_MESSAGE: Final = 32 * 1024 * 1024
"""Bytes of one message: a result with its images."""

MAX_TOOLS: Final = 2_000
MAX_PAGES: Final = 100
MAX_DEFINITION: Final = 256 * 1024
"""Characters of one tool's definition as JSON."""

MAX_PROGRESS: Final = 1_000
"""Progress notifications of one call that are passed on."""

TOO_LARGE: Final = -32_090
"""Code of our error that replaces a message that is too large."""

REFUSED: Final = -32_091
"""Code of our error that replaces HTTP 401 and 403: the request did not run."""


def too_large() -> types.ErrorData:
    """Return the error that replaces a response that is too large."""
    return types.ErrorData(code=TOO_LARGE, message=f"the result is larger than {MAX_MESSAGE} bytes")
