"""A plugin's process: one that ends early, and connections to its host's socket."""

from __future__ import annotations

import asyncio
import json
import os
import socket

import pytest

from patchbay.plugins.connection import encode
from patchbay.plugins.errors import PluginError
from patchbay.plugins.host import process as module
from patchbay.plugins.host.process import PluginProcess
from patchbay.plugins.protocol import PROTOCOL_VERSION, Hello, Start

START = Start(plugin_id="p", entry="", folder="", reason="start", startup_timeout=1.0, startup_failure="warn", grace=1.0)


def nothing(*_):
    pass


async def test_of_a_process_that_has_ended_before_it_was_there_its_own_group_is_ended(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(os, "killpg", lambda group, _number: ended.append(group))
    monkeypatch.setattr(module, "child_command", lambda: ["true"])
    process = PluginProcess(START, socket=tmp_path / "s", on_message=nothing, on_closed=nothing, on_line=nothing)
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


async def test_one_connection_with_the_token_is_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "child_command", lambda: ["cat"])  # so that what the process is told comes back as its output
    peers = []

    def connect(_stream, line):
        token = json.loads(line)["token"]
        for sent in ("0" * len(token), token, token):
            peers.append(peer := socket.socket(socket.AF_UNIX))
            peer.connect(str(tmp_path / "s"))
            peer.sendall(encode(Hello(version=PROTOCOL_VERSION, token=sent, pid=os.getpid())))

    process = PluginProcess(START, socket=tmp_path / "s", on_message=nothing, on_closed=nothing, on_line=connect)
    connection = await process.open(within=30)
    assert connection is process.connection
    await process.close()
    wrong, *right = [peer.recv(1) for peer in peers]
    assert b"" == wrong
    assert [False, True] == sorted(data != b"" for data in right)
    for peer in peers:
        peer.close()
