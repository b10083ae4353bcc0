"""A client for MCP's conformance suite: mounts the suite's server as any MCP server, and calls each of its tools once.

Run by the suite (scripts/conformance.py), with the URL of its server as the last argument.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from patchbay.approvals import ApprovalService
from patchbay.approvals.request import Answer, ApprovalRequest
from patchbay.executor import Executor
from patchbay.hooks import HookManager
from patchbay.mcp import McpServer
from patchbay.mcp.host import McpHost
from patchbay.tools.registry import DEFAULT_ROLE, ToolRegistry
from patchbay.types import ToolCall

SAMPLES: dict[str, Any] = {"string": "some text", "integer": 3, "number": 4.5, "boolean": True, "object": {}, "array": []}


def arguments_for(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an argument of the right type for each property."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    return {name: SAMPLES.get(str(about.get("type")), "some text") for name, about in properties.items()}


class Person:
    """Answers every question of a server: with the defaults that it proposes, and a sample for each other field."""

    async def ask(self, request: ApprovalRequest, /) -> Answer:
        filled = {**arguments_for(request.parameters or {}), **json.loads(request.arguments)}
        return Answer("approve", by="person", arguments=filled)


async def main(url: str) -> int:
    registry = ToolRegistry()
    host = McpHost([McpServer(name="suite", url=url)], registry)
    asked: list[dict[str, Any]] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}").get("toolCalls") or []
    hooks = HookManager()
    people = ApprovalService(terminal=Person())
    people.stand_by(hooks)
    try:
        await host.start()
        tools = registry.snapshot(DEFAULT_ROLE).tools
        prefix = "mcp__suite__"
        calls = [(f"{prefix}{each['name']}", each["arguments"]) for each in asked]
        calls = calls or [(name, arguments_for(each.parameters)) for name, each in tools.items()]
        executor = Executor(
            tools.values(), validation=None, tool_timeout=20.0, hooks=hooks
        )  # the suite also gives what does not fit
        run = [ToolCall(f"c{number}", name, json.dumps(arguments)) for number, (name, arguments) in enumerate(calls)]
        for each in run:
            [execution] = await executor.run([each])
            print(each.name, each.raw_arguments, execution.content)
        return 0 if host.status[0].state == "ready" else 1
    finally:
        await host.aclose()
        await people.aclose()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1])))
