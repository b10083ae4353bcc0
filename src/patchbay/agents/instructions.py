"""An agent's instruction with the session's state put into it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from patchbay.agents.context import InvocationContext

Instruction: TypeAlias = str | Callable[[InvocationContext], Any]
"""Text, or a function of the context (sync or async) that returns it."""

_KEY = re.compile(r"\{(\w[\w:.]*)(\??)\}")


async def written_out(instruction: Instruction, ctx: InvocationContext) -> str:
    """Return the instruction's text for this run.

    ``{key}`` becomes the state's value under ``key``, and stays as it is where there is none, so JSON may stand in an
    instruction; ``{key?}`` becomes nothing then.
    """
    if callable(instruction):
        text = instruction(ctx)
        text = await text if inspect.isawaitable(text) else text
    else:
        text = instruction
    return filled(str(text or ""), ctx.session.state)


def filled(text: str, state: Mapping[str, Any]) -> str:
    """Put values of ``state`` into ``text``; what they hold is not looked at again."""
    if "{" not in text:
        return text

    def value(match: re.Match[str]) -> str:
        found = state.get(match[1])
        if found is not None:
            return str(found)
        return "" if match[2] else match[0]

    return _KEY.sub(value, text)
