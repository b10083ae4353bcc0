"""A tool by its name, and what a model is told of a name that is none."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from patchbay.errors import UnknownToolError
from patchbay.executor.settle import NAME_SHOWN
from patchbay.tools import Tool


def find_tool(tools: Mapping[str, Tool], name: str) -> Tool:
    """Return the tool of this name. Raises UnknownToolError with the nearest names."""
    tool = tools.get(name)
    if tool is None:
        available = tuple(each.name for each in tools.values() if each.offered)
        # Matching is quadratic in the name, and the name is whatever the model wrote.
        shown = name[:NAME_SHOWN]
        raise UnknownToolError(shown, nearest=tuple(difflib.get_close_matches(shown, available)), available=available)
    return tool
