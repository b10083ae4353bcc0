"""A real ``patchbay proxy`` before a model that writes its calls as text, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from patchbay.testing import ScriptedUpstream
from patchbay.testing.script import Answer
from support.processes import listening

BOUND = 30.0
"""Seconds; no wait is longer."""

MODEL = "qwen3-8b"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The forecast of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer", "maximum": 10}},
            "required": ["place", "days"],
        },
    },
}


def hermes(name: str, arguments: str) -> str:
    """A call as Qwen writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@dataclass
class Proxied:
    """A running proxy. ``answer`` is asked for the answer to each request to the model; a test sets it."""

    url: str = ""
    answer: Callable[[dict[str, Any]], Answer] = field(default=lambda body: "Hello.")

    stop: Callable[[], object] = field(default=lambda: None)
    """Kill the proxy."""
    model = MODEL

    @property
    def origin(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def page(self, path: str = "") -> str:
        return f"{self.origin}/console{path}"

    def chat(self, text: str, *, wait: bool = True, **fields: Any) -> str:
        """Send a question as a client does; return the id of its turn. Without ``wait`` it is sent in a thread, and "" returned."""
        if not wait:
            threading.Thread(target=self.chat, args=(text,), kwargs=fields, daemon=True).start()
            return ""
        server = urlsplit(self.url)
        connection = http.client.HTTPConnection(server.netloc, timeout=BOUND)
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
        with contextlib.closing(connection):
            connection.request("POST", f"{server.path}/chat/completions", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            return response.headers["x-request-id"]


@contextlib.contextmanager
def running_proxy(*flags: str) -> Iterator[Proxied]:
    """Run both."""
    proxied = Proxied()
    with ScriptedUpstream(lambda body: proxied.answer(body), model=MODEL) as upstream:
        command = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream", upstream.url, *flags]
        with listening(command, name="patchbay proxy", timeout=60) as child:
            proxied.url = child.url
            proxied.stop = child.process.kill
            yield proxied
