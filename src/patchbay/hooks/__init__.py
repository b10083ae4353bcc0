"""Hooks: code of this program or of other processes that observes, changes, answers, approves or refuses model and tool calls.

Nothing is imported until a name is used: the executor imports this package, and most programs register no hooks.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.hooks.calls import DecisionLog, PendingCall
    from patchbay.hooks.events import CallRecord, Recorder
    from patchbay.hooks.manager import HookManager
    from patchbay.hooks.pipeline import TurnHooks
    from patchbay.hooks.registered import IN_PROCESS, NO_CHAINS, PROCESS, Chains, RegisteredHook, native
    from patchbay.hooks.tools import InjectedTool
    from patchbay.hooks.types import (
        AbortTurn,
        AfterLLM,
        AfterTool,
        Approval,
        Approver,
        Ask,
        BeforeLLM,
        BeforeTool,
        Continue,
        Decision,
        DenyTool,
        Event,
        HardAbort,
        HookPolicy,
        HookScope,
        HookTimeouts,
        LLMRequest,
        LLMResponse,
        Meta,
        Modify,
        Observer,
        Respond,
        ToolRequest,
        ToolResultView,
    )
    from patchbay.tools.output import ToolOutput

__all__ = [
    "IN_PROCESS",
    "NO_CHAINS",
    "PROCESS",
    "AbortTurn",
    "AfterLLM",
    "AfterTool",
    "Approval",
    "Approver",
    "Ask",
    "BeforeLLM",
    "BeforeTool",
    "CallRecord",
    "Chains",
    "Continue",
    "Decision",
    "DecisionLog",
    "DenyTool",
    "Event",
    "HardAbort",
    "HookManager",
    "HookPolicy",
    "HookScope",
    "HookTimeouts",
    "InjectedTool",
    "LLMRequest",
    "LLMResponse",
    "Meta",
    "Modify",
    "Observer",
    "PendingCall",
    "Recorder",
    "RegisteredHook",
    "Respond",
    "ToolOutput",
    "ToolRequest",
    "ToolResultView",
    "TurnHooks",
    "native",
]

_ELSEWHERE = {
    "calls": ("DecisionLog", "PendingCall"),
    "events": ("CallRecord", "Recorder"),
    "manager": ("HookManager",),
    "pipeline": ("TurnHooks",),
    "registered": ("IN_PROCESS", "NO_CHAINS", "PROCESS", "Chains", "RegisteredHook", "native"),
    "tools": ("InjectedTool",),
}
_RENAMED = {"Asked": "PendingCall", "Mounted": "RegisteredHook", "OwnedTool": "InjectedTool", "Trail": "DecisionLog"}

_resolve = lazy_exports(
    __name__,
    {
        **dict.fromkeys(__all__, "patchbay.hooks.types"),
        **{name: f"patchbay.hooks.{module}" for module, names in _ELSEWHERE.items() for name in names},
        "ToolOutput": "patchbay.tools.output",
    },
)


def __getattr__(name: str) -> Any:
    if (now := _RENAMED.get(name)) is not None:
        warnings.warn(f"{name} is {now} now; the old name ends with the next release.", DeprecationWarning, 2)
        name = now
    return _resolve(name)
