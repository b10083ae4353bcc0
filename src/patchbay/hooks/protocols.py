"""What a hook may be: any object with one of these methods, async or not. Half a hook works.

A method that is not async runs in a thread, so that it holds up nobody. ``called_for`` finds what an object has, and says where
a name was probably meant to be another one.
"""

from __future__ import annotations

import difflib
import logging
from typing import Final, Protocol, runtime_checkable

from patchbay.hooks.decisions import Approval, Ask, Decision
from patchbay.hooks.views import Event, LLMRequest, LLMResponse, ToolRequest, ToolResultView

_logger = logging.getLogger(__name__)


@runtime_checkable
class Observer(Protocol):
    """Is told what happens."""

    async def on_runtime_event(self, event: Event, /) -> None:
        """Take note of an event; nothing waits for this, and what it raises is logged."""


@runtime_checkable
class BeforeLLM(Protocol):
    """Is asked before each request to a model."""

    async def before_llm(self, request: LLMRequest, /) -> Decision | None:
        """Let the request go, change it (``Modify``), or end the turn."""


@runtime_checkable
class AfterLLM(Protocol):
    """Is asked about each whole answer of a model; where it was streamed, its text is out by then."""

    async def after_llm(self, response: LLMResponse, /) -> Decision | None:
        """Let the answer stand, change it (``Modify``), or end the turn."""


@runtime_checkable
class BeforeTool(Protocol):
    """Is asked before each call."""

    async def before_tool(self, call: ToolRequest, /) -> Decision | None:
        """Let the call go, change or answer it (``Respond``), refuse it (``DenyTool``), ``Ask`` a person, or end the turn."""


@runtime_checkable
class AfterTool(Protocol):
    """Is asked about each result of a tool that ran well."""

    async def after_tool(self, result: ToolResultView, /) -> Decision | None:
        """Let the result stand, change it (``Modify``), or end the turn."""


@runtime_checkable
class Approver(Protocol):
    """Is asked whether a call may be carried out, exactly as it is; all approvers must agree."""

    async def approve_tool(self, call: ToolRequest, /) -> Approval | Ask | bool | None:
        """Say yes or no, or have a person asked. None is no."""


METHODS: Final = ("before_llm", "after_llm", "before_tool", "after_tool", "approve_tool", "on_runtime_event")
"""The names of all methods that are asked."""


class NoHookError(TypeError):
    """What was to be a hook is none."""


def methods_of(hook: object) -> tuple[str, ...]:
    """Return the methods that ``hook`` has. Raises NoHookError where it has none, and for a class: its methods have no self."""
    if isinstance(hook, type):
        raise NoHookError(f"{hook.__name__} is a class and no hook: give an instance of it, {hook.__name__}(...).")
    found = tuple(method for method in METHODS if callable(getattr(hook, method, None)))
    if not found:
        raise NoHookError(f"{type(hook).__name__} is no hook: it has none of the methods {', '.join(METHODS)}.")
    return found


def called_for(hook: object, name: str) -> tuple[str, ...]:
    """Return the methods that ``hook`` has; near misses are logged. Raises NoHookError, a TypeError."""
    public = [each for each in dir(hook) if not each.startswith("_") and each not in METHODS]
    found = tuple(method for method in METHODS if callable(getattr(hook, method, None)))
    for each in public:
        if meant := difflib.get_close_matches(each, [method for method in METHODS if method not in found], n=1, cutoff=0.85):
            _logger.warning("The hook %r has a method %r, which is never asked: is %r meant?", name, each, meant[0])
    return methods_of(hook)
