"""Turns whose tool returns files."""

from __future__ import annotations

import asyncio
from typing import Any

from patchbay.executor import Executor
from patchbay.hooks import HookManager
from patchbay.loop import turn
from patchbay.testing import ScriptedModel

HI = [{"role": "user", "content": "hi"}]


def play(script, tool, *, hook=None, attachments=(), messages=HI, **options) -> tuple[list[Any], ScriptedModel]:
    """Run a turn over the script with one tool; return its events, and the model. ``options`` are the executor's."""

    async def main() -> tuple[list[Any], ScriptedModel]:
        hooks = None if hook is None else HookManager()
        if hooks is not None:
            hooks.mount("hook", hook)
        model = ScriptedModel(script)
        run = Executor([tool], hooks=hooks, **options).begin_run(attachments=attachments)
        return [event async for event in turn(model, run, messages, max_iterations=None)], model

    return asyncio.run(asyncio.wait_for(main(), 60))
