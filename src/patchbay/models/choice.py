"""What ``tool_choice`` and ``parallel_tool_calls`` demand of an answer, and whether it obeys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from patchbay.errors import InvalidRequestError
from patchbay.formats.contract import allowed_names


class Policy(msgspec.Struct, frozen=True):
    """``needed``: at least one call. ``forbidden``: none. ``names``: only these tools (None: any). ``single``: at most one."""

    needed: bool = False
    forbidden: bool = False
    names: frozenset[str] | None = None
    single: bool = False

    @property
    def free(self) -> bool:
        """Anything goes."""
        return not (self.needed or self.forbidden or self.single or self.names is not None)

    def admits(self, name: str) -> bool:
        """Whether a call of this tool is allowed."""
        return not self.forbidden and (self.names is None or name in self.names)

    def complaint(self) -> str:
        """What to tell a model whose answer broke the policy."""
        if self.forbidden:
            return "You wrote a tool call, but no tool may be called now. Answer again, in plain text and without any call."
        names = ", ".join(json.dumps(name, ensure_ascii=False) for name in sorted(self.names or ()))
        if self.needed and self.names is not None:
            which = f"the tool {names}" if len(self.names) == 1 else f"one of these tools: {names}"
            return f"You did not call {which}. Write the call now, and nothing else."
        if self.needed:
            return "You did not call a tool. Call at least one of the tools now; write the call and nothing else."
        return f"You called a tool that may not be called now. Allowed now: {names}. Answer again, or call one of these."

    def outcome(self, rounds: int) -> str:
        """What to tell the client when the model did not obey."""
        asked = f" (asked {rounds + 1} times)" if rounds else ""
        if self.forbidden:
            return f"The model called a tool although tool_choice is 'none'{asked}."
        if not self.needed:
            return f"The model called a tool that tool_choice does not allow{asked}."
        if self.names is not None:
            return f"The model did not call {' or '.join(map(repr, sorted(self.names)))} as tool_choice demands{asked}."
        return f"The model did not call a tool although tool_choice demands it{asked}."


def read_policy(tool_choice: Any, parallel: Any, names: frozenset[str]) -> Policy:
    """Read ``tool_choice`` and ``parallel_tool_calls``; ``names`` are the offered tools. Raises InvalidRequestError."""
    if parallel is not None and not isinstance(parallel, bool):
        raise InvalidRequestError("'parallel_tool_calls' must be a boolean.", param="parallel_tool_calls")
    single = parallel is False
    if tool_choice is None or tool_choice == "auto":
        return Policy(single=single)
    if tool_choice == "none":
        return Policy(forbidden=True)
    if tool_choice == "required":
        return Policy(needed=True, single=single)
    if isinstance(tool_choice, Mapping):
        if tool_choice.get("type") == "allowed_tools":
            return _allowed(tool_choice.get("allowed_tools"), names, single=single)
        if tool_choice.get("type") == "function":
            function = tool_choice.get("function")
            name = function.get("name") if isinstance(function, Mapping) else None
            return Policy(needed=True, names=_offered([name], names), single=True)
    raise InvalidRequestError(
        "'tool_choice' must be 'auto', 'none', 'required', a named function or 'allowed_tools'.", param="tool_choice"
    )


def _allowed(allowed: Any, names: frozenset[str], *, single: bool) -> Policy:
    if not isinstance(allowed, Mapping) or allowed.get("mode") not in ("auto", "required"):
        raise InvalidRequestError(
            "'tool_choice.allowed_tools' must have a 'mode' ('auto' or 'required') and 'tools'.",
            param="tool_choice.allowed_tools",
        )
    chosen = _offered(allowed_names(allowed), names)
    return Policy(needed=allowed["mode"] == "required", names=chosen, single=single)


def _offered(chosen: list[Any], names: frozenset[str]) -> frozenset[str]:
    for name in chosen:
        if not isinstance(name, str) or name not in names:
            raise InvalidRequestError(f"'tool_choice' names {name!r}, which is not among 'tools'.", param="tool_choice")
    if not chosen:
        raise InvalidRequestError("'tool_choice' allows no tool: use 'none'.", param="tool_choice")
    return frozenset(chosen)
