"""A client for MCP's conformance suite: mounts the suite's server as any MCP server, and calls each of its tools once.

It logs in (OAuth) where a failure says so, as its user would, with a browser that agrees to everything.

Run by the suite (tests/external/conformance.py), with the URL of its server as the last argument.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from patchbay.approvals import ApprovalService
from patchbay.approvals.request import Answer, ApprovalRequest
from patchbay.executor import Executor
from patchbay.hooks import HookManager
from patchbay.mcp import McpServer
from patchbay.mcp.host import McpHost
from patchbay.mcp.login import login
from patchbay.tools.registry import DEFAULT_ROLE, ToolRegistry
from patchbay.types import ToolCall

SAMPLES: dict[str, Any] = {"string": "some text", "integer": 3, "number": 4.5, "boolean": True, "object": {}, "array": []}

DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The client id that the suite expects of clients with a metadata document."""
MAX_LOGINS = 3


def arguments_for(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an argument of the right type for each property."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    return {name: SAMPLES.get(str(about.get("type")), "some text") for name, about in properties.items()}


class Person:
    """Answers every question of a server: with the defaults that it proposes, and a sample for each other field."""

    async def ask(self, request: ApprovalRequest, /) -> Answer:
        filled = {**arguments_for(request.parameters or {}), **json.loads(request.arguments)}
        return Answer("approve", by="person", arguments=filled)


def browse(url: str) -> None:
    """Open the URL of a login, as the browser of a person who agrees: it is sent on to our page."""

    def visit() -> None:
        with urllib.request.urlopen(url, timeout=20) as page:
            page.read()

    asyncio.get_running_loop().run_in_executor(None, visit)


def configured(url: str, context: Mapping[str, Any]) -> McpServer:
    """Return the server as its user would configure it: with the id and the secret that the scenario has, or our document's URL."""
    document = DOCUMENT if os.environ.get("MCP_CONFORMANCE_SCENARIO") == "auth/basic-cimd" else ""
    client_id, secret = context.get("client_id") or document, context.get("client_secret") or ""
    return McpServer(name="suite", url=url, client_id=client_id, client_secret=secret)


async def use(server: McpServer, asked: Sequence[Mapping[str, Any]]) -> tuple[str, bool]:
    """Mount the server, and call what is ``asked``, or each tool. Return what was said, and whether the server is there."""
    registry = ToolRegistry()
    host = McpHost([server], registry)
    hooks = HookManager()
    people = ApprovalService(terminal=Person())
    people.stand_by(hooks)
    try:
        await host.start()
        said = host.status[0].problem
        tools = registry.snapshot(DEFAULT_ROLE).tools
        calls = [(f"mcp__suite__{each['name']}", each["arguments"]) for each in asked]
        calls = calls or [(name, arguments_for(each.parameters)) for name, each in tools.items()]
        seen = next((tool.parameters for tool in tools.values() if "$schema" in tool.parameters), None)
        calls = [(name, {"schema": seen} if seen and "schema" in given else given) for name, given in calls]
        executor = Executor(
            tools.values(), validation=None, tool_timeout=20.0, hooks=hooks
        )  # the suite also gives what does not fit
        run = [ToolCall(f"c{number}", name, json.dumps(arguments)) for number, (name, arguments) in enumerate(calls)]
        for each in run:
            [execution] = await executor.run([each])
            print(each.name, each.raw_arguments, execution.content)
            if execution.is_error and not host.status[0].problem:  # the connection may have ended for that
                await asyncio.sleep(0.2)
            said += f"\n{execution.content} {host.status[0].problem}"
        return said, host.status[0].state == "ready"
    finally:
        await host.aclose()
        await people.aclose()


async def main(url: str) -> int:
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    server = configured(url, context)
    for _ in range(MAX_LOGINS):
        said, is_ready = await use(server, context.get("toolCalls") or [])
        print(said)
        if "patchbay mcp login" not in said:
            return 0 if is_ready else 1
        await login(server, browse, agree=lambda _: True)  # the suite's authorization servers have origins of their own
    return 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CONFIG_HOME"] = folder  # of the tokens
        sys.exit(asyncio.run(main(sys.argv[-1])))
