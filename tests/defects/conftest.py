"""Fixtures of the defect tests: every way of reading a text, and both doors to a scripted model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest

from .doors import Proxy, running_proxy, sdk_client, wrapped_client
from .reading import Read, read_in_all_ways
from .upstream import Upstream


@pytest.fixture
def read() -> Read:
    """Read a text as a whole, and see that streamed in pieces of several sizes it reads the same."""
    return read_in_all_ways


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    """The model's server of the whole run."""
    with Upstream() as server:
        yield server


@pytest.fixture
def model(request: pytest.FixtureRequest) -> str:
    """A model name of this test alone: answers are queued under it, and what was learnt of a model is learnt of this one."""
    return request.node.nodeid


@pytest.fixture(scope="session")
def proxies(upstream: Upstream) -> Iterator[Callable[..., Proxy]]:
    """A running ``patchbay proxy`` before the upstream, one for each set of flags."""
    with ExitStack() as stack:
        running: dict[tuple[str, ...], Proxy] = {}

        def start(*flags: str) -> Proxy:
            if flags not in running:
                running[flags] = stack.enter_context(running_proxy("--upstream", upstream.url, *flags))
            return running[flags]

        yield start


@pytest.fixture(params=["wrap", "proxy"])
def door(request: pytest.FixtureRequest, upstream: Upstream) -> Iterator[Callable[..., openai.OpenAI]]:
    """An ``openai.OpenAI`` for a text-only model: wrapped, or pointed at a proxy. Called with ``tools="text"`` or another mode."""
    with ExitStack() as stack:

        def connect(tools: str = "text", **options: Any) -> openai.OpenAI:
            if request.param == "wrap":
                return stack.enter_context(wrapped_client(upstream.url, tools=tools, **options))
            flags = [flag for name, value in options.items() for flag in (f"--{name.replace('_', '-')}", str(value))]
            proxy = request.getfixturevalue("proxies")("--tools", tools, *flags)
            return stack.enter_context(sdk_client(proxy.url))

        yield connect


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    """Ask for a whole answer, and for a stream."""
    return bool(request.param)
