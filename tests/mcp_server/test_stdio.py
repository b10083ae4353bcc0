"""``patchbay mcp serve``: tools of a module, and a bridge to a running server, for clients that start a process."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from mcp_server.rig import ERAS, add, run, step_by_step
from patchbay import tool
from patchbay.tools.context import ToolContext
from support.cli import run_cli
from support.processes import Process
from tools_server.rig import TOKEN, Server, serving

MODULE = '''
from patchbay import tool

@tool(title="Greeting")
def greet(name: str) -> str:
    """Greet a person."""
    print("what a tool prints goes to stderr")
    return f"Hello, {name}!"

def spare() -> str:
    return "spare"
'''
PRINTED = "not between the messages\n"
POLICY = """
[[approvals.rules]]
tools = ["greet"]
outcome = "ask"
"""


@contextlib.asynccontextmanager
async def started(era: str, *arguments: str, folder: Path | None = None, **options: Any) -> AsyncIterator[Client]:
    """A client of ``patchbay mcp serve``, as its own process, which ends with its standard input."""
    command = [sys.executable, "-m", "patchbay", "mcp", "serve", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with Process(command, cwd=folder, text=True, **pipes) as process:

        @contextlib.asynccontextmanager
        async def transport() -> AsyncIterator[Any]:
            # The SDK's transport of servers is one of messages in two files: that of clients can only start a new interpreter.
            async with stdio_server(anyio.wrap_file(process.stdout), anyio.wrap_file(process.stdin)) as streams:
                yield streams
                process.stdin.close()

        try:
            async with Client(transport(), mode=era, **options) as client:
                yield client
            assert 0 == process.wait(30)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serving(("ann", "ben"), token=TOKEN) as running:
        for each in (add, step_by_step):
            running.app.managers["ann"].register_tool(each)
        yield running


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("era", ERAS)
def test_tools_of_a_module_are_served_without_a_server(tmp_path: Path, era: str) -> None:
    (tmp_path / "greetings.py").write_text(MODULE)

    async def ask(*arguments: str) -> tuple[list[str], str]:
        async with started(era, *arguments, folder=tmp_path) as client:
            names = [each.name for each in (await client.list_tools()).tools]
            done = await client.call_tool("greet", {"name": "Ann"})
            return names, done.content[0].text

    if era == "legacy":
        assert (["greet"], "Hello, Ann!") == run(ask("--tools", "greetings.py"))
    else:
        assert (["greet", "spare"], "Hello, Ann!") == run(ask("--tools", "greetings", "--tools", "greetings:spare"))
        (tmp_path / "policy.toml").write_text(POLICY)
        denied = run(ask("--tools", "greetings.py", "--config", "policy.toml"))[1]
        assert "no person can be asked here" in denied


@pytest.mark.parametrize("era", ERAS)
async def test_a_bridge_passes_calls_progress_changes_and_cancellations_on(server: Server, token: str, era: str) -> None:
    begun, stopped, changed, seen = [], [], asyncio.Event(), []
    region = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}

    @tool
    async def wait_long(tool_context: ToolContext) -> None:
        begun.append(1)
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.append(1)

    async def note_progress(progress: float, _total: float | None, _message: str | None) -> None:
        seen.append(progress)

    async def note(message: Any) -> None:
        if "ToolListChanged" in type(message).__name__:
            changed.set()

    where = ("--server", f"http://127.0.0.1:{server.port}", "--token-file", token, "--role", "ann")
    async with started(era, *where, message_handler=note) as client:
        assert 5 == (await client.call_tool("add", {"a": 3})).structured_content["sum"]
        await client.call_tool("step_by_step", {}, progress_callback=note_progress)
        assert 4 == len(seen)

        manager = server.app.managers["ann"]
        manager.register_tool(wait_long)
        call = asyncio.create_task(client.call_tool("wait_long", {}))
        while not begun:
            await asyncio.sleep(0.01)
        call.cancel()
        while not stopped:
            await asyncio.sleep(0.01)

        async with client.listen(tools_list_changed=True) if era == "auto" else contextlib.nullcontext() as events:
            manager.register_tool(tool(lambda arguments: arguments["region"], name="where", parameters=region))
            await (anext(aiter(events)) if events is not None else changed.wait())
        await client.list_tools()
        assert "EU" == (await client.call_tool("where", {"region": "EU"})).content[0].text
        for name in ("wait_long", "where"):
            manager.unregister_tool(name)
        with pytest.raises(MCPError, match="Unknown tool: where"):
            await client.call_tool("where", {"region": "EU"})


def test_unservable_tools_are_an_error_before_any_output(tmp_path: Path, token: str) -> None:
    (tmp_path / "nothing_here.py").write_text("x = 1\nprint('not between the messages')\n")
    (tmp_path / "raises_here.py").write_text("x = 1\n1 / 0\n")
    (tmp_path / "unfinished.py").write_text("x = 1\ndef f(:\n")
    for status, words, arguments in [
        (1, "No response from http://127.0.0.1:9", ("--server", "http://127.0.0.1:9")),
        (2, "No module named 'not_there'", ("--tools", "not_there")),
        (2, "no such file", ("--tools", f"{tmp_path}/not_there.py")),
        (2, "ZeroDivisionError: division by zero", ("--tools", f"{tmp_path}/raises_here.py")),
        (2, "SyntaxError: invalid syntax (unfinished.py, line 2)", ("--tools", f"{tmp_path}/unfinished.py")),
        (2, "there is no 'y'", ("--tools", f"{tmp_path}/nothing_here.py:y")),
        (2, "there are no tools", ("--tools", f"{tmp_path}/nothing_here.py")),
        (2, "--config and --audit are for --tools", ("--audit", "none")),
        (2, "--role: not with --tools", ("--tools", "x", "--role", "ann")),
        (2, "--server and --token-file: not with --tools", ("--tools", "x", "--server", "http://[::1]:9", "--token-file", token)),
    ]:
        done = run_cli("mcp", "serve", *arguments)
        assert status == done.returncode, (arguments, done.stderr)
        assert (True, "", 1) == (words in done.stderr, done.stdout, done.stderr.removeprefix(PRINTED).count("\n")), done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (None, 0)])
@pytest.mark.parametrize("is_bridge", [False, True], ids=["tools", "bridge"])
def test_it_ends_at_a_signal_or_at_the_end_of_standard_input(
    tmp_path: Path, server: Server, token: str, number: signal.Signals | None, status: int, is_bridge: bool
) -> None:
    (tmp_path / "greetings.py").write_text(f"{MODULE}\nimport atexit\natexit.register(print, 'at exit')\n")
    where = ("--server", f"http://127.0.0.1:{server.port}", "--token-file", token) if is_bridge else ("--tools", "greetings.py")
    initialized = [
        (
            b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":'
            b'{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"a","version":"1"}}}\n'
        ),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n',
    ]
    name = b"add" if is_bridge else b"greet"
    call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s","arguments":{"name":"Ann","a":1}}}\n' % name
    printed = b"" if is_bridge else b"what a tool prints goes to stderr\nat exit\n"
    command = [sys.executable, "-m", "patchbay", "mcp", "serve", *where]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Process(command, cwd=tmp_path, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.writelines([*initialized, call])
        process.stdin.flush()
        assert [b'"id":0', b'"id":1'] == [re.search(rb'"id":\d', process.stdout.readline())[0] for _ in range(2)]
        if number is None:
            process.stdin.close()
        else:
            process.send_signal(number)
        assert (status, printed, b"") == (process.wait(30), process.stderr.read(), process.stdout.read())
