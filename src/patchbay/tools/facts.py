"""What a tool finds out about a call before it runs: what its arguments do not show, such as where a symlink leads.

What lives here: asking the tool, and what may be facts. What does not: when it is asked, and that what was approved is still so
when the call runs (``patchbay.executor``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from patchbay.errors import ToolDeniedError, ToolError
from patchbay.tools.base import Tool
from patchbay.tools.invoke import invoke, is_async
from patchbay.tools.results import describe, read_exactly, write_exactly

MOST: Final = 8 * 1024
"""How many characters of JSON the facts of a call may have: whoever approves it reads them all."""

DENIED: Final = "Tool execution denied"

_SHOWN: Final = 300


async def facts_of(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what ``tool.facts`` says of a call with ``arguments``, as JSON knows it; {} of a tool that has no such function.

    The arguments are the function's own from then on. One that is not async is called in a thread. Raises ToolDeniedError where
    it fails, and for what are no facts; what it raises of the ToolErrors (``ToolRetry``, ``ToolFailed``) is raised as it is.
    """
    if tool.facts is None:
        return {}
    try:
        return _checked(await invoke(tool.facts, (arguments,), {}, in_thread=not is_async(tool.facts)))
    except ToolError:
        raise
    except Exception as error:
        words = f"what the call is about could not be found out: {describe(error):.{_SHOWN}}"
        raise ToolDeniedError(DENIED, words, tool_name=tool.name, by=tool.name) from error


def changed_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of the facts that are not the same in both."""
    # As text: to Python 1 and True are the same.
    one, other = ({name: json.dumps(value, sort_keys=True) for name, value in facts.items()} for facts in (before, now))
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _checked(found: Any) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise TypeError(f"facts must be a mapping, not {type(found).__name__}")
    text = write_exactly(dict(found))
    if len(text) > MOST:
        raise ValueError(f"{len(text)} characters of facts are too long: the limit is {MOST}")
    read: dict[str, Any] = read_exactly(text)
    return read
