"""The SDK for a hook in a process of its own.

    from patchbay.hooks.sdk import Hook

    hook = Hook("weather")

    @hook.tool
    def get_weather(city: str) -> str:
        '''Say how the weather is in a city.'''
        return f"{city}: sunny, 15 °C"

    if __name__ == "__main__":
        hook.run()

Handlers get the views and return the decisions of ``patchbay.hooks``.
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
