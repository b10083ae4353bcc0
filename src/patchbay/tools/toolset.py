"""Sets of tools that come and go while a program runs, such as those of MCP servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from patchbay.tools.tool import Tool


class Toolset(ABC):
    """An entry of the ``tools`` of a runner or agent that stands for the tools it has when a turn begins.

    The runner or agent closes it. It may be used again after that, and by several at once.
    """

    @abstractmethod
    async def get_tools(self) -> Sequence[Tool]:
        """Return the tools for a turn that begins now."""

    async def aclose(self) -> None:
        """Close the set's connections."""
        return


def split_toolsets(items: Any) -> tuple[Any, list[Toolset]]:
    """Return the tools and the toolsets in ``tools``. Anything but a list is returned unchanged."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        return items, []
    given = list(items)
    return [each for each in given if not isinstance(each, Toolset)], [each for each in given if isinstance(each, Toolset)]
