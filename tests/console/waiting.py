"""A ``serve`` whose calls wait for a person: each question is the call that its model makes."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from console.proxied import hermes
from patchbay.models.options import TextOptions
from patchbay.server.app import create_tools_app
from patchbay.server.governance import Governance, GovernanceSettings
from patchbay.server.settings import ChatSettings
from patchbay.testing import ScriptedUpstream
from patchbay.testing.script import Answer
from support.http_server import ask, serving
from support.served import BOUND, wait_for

POLICY = """
[approvals]
default = "ask"
deadline = 600

[[approvals.rules]]
name = "each payment"
tools = ["pay"]
outcome = "ask"
session = "never"
"""


def write_file(path: str, text: str, mode: Literal["new", "append"] = "new", lines: int = 0) -> str:
    """Write a text into a file."""
    return f"wrote {text!r} into {path} ({mode}, {lines})"


def pay(to: str, euros: float, token: str = "") -> str:
    """Pay an invoice."""
    return f"paid {euros} to {to} {token}"


@dataclass
class Desk:
    """The running server. ``results`` are what the tools returned, as the model got it."""

    port: int
    results: list[str] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def page(self, path: str = "/approvals") -> str:
        return f"{self.url}/console{path}"

    def call(self, tool: str, session: str = "ann", **arguments: Any) -> dict[str, Any]:
        """Make a call in a thread; return its request for approval."""
        known = {each["id"] for each in self.requests()}
        self.start(tool, session, **arguments)
        (request,) = wait_for(lambda: [each for each in self.requests() if each["id"] not in known])
        return request

    def start(self, tool: str, session: str = "ann", **arguments: Any) -> None:
        """Make a call in a thread, whether it waits or not."""

        def work() -> None:
            body = {"model": "qwen3-8b", "messages": [{"role": "user", "content": json.dumps([tool, arguments])}]}
            headers = {"content-type": "application/json", "X-Patchbay-Session": session}
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND)
            with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
                connection.getresponse().read()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.threads.append(thread)

    def requests(self, **query: str) -> list[dict[str, Any]]:
        path = "/api/approvals" + "".join(f"?{name}={value}" for name, value in query.items())
        return ask(self.port, "GET", path).json["approvals"]

    def decide(self, request: dict[str, Any], decision: str, **more: Any) -> tuple[int, Any]:
        body = {"decision": decision, "by": "maria", **more}
        answer = ask(self.port, "POST", f"/api/approvals/{request['id']}", body, headers={"content-type": "application/json"})
        return answer.status, answer.json

    def ended(self) -> list[str]:
        """Wait for the end of all calls; return what the model got for them."""
        for thread in self.threads:
            thread.join(BOUND)
            assert not thread.is_alive()
        return self.results


@contextlib.contextmanager
def running_desk(folder: Path, policy: str = POLICY, *, database: str | None = None) -> Iterator[Desk]:
    """Run the server with these rules."""
    config = folder / "patchbay.toml"
    config.write_text(policy, encoding="utf-8")
    desk = Desk(0)

    def answer(body: dict[str, Any]) -> Answer:
        first, last = (
            next(each for each in found if each["role"] == "user") for found in (body["messages"], body["messages"][::-1])
        )
        if last is not first:
            desk.results.append(last["content"])
            return "Done."
        name, arguments = json.loads(first["content"])
        return hermes(name, json.dumps(arguments))

    with ScriptedUpstream(answer, model="qwen3-8b") as upstream:
        app = create_tools_app(
            ("desk",),
            upstream=upstream.url,
            chat=ChatSettings(options=TextOptions(tools="text")),
            governance=Governance(GovernanceSettings(config=config, approvals=database)),
        )
        for function in (write_file, pay):
            app.managers["desk"].register_tool(function)
        with serving(app) as port:
            desk.port = port
            yield desk
            for request in desk.requests():
                desk.decide(request, "deny")
            desk.ended()
