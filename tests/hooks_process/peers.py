"""Real hook processes: scripts that import nothing of Patchbay."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from patchbay.hooks import PROCESS, HookManager, HookPolicy, HookTimeouts
from patchbay.hooks.process import ProcessHook, ProcessLimits, ProcessSpec

BOUND = 90.0
"""Seconds; no wait is longer."""

PRELUDE = """
import json, os, signal, subprocess, sys, time

def write(text):
    os.write(1, text.encode("utf-8", "surrogateescape"))

def answer(result=None, **members):
    write(json.dumps({"jsonrpc": "2.0", "id": id, "result": {} if result is None else result, **members}) + "\\n")

def on(method, params):
    answer()

def hello(params):
    answer({"ok": True})

def lines():
    for line in sys.stdin.buffer:
        yield json.loads(line)

"""
LOOP = """

for message in lines():
    id, method, params = message.get("id"), message["method"].removeprefix("hook."), message["params"]
    hello(params) if method == "hello" else on(method, params)
"""

QUICK = ProcessLimits(hello=20.0, eof_grace=5.0, term_grace=5.0, backoff_first=0.01, backoff_most=0.02, restarts=0)
"""Long where a busy machine may need it, short elsewhere."""


def script(folder: Path, body: str, *, name: str = "hook") -> tuple[str, ...]:
    """Write a hook; ``body`` may define ``on(method, params)``, ``hello(params)`` and ``lines()``. Return its command."""
    path = folder / f"{name}.py"
    path.write_text(PRELUDE + textwrap.dedent(body) + LOOP, encoding="utf-8")
    return sys.executable, "-I", "-S", str(path)


def spec(command: tuple[str, ...], *modes: str, limits: ProcessLimits = QUICK, **members: Any) -> ProcessSpec:
    """Return the spec of a hook for these modes, "llm" and "tool" where none is given."""
    return ProcessSpec(
        name=members.pop("name", "h"), command=command, modes=frozenset(modes or ("llm", "tool")), limits=limits, **members
    )


@asynccontextmanager
async def mounted_hooks(*specs: ProcessSpec, policy: HookPolicy | None = None, **timeouts: float) -> AsyncIterator[HookManager]:
    """Start and mount hooks that are processes; end them."""
    manager = HookManager(policy=policy, timeouts=HookTimeouts(**{"interceptor": 20.0, "approval": 20.0, **timeouts}))
    try:
        for each in specs:
            await mount(manager, each)
        yield manager
    finally:
        await manager.aclose()


async def mount(manager: HookManager, each: ProcessSpec) -> ProcessHook:
    """Start a hook and mount it."""
    hook = ProcessHook(each)
    await hook.start()
    manager.mount(each.name, hook, group=PROCESS, methods=hook.methods)
    return hook


def process_of(manager: HookManager, name: str = "h") -> ProcessHook:
    """Return the hook of this name."""
    hook = next(each.hook for each in manager.mounted if each.name == name)
    assert isinstance(hook, ProcessHook)
    return hook


def with_limits(each: ProcessSpec, **limits: Any) -> ProcessSpec:
    """Return a spec with other limits."""
    return replace(each, limits=replace(each.limits, **limits))


def process_exists(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


async def wait_for_exit(pid: int) -> None:
    """Wait until a process is gone."""
    while process_exists(pid):
        await asyncio.sleep(0.005)


async def wait_until(condition: Any) -> None:
    """Wait for a condition without an event, such as a file or the state of a process."""
    while not condition():
        await asyncio.sleep(0.005)


def megabytes() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def open_files() -> int:
    """Return the number of open files, pipes and sockets of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))
