"""One process of a plugin, where it ends sooner than its host looks."""

from __future__ import annotations

import asyncio
import os

import pytest

from patchbay.plugins.errors import PluginError
from patchbay.plugins.host import process as module
from patchbay.plugins.host.process import PluginProcess
from patchbay.plugins.protocol import Start


async def test_of_a_process_that_has_ended_before_it_was_there_its_own_group_is_ended(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(os, "killpg", lambda group, _number: ended.append(group))
    monkeypatch.setattr(module, "child_command", lambda: ["true"])
    start = Start(plugin_id="p", entry="", folder="", reason="start", startup_timeout=1.0, startup_failure="warn", grace=1.0)
    nothing = lambda *_: None  # noqa: E731
    process = PluginProcess(start, socket=tmp_path / "s", on_message=nothing, on_closed=nothing, on_line=nothing)
    loop = asyncio.get_running_loop()
    really = loop.subprocess_exec

    async def in_a_while(*arguments, **options):
        made = await really(*arguments, **options)
        await asyncio.wait({process.exited})
        return made

    monkeypatch.setattr(loop, "subprocess_exec", in_a_while)
    with pytest.raises(PluginError, match="exit code 0"):
        await process.open(within=30)
    await process.close()
    assert [process.pid] == ended
    assert process.pid > 0
