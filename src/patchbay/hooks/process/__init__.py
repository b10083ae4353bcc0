"""Hooks in other processes: any program that reads requests from standard input and answers on standard output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.hooks.process.child import HookProcessError, HookReplyError, ProcessLimits, ProcessSpec
    from patchbay.hooks.process.client import ProcessHook

__all__ = ["HookProcessError", "HookReplyError", "ProcessHook", "ProcessLimits", "ProcessSpec"]

__getattr__ = lazy_exports(
    __name__,
    {
        "HookProcessError": "patchbay.hooks.process.child",
        "HookReplyError": "patchbay.hooks.process.child",
        "ProcessHook": "patchbay.hooks.process.client",
        "ProcessLimits": "patchbay.hooks.process.child",
        "ProcessSpec": "patchbay.hooks.process.child",
    },
)
