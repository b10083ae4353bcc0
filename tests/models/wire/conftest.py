"""A scripted model behind both kinds of client: a wrapped one, and a plain one with a proxy process between."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from patchbay.cli.children import Child
from support.chat_clients import ChatResponse, chat, running_proxy, sdk_client, wrapped_client
from support.fenced_texts import TOOLS
from support.http_server import HttpResponse, ask
from support.scripted_server import RecordedRequest, SharedUpstream

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="session")
def upstream() -> Iterator[SharedUpstream]:
    """The model's server of these tests."""
    with SharedUpstream() as server:
        yield server


@pytest.fixture
def model(request: pytest.FixtureRequest) -> str:
    """A model name of this test alone: its responses are queued under it, and capabilities are remembered by it."""
    return request.node.nodeid


@pytest.fixture(scope="session")
def proxies(upstream: SharedUpstream) -> Iterator[Callable[..., Child]]:
    """A running ``patchbay proxy`` in front of the upstream, one for each set of flags."""
    with ExitStack() as stack:
        running: dict[tuple[str, ...], Child] = {}

        def start(*flags: str) -> Child:
            if flags not in running:
                running[flags] = stack.enter_context(running_proxy("--upstream", upstream.url, *flags))
            return running[flags]

        yield start


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    """Request a whole response, and a stream."""
    return bool(request.param)


class Wire:
    """A client of a model, which answers what it is told."""

    def __init__(self, upstream: SharedUpstream, model: str, connect: Callable[..., openai.OpenAI]) -> None:
        self.upstream = upstream
        self.model = model
        self.connect = connect

    @property
    def requests(self) -> list[RecordedRequest]:
        """The requests that reached the model's server."""
        return self.upstream.seen[self.model]

    def ask(
        self,
        *answers: Any,
        stream: bool,
        mode: str = "text",
        retries: int = 0,
        options: dict[str, Any] | None = None,
        **body: Any,
    ) -> ChatResponse:
        """Queue the model's answers, and ask it once. ``options`` are the wrapper's or the proxy's."""
        if answers:
            self.upstream.on(self.model, *answers)
        client = self.connect(mode, **(options or {})).with_options(max_retries=retries)
        body = {"tools": TOOLS, **body} if "functions" not in body else body
        return chat(client, self.model, stream=stream, **body)


@pytest.fixture(params=["wrap", "proxy"])
def wire(request: pytest.FixtureRequest, upstream: SharedUpstream, model: str) -> Iterator[Wire]:
    """A wrapped client, and one that is pointed at a proxy."""
    with ExitStack() as stack:

        def connect(tools: str, **options: Any) -> openai.OpenAI:
            if request.param == "wrap":
                return stack.enter_context(wrapped_client(upstream.url, tools=tools, **options))
            flags = [flag for name, value in options.items() for flag in (f"--{name.replace('_', '-')}", str(value))]
            proxy = request.getfixturevalue("proxies")("--tools", tools, *flags)
            return stack.enter_context(sdk_client(proxy.url))

        yield Wire(upstream, model, connect)


@pytest.fixture
def post(proxies: Callable[..., Child]) -> Callable[..., HttpResponse]:
    """Send a body to a proxy of a text-only model."""

    def post(body: Any) -> HttpResponse:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        port = urlsplit(proxies("--tools", "text").url).port
        return ask(port, "POST", CHAT, data, headers={"content-type": "application/json"})

    return post
