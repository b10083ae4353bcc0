"""What a hook that is a process of its own is written with.

    from patchbay.hooks.sdk import Hook

    hook = Hook("weather")

    @hook.tool
    def get_weather(city: str) -> str:
        '''Say how the weather is in a city.'''
        return f"{city}: sunny, 15 °C"

    if __name__ == "__main__":
        hook.run()

What lives here: the Hook with its decorators, and the loop that talks to the host. What handlers are given and may decide is
what every hook is given and may decide (``patchbay.hooks``). What does not: the host's side (``patchbay.hooks.process``).
"""

from __future__ import annotations

from patchbay.hooks.sdk.hook import Hook
from patchbay.hooks.types import (
    AbortTurn,
    Approval,
    Ask,
    Continue,
    Decision,
    DenyTool,
    Event,
    HardAbort,
    LLMRequest,
    LLMResponse,
    Meta,
    Modify,
    Respond,
    ToolRequest,
    ToolResultView,
)
from patchbay.tools.output import ToolOutput

__all__ = [
    "AbortTurn",
    "Approval",
    "Ask",
    "Continue",
    "Decision",
    "DenyTool",
    "Event",
    "HardAbort",
    "Hook",
    "LLMRequest",
    "LLMResponse",
    "Meta",
    "Modify",
    "Respond",
    "ToolOutput",
    "ToolRequest",
    "ToolResultView",
]
