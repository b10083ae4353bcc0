"""A server with an audit and events, as a process of its own: ``served.py DATABASE [TOKEN]``. ``POST /run`` makes one turn.

The body says what is asked (``message``), in which ``session``, and how long the answer to the user is (``shown``).
"""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated, Any

from fastapi import Body, FastAPI

from patchbay.audit import AuditLog
from patchbay.executor import Executor
from patchbay.hooks import DenyTool, HookManager, HookScope
from patchbay.loop import turn
from patchbay.server import EventStream, ToolsSettings, make_audit_router, make_events_router
from patchbay.server.auth import AccessMiddleware
from patchbay.server.routing import handle_errors
from patchbay.server.runtime import listen_on, run_server, url_of
from patchbay.testing import ScriptedModel
from patchbay.tools.output import ToolOutput
from patchbay.types import ToolCall


class Policy:
    """No file is removed here."""

    async def before_tool(self, call: Any) -> Any:
        return DenyTool("nothing is removed here") if call.tool == "remove" else None


class Served:
    """The application, with a shutdown notice before it stops."""

    def __init__(self, database: str, token: str | None, *, most_readers: int = 3, port: int = 0) -> None:
        hooks = HookManager()
        hooks.mount("policy", Policy())
        audit = AuditLog(database)
        hooks.recorders.append(audit)
        self.hooks = hooks
        self.stream = EventStream(hooks, most_readers=most_readers)

        @contextlib.asynccontextmanager
        async def lifespan(_app: FastAPI):
            yield
            await hooks.aclose()
            await audit.aclose()

        api = FastAPI(lifespan=lifespan)
        api.include_router(make_events_router(self.stream, needs_token=token is not None))
        api.include_router(make_audit_router(audit, needs_token=token is not None))
        handle_errors(api)

        @api.post("/run")
        async def make_turn(
            message: Annotated[str, Body()] = "hi", session: Annotated[str, Body()] = "s1", shown: Annotated[int, Body()] = 4
        ) -> str:
            def add(a: int, b: int) -> ToolOutput:
                return ToolOutput(str(a + b), for_user="x" * shown)

            def remove(path: str) -> str:
                return path

            calls = [ToolCall("c1", "add", '{"a": 1, "b": 2}'), ToolCall("c2", "remove", '{"path": "\\u001b[31mx"}')]
            context = {"inbound": {"channel": "telegram", "sender_id": "ann"}}
            scope = HookScope("helper", "turn-0001", "", session, "scripted", context)
            run = Executor([add, remove], hooks=hooks).begin_run(scope=scope)
            events = turn(ScriptedModel([calls, "It is 3."]), run, [{"role": "user", "content": message}])
            final = [event async for event in events][-1]
            await audit.flush()
            return final.content

        @api.get("/readers")
        async def readers() -> int:
            return self.stream.readers

        self._guarded = AccessMiddleware(api, ToolsSettings(token=token))

    def stopping(self) -> None:
        self.stream.leave()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._guarded(scope, receive, send)


def main() -> None:
    database, port, *rest = sys.argv[1:]
    listener = listen_on("127.0.0.1", int(port))
    app = Served(database, rest[0] if rest else None)
    with listener:
        run_server(app, listener, drain_timeout=5, ready=lambda: print(url_of(listener), flush=True))  # noqa: T201  (it is read)


if __name__ == "__main__":
    main()
