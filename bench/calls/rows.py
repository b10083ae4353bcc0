"""Who is measured. A further way to call a tool is one module with ``opened`` and ``UVLOOP``, and one row here."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import patchbay
from bench import install

SAME_PROCESS = "the same process"
PLUGIN = "a plugin, from its host"
CALLBACK = "an HTTP callback"
WHOLE_WAY = "POST /api/tools/call, host, plugin"
FLOOR_OURS = "Starlette, a POST by our client"
FLOOR_HTTPX = "Starlette, a POST by httpx"
MCP_STDIO = "mcp over stdio"
MCP_MOUNTED = "an MCP server over stdio, mounted"
MCP_HTTP = "mcp over streamable HTTP"
REGISTERING = "a registration, kept in SQLite"

PEER = "mcp"
"""Named as on PyPI and in ``bench/peers``."""


@dataclass(frozen=True)
class Row:
    """One way: the module that opens it. ``python`` returns the interpreter; it raises UnavailableError with the reason."""

    name: str
    module: str
    version: str
    python: Callable[[bool], Path]


def this_python(_: bool) -> Path:  # noqa: FBT001
    return Path(sys.executable)


def _peer(allowed: bool) -> Path:  # noqa: FBT001
    return install.environment(PEER, allowed=allowed) / "python"


def rows() -> tuple[Row, ...]:
    """All ways of a call, in the order of the table."""
    ours, starlette, mcp = patchbay.__version__, importlib.metadata.version("starlette"), install.pinned(PEER)
    return (
        Row(SAME_PROCESS, "bench.calls.same_process", ours, this_python),
        Row(PLUGIN, "bench.calls.plugin", ours, this_python),
        Row(CALLBACK, "bench.calls.callback", ours, this_python),
        Row(WHOLE_WAY, "bench.calls.whole_way", ours, this_python),
        Row(FLOOR_OURS, "bench.calls.floor_ours", starlette, this_python),
        Row(FLOOR_HTTPX, "bench.calls.floor_httpx", starlette, this_python),
        Row(MCP_MOUNTED, "bench.calls.mcp_mounted", ours, this_python),
        Row(MCP_STDIO, "bench.calls.mcp_stdio", mcp, _peer),
        Row(MCP_HTTP, "bench.calls.mcp_http", mcp, _peer),
    )


def registering() -> Row:
    """Describe the row that measures registration instead of a call."""
    return Row(REGISTERING, "bench.calls.registering", patchbay.__version__, this_python)
