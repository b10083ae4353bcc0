"""Fakes for tests: a scripted OpenAI-compatible server (``ScriptedUpstream``), scripted models, and a plugin runner.

The library itself never imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.testing.models import ContractModel as ContractModel
    from patchbay.testing.models import ScriptedModel as ScriptedModel
    from patchbay.testing.plugins import PluginResult as PluginResult
    from patchbay.testing.plugins import RunningPlugin as RunningPlugin
    from patchbay.testing.plugins import run_plugin as run_plugin
    from patchbay.testing.script import Answer as Answer
    from patchbay.testing.script import Message as Message
    from patchbay.testing.script import Raw as Raw
    from patchbay.testing.script import Script as Script
    from patchbay.testing.script import Text as Text
    from patchbay.testing.script import events as events
    from patchbay.testing.script import pieces as pieces
    from patchbay.testing.upstream import Recorded as Recorded
    from patchbay.testing.upstream import ScriptedUpstream as ScriptedUpstream


__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "models": "ContractModel ScriptedModel",
        "plugins": "PluginResult RunningPlugin run_plugin",
        "script": "Answer Message Raw Script Text events pieces",
        "upstream": "Recorded ScriptedUpstream",
    },
)
