"""Hooks: code of this program or of other processes that observes, changes, answers, approves or refuses model and tool calls.

Nothing is imported until a name is used: the executor imports this package, and most programs register no hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.hooks.calls import DecisionLog as DecisionLog
    from patchbay.hooks.calls import PendingCall as PendingCall
    from patchbay.hooks.events import CallRecord as CallRecord
    from patchbay.hooks.events import Recorder as Recorder
    from patchbay.hooks.manager import HookManager as HookManager
    from patchbay.hooks.pipeline import TurnHooks as TurnHooks
    from patchbay.hooks.registered import IN_PROCESS as IN_PROCESS
    from patchbay.hooks.registered import NO_CHAINS as NO_CHAINS
    from patchbay.hooks.registered import PROCESS as PROCESS
    from patchbay.hooks.registered import Chains as Chains
    from patchbay.hooks.registered import RegisteredHook as RegisteredHook
    from patchbay.hooks.registered import native as native
    from patchbay.hooks.tools import InjectedTool as InjectedTool
    from patchbay.hooks.types import AbortTurn as AbortTurn
    from patchbay.hooks.types import AfterLLM as AfterLLM
    from patchbay.hooks.types import AfterTool as AfterTool
    from patchbay.hooks.types import Approval as Approval
    from patchbay.hooks.types import Approver as Approver
    from patchbay.hooks.types import Ask as Ask
    from patchbay.hooks.types import BeforeLLM as BeforeLLM
    from patchbay.hooks.types import BeforeTool as BeforeTool
    from patchbay.hooks.types import Continue as Continue
    from patchbay.hooks.types import Decision as Decision
    from patchbay.hooks.types import DenyTool as DenyTool
    from patchbay.hooks.types import Event as Event
    from patchbay.hooks.types import HardAbort as HardAbort
    from patchbay.hooks.types import HookPolicy as HookPolicy
    from patchbay.hooks.types import HookScope as HookScope
    from patchbay.hooks.types import HookTimeouts as HookTimeouts
    from patchbay.hooks.types import LLMRequest as LLMRequest
    from patchbay.hooks.types import LLMResponse as LLMResponse
    from patchbay.hooks.types import Meta as Meta
    from patchbay.hooks.types import Modify as Modify
    from patchbay.hooks.types import Observer as Observer
    from patchbay.hooks.types import Respond as Respond
    from patchbay.hooks.types import ToolRequest as ToolRequest
    from patchbay.hooks.types import ToolResultView as ToolResultView
    from patchbay.tools.output import ToolOutput as ToolOutput


__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "calls": "DecisionLog PendingCall",
        "events": "CallRecord Recorder",
        "manager": "HookManager",
        "pipeline": "TurnHooks",
        "registered": "IN_PROCESS NO_CHAINS PROCESS Chains RegisteredHook native",
        "tools": "InjectedTool",
        "types": "AbortTurn AfterLLM AfterTool Approval Approver Ask BeforeLLM BeforeTool Continue Decision DenyTool "
        "Event HardAbort HookPolicy HookScope HookTimeouts LLMRequest LLMResponse Meta Modify Observer "
        "Respond ToolRequest ToolResultView",
        "patchbay.tools.output": "ToolOutput",
    },
)
