"""Hooks in other processes: any program that reads requests from standard input and answers on standard output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.hooks.process.child import HookProcessError as HookProcessError
    from patchbay.hooks.process.child import HookReplyError as HookReplyError
    from patchbay.hooks.process.child import ProcessLimits as ProcessLimits
    from patchbay.hooks.process.child import ProcessSpec as ProcessSpec
    from patchbay.hooks.process.client import ProcessHook as ProcessHook


__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "child": "HookProcessError HookReplyError ProcessLimits ProcessSpec",
        "client": "ProcessHook",
    },
)
