"""Fakes for tests: a scripted OpenAI-compatible server (``ScriptedUpstream``), scripted models, and a plugin runner.

The library itself never imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.testing.models import ContractModel, ScriptedModel
    from patchbay.testing.plugins import PluginResult, RunningPlugin, run_plugin
    from patchbay.testing.script import Answer, Message, Raw, Script, Text, events, pieces
    from patchbay.testing.upstream import Recorded, ScriptedUpstream

__all__ = [
    "Answer",
    "ContractModel",
    "Message",
    "PluginResult",
    "Raw",
    "Recorded",
    "RunningPlugin",
    "Script",
    "ScriptedModel",
    "ScriptedUpstream",
    "Text",
    "events",
    "pieces",
    "run_plugin",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "Answer": "patchbay.testing.script",
        "ContractModel": "patchbay.testing.models",
        "Message": "patchbay.testing.script",
        "PluginResult": "patchbay.testing.plugins",
        "Raw": "patchbay.testing.script",
        "Recorded": "patchbay.testing.upstream",
        "RunningPlugin": "patchbay.testing.plugins",
        "Script": "patchbay.testing.script",
        "ScriptedModel": "patchbay.testing.models",
        "ScriptedUpstream": "patchbay.testing.upstream",
        "Text": "patchbay.testing.script",
        "events": "patchbay.testing.script",
        "pieces": "patchbay.testing.script",
        "run_plugin": "patchbay.testing.plugins",
    },
)
