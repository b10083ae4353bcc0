"""The tool behind the official MCP SDK: ``python -m bench.calls.mcp_server`` over stdio, with a port over streamable HTTP."""

from __future__ import annotations

import logging
import sys

from mcp.server.mcpserver import MCPServer
from starlette.requests import Request
from starlette.responses import Response

from bench.calls import cases

server = MCPServer("bench", log_level="ERROR")
server.add_tool(cases.echo)


@server.custom_route("/ready", methods=["GET"])
async def _ready(_request: Request) -> Response:
    return Response()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    if len(sys.argv) == 1:
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[1]), json_response=True)
