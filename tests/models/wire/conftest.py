"""A scripted model behind both kinds of client: a wrapped one, and a plain one with a proxy process between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest

from support.chat_clients import Proxy, running_proxy, sdk_client, wrapped_client
from support.scripted_server import SharedUpstream


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
def proxies(upstream: SharedUpstream) -> Iterator[Callable[..., Proxy]]:
    """A running ``patchbay proxy`` in front of the upstream, one for each set of flags."""
    with ExitStack() as stack:
        running: dict[tuple[str, ...], Proxy] = {}

        def start(*flags: str) -> Proxy:
            if flags not in running:
                running[flags] = stack.enter_context(running_proxy("--upstream", upstream.url, *flags))
            return running[flags]

        yield start


@pytest.fixture(params=["wrap", "proxy"])
def connect(request: pytest.FixtureRequest, upstream: SharedUpstream) -> Iterator[Callable[..., openai.OpenAI]]:
    """An ``openai.OpenAI`` for a text-only model: wrapped, or pointed at a proxy. Called with ``tools="text"`` or another mode."""
    with ExitStack() as stack:

        def client(tools: str = "text", **options: Any) -> openai.OpenAI:
            if request.param == "wrap":
                return stack.enter_context(wrapped_client(upstream.url, tools=tools, **options))
            flags = [flag for name, value in options.items() for flag in (f"--{name.replace('_', '-')}", str(value))]
            proxy = request.getfixturevalue("proxies")("--tools", tools, *flags)
            return stack.enter_context(sdk_client(proxy.url))

        yield client


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    """Request a whole response, and a stream."""
    return bool(request.param)
