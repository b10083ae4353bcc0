"""The template process of ``processes``: imports what tests need, and forks on request."""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from typing import Any


def preload() -> None:
    """Import what servers and commands import once they run, and make what the routes of each server are made of."""
    import encodings.idna  # noqa: F401

    import dbos._sys_db_postgres
    import dbos._sys_db_sqlite  # noqa: F401
    import h11  # noqa: F401
    import jsonschema_rs  # noqa: F401
    import mcp.server.mcpserver
    import mcp.server.sse
    import mcp.server.streamable_http_manager  # noqa: F401
    import psycopg  # noqa: F401
    import pydantic.v1  # noqa: F401  (FastAPI looks into it)
    import sqlalchemy.dialects.postgresql
    import sqlalchemy.dialects.sqlite  # noqa: F401
    import uvicorn.lifespan.on
    import uvicorn.loops.auto  # noqa: F401
    import uvloop  # noqa: F401
    from route_cache import share_route_parts  # this file runs as a script

    import patchbay.agents.durable
    import patchbay.approvals
    import patchbay.audit
    import patchbay.cli.approvals
    import patchbay.cli.audit
    import patchbay.cli.chat
    import patchbay.cli.commands
    import patchbay.cli.http
    import patchbay.cli.mcp
    import patchbay.cli.mcp_serve
    import patchbay.cli.plugins
    import patchbay.cli.proxy
    import patchbay.cli.serve
    import patchbay.cli.tail
    import patchbay.cli.worker
    import patchbay.hooks
    import patchbay.mcp.connection
    import patchbay.mcp.http
    import patchbay.mcp.login
    import patchbay.mcp.server
    import patchbay.mcp.stdio_server
    import patchbay.models.resolve
    import patchbay.plugins
    import patchbay.plugins.host
    import patchbay.proxy
    import patchbay.realtime
    import patchbay.server.admin_api
    import patchbay.server.app
    import patchbay.server.live_sessions.app
    import patchbay.server.runtime
    import patchbay.server.settings
    import patchbay.testing

    share_route_parts()
    patchbay.server.app.create_tools_app()
    assert 1 == threading.active_count(), threading.enumerate()
    assert "websockets.http11" not in sys.modules  # reads its limits from the environment, which `patchbay serve` sets
    gc.collect()
    gc.freeze()


def serve_forks(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request, and tell the status of each process that has ended. Returns in each process that was forked."""
    running: dict[int, tuple[int, int]] = {}
    while True:
        ready, _, _ = select.select([requests, *running], [], [])
        for ended in ready:
            if ended is not requests:
                pid, status = running.pop(ended)
                os.close(ended)
                os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                os.close(status)
        if requests in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 4)
            if not message:
                sys.exit(0)
            pid = os.fork()
            if pid == 0:
                for number, descriptor in enumerate(descriptors[:3]):
                    os.dup2(descriptor, number)
                os.closerange(
                    3, max([*descriptors, *running, *(status for _, status in running.values()), requests.fileno()]) + 1
                )
                requests.detach()
                return json.loads(message)
            requests.send(str(pid).encode())
            for descriptor in descriptors[:3]:
                os.close(descriptor)
            running[os.pidfd_open(pid)] = pid, descriptors[3]


def run_request(request: dict[str, Any]) -> None:
    """Run the program of a request as an interpreter would that was started for it."""
    if request["new_session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        file = io.FileIO(number, "w" if number else "r", closefd=False)
        buffered = io.BufferedWriter(file) if number else io.BufferedReader(file)
        # Lines at once on a terminal, and of errors everywhere.
        stream = io.TextIOWrapper(
            buffered, "utf-8", "backslashreplace" if number == 2 else "strict", None, number == 2 or file.isatty()
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    first, *rest = request["command"]
    folder = [request["folder"]]
    if first == "-P":
        folder = []
        first, *rest = rest
    if first == "-m":
        name, *sys.argv[1:] = rest
        sys.path[:1] = folder
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = [first, *rest]
        sys.path[0] = os.path.dirname(os.path.realpath(first))  # noqa: PTH120
        runpy.run_path(first, run_name="__main__")


def end_early(status: object) -> None:
    """End without taking the modules apart, which takes five times as long as the fork. Returns where the interpreter has more to say."""
    if not isinstance(status, int | None):
        return
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return
    os._exit((status or 0) & 0xFF)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload()
    request = serve_forks(socket.socket(fileno=int(sys.argv[1])))
    try:
        run_request(request)
    except SystemExit as ended:
        end_early(ended.code)
        raise
    end_early(0)
