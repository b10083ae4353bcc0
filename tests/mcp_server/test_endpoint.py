"""``/mcp`` of ``patchbay serve``: access checks, the lazy import of the SDK, and a server without it."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mcp_server.rig import ERAS, connected, run
from patchbay.cli import children
from support.processes import listening
from tools_server.rig import BOUND, TOKEN, calling_back, json_response

SERVE = ["serve", "--port", "0", "--store", "memory"]
BOTH = "application/json, text/event-stream"
DISCOVER: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}
MODERN = {"mcp-protocol-version": "2026-07-28", "mcp-method": "server/discover"}


def ask(port: int, body: Any = DISCOVER, *, path: str = "/mcp", **headers: str) -> tuple[int, Any]:
    """POST to a server; return the status and the body as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND)
    sent = {"content-type": "application/json", "accept": BOTH, **MODERN}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request("POST", path, json.dumps(body), sent)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")
    finally:
        connection.close()


def serving(*options: str) -> Any:
    return listening([sys.executable, "-m", "patchbay", *SERVE, *options], name="patchbay serve", timeout=BOUND)


def port_of(child: Any) -> int:
    return urlsplit(child.url).port or 0


def test_mcp_endpoint_has_the_access_rules_of_the_api(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with serving("--token-file", str(token)) as child, calling_back(json_response({"output": {"sky": "clear"}})) as callback:
        port = port_of(child)
        shown = {"authorization": f"Bearer {TOKEN}"}
        for status, code, headers in [
            (401, "wrong_token", {}),
            (401, "wrong_token", {"authorization": "Bearer another-token-of-this"}),
            (400, "untrusted_host", {**shown, "host": "evil.example"}),
            (403, "untrusted_origin", {**shown, "origin": "https://evil.example"}),
            (403, "unexpected_proxy", {**shown, "x_forwarded_for": "127.0.0.1"}),
            (413, "request_too_large", {**shown, "content_length": str(17 * 1024 * 1024)}),
            (422, "invalid_request", {**shown, "x_patchbay_session": "a%0Ab"}),
        ]:
            answered, body = ask(port, **headers)
            assert (status, code) == (answered, body["error_code"]), headers
        assert 422 == ask(port, **shown, content_type="text/plain")[0]
        unknown = ask(port, path="/mcp?role=nobody", **shown)
        assert (404, "unknown_role") == (unknown[0], unknown[1]["error_code"])
        status, body = ask(port, **shown, origin="http://localhost:3000", mcp_method="server/discover  ")
        assert (200, ["2026-07-28"]) == (status, body["result"]["supportedVersions"])

        returned = {"type": "object", "required": ["sky"]}
        tool = {"name": "weather", "callback_url": callback.url, "title": "Weather", "output_schema": returned}
        assert 200 == ask(port, tool, path="/api/tools/register", **shown)[0]

        async def call(era: str) -> tuple[str, Any, Any]:
            async with connected(port, era, token=TOKEN) as client:
                (listed,) = (await client.list_tools()).tools
                called = await client.call_tool("weather", {"at": "Rome"})
                return listed.title, listed.output_schema, called.structured_content

        assert [("Weather", returned, {"sky": "clear"})] * len(ERAS) == [run(call(era)) for era in ERAS]
        assert {"at": "Rome"} == callback.calls[0].json["arguments"]


def test_a_stream_cannot_be_resumed() -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    with serving() as child:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(child), timeout=BOUND)
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        connection.request("POST", "/mcp", json.dumps(body), {"content-type": "application/json", "accept": BOTH})
        answer = connection.getresponse()
        answer.read()
        session = {"mcp-session-id": str(answer.headers["mcp-session-id"]), "accept": "text/event-stream"}
        for more in ({}, {"mcp-session-id": "unknown"}):
            connection.request("GET", "/mcp", headers={**session, **more, "last-event-id": "5"})
            answer = connection.getresponse()
            error = json.loads(answer.read())
            assert (405, "no_resumption", "DELETE, GET, POST") == (answer.status, error["error_code"], answer.headers["allow"])
        connection.request("GET", "/mcp", headers=session)
        assert 200 == connection.getresponse().status
        connection.close()


def test_server_without_the_sdk_names_what_to_install() -> None:
    hidden = "import sys; sys.modules['mcp'] = sys.modules['mcp_types'] = None; from patchbay.cli import main; main()"
    with children.listening([sys.executable, "-c", hidden, *SERVE], name="patchbay serve", timeout=BOUND) as child:
        status, body = ask(port_of(child))
        assert (501, "mcp_not_installed") == (status, body["error_code"])
        assert "pip install 'patchbay-tools[mcp]'" in body["detail"]
        assert 404 == ask(port_of(child), path="/mcp/other")[0]


PROBE = """
import sys
import patchbay.cli.serve, patchbay.server.runtime
from patchbay.mcp import McpHost, McpServer
from patchbay.server.app import create_tools_app
create_tools_app()
create_tools_app(mcp_servers=[McpServer(name="a", command="b")])
print(sorted({name.partition(".")[0] for name in sys.modules} & {"mcp", "mcp_types", "httpx2", "sse_starlette", "jsonschema"}))
print([name for name in sys.modules if name in ("patchbay.mcp.server", "patchbay.mcp.http_sessions")])
"""


def test_mcp_is_imported_on_first_use_of_the_endpoint_or_of_a_mounted_server() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=BOUND, check=True)
    assert ["[]", "[]"] == done.stdout.split("\n")[:2]
