"""A server with approvals, as a process of its own: ``served.py DATABASE LOG PORT [TOKEN]``. ``POST /run`` makes a call, and waits for it;
``POST /stop`` stops all that are under way; ``POST /reset`` also forgets every request and empties LOG.

What its tool does, it writes into LOG, one line for each time. ``DIES`` in the environment names the moment at which it is killed
as by ``kill -9``: ``before use_decision`` is before the store's method, ``after use_decision`` after it, and so for the ``tool``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Body, FastAPI

from patchbay.approvals import ApprovalPolicy, ApprovalService, Rule
from patchbay.approvals.store import REQUESTS, SESSIONS, WAITS
from patchbay.executor import Executor
from patchbay.hooks import HookManager, HookScope
from patchbay.server import ToolsSettings, make_approvals_router
from patchbay.server.auth import AccessMiddleware
from patchbay.server.routing import handle_errors
from patchbay.server.runtime import listen_on, run_server, url_of
from patchbay.tools import tool
from patchbay.types import ToolCall

DIES = os.environ.get("DIES", "")


class Served:
    """The application, with a shutdown notice before it stops."""

    def __init__(self, database: str, log: Path, token: str | None) -> None:
        self.service = ApprovalService(ApprovalPolicy(otherwise=Rule(name="all", deadline=600)), database)
        hooks = HookManager()
        self.service.mount(hooks)
        if (method := DIES.partition(" ")[2]) not in ("", "tool"):
            setattr(self.service.store, method, dying(method, getattr(self.service.store, method)))

        def delete(path: str) -> str:
            die("before tool")
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{path}\n")
            die("after tool")
            return f"deleted {path}"

        def look(arguments: dict[str, Any]) -> dict[str, Any]:
            path = arguments["path"]
            return {"path": path.replace("/link", "/srv", 1)} if path.startswith("/link") else {}

        executor = Executor([tool(handler=delete, facts=look)], hooks=hooks, max_repeats=None)

        @contextlib.asynccontextmanager
        async def lifespan(_app: FastAPI):
            yield
            await hooks.aclose()

        batches: set[Any] = set()
        api = FastAPI(lifespan=lifespan)
        api.include_router(make_approvals_router(self.service, needs_token=token is not None))
        handle_errors(api)

        @api.post("/run")
        async def make_call(arguments: Annotated[dict[str, Any], Body()], session: str = "s1") -> str:
            batch = executor.begin_run(scope=HookScope(agent_id="helper", session_key=session)).start_batch([call_of(arguments)])
            batches.add(batch)
            try:
                return [each.content async for each in batch].pop()
            finally:
                batches.discard(batch)
                await batch.stop()

        @api.post("/stop")
        async def stop_calls() -> None:
            for batch in tuple(batches):
                await batch.stop()

        @api.post("/reset")
        async def reset() -> None:
            await stop_calls()
            await self.service.pending()  # makes the tables
            with sa.create_engine(database, poolclass=sa.NullPool).begin() as connection:
                for table in (REQUESTS, SESSIONS, WAITS):
                    connection.execute(table.delete())
            log.write_bytes(b"")

        self._guarded = AccessMiddleware(api, ToolsSettings(token=token))

    def stopping(self) -> None:
        self.service.leave()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._guarded(scope, receive, send)


def die(moment: str) -> None:
    if moment == DIES:
        os.kill(os.getpid(), signal.SIGKILL)


def dying(name: str, method: Any) -> Any:
    async def work(*arguments: Any, **options: Any) -> Any:
        die(f"before {name}")
        found = await method(*arguments, **options)
        die(f"after {name}")
        return found

    return work


def call_of(arguments: dict[str, Any]) -> ToolCall:
    return ToolCall("1", "delete", json.dumps(arguments))


def main() -> None:
    database, log, port, *rest = sys.argv[1:]
    listener = listen_on("127.0.0.1", int(port))
    app = Served(database, Path(log), rest[0] if rest else None)
    with listener:
        run_server(app, listener, drain_timeout=0, ready=lambda: print(url_of(listener), flush=True))  # noqa: T201  (it is read)


if __name__ == "__main__":
    main()
