"""Hooks: code of this program or of another that sees, changes, answers, approves or refuses what a model and its tools do.

What lives here: the points and what may be decided at each, who is asked in which order, and what a failing hook means. What does
not: the turn itself (``patchbay.loop`` and ``patchbay.executor`` ask, wherever a call comes from), processes (``process``) and
people (``approvals``), who are asked in the same way as everybody.

Nothing of it is imported until a name is used: the executor stands on this room, and most programs mount no hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.hooks.asked import Asked, Trail
    from patchbay.hooks.chains import IN_PROCESS, NO_CHAINS, PROCESS, Chains, Mounted, native
    from patchbay.hooks.decisions import AbortTurn, Approval, Ask, Continue, Decision, DenyTool, HardAbort, Modify, Respond
    from patchbay.hooks.manager import HookManager
    from patchbay.hooks.owned import OwnedTool
    from patchbay.hooks.policy import HookPolicy, HookTimeouts
    from patchbay.hooks.protocols import AfterLLM, AfterTool, Approver, BeforeLLM, BeforeTool, Observer
    from patchbay.hooks.records import CallRecord, Recorder
    from patchbay.hooks.scope import HookScope
    from patchbay.hooks.turn import TurnHooks
    from patchbay.hooks.views import Event, LLMRequest, LLMResponse, Meta, ToolRequest, ToolResultView
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
    "Asked",
    "BeforeLLM",
    "BeforeTool",
    "CallRecord",
    "Chains",
    "Continue",
    "Decision",
    "DenyTool",
    "Event",
    "HardAbort",
    "HookManager",
    "HookPolicy",
    "HookScope",
    "HookTimeouts",
    "LLMRequest",
    "LLMResponse",
    "Meta",
    "Modify",
    "Mounted",
    "Observer",
    "OwnedTool",
    "Recorder",
    "Respond",
    "ToolOutput",
    "ToolRequest",
    "ToolResultView",
    "Trail",
    "TurnHooks",
    "native",
]

_HOMES = {
    "asked": ("Asked", "Trail"),
    "decisions": ("AbortTurn", "Approval", "Ask", "Continue", "Decision", "DenyTool", "HardAbort", "Modify", "Respond"),
    "chains": ("IN_PROCESS", "NO_CHAINS", "PROCESS", "Chains", "Mounted", "native"),
    "manager": ("HookManager",),
    "owned": ("OwnedTool",),
    "policy": ("HookPolicy", "HookTimeouts"),
    "protocols": ("AfterLLM", "AfterTool", "Approver", "BeforeLLM", "BeforeTool", "Observer"),
    "records": ("CallRecord", "Recorder"),
    "scope": ("HookScope",),
    "turn": ("TurnHooks",),
    "views": ("Event", "LLMRequest", "LLMResponse", "Meta", "ToolRequest", "ToolResultView"),
}

__getattr__ = lazy_exports(
    __name__,
    {
        "ToolOutput": "patchbay.tools.output",
        **{name: f"patchbay.hooks.{module}" for module, names in _HOMES.items() for name in names},
    },
)
